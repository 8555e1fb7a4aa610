// Development mode: whoever has opened the link that the program printed signs in as anybody and pays with nothing.

import { lasting } from './storage.js';

const KEPT = 'flashsale.development';
const START = '#development=';

export const isDevelopment = document.documentElement.dataset.development === 'yes';

// Takes the key out of the address, so that it is not passed on with it.
function take() {
    if (location.hash.startsWith(START)) {
        lasting.set(KEPT, location.hash.slice(START.length));
        history.replaceState(null, '', location.pathname + location.search);
    }
}

if (isDevelopment) {
    take();
    window.addEventListener('hashchange', take);
}

export const hasLink = () => isDevelopment && Boolean(lasting.get(KEPT));

export const developmentHeaders = () => ({ 'X-Development-Key': lasting.get(KEPT) ?? '' });

// The key is another instance's, or an earlier one's.
export function forgetLink() {
    lasting.remove(KEPT);
}
