// The report of a whole sale: what was sold and who got it, how its purchases were answered, and its course, by time, as
// plots. Items, totals and course can be downloaded as tables, the whole report as JSON.

import { call, REPORT_MS } from './console-api.js';
import { codeName, coursePlots, pointsOf } from './console-course.js';
import { resultLine, wordsOf } from './console-dialog.js';
import { saveFile } from './console-download.js';
import { choiceOf, fieldOf } from './console-fields.js';
import { stoppedEntries } from './console-guards.js';
import { shadowLink } from './console-shadow.js';
import { button, code, percent, tilesOf, wideTableOf, word } from './console-table.js';
import { sellingTime } from './console-time.js';
import { drawn, element, setBusy, setChildren, setText, setTitle, show } from './dom.js';
import { clockTime, money, momentExact } from './format.js';
import { apart, plainly, say } from './language.js';

const RANGES = ['whole', 'minute', 'hour', 'chosen'];
const ITEM_COLUMNS = ['name', 'sku', 'sold', 'held', 'restockQuantity', 'taken', 'soldOutAfter'];
const MINUTE_MS = 60_000;
const HOUR_MS = 3_600_000;
// Points are joined over one step that has none.
const GAP_STEPS = 2;

/** @param {number | null} milliseconds */
const inMilliseconds = (milliseconds) => (milliseconds === null ? '–' : say('milliseconds', { n: Math.round(milliseconds * 10) / 10 }));

/** @param {number | null} seconds */
function soldOutText(seconds) {
    if (seconds === null) {
        return '–';
    }
    return seconds < 60 ? say('secondsExact', { n: Math.round(seconds * 100) / 100 }) : clockTime(Math.round(seconds));
}

// A row, whose cells show the headings of `columns` on a telephone.
/** @type {(cells: (Node | string)[], columns?: string[]) => HTMLElement} */
const rowOf = (cells, columns = []) =>
    element('tr', {}, ...cells.map((cell, at) => element('td', columns[at] ? { 'data-label': say(columns[at]) } : {}, cell)));

// An answer in words, and as the files call it.
const answerCell = (answer) => element('span', {}, codeName(answer), ' ', element('code', { class: 'muted small' }, answer));

// A list of shares, each with a bar, under a title and the sentence that explains it.
function barsOf(title, hint) {
    const list = element('ul', { class: 'list' });
    const node = element('section', { class: 'panel' }, word('h3', title), word('p', hint, { class: 'muted small' }), list);
    /** @param {{ name: string, text: string, share: number }[]} bars */
    function update(bars) {
        list.replaceChildren(
            ...bars.map(({ name, text, share }) => {
                const filled = drawn('rect', { height: 1, width: share, class: 'part-sold' });
                const bar = drawn('svg', { viewBox: '0 0 1 1', preserveAspectRatio: 'none', class: 'bar', 'aria-hidden': 'true' }, filled);
                return element('li', {}, `${say(name)}${say('colon')}`, element('b', {}, text), bar);
            }),
        );
    }
    return { node, update };
}

// Units by bucket; `prefix` is that of the buckets' names.
/** @type {(from: { prefix: string, units: Record<string, number> }) => { name: string, text: string, share: number }[]} */
function unitBars({ prefix, units }) {
    const sum = Object.values(units).reduce((all, more) => all + more, 0);
    return Object.entries(units).map(([bucket, count]) => ({
        name: `${prefix}_${bucket}`,
        text: `${count} (${percent(count, sum)})`,
        share: sum > 0 ? count / sum : 0,
    }));
}

/** @type {(name: string, share: number | null) => { name: string, text: string, share: number }} */
const shareBar = (name, share) => ({ name, text: share === null ? '–' : percent(share, 1), share: share ?? 0 });

export function reportView(view, id) {
    const path = `/v1/admin/sales/${id}/report`;
    const ofSale = element('bdi', { id: 'of-sale' });
    const times = element('p', { class: 'muted small', id: 'report-times' });
    const result = resultLine();
    const orders = tilesOf();
    const items = wideTableOf('reportItems', ITEM_COLUMNS);
    const stopped = element('ul', { class: 'legend' });
    const toShadow = shadowLink(id);
    const attempts = barsOf('byAttempts', 'byAttemptsHint');
    const firstSeen = barsOf('byFirstSeen', 'byFirstSeenHint');
    const addresses = barsOf('byAddress', 'byAddressHint');
    const range = choiceOf({ id: 'range', label: 'reportRange', prefix: 'range', options: RANGES });
    const from = fieldOf({ id: 'range-from', label: 'fromTime', kind: 'time', mayLack: true, hint: 'zoneHint' });
    const to = fieldOf({ id: 'range-to', label: 'toTime', kind: 'time', mayLack: true });
    const latency = tilesOf();
    const answers = wideTableOf('reportAnswers', ['answer', 'count', 'share']);
    const noAnswers = word('p', 'noAnswers', { class: 'muted' });
    const plots = coursePlots();
    const saveAs = (pressed, wanted, ending, kind) => saveFile(pressed, result, path + wanted, `sale-${id}${ending}`, kind);
    // A button that saves a table of the report; `partOf` is the query for the part to save.
    /** @type {(table: string, key: string, partOf?: () => string) => HTMLButtonElement} */
    function tableButton(table, key, partOf = () => '') {
        const made = button(key, { id: `download-${table}` }, () => {
            const wanted = new URLSearchParams(partOf());
            wanted.set('table', table);
            return saveAs(made, `?${wanted}`, `-${table}.csv`, 'text/csv');
        });
        return made;
    }
    const downloadCourse = tableButton('course', 'downloadCourse', () => query);
    const downloadItems = tableButton('items', 'downloadItems');
    const downloadTotals = tableButton('totals', 'downloadTotals');
    const downloadAll = button('downloadJson', { id: 'download-json' }, () => saveAs(downloadAll, '', '.json', 'application/json'));
    const chosen = element('div', { class: 'grid' }, from.node, to.node);
    const whole = element(
        'section',
        { class: 'list', id: 'report-whole' },
        orders.node,
        element('div', { class: 'head' }, word('h2', 'theItems'), downloadItems),
        element('div', { class: 'cards' }, items.wide),
        word('h2', 'guardsRefused'),
        stopped,
        element('p', {}, toShadow),
        word('h2', 'fairness'),
        element('div', { class: 'units', id: 'fairness' }, attempts.node, firstSeen.node, addresses.node),
    );
    const course = element(
        'section',
        { class: 'list', id: 'report-course' },
        element('div', { class: 'head' }, word('h2', 'course'), downloadCourse),
        range.row,
        chosen,
        noAnswers,
        latency.node,
        answers.wide,
        plots.node,
    );

    // The report of the whole sale, and of the part that is shown with the query that asked for it.
    /** @type {SaleReport | null} */
    let all = null;
    /** @type {SaleReport | null} */
    let part = null;
    let query = '';
    // Numbers the choices: the reply to an earlier one is dropped.
    let turn = 0;

    // The query for the part that the operator chose; empty for the whole. Parts count from the times of the whole report.
    /** @param {SaleReport} report */
    function queryOf(report) {
        const start = Date.parse(report.starts_at);
        const last = report.course.at(-1);
        const end = last ? Date.parse(last.at) + 1000 * report.step_seconds : Date.parse(report.ends_at);
        const instants = (...times) => times.map((time) => new Date(time).toISOString());
        /** @type {Record<string, (string | null)[]>} */
        const bounds = {
            whole: [null, null],
            minute: instants(start, start + MINUTE_MS),
            hour: instants(end - HOUR_MS, end),
            chosen: [from.read(), to.read()],
        };
        const [begin, finish] = bounds[range.select.value];
        const parameters = new URLSearchParams();
        if (begin) {
            parameters.set('from', begin);
        }
        if (finish) {
            parameters.set('to', finish);
        }
        return begin || finish ? `?${parameters}` : '';
    }

    // The report; null if it was refused, or if the operator has chosen anything else since.
    async function ask(wanted, own) {
        const answer = await call('GET', path + wanted, { patience: REPORT_MS });
        if (own !== turn) {
            return null;
        }
        if (answer.isOk) {
            result.clear();
        } else {
            result.wrong(wordsOf(answer, 'noAnswerConsole'));
        }
        return answer.isOk ? /** @type {SaleReport} */ (answer.body) : null;
    }

    // Reads and shows what the operator chose.
    async function choose() {
        turn += 1;
        const own = turn;
        show(chosen, range.select.value === 'chosen');
        setBusy(view, true);
        const found = all && range.select.value !== 'whole' ? all : await ask('', own);
        const wanted = found ? queryOf(found) : '';
        const shown = wanted === '' ? found : await ask(wanted, own);
        if (own !== turn) {
            return;
        }
        setBusy(view, false);
        if (found && shown) {
            [all, part, query] = [found, shown, wanted];
            render();
        }
    }

    function render() {
        setTitle(`${say('report')} · ${all ? apart(all.name) : id} · ${say('console')}`);
        show(whole, all !== null);
        show(course, part !== null);
        if (all && part) {
            renderWhole(all);
            renderCourse(part);
        }
    }

    /** @param {SaleReport} report */
    function renderWhole(report) {
        setText(ofSale, plainly(report.name));
        const at = momentExact(report.server_time);
        setText(times, `${say(`sale_${report.state}`)} · ${sellingTime(report)} · ${say('reportAsOf', { time: at })}`);
        const { reserved, paid, cancelled, expired, revoked } = report.orders;
        orders.update('paid', String(paid));
        orders.update('reserved', String(reserved));
        orders.update('returned', String(cancelled + expired));
        orders.update('unpaid', report.unpaid_share === null ? '–' : percent(report.unpaid_share, 1));
        orders.update('revoked', String(revoked), revoked > 0 ? 'is-bad' : '');
        setChildren(
            items.body,
            report.items.map((item) =>
                rowOf(
                    [
                        element('bdi', {}, plainly(item.name)),
                        code(item.sku),
                        `${item.sold} (${percent(item.sold, item.total)})`,
                        String(item.held),
                        String(item.total),
                        element('span', { class: 'whole' }, money(item.money_minor, item.currency)),
                        soldOutText(item.sold_out_after_seconds),
                    ],
                    ITEM_COLUMNS,
                ),
            ),
        );
        stopped.replaceChildren(...stoppedEntries(report.stopped, report.would_stop));
        show(toShadow, Object.keys(report.would_stop).length > 0);
        const { attempts: byAttempts, first_seen: byFirstSeen, clients, networks } = report.fairness;
        attempts.update(unitBars({ prefix: 'attempts', units: { ...byAttempts } }));
        firstSeen.update(unitBars({ prefix: 'seen', units: { ...byFirstSeen } }));
        addresses.update([
            shareBar('client_largest', clients.largest),
            shareBar('client_largest_ten', clients.largest_ten),
            shareBar('network_largest', networks.largest),
            shareBar('network_largest_ten', networks.largest_ten),
        ]);
    }

    /** @param {SaleReport} report */
    function renderCourse(report) {
        const sorted = Object.entries(report.answers).sort(([, one], [, other]) => other - one);
        const sum = sorted.reduce((count, [, more]) => count + more, 0);
        const { p50, p95, p99 } = report.latency_ms;
        latency.update('p50', inMilliseconds(p50));
        latency.update('p95', inMilliseconds(p95));
        latency.update('p99', inMilliseconds(p99));
        setChildren(
            answers.body,
            sorted.map(([answer, count]) => rowOf([answerCell(answer), String(count), percent(count, sum)])),
        );
        const points = pointsOf(report);
        const isEmpty = points.length === 0;
        show(noAnswers, isEmpty);
        [latency.node, answers.wide, plots.node].forEach((node) => show(node, !isEmpty));
        if (!isEmpty) {
            const asked = new URLSearchParams(query);
            const time = (name, otherwise) => Date.parse(asked.get(name) ?? '') || otherwise;
            const [begin, finish] = [time('from', points[0].at), time('to', points[points.length - 1].at)];
            plots.update(points, { from: begin, to: finish, gap: GAP_STEPS * 1000 * report.step_seconds });
        }
    }

    range.select.addEventListener('change', choose);
    [from, to].forEach(({ control }) => control.addEventListener('change', choose));
    view.append(
        element('div', { class: 'head' }, word('h1', 'report'), element('div', { class: 'actions' }, downloadTotals, downloadAll)),
        element('p', {}, ofSale, ' · ', word('a', 'toSale', { href: `/console/sales/${id}` })),
        times,
        result.node,
        whole,
        course,
    );
    show(chosen, false);
    render();
    // The browser found no course to scroll to when the page was empty.
    choose().then(() => location.hash === `#${course.id}` && course.scrollIntoView());
    return { read: choose, again: render };
}
