// The shopper's token, from the shop's own sign-in: pasted, or handed over behind the `#` of a link, of which no server hears.
// It is kept as long as the tab.

import { ofTab } from './storage.js';

const KEPT = 'flashsale.token';
const START = '#token=';

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

// Calls `take` with each token that is handed over in the address, now and later. It does not stay there, so that it is not
// passed on with it; and whoever was signed in before is not who is meant.
export function startHandedTokens(take) {
    function look() {
        if (location.hash.startsWith(START)) {
            const token = location.hash.slice(START.length);
            history.replaceState(null, '', location.pathname + location.search);
            forgetToken();
            take(token);
        }
    }
    look();
    window.addEventListener('hashchange', look);
}
