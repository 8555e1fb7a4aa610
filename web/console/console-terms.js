// The terms of a sale and of its items: their fields in the form, with the texts of a new sale, and their words elsewhere.
// The form has two columns. A field that `isWide` fills both, so that fields that belong together share a row.

import { durationText } from './console-duration.js';
import { momentExact } from './format.js';
import { apart, say } from './language.js';

// The milliseconds of a duration that the API has in seconds.
export const SECOND = 1000;

export const TERMS = [
    { name: 'name', label: 'name', kind: 'text', isWide: true },
    { name: 'description', label: 'description', kind: 'lines', max: 2000, mayLack: true, isWide: true },
    { name: 'image_url', label: 'picture', kind: 'text', max: 2000, hint: 'pictureHint', mayLack: true, isExact: true, isWide: true },
    { name: 'starts_at', label: 'starts', kind: 'time', hint: 'zoneHint' },
    { name: 'ends_at', label: 'ends', kind: 'time' },
    { name: 'shards', label: 'shards', kind: 'whole', min: 1, max: 256, hint: 'shardsHint', initial: '4' },
    { name: 'payment_window_seconds', label: 'paymentWindow', kind: 'duration', unit: SECOND, min: 1, max: 86_400, initial: '15 min' },
    { name: 'purchase_rate.limit', label: 'rateLimit', kind: 'whole', min: 1, max: 1000, hint: 'rateHint', initial: '5' },
    { name: 'purchase_rate.window_ms', label: 'rateWindow', kind: 'duration', unit: 1, min: 1, max: 86_400_000, initial: '1 min' },
    {
        name: 'durability',
        label: 'durability',
        kind: 'choice',
        prefix: 'durability',
        options: ['redis', 'replica', 'postgres'],
        initial: 'redis',
    },
];
export const ITEM_TERMS = [
    { name: 'sku', label: 'sku', kind: 'text', max: 64, pattern: /^[\w.-]+$/, must: 'must_sku', hint: 'skuHint' },
    { name: 'name', label: 'name', kind: 'text' },
    { name: 'price_minor', label: 'price', kind: 'price', min: 0, max: 10_000_000_000, hint: 'priceHint' },
    { name: 'currency', label: 'currency', kind: 'text', max: 3 },
    { name: 'stock', label: 'stock', kind: 'whole', min: 0, max: 1_000_000_000 },
    { name: 'per_user_limit', label: 'limit', kind: 'whole', min: 1, max: 100_000 },
    { name: 'group', label: 'group', kind: 'text', max: 100, hint: 'groupHint', mayLack: true },
    { name: 'option', label: 'option', kind: 'text', max: 100, mayLack: true },
    { name: 'description', label: 'description', kind: 'lines', max: 2000, mayLack: true, isWide: true },
    { name: 'image_url', label: 'picture', kind: 'text', max: 2000, hint: 'pictureHint', mayLack: true, isExact: true, isWide: true },
];

// Terms with rules that the API checks. The page explains the rule in its own words.
const JUDGED = [
    'name',
    'description',
    'image_url',
    'starts_at',
    'ends_at',
    'durability',
    'sku',
    'currency',
    'group',
    'option',
    'challenge',
];

/** The rule of a term in words; empty where the API explains it. @param {string} [name] */
export const ruleOf = (name = '') => (JUDGED.includes(name) ? say(`must_${name}`) : '');

/** The value of a term, whose name may have parts. @param {{ name: string }} term @param {any} sale */
export const termOf = ({ name }, sale) => name.split('.').reduce((inner, part) => inner?.[part], sale);

export function timeText(value) {
    return Number.isNaN(Date.parse(value)) ? apart(value) : momentExact(value);
}

/** A term's value in words. @param {{ kind: string, prefix?: string, unit?: number }} term @param {any} value */
export function termText({ kind, prefix, unit = 1 }, value) {
    if (value === null || value === undefined) {
        return '–';
    }
    if (kind === 'time') {
        return timeText(value);
    }
    if (kind === 'duration' && Number.isInteger(value) && value >= 0) {
        return durationText(value * unit);
    }
    const text = kind === 'choice' ? say(`${prefix}_${value}`) : '';
    return text && !text.startsWith(`${prefix}_`) ? text : apart(value);
}
