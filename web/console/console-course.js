// The course of a sale: three plots of its points, which come from the live view or from the sale's report.

import { plotOf } from './console-plot.js';
import { element } from './dom.js';
import { say } from './language.js';
import { meaning } from './problem.js';

// Answers where the shopper got the item.
export const GOOD = ['reserved', 'replayed'];

// The latency of a step without purchases.
const NO_LATENCY = { p50: null, p95: null, p99: null };

// An answer's code in short.
export function codeName(code) {
    const short = say(`code_${code}`);
    return short.startsWith('code_') ? meaning(code) || code : short;
}

// The steps of a report as points, without gaps: a step that the report leaves out had no purchase. They reach from `from`
// to `to`, in milliseconds, or else one step beyond the course.
/** @type {(report: Pick<SaleReport, 'course' | 'step_seconds'>, from?: number, to?: number) => LivePoint[]} */
export function pointsOf({ course, step_seconds: seconds }, from, to) {
    const step = 1000 * seconds;
    const steps = new Map(course.map((one) => [Date.parse(one.at), one]));
    const first = from ?? Math.min(...steps.keys()) - step;
    const last = to ?? Math.max(...steps.keys()) + step;
    /** @type {LivePoint[]} */
    const points = [];
    for (let at = Math.ceil(first / step) * step; at <= last; at += step) {
        const one = steps.get(at);
        /** @type {Record<string, number>} */
        const answers = one?.answers ?? {};
        points.push({ at, seconds, accepted: answers.reserved ?? 0, answers, ...(one?.latency_ms ?? NO_LATENCY) });
    }
    return points;
}

export function coursePlots() {
    const accepted = plotOf({ title: 'plotAccepted', hint: 'plotAcceptedHint', unit: 'aSecond', nameOf: () => say('accepted') });
    const refused = plotOf({ title: 'plotAnswers', hint: 'plotAnswersHint', unit: 'aSecond', nameOf: codeName, first: 1 });
    const latency = plotOf({ title: 'plotLatency', hint: 'plotLatencyHint', unit: 'milliseconds', nameOf: (it) => it });
    const node = element('section', { class: 'plots' }, accepted.node, refused.node, latency.node);

    // `span` as in `plotOf`.
    /** @type {(points: LivePoint[], span?: PlotSpan | null) => void} */
    function update(points, span = null) {
        /** @type {(point: LivePoint, count: number | null) => number | null} */
        const perSecond = (point, count) => (count === null ? null : count / Math.max(point.seconds, 0.1));
        accepted.update(
            points.map((point) => ({ at: point.at, values: { accepted: perSecond(point, point.accepted) } })),
            ['accepted'],
            span,
        );
        const codes = [...new Set(points.flatMap((point) => Object.keys(point.answers)))].filter((code) => !GOOD.includes(code));
        refused.update(
            points.map((point) => ({
                at: point.at,
                values: Object.fromEntries(codes.map((code) => [code, perSecond(point, point.answers[code] ?? 0)])),
            })),
            codes,
            span,
        );
        latency.update(
            points.map(({ at, p50, p95, p99 }) => ({ at, values: { p50, p95, p99 } })),
            ['p50', 'p95', 'p99'],
            span,
        );
    }
    return { node, update };
}
