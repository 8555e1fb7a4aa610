// Notes of unpaid orders, for the list of sales and for a shopper who signs out. The page of a sale notes until when its
// order waits for its payment. A tab keeps the notes as long as the sign-in.

import { ofTab, readOfTab } from './storage.js';

const NOTES = 'flashsale.unpaid';
// More than a shopper follows at a time.
const NOTES_MAX = 50;

/** @type {() => { sale: string, user: string, until: number }[]} */
const read = () => readOfTab(NOTES, (notes) => notes ?? []);

// The notes of a shopper whose time is not over. `until` is by the server's clock.
/** @type {(user: string, now: number) => { sale: string, until: number }[]} */
export const unpaidOf = (user, now) => read().filter((note) => note.user === user && note.until > now);

// Notes the order of a sale whose time ends first; null if there is none. Drops notes whose time is over.
/** @type {(sale: string, user: string, until: number | null, now: number) => void} */
export function noteUnpaid(sale, user, until, now) {
    const others = read().filter((note) => note.until > now && (note.sale !== sale || note.user !== user));
    const own = until === null ? [] : [{ sale, user, until }];
    const text = JSON.stringify([...others, ...own].slice(-NOTES_MAX));
    if (text !== (ofTab.get(NOTES) ?? '[]')) {
        ofTab.set(NOTES, text);
    }
}
