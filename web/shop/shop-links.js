// Links into the surrounding shop: its sign-in and its payment page, if this instance has them configured.

import { searchAlone, signInState } from './token.js';

const { signInUrl, payUrl } = document.documentElement.dataset;

// Without the fragment, which may be a token.
const here = () => location.origin + location.pathname + searchAlone();

function hereWithState() {
    const page = here();
    return `${page}${page.includes('?') ? '&' : '?'}sign_in_state=${signInState()}`;
}

function filled(url, places) {
    return url.replaceAll(/\{(\w+)\}/g, (_place, name) => encodeURIComponent(places[name]));
}

export const signInLink = () => (signInUrl ? filled(signInUrl, { return: hereWithState() }) : null);

export const payLink = (order) => (payUrl ? filled(payUrl, { order, return: here() }) : null);
