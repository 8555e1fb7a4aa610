// Development mode: the link that the program printed lets you sign in as anybody and pay without money.

import { lasting } from './storage.js';

const KEPT = 'flashsale.development';
const START = '#development=';

export const isDevelopment = document.documentElement.dataset.development === 'yes';

// Removes the key from the address, so that a shared address does not contain it.
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

// Called when the key belongs to another instance or an earlier start.
export function forgetLink() {
    lasting.remove(KEPT);
}
