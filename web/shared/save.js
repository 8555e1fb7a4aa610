// Saves data as a file of the reader's.

import { element } from './dom.js';

// How long the browser may take to begin the file.
const KEPT_MS = 60_000;

/** @type {(data: Blob, name: string) => void} */
export function save(data, name) {
    const address = URL.createObjectURL(data);
    element('a', { href: address, download: name }).click();
    setTimeout(() => URL.revokeObjectURL(address), KEPT_MS);
}
