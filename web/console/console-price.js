// Numbers and prices as people write them, such as 10,000 and 499.00. A price goes by the digits of its currency. The API has
// it in the smallest unit.

import { digitsOf } from './currency.js';

const WHOLE = /^-?(?:\d{1,15}|[1-9]\d{0,2}(?:,\d{3}){1,4})$/;
// Plain, and with separators of thousands: 1,299.00 or 1.299,00.
const PRICES = [
    /^(\d{1,11})(?:[.,](\d+))?$/,
    /^([1-9]\d{0,2}(?:,\d{3}){1,3})(?:\.(\d+))?$/,
    /^([1-9]\d{0,2}(?:\.\d{3}){1,3}),(\d+)$/,
];

// The whole number; null if the text is none. A point is refused: it separates thousands in some countries, and the fraction
// in others.
/** @type {(text: string) => number | null} */
export const wholeOf = (text) => (WHOLE.test(text.trim()) ? Number(text.replaceAll(',', '')) : null);

// A number, or the text of a price, with separators of thousands.
/** @type {(number: number | string) => string} */
export const grouped = (number) => String(number).replace(/\d+/, (whole) => whole.replace(/\B(?=(\d{3})+$)/g, ','));

// The price in the smallest unit; null if the text is none, or has two readings: with three digits behind the point, 1,299
// may be 1.299 or 1299.
/** @type {(text: string, currency: string) => number | null} */
export function minorOf(text, currency) {
    const digits = digitsOf(currency);
    const readings = PRICES.flatMap((form) => {
        const [, whole = '', fraction = ''] = form.exec(text.trim()) ?? [];
        const isPrice = whole !== '' && fraction.length <= digits;
        return isPrice ? [Number(whole.replace(/[.,]/g, '') + fraction.padEnd(digits, '0'))] : [];
    });
    return readings.length === 1 ? readings[0] : null;
}

/** @type {(minor: number, currency: string) => string} */
export function priceText(minor, currency) {
    const digits = digitsOf(currency);
    const text = String(minor).padStart(digits + 1, '0');
    return digits === 0 ? text : `${text.slice(0, -digits)}.${text.slice(-digits)}`;
}
