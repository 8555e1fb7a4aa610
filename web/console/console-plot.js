// A course over the last minutes: lines, and beside them what they are and where they stand.

import { word } from './console-table.js';
import { drawn, element, setAttribute, setChildren, setText } from './dom.js';
import { say } from './language.js';

const WIDTH = 600;
const HEIGHT = 160;
// So long a course is shown, or less while there is less of it.
const SPAN_MAX_MS = 300_000;
const SPAN_MIN_MS = 60_000;
// Between points that are further apart, nothing is known.
const GAP_MS = 10_000;
const TONES = 6;
// So many lines at the most, each with a stroke of its own. Of more, the least are drawn as one.
const LINES_MAX = 8;
const OTHERS = '(others)';
const STROKE = { width: 48, height: 8 };

// A number that is easily read, not below this one.
function ceiling(value) {
    const power = 10 ** Math.floor(Math.log10(Math.max(value, 1)));
    return [1, 2, 5, 10].map((step) => step * power).find((nice) => nice >= value) ?? value;
}

const rounded = (value) => (value >= 100 ? Math.round(value) : Math.round(value * 10) / 10);

// `nameOf(key)` is what a line is called, `unit` a word, and `first` the tone of the first line.
export function plotOf({ title, hint, unit, nameOf, first = 0 }) {
    const top = element('span', { class: 'axis' });
    const svg = drawn('svg', { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: 'none', 'aria-hidden': 'true' });
    svg.append(drawn('path', { class: 'ground', d: `M0 1H${WIDTH}M0 ${HEIGHT / 2}H${WIDTH}M0 ${HEIGHT - 1}H${WIDTH}` }));
    const legend = element('ul', { class: 'legend' });
    const ago = element('span');
    const node = element(
        'section',
        { class: 'panel plot' },
        word('h3', title),
        word('p', hint, { class: 'muted small' }),
        element('div', { class: 'frame' }, top, svg),
        element('div', { class: 'times muted small' }, ago, word('span', 'now')),
        legend,
    );
    const lines = new Map();

    // A line keeps its place, and with it its tone and its stroke, for as long as it is drawn.
    function lineOf(key) {
        if (!lines.has(key)) {
            const taken = [...lines.values()].map(({ place }) => place);
            const place = Array.from({ length: LINES_MAX }, (_none, at) => at).find((at) => !taken.includes(at)) ?? 0;
            const look = { class: `line tone-${(first + place) % TONES} stroke-${place}` };
            const path = drawn('path', look);
            svg.append(path);
            const sample = drawn('svg', { ...STROKE, class: 'stroke', 'aria-hidden': 'true' });
            sample.append(drawn('path', { ...look, d: `M0 ${STROKE.height / 2}H${STROKE.width}` }));
            const name = element('span');
            const value = element('b');
            lines.set(key, { place, path, name, value, entry: element('li', {}, sample, name, value) });
        }
        return lines.get(key);
    }

    // The lines that are drawn of these points: all, or the most and the sum of the others.
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
            // In the order that they had before: the list does not jump.
            keys: [...keys.filter((key) => most.includes(key)), OTHERS],
        };
    }

    // `points` in the order of their times, each with `at` and `values` by key; one without a value breaks its line.
    function update(all, names) {
        const end = all.at(-1)?.at ?? 0;
        const span = Math.min(SPAN_MAX_MS, Math.max(SPAN_MIN_MS, end - (all[0]?.at ?? end)));
        const { points: shown, keys } = drawnOf(all.filter(({ at }) => at >= end - span), names);
        for (const [key, { path }] of lines) {
            if (!keys.includes(key)) {
                path.remove();
                lines.delete(key);
            }
        }
        const heights = shown.flatMap((point) => keys.map((key) => point.values[key] ?? null)).filter((value) => value !== null);
        const highest = ceiling(Math.max(1, ...heights));
        setText(top, `${highest} ${say(unit)}`);
        setText(ago, say('secondsAgo', { n: Math.round(span / 1000) }));
        for (const key of keys) {
            const { path, name, value } = lineOf(key);
            let d = '';
            let before = null;
            for (const { at, values } of shown) {
                const here = values[key] ?? null;
                if (here !== null) {
                    const x = (WIDTH * (at - end + span)) / span;
                    const y = HEIGHT - 1 - ((HEIGHT - 2) * here) / highest;
                    d += `${before !== null && at - before < GAP_MS ? 'L' : 'M'}${x.toFixed(1)} ${y.toFixed(1)}`;
                }
                before = here === null ? null : at;
            }
            setAttribute(path, 'd', d);
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
