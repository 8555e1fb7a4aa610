// Numbers and prices as people write them, such as 10,000 and 499.00. A price goes by the digits of its currency. The API has
// it in the smallest unit.

import { digitsOf } from './currency.js';
import { form, LANGUAGES } from './language.js';

const WHOLE = /^-?(?:\d{1,15}|[1-9]\d{0,2}(?:,\d{3}){1,4})$/;
// Plain, and with separators of thousands: 1,299.00 or 1.299,00 or 1 299.00.
const PRICES = [
    /^(\d{1,11})(?:[.,](\d+))?$/,
    /^([1-9]\d{0,2}(?:,\d{3}){1,3})(?:\.(\d+))?$/,
    /^([1-9]\d{0,2}(?:\.\d{3}){1,3}),(\d+)$/,
    /^([1-9]\d{0,2}(?: \d{3}){1,3})(?:[.,](\d+))?$/,
];
// A price with a sign or a code before or behind it, such as €499 or 499 EUR.
const SIGNED = /^([\p{L}\p{Sc}]*) *(\d|\d.*\d) *([\p{L}\p{Sc}]*)$/u;
const SIGN_FORMS = /** @type {const} */ (['symbol', 'narrowSymbol', 'code']);

// The whole number; null if the text is none. A point is refused: it separates thousands in some countries, and the fraction
// in others.
/** @type {(text: string) => number | null} */
export const wholeOf = (text) => (WHOLE.test(text.trim()) ? Number(text.replaceAll(',', '')) : null);

// A number, or the text of a price, with separators of thousands.
/** @type {(number: number | string) => string} */
export const grouped = (number) => String(number).replace(/\d+/, (whole) => whole.replace(/\B(?=(\d{3})+$)/g, ','));

// The parts of a typed price: the sign before it, the digits, the sign behind it. Spaces of any width become plain ones, and
// full-width characters narrow ones.
/** @type {(text: string) => string[]} */
const partsOf = (text) => SIGNED.exec(text.normalize('NFKC').trim())?.slice(1) ?? ['', text, ''];

// The signs of a currency, with its code, as people of any country write them. A text that is no code has none.
/** @type {(currency: string) => string[]} */
function signsOf(currency) {
    try {
        const formats = [...LANGUAGES, form()].flatMap((language) =>
            SIGN_FORMS.map((currencyDisplay) => new Intl.NumberFormat(language, { style: 'currency', currency, currencyDisplay })),
        );
        return formats.map((format) => format.formatToParts(0).find(({ type }) => type === 'currency')?.value ?? currency);
    } catch {
        return [];
    }
}

// The sign or code in a typed price that is of another currency; empty if there is none, or no currency to compare with.
/** @type {(text: string, currency: string) => string} */
export function strangeSign(text, currency) {
    const [before, , behind] = partsOf(text);
    const own = signsOf(currency).map((sign) => sign.toUpperCase());
    const isStrange = (sign) => sign !== '' && own.length > 0 && !own.includes(sign.toUpperCase());
    return [before, behind].find(isStrange) ?? '';
}

// The price in the smallest unit; null if the text is none, or has two readings: with three digits behind the point, 1,299
// may be 1.299 or 1299.
/** @type {(text: string, currency: string) => number | null} */
export function minorOf(text, currency) {
    const digits = digitsOf(currency);
    const [, amount] = partsOf(text);
    const readings = PRICES.flatMap((pattern) => {
        const [, whole = '', fraction = ''] = pattern.exec(amount) ?? [];
        const isPrice = whole !== '' && fraction.length <= digits;
        return isPrice ? [Number(whole.replace(/[., ]/g, '') + fraction.padEnd(digits, '0'))] : [];
    });
    return readings.length === 1 && strangeSign(text, currency) === '' ? readings[0] : null;
}

/** @type {(minor: number, currency: string) => string} */
export function priceText(minor, currency) {
    const digits = digitsOf(currency);
    const text = String(minor).padStart(digits + 1, '0');
    return digits === 0 ? text : `${text.slice(0, -digits)}.${text.slice(-digits)}`;
}
