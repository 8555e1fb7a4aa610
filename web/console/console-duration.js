// Durations as people write them, such as 1 h 30 min. The symbols are the same in every language. The API has whole seconds
// or milliseconds.

/** @type {Record<string, number>} */
const MILLISECONDS = { d: 86_400_000, h: 3_600_000, min: 60_000, s: 1000, ms: 1 };
const PART = /(\d{1,12})\s*(d|h|min|s|ms)\s*/gy;

/** @type {(milliseconds: number) => string} */
export function durationText(milliseconds) {
    const parts = [];
    let rest = milliseconds;
    for (const [symbol, length] of Object.entries(MILLISECONDS)) {
        const count = Math.floor(rest / length);
        if (count > 0) {
            parts.push(`${count} ${symbol}`);
        }
        rest -= count * length;
    }
    return parts.join(' ') || '0 s';
}

// The milliseconds; null if the text is no duration. A number without its unit could mean seconds or minutes, so only 0 may
// stand alone.
/** @type {(text: string) => number | null} */
export function durationOf(text) {
    const typed = text.trim();
    const parts = [...typed.matchAll(PART)];
    if (typed !== parts.map(([part]) => part).join('')) {
        return typed === '0' ? 0 : null;
    }
    return parts.length === 0 ? null : parts.reduce((sum, [, count, symbol]) => sum + Number(count) * MILLISECONDS[symbol], 0);
}
