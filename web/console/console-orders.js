// Finds orders by number, by account, by sale, by state and by time, shows their payments, and saves them as a file.

import { now } from './clock.js';
import { resultLine } from './console-dialog.js';
import { choiceOf, fieldOf } from './console-fields.js';
import { isId, itemName, saleLink } from './console-names.js';
import { searchFields, searchOf } from './console-search.js';
import { code, listTable, rowButton, word } from './console-table.js';
import { timeCell } from './console-time.js';
import { copy, mayCopy } from './copy.js';
import { element } from './dom.js';
import { momentNear, money, shortNumber } from './format.js';
import { say } from './language.js';

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
    const order = fieldOf({ id: 'find-order', label: 'orderToFind', kind: 'text', isExact: true });
    const { select: state, row: stateRow } = choiceOf({ id: 'find-state', label: 'ofState', prefix: 'ostate', options: ['', ...STATES] });
    const fields = searchFields();
    const { user, sale, from, to } = fields.rows;
    const result = resultLine();
    const search = searchOf({
        page: '/console/orders',
        list: ORDERS,
        file: 'orders.csv',
        fields,
        rows: [order.node, user, sale, stateRow, from, to],
        main: order,
        /** @returns {Record<string, string> | string} */
        query(values) {
            const id = order.text().trim().toLowerCase();
            if (id) {
                return isId(id) ? { order: id } : say('wrongOrder');
            }
            return values.user || values.sale_id ? { ...values, state: state.value } : say('askForOrders');
        },
        takeUp(asked) {
            order.set(asked('order'));
            state.value = STATES.includes(asked('state')) ? asked('state') : '';
            return ['order', 'user', 'sale_id'].some(asked);
        },
        isTable: (query) => !query.has('order'),
        restart: () => table.restart(),
        result,
    });

    function path() {
        const wanted = search.wanted();
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
        pageOf: (body) => (search.wanted()?.has('order') ? { data: [body], has_more: false } : body),
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

    view.append(word('h1', 'orders'), word('p', 'ordersHint', { class: 'muted' }), search.form, result.node, table.node);
    return search.begin(table);
}
