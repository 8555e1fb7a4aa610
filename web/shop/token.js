// The shopper's token, from the shop's own sign-in: pasted, or handed over behind the `#` of a link, of which no server hears.
// It is kept as long as the tab.

import { ofTab } from './storage.js';

const KEPT = 'flashsale.token';
const OFFERED = 'flashsale.offered';
const STATE = 'flashsale.sign-in';
const START = '#token=';
const WITH_STATE = /[?&]sign_in_state=([0-9a-f]*)$/;

// What a token says of itself; whether it is true, the server knows.
function claims(token) {
    try {
        const part = token.split('.')[1].replaceAll('-', '+').replaceAll('_', '/');
        const bytes = Uint8Array.from(atob(part), (char) => char.charCodeAt(0));
        const said = JSON.parse(new TextDecoder().decode(bytes));
        return typeof said.sub === 'string' && said.sub !== '' ? said : null;
    } catch {
        return null;
    }
}

// The shopper, as { user, token }, or null.
export function shopper() {
    const token = ofTab.get(KEPT);
    const said = token && claims(token);
    return said ? { user: said.sub, token } : null;
}

// Whether it is one, and is kept from now on.
export function keepToken(token) {
    const isToken = claims(token) !== null;
    if (isToken) {
        ofTab.set(KEPT, token);
    }
    return isToken;
}

export function forgetToken() {
    ofTab.remove(KEPT);
}

// What this tab sends along to the shop's sign-in, and expects back with the token: whoever makes a link for somebody else
// does not know it.
export function signInState() {
    const state = ofTab.get(STATE) ?? hex(crypto.getRandomValues(new Uint8Array(16)));
    ofTab.set(STATE, state);
    return state;
}

const hex = (bytes) => Array.from(bytes, (byte) => byte.toString(16).padStart(2, '0')).join('');

// The query of the address without a state.
export const searchAlone = () => location.search.replace(WITH_STATE, '');

// Takes a state once, if it is the one that this tab sent.
function takeState() {
    const state = WITH_STATE.exec(location.search)?.[1];
    const isOurs = state !== undefined && state === ofTab.get(STATE);
    if (isOurs) {
        ofTab.remove(STATE);
    }
    return isOurs;
}

// A shopper whom a link has brought that this tab did not ask for, as { user, token }, or null.
export function offered() {
    const token = ofTab.get(OFFERED);
    const said = token && claims(token);
    return said ? { user: said.sub, token } : null;
}

// Keeps the token of such a link until the shopper says whether to sign in with it. Returns whether it is one.
export function offer(token) {
    const isToken = claims(token) !== null;
    if (isToken && token !== ofTab.get(KEPT)) {
        ofTab.set(OFFERED, token);
    }
    return isToken;
}

export function forgetOffer() {
    ofTab.remove(OFFERED);
}

// Calls `take` with each token that is handed over in the address, now and later, and with whether this tab asked for it. It
// does not stay in the address, so that it is not passed on with it.
export function startHandedTokens(take) {
    function look() {
        if (location.hash.startsWith(START)) {
            const token = location.hash.slice(START.length);
            const isAsked = takeState();
            history.replaceState(null, '', location.pathname + searchAlone());
            take(token, isAsked);
        }
    }
    look();
    window.addEventListener('hashchange', look);
}
