// Finds orders by number, by account, by sale, by state and by time, shows their payments, and saves them as a file.

import { now } from './clock.js';
import { call } from './console-api.js';
import { onSubmit, resultLine } from './console-dialog.js';
import { saveFile } from './console-download.js';
import { errorSummary } from './console-errors.js';
import { choiceOf, fieldOf, localTime } from './console-fields.js';
import { isId, itemName, saleLink } from './console-names.js';
import { button, code, listTable, rowButton, word } from './console-table.js';
import { timeCell } from './console-time.js';
import { copy, mayCopy } from './copy.js';
import { element, setAttribute, show } from './dom.js';
import { momentNear, money, shortNumber } from './format.js';
import { plainly, say } from './language.js';
import { write } from './problem.js';

const EVERY_MS = 10_000;
const STATES = ['reserved', 'paid', 'cancelled', 'expired', 'revoked'];
const ORDERS = '/v1/admin/orders';

const TONES = { revoked: 'is-bad', paid: 'is-available' };

// An order's number in short, as a link, and a button that copies all of it. A page that may not copy shows all of it. A
// payment provider may send text that is no order number; it gets neither.
export function orderCell(id) {
    if (!isId(id)) {
        return code(id);
    }
    const link = element('a', { href: `/console/orders?order=${id}`, class: 'whole', title: id }, code(mayCopy() ? shortNumber(id) : id));
    const copyIt = rowButton('copy', say('copyOrder', { order: id }), () => copy(id));
    return element('span', { class: 'field' }, link, ...(mayCopy() ? [copyIt] : []));
}

// Links an account to its orders.
export const accountLink = (user) => element('a', { href: `/console/orders?${new URLSearchParams({ user })}` }, code(user));

// The address of a sale's orders in one state.
export const ordersPath = (sale, state) => `/console/orders?sale_id=${sale}&state=${state}`;

// The state, and until when an open order may be paid.
/** @param {OwnedOrder} order */
function stateCell({ state, expires_at: end }) {
    const pill = element('span', { class: `pill ${TONES[state] ?? ''}` }, say(`ostate_${state}`));
    const payBy = element('span', { class: 'small' }, ` ${say('payBy', { time: momentNear(end, now()) })}`);
    return state === 'reserved' ? element('span', {}, pill, payBy) : pill;
}

function paymentsOf(order) {
    const list = element('span', { class: 'small' });
    order.payments.forEach(({ payment_id: id, outcome, settled_at: settled }, at) => {
        const became = settled ? say('settled_yes') : say(`payment_${outcome}`);
        list.append(at > 0 ? ', ' : '', code(id), ` ${became}`);
    });
    return list;
}

export function ordersView(view) {
    const asked = (name) => new URLSearchParams(location.search).get(name) ?? '';
    const order = fieldOf({ id: 'find-order', label: 'orderToFind', kind: 'text', isExact: true });
    // An account id is taken literally, so a trailing blank counts.
    const user = fieldOf({ id: 'find-user', label: 'account', kind: 'text', isExact: true });
    const { select: sale, row: saleRow } = choiceOf({ id: 'find-sale', label: 'ofSale', prefix: 'ostate', options: [''] });
    const { select: state, row: stateRow } = choiceOf({ id: 'find-state', label: 'ofState', prefix: 'ostate', options: ['', ...STATES] });
    const from = fieldOf({ id: 'find-from', label: 'fromTime', kind: 'time', mayLack: true, hint: 'zoneHint' });
    const to = fieldOf({ id: 'find-to', label: 'toTime', kind: 'time', mayLack: true });
    const wrong = element('p', { class: 'warning', role: 'alert', id: 'find-wrong' });
    const result = resultLine();
    const download = button('exportTable', { id: 'download' }, () => saveFile(download, result, `${ORDERS}?${wanted}`, 'orders.csv', 'text/csv'));
    show(download, false);
    const form = element(
        'form',
        { class: 'panel', novalidate: '' },
        element('div', { class: 'grid' }, order.node, user.node, saleRow, stateRow, from.node, to.node),
        wrong,
        element('div', { class: 'actions' }, word('button', 'findOrders', { class: 'strong', type: 'submit' }), download),
    );
    const errors = errorSummary(form);
    form.prepend(errors.node);

    // The search; null before the first one.
    /** @type {URLSearchParams | null} */
    let wanted = null;

    function path() {
        if (wanted === null) {
            return null;
        }
        return wanted.has('order') ? `${ORDERS}/${wanted.get('order')}` : `${ORDERS}?limit=100&${wanted}`;
    }

    const table = listTable({
        caption: 'orders',
        columns: ['when', 'order', 'state', 'account', 'ofSale', 'what', 'amount', 'payments'],
        path,
        // The API returns one order without a list around it.
        pageOf: (body) => (wanted?.has('order') ? { data: [body], has_more: false } : body),
        idOf: (entry) => entry.id,
        /** @param {OwnedOrder} entry */
        row: (entry) => [
            timeCell(entry.created_at),
            orderCell(entry.id),
            stateCell(entry),
            accountLink(entry.user),
            saleLink(entry.sale_id),
            element('span', {}, `${entry.quantity} × `, itemName(entry.sale_id, entry.sku)),
            element('span', { class: 'whole' }, money(entry.amount_minor, entry.currency)),
            paymentsOf(entry),
        ],
        empty: 'noneFound',
        every: EVERY_MS,
    });

    function complain(words) {
        write(wrong, words);
        const isOrder = words !== '' && order.text().trim() !== '';
        setAttribute(order.control, 'aria-invalid', isOrder ? 'true' : 'false');
    }

    // Searches by the values in the form. The address keeps the search: in a new entry of the browser's history, or in the
    // present one.
    /** @param {'pushState' | 'replaceState'} keep */
    function search(keep) {
        const query = new URLSearchParams();
        const id = order.text().trim().toLowerCase();
        const times = { from: from.read(), to: to.read() };
        const parts = id ? { order: id } : { user: user.text(), sale_id: sale.value, state: state.value, ...times };
        Object.entries(parts).forEach(([name, value]) => value && query.set(name, value));
        if (Object.values(times).includes(undefined)) {
            complain('');
            errors.update();
            return;
        }
        if (id && !isId(id)) {
            complain(say('wrongOrder'));
            order.control.focus();
            return;
        }
        if (!query.has('order') && !query.has('user') && !query.has('sale_id')) {
            complain(say('askForOrders'));
            order.control.focus();
            return;
        }
        complain('');
        errors.clear();
        wanted = query;
        show(download, !query.has('order'));
        const address = `/console/orders?${query}`;
        if (address !== location.pathname + location.search) {
            history[keep](null, '', address);
        }
        table.restart();
    }

    function offer(id, name) {
        const known = [...sale.options].find((it) => it.value === id);
        if (known) {
            known.textContent = plainly(name);
        } else {
            sale.append(element('option', { value: id }, plainly(name)));
        }
    }

    // Offers the newest sales. The sale that the address names is offered at any age.
    async function offerSales() {
        const answer = await call('GET', '/v1/admin/sales?limit=100');
        if (answer.isOk) {
            answer.body.data.forEach(({ id, name }) => offer(id, name));
        }
    }

    // Searches by the address.
    function takeUp() {
        order.set(asked('order'));
        user.set(asked('user'));
        const saleId = asked('sale_id');
        if (saleId && ![...sale.options].some((it) => it.value === saleId)) {
            offer(saleId, saleId);
        }
        sale.value = saleId;
        state.value = STATES.includes(asked('state')) ? asked('state') : '';
        from.set(asked('from') && localTime(asked('from')));
        to.set(asked('to') && localTime(asked('to')));
        if (['order', 'user', 'sale_id'].some(asked)) {
            search('replaceState');
        } else if (wanted !== null) {
            wanted = null;
            complain('');
            show(download, false);
            table.restart();
        }
    }

    onSubmit(form, () => search('pushState'));
    // A link within the page also gets here.
    window.addEventListener('popstate', () => location.search !== (wanted === null ? '' : `?${wanted}`) && takeUp());
    view.append(word('h1', 'orders'), word('p', 'ordersHint', { class: 'muted' }), form, result.node, table.node);
    takeUp();
    offerSales();
    return {
        read() {
            offerSales();
            table.read();
        },
        again: table.again,
    };
}
