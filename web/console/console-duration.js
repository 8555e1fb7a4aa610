// Durations as people write them, such as 1 h 30 min, with the words of the page's language. The API has whole seconds or
// milliseconds.

import { inEach, say } from './language.js';

/** @type {Record<string, number>} */
const MILLISECONDS = { d: 86_400_000, h: 3_600_000, min: 60_000, s: 1000, ms: 1 };
const UNITS = Object.keys(MILLISECONDS);
const PART = /(\d{1,12})\s*([^\d\s]+)\s*/gy;

/** @type {(milliseconds: number) => string} */
export function durationText(milliseconds) {
    const parts = [];
    let rest = milliseconds;
    for (const unit of UNITS) {
        const count = Math.floor(rest / MILLISECONDS[unit]);
        if (count > 0) {
            parts.push(`${count} ${say(`unit_${unit}`)}`);
        }
        rest -= count * MILLISECONDS[unit];
    }
    return parts.join(' ') || `0 ${say('unit_s')}`;
}

// The words of every language are read: a text may have been typed before the page changed its own.
const unitOf = (word) => UNITS.find((unit) => inEach(`unit_${unit}`).includes(word));

// The milliseconds; null if the text is no duration. A number without its unit could mean seconds or minutes, so only 0 may
// stand alone.
/** @type {(text: string) => number | null} */
export function durationOf(text) {
    const typed = text.trim();
    const parts = [...typed.matchAll(PART)];
    if (typed !== parts.map(([part]) => part).join('')) {
        return typed === '0' ? 0 : null;
    }
    const lengths = parts.map(([, count, word]) => Number(count) * (MILLISECONDS[unitOf(word) ?? ''] ?? NaN));
    const sum = lengths.reduce((all, length) => all + length, 0);
    return parts.length === 0 || Number.isNaN(sum) ? null : sum;
}
