// A line chart of the last minutes or of a given time, with a legend and the values of the last point.

import { word } from './console-table.js';
import { drawn, element, setAttribute, setChildren, setText } from './dom.js';
import { momentExact } from './format.js';
import { say } from './language.js';

const WIDTH = 600;
const HEIGHT = 160;
// The time span of the chart: the most, and the least while there are few points.
const SPAN_MAX_MS = 300_000;
const SPAN_MIN_MS = 60_000;
// Points further apart than this are not joined: the time between is unknown.
const GAP_MS = 10_000;
const TONES = 6;
// The most lines, each with its own stroke. Beyond that, the smallest are summed into one line.
const LINES_MAX = 8;
const OTHERS = '(others)';
const STROKE = { width: 48, height: 8 };
// How wide a lone point is drawn.
const DOT = 3;

// The next round number at or above `value`.
function ceiling(value) {
    const power = 10 ** Math.floor(Math.log10(Math.max(value, 1)));
    return [1, 2, 5, 10].map((step) => step * power).find((nice) => nice >= value) ?? value;
}

// The path of points that are joined. A path of one point alone would draw nothing.
/** @param {[number, number][]} joined */
function pathOf(joined) {
    const [[x, y]] = joined;
    const points = joined.map((point) => point.map((it) => it.toFixed(1)).join(' '));
    return joined.length > 1 ? `M${points.join('L')}` : `M${(x - DOT / 2).toFixed(1)} ${y.toFixed(1)}h${DOT}`;
}

const rounded = (value) => (value >= 100 ? Math.round(value) : Math.round(value * 10) / 10);

// `nameOf(key)` names a line, `unit` is the text key of a value, and `first` is the tone of the first line.
export function plotOf({ title, hint, unit, nameOf, first = 0 }) {
    const top = element('span', { class: 'axis' });
    const ground = drawn('path', { class: 'ground', d: `M0 1H${WIDTH}M0 ${HEIGHT / 2}H${WIDTH}M0 ${HEIGHT - 1}H${WIDTH}` });
    const svg = drawn('svg', { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: 'none', 'aria-hidden': 'true' }, ground);
    const legend = element('ul', { class: 'legend' });
    const start = element('span');
    const finish = element('span');
    const node = element(
        'section',
        { class: 'panel plot' },
        word('h3', title),
        word('p', hint, { class: 'muted small' }),
        element('div', { class: 'frame' }, top, svg),
        element('div', { class: 'times muted small' }, start, finish),
        legend,
    );
    const lines = new Map();

    // A line keeps its place, and so its tone and stroke, while it is drawn.
    function lineOf(key) {
        if (!lines.has(key)) {
            const taken = [...lines.values()].map(({ place }) => place);
            const place = Array.from({ length: LINES_MAX }, (_none, at) => at).find((at) => !taken.includes(at)) ?? 0;
            const attributes = { class: `line tone-${(first + place) % TONES} stroke-${place}` };
            const path = drawn('path', attributes);
            svg.append(path);
            const stroke = drawn('path', { ...attributes, d: `M0 ${STROKE.height / 2}H${STROKE.width}` });
            const sample = drawn('svg', { ...STROKE, class: 'stroke', 'aria-hidden': 'true' }, stroke);
            const name = element('span');
            const value = element('b');
            lines.set(key, { place, path, name, value, entry: element('li', {}, sample, name, value) });
        }
        return lines.get(key);
    }

    // The lines to draw: all of them, or the largest and the sum of the others.
    function drawnOf(points, keys) {
        if (keys.length <= LINES_MAX) {
            return { points, keys };
        }
        const sumOf = (key) => points.reduce((sum, { values }) => sum + (values[key] ?? 0), 0);
        const sums = new Map(keys.map((key) => [key, sumOf(key)]));
        const most = [...keys].sort((a, b) => sums.get(b) - sums.get(a)).slice(0, LINES_MAX - 1);
        const rest = keys.filter((key) => !most.includes(key));
        const others = (values) => rest.reduce((sum, key) => sum + (values[key] ?? 0), 0);
        return {
            points: points.map(({ at, values }) => ({ at, values: { ...values, [OTHERS]: others(values) } })),
            // Keeps the earlier order, so that the legend does not jump.
            keys: [...keys.filter((key) => most.includes(key)), OTHERS],
        };
    }

    // `all` are points in time order, each with `at` and `values` by key. A missing value breaks the line. Without `given`,
    // the chart shows the last minutes.
    /** @type {(all: { at: number, values: Record<string, number | null> }[], names: string[], given?: PlotSpan | null) => void} */
    function update(all, names, given = null) {
        const end = given?.to ?? all.at(-1)?.at ?? 0;
        const recent = Math.min(SPAN_MAX_MS, Math.max(SPAN_MIN_MS, end - (all[0]?.at ?? end)));
        const span = given ? Math.max(1, given.to - given.from) : recent;
        const gap = given?.gap ?? GAP_MS;
        // A line may come from a point before the given time.
        const since = given ? given.from - gap : end - span;
        const { points: shown, keys } = drawnOf(all.filter(({ at }) => at >= since), names);
        for (const [key, { path }] of lines) {
            if (!keys.includes(key)) {
                path.remove();
                lines.delete(key);
            }
        }
        const heights = shown.flatMap((point) => keys.map((key) => point.values[key] ?? null)).filter((value) => value !== null);
        const highest = ceiling(Math.max(1, ...heights));
        setText(top, say(unit, { n: highest }));
        setText(start, given ? momentExact(given.from) : say('secondsAgo', { n: Math.round(span / 1000) }));
        setText(finish, given ? momentExact(given.to) : say('now'));
        for (const key of keys) {
            const { path, name, value } = lineOf(key);
            /** @type {[number, number][][]} */
            const parts = [];
            let before = null;
            for (const { at, values } of shown) {
                const here = values[key] ?? null;
                if (here !== null) {
                    if (before === null || at - before >= gap) {
                        parts.push([]);
                    }
                    const x = (WIDTH * (at - end + span)) / span;
                    parts.at(-1)?.push([x, HEIGHT - 1 - ((HEIGHT - 2) * here) / highest]);
                }
                before = here === null ? null : at;
            }
            setAttribute(path, 'd', parts.map(pathOf).join(''));
            setText(name, key === OTHERS ? say('otherLines') : nameOf(key));
            const last = shown.at(-1)?.values[key] ?? null;
            setText(value, last === null ? '–' : String(rounded(last)));
        }
        setChildren(
            legend,
            keys.map((key) => lines.get(key).entry),
        );
    }
    return { node, update };
}
