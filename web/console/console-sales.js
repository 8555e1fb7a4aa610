// The list of sales as the overview of the day: what sells now, what comes next, drafts, and what is over. Sales that sell
// show their numbers. The server searches, so a search also finds sales that the list has not read yet.

import { now } from './clock.js';
import { call } from './console-api.js';
import { onSubmit } from './console-dialog.js';
import { fieldOf } from './console-fields.js';
import { refundsPath } from './console-money.js';
import { button, listTable, percent, word } from './console-table.js';
import { dateCell, endCell } from './console-time.js';
import { needsRedis, outagePart } from './console-verdict.js';
import { announce, element, setAttribute, setText, show } from './dom.js';
import { clockTime, secondsLeft } from './format.js';
import { plainly, say } from './language.js';
import { stateAt, timeOf } from './sale-state.js';

const EVERY_MS = 5000;
// The most sales whose numbers are read. Each costs a read of all its shards.
const NUMBERS_MAX = 12;
const GROUPS = ['now', 'next', 'drafts', 'over'];
const GROUP_OF = { open: 'now', paused: 'now', scheduled: 'next', draft: 'drafts', closed: 'over' };

/** The links to a sale and, once it is over, to its report. @param {AdminSale} sale */
function nameCell({ id, name, state }) {
    const link = element('a', { href: `/console/sales/${id}` }, element('bdi', {}, plainly(name)));
    const report = word('a', 'report', { href: `/console/sales/${id}/report` });
    return element('span', {}, link, ...(state === 'closed' ? [' · ', report] : []));
}

// By group. What comes next begins with the soonest, all others with the newest.
/** @type {(a: AdminSale, b: AdminSale) => number} */
function inOrder(a, b) {
    const [group, other] = [a, b].map(({ state }) => GROUPS.indexOf(GROUP_OF[state]));
    const later = Date.parse(b.starts_at) - Date.parse(a.starts_at);
    return group - other || (GROUP_OF[a.state] === 'next' ? -later : later);
}

// The cells of a sale that change by themselves.
function cellsOf() {
    const link = () => element('a', { class: 'due' });
    const whole = () => element('span', { class: 'whole' });
    const [pill, gone] = [element('span'), element('span', { class: 'pill' })];
    return { pill, gone, state: element('span', {}, pill, ' ', gone), time: whole(), left: whole(), pace: whole(), alerts: link(), due: link() };
}

export function salesView(view) {
    /** @type {Map<string, AdminSale>} */
    const known = new Map();
    const cells = new Map();
    // Each sale's orders, as last counted, and when.
    const counted = new Map();
    let isReading = false;
    const outage = outagePart();
    // Whether Redis is silent, so that nobody can buy.
    let isDown = false;
    // What the operator searches for; empty for all sales.
    const searchInAddress = () => new URLSearchParams(location.search).get('search') ?? '';
    let wanted = searchInAddress();
    const empty = () => (wanted === '' ? 'noSalesYet' : 'noSaleFound');

    const table = listTable({
        caption: 'sales',
        columns: ['name', 'state', 'timeLeft', 'leftOver', 'ordersASecond', 'attention', 'refundsDue', 'starts', 'ends'],
        path: () => `/v1/admin/sales?limit=50${wanted === '' ? '' : `&search=${encodeURIComponent(wanted)}`}`,
        pageOf(body) {
            body.data.forEach((sale) => known.set(sale.id, sale));
            readHealth().then(readNumbers);
            return body;
        },
        idOf: (sale) => sale.id,
        inOrder,
        groupOf: ({ state }) => `group_${GROUP_OF[state]}`,
        /** @param {AdminSale} sale */
        row(sale) {
            const { state, time, left, pace, alerts, due } = ofSale(sale.id);
            showState(sale);
            return [
                nameCell(sale),
                state,
                time,
                left,
                pace,
                alerts,
                due,
                dateCell(sale.starts_at),
                endCell(sale),
            ];
        },
        empty,
        every: EVERY_MS,
    });

    function ofSale(id) {
        if (!cells.has(id)) {
            cells.set(id, cellsOf());
        }
        return cells.get(id);
    }

    // The state, and that an outage of Redis hides the numbers of a sale that is on.
    /** @param {AdminSale} sale */
    function showState({ id, state }) {
        const { pill, gone, left, pace } = ofSale(id);
        setText(pill, say(`sale_${state}`));
        setAttribute(pill, 'class', `pill is-${isDown && needsRedis(state) ? 'bad' : state}`);
        if (isDown && GROUP_OF[state] === 'now') {
            setText(left, say('notKnown'));
            setText(pace, '');
        }
        if (isDown || state !== 'open') {
            setText(gone, '');
        }
    }

    async function readHealth() {
        const { isOk, body } = await call('GET', '/v1/admin/health');
        if (isOk) {
            isDown = outage.update(body, now() ?? Date.now());
            known.forEach(showState);
        }
    }

    // A sale that does not sell is read once.
    async function readNumbers() {
        if (isReading || isDown) {
            return;
        }
        isReading = true;
        const loaded = [...known.values()].filter(({ state }) => state !== 'draft').sort(inOrder).slice(0, NUMBERS_MAX);
        for (const { id, state } of loaded) {
            if (GROUP_OF[state] === 'now' || !counted.has(id)) {
                const answer = await call('GET', `/v1/admin/sales/${id}/stats`);
                if (!answer.isOk) {
                    break;
                }
                showNumbers(answer.body, answer.received);
            }
        }
        isReading = false;
    }

    /** @type {(stats: Stats, received: number) => void} */
    function showNumbers({ sale_id: id, state, items, orders, undrained_events: undrained, alerts }, received) {
        const { gone, left, pace, alerts: attention, due } = ofSale(id);
        const sum = (part) => items.reduce((all, item) => all + item[part], 0);
        const free = sum('available') + sum('in_transit');
        setText(left, percent(free, sum('total')));
        setText(gone, state === 'open' && free === 0 ? say(sum('held') > 0 ? 'allHeld' : 'allSold') : '');
        const count = orders.reserved + orders.paid + orders.cancelled + orders.expired + orders.revoked + undrained;
        const before = counted.get(id);
        counted.set(id, { count, received });
        if (before) {
            // Redis and Postgres are read one after the other, so a count may be one too high.
            const perSecond = Math.max(0, (1000 * (count - before.count)) / (received - before.received));
            setText(pace, String(Math.round(perSecond * 10) / 10));
        }
        const troubles = alerts.dead_letters + alerts.failed_releases + alerts.lost_orders + orders.revoked;
        point(attention, troubles, `/console/sales/${id}`);
        point(due, alerts.refunds_due, refundsPath(id));
    }

    // A count that leads somewhere. A count of 0 is no link.
    function point(link, count, href) {
        setText(link, count > 0 ? String(count) : '');
        if (count > 0) {
            setAttribute(link, 'href', href);
        } else {
            link.removeAttribute('href');
        }
    }

    function tick() {
        for (const sale of known.values()) {
            const { word: key, until } = timeOf(sale, stateAt(sale, now()));
            const at = now();
            setText(ofSale(sale.id).time, until === null || at === null ? '' : `${say(key)} ${clockTime(secondsLeft(until, at))}`);
        }
        table.hideEmpty();
    }

    const field = fieldOf({ id: 'find-sale', label: 'findSale', kind: 'text', mayLack: true, isExact: true });
    const all = button('allSales', {}, () => {
        submit('');
        field.control.focus();
    });
    const form = element(
        'form',
        { class: 'look-up', role: 'search', novalidate: '' },
        field.node,
        word('button', 'lookUp', { type: 'submit' }),
        all,
    );

    function showSearch() {
        field.set(wanted);
        show(all, wanted !== '');
    }

    // Lists the sales that fit.
    async function search(text) {
        wanted = text;
        known.clear();
        showSearch();
        if (await table.restart()) {
            announce(known.size === 0 ? say(empty()) : say('salesListed', { n: known.size }));
        }
    }

    // The address keeps the search, so that it survives a reload and can be passed on. The browser's Back leads to the search
    // before it.
    function submit(text) {
        if (text !== wanted) {
            history.pushState(null, '', text === '' ? '/console' : `/console?${new URLSearchParams({ search: text })}`);
        }
        search(text);
    }

    onSubmit(form, () => {
        const text = field.read();
        if (text === undefined) {
            field.control.focus();
        } else {
            submit((text ?? '').trim());
        }
    });
    // A link within the page also gets here.
    window.addEventListener('popstate', () => searchInAddress() !== wanted && search(searchInAddress()));
    showSearch();
    const create = word('a', 'newSale', { class: 'button strong', href: '/console/sales/new', 'data-needs': 'all' });
    view.append(element('div', { class: 'head' }, word('h1', 'sales'), create), outage.node, form, table.node);
    table.read();
    return { ...table, tick };
}
