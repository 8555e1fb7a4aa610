// The shopper's token from the shop's own sign-in. The shopper pastes it, or a link carries it in the fragment, which
// browsers never send to a server. It is stored for the life of the tab.

import { ofTab } from './storage.js';

const KEPT = 'flashsale.token';
const OFFERED = 'flashsale.offered';
const STATE = 'flashsale.sign-in';
const START = '#token=';
const WITH_STATE = /[?&]sign_in_state=([0-9a-f]*)$/;

// The token's claims, unverified. Only the server can verify them.
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
/** @type {() => Shopper | null} */
export function shopper() {
    const token = ofTab.get(KEPT);
    const said = token && claims(token);
    return said ? { user: said.sub, token } : null;
}

// Stores a token. Returns false if it is not one.
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

// The state that this tab sends to the shop's sign-in and expects back with the token. An attacker who makes a link does
// not know it.
export function signInState() {
    const state = ofTab.get(STATE) ?? hex(crypto.getRandomValues(new Uint8Array(16)));
    ofTab.set(STATE, state);
    return state;
}

const hex = (bytes) => Array.from(bytes, (byte) => byte.toString(16).padStart(2, '0')).join('');

// The query string without the state.
export const searchAlone = () => location.search.replace(WITH_STATE, '');

// Uses up the state if it is the one that this tab sent.
function takeState() {
    const state = WITH_STATE.exec(location.search)?.[1];
    const isOurs = state !== undefined && state === ofTab.get(STATE);
    if (isOurs) {
        ofTab.remove(STATE);
    }
    return isOurs;
}

// The shopper of a link that this tab did not ask for, as { user, token }, or null.
/** @type {() => Shopper | null} */
export function offered() {
    const token = ofTab.get(OFFERED);
    const said = token && claims(token);
    return said ? { user: said.sub, token } : null;
}

// Stores the token of such a link until the shopper decides. Returns false if it is not a token.
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

// Calls `take` with each token in the address, now and later, and with whether this tab asked for it. The token is removed
// from the address, so that a shared address does not contain it.
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
