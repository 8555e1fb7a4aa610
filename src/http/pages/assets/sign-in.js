// Who the shopper is: whoever the token says that the shop's own sign-in has handed out. It is kept as long as the tab.

import { ask } from './api.js';
import { developmentHeaders, forgetLink, hasLink, isDevelopment } from './development.js';
import { byId, setText, show } from './dom.js';
import { say } from './language.js';
import { ofTab } from './storage.js';

const KEPT = 'flashsale.token';

let why = '';

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

export function showSignIn() {
    const who = shopper();
    show(byId('sign-in'), !who);
    show(byId('as-anybody'), hasLink());
    show(byId('no-link'), isDevelopment && !hasLink());
    show(byId('who'), Boolean(who));
    show(byId('sign-out'), Boolean(who));
    setText(byId('who'), who?.user ?? '');
    setText(byId('sign-in-why'), why && say(why));
}

// Says why one has to sign in, and takes the shopper there.
export function wantSignIn(reason) {
    why = reason;
    showSignIn();
    byId('sign-in').scrollIntoView({ block: 'center' });
    (hasLink() ? byId('user') : byId('token')).focus();
}

export function signOut() {
    ofTab.remove(KEPT);
    why = '';
}

// Calls `changed` whenever somebody has signed in or out.
export function startSignIn(changed) {
    function signIn(token) {
        if (!claims(token)) {
            why = 'noToken';
            showSignIn();
            return;
        }
        why = '';
        ofTab.set(KEPT, token);
        byId('token').value = '';
        changed();
        byId('main').focus();
    }
    byId('by-token').addEventListener('submit', (event) => {
        event.preventDefault();
        signIn(byId('token').value.trim());
    });
    byId('as-anybody').addEventListener('submit', async (event) => {
        event.preventDefault();
        const body = { user: byId('user').value.trim() };
        const answer = await ask('POST', '/dev/token', { headers: developmentHeaders(), body });
        if (answer.isOk) {
            signIn(answer.body.token);
            return;
        }
        why = { invalid_request: 'notSignedIn', not_found: 'wrongLink' }[answer.code] ?? 'noAnswer';
        if (why === 'wrongLink') {
            forgetLink();
        }
        showSignIn();
    });
    byId('sign-out').addEventListener('click', () => {
        signOut();
        changed();
    });
    showSignIn();
}
