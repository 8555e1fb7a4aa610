// The shop around these pages: where it signs shoppers in and takes their money, if this instance was told.

const { signInUrl, payUrl } = document.documentElement.dataset;

// Without what stands behind the `#`, which may be a token.
const here = () => location.origin + location.pathname + location.search;

function filled(url, places) {
    return url.replaceAll(/\{(\w+)\}/g, (_place, name) => encodeURIComponent(places[name]));
}

export const signInLink = () => (signInUrl ? filled(signInUrl, { return: here() }) : null);

export const payLink = (order) => (payUrl ? filled(payUrl, { order, return: here() }) : null);
