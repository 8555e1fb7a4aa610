// Durations as people write them, such as 1 h 30 min, shown in the words of the page's language. The API has whole seconds or
// milliseconds.

import { inEach, say } from './language.js';

// The milliseconds of each unit, and words for it in any language of the page. `src/cli/shared/duration.rs` reads the same texts.
/** @type {[number, string, string[]][]} */
const UNITS = [
    [86_400_000, 'd', ['d', 'day', 'days']],
    [3_600_000, 'h', ['h', 'hr', 'hrs', 'hour', 'hours']],
    [60_000, 'min', ['min', 'm', 'mins', 'minute', 'minutes']],
    [1000, 's', ['s', 'sec', 'secs', 'second', 'seconds']],
    [1, 'ms', ['ms']],
];
const PART = /(\d{1,12})\s*([^\d\s]+)\s*/gy;

/** @type {(milliseconds: number) => string} */
export function durationText(milliseconds) {
    const parts = [];
    let rest = milliseconds;
    for (const [length, unit] of UNITS) {
        const count = Math.floor(rest / length);
        if (count > 0) {
            parts.push(`${count} ${say(`unit_${unit}`)}`);
        }
        rest -= count * length;
    }
    return parts.join(' ') || `0 ${say('unit_s')}`;
}

// A text may have been typed before the page changed its language.
/** @type {(word: string) => number} */
const lengthOf = (word) =>
    UNITS.find(([, unit, words]) => words.includes(word) || inEach(`unit_${unit}`).includes(word))?.[0] ?? NaN;

// The milliseconds; null if the text is no duration. A number without its unit could mean seconds or minutes, so only 0 may
// stand alone.
/** @type {(text: string) => number | null} */
export function durationOf(text) {
    const typed = text.trim();
    const parts = [...typed.matchAll(PART)];
    if (parts.length === 0 || typed !== parts.map(([part]) => part).join('')) {
        return typed === '0' ? 0 : null;
    }
    const sum = parts.reduce((all, [, count, word]) => all + Number(count) * lengthOf(word), 0);
    return Number.isNaN(sum) ? null : sum;
}
