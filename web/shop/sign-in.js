// Signs the shopper in. The shopper is the subject of the token that the shop's own sign-in issued.

import { ask } from './api.js';
import { now } from './clock.js';
import { developmentHeaders, forgetLink, hasLink, isDevelopment } from './development.js';
import { byId, setAttribute, setText, show } from './dom.js';
import { momentNear } from './format.js';
import { say } from './language.js';
import { signInLink } from './shop-links.js';
import { forgetOffer, forgetToken, keepToken, offer, offered, shopper, startHandedTokens } from './token.js';
import { unpaidOf } from './unpaid.js';

let why = '';
// Until when an order of the shopper who has signed out stays reserved.
let reservedUntil = 0;

// What a wrong field can be wrong about.
const OF_FIELDS = { token: 'noToken', user: 'notSignedIn' };

export function showSignIn() {
    const who = shopper();
    const other = offered();
    show(byId('offer'), other !== null);
    setText(byId('offer-who'), other === null ? '' : say('offered', { user: other.user }));
    show(byId('sign-in'), !who);
    show(byId('to-sign-in'), !who);
    const link = signInLink();
    show(byId('at-shop'), link !== null);
    show(byId('by-token'), link === null);
    if (link !== null) {
        setAttribute(byId('shop-sign-in'), 'href', link);
    }
    show(byId('as-anybody'), hasLink());
    show(byId('no-link'), isDevelopment && !hasLink());
    show(byId('who'), Boolean(who));
    show(byId('sign-out'), Boolean(who));
    setText(byId('who'), who?.user ?? '');
    const isReserved = why === 'stillReserved';
    setText(byId('sign-in-why'), why && say(why, isReserved ? { time: momentNear(reservedUntil, now()) } : {}));
    setAttribute(byId('token'), 'aria-invalid', why === OF_FIELDS.token ? 'true' : 'false');
    setAttribute(byId('user'), 'aria-invalid', why === OF_FIELDS.user ? 'true' : 'false');
}

// Shows why a sign-in is needed, and moves the shopper there.
export function wantSignIn(reason) {
    why = reason;
    showSignIn();
    byId('sign-in').scrollIntoView({ block: 'center' });
    const way = hasLink() ? 'user' : signInLink() === null ? 'token' : 'shop-sign-in';
    byId(way).focus();
}

export function signOut() {
    forgetToken();
    why = '';
}

// Calls `changed` after each sign-in and sign-out.
export function startSignIn(changed) {
    function signIn(token) {
        if (!keepToken(token)) {
            why = signInLink() === null ? 'noToken' : 'noTokenCame';
            showSignIn();
            return;
        }
        why = '';
        byId('token').value = '';
        byId('main').focus();
        // May move the focus to what the shopper wanted.
        changed();
    }
    byId('by-token').addEventListener('submit', (event) => {
        event.preventDefault();
        signIn(byId('token').value.trim());
        if (why === OF_FIELDS.token) {
            byId('token').focus();
        }
    });
    byId('as-anybody').addEventListener('submit', async (event) => {
        event.preventDefault();
        const body = { user: byId('user').value.trim() };
        const answer = await ask('POST', '/dev/token', { headers: developmentHeaders(), body });
        if (answer.isOk) {
            signIn(answer.body.token);
            return;
        }
        /** @type {Partial<Record<Answer['code'], string>>} */
        const words = { invalid_request: 'notSignedIn', not_found: 'wrongLink' };
        why = words[answer.code] ?? 'noAnswer';
        if (why === 'wrongLink') {
            forgetLink();
        }
        showSignIn();
        if (why === OF_FIELDS.user) {
            byId('user').focus();
        }
    });
    byId('sign-out').addEventListener('click', () => {
        const who = shopper();
        const unpaid = who ? unpaidOf(who.user, now() ?? 0) : [];
        signOut();
        if (unpaid.length > 0) {
            why = 'stillReserved';
            reservedUntil = Math.min(...unpaid.map(({ until }) => until));
        }
        changed();
        // The button disappears, and the focus would be lost with it.
        byId('main').focus();
        if (unpaid.length > 0) {
            byId('sign-in').scrollIntoView({ block: 'center' });
        }
    });
    byId('take-offer').addEventListener('click', () => {
        const other = offered();
        forgetOffer();
        if (other !== null) {
            signIn(other.token);
        }
    });
    byId('decline-offer').addEventListener('click', () => {
        forgetOffer();
        showSignIn();
        byId('main').focus();
    });
    // A link that this tab did not ask for signs nobody in or out.
    startHandedTokens((token, isAsked) => {
        if (isAsked || !offer(token)) {
            signIn(token);
        }
    });
    showSignIn();
}
