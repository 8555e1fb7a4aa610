// Prices as people write them, such as 499.00, by the digits of the currency. The API has them in the smallest unit.

import { digitsOf } from './currency.js';

const WRITTEN = /^(\d{1,11})(?:[.,](\d+))?$/;

// The price in the smallest unit; null if the text is none. Separators of thousands are refused: in other countries they
// separate the fraction.
/** @type {(text: string, currency: string) => number | null} */
export function minorOf(text, currency) {
    const digits = digitsOf(currency);
    const [, whole = '', fraction = ''] = WRITTEN.exec(text.trim()) ?? [];
    return whole === '' || fraction.length > digits ? null : Number(whole + fraction.padEnd(digits, '0'));
}

/** @type {(minor: number, currency: string) => string} */
export function priceText(minor, currency) {
    const digits = digitsOf(currency);
    const text = String(minor).padStart(digits + 1, '0');
    return digits === 0 ? text : `${text.slice(0, -digits)}.${text.slice(-digits)}`;
}
