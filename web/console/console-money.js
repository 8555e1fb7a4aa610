// Finds payments by outcome, by account, by sale and by time, saves them as a file, and records refunds.

import { call } from './console-api.js';
import { readBadges } from './console-badges.js';
import { resultLine, sure } from './console-dialog.js';
import { begunIn, choiceOf, fieldOf } from './console-fields.js';
import { saleLink } from './console-names.js';
import { orderCell } from './console-orders.js';
import { searchFields, searchOf } from './console-search.js';
import { code, listTable, needs, rowButton, word } from './console-table.js';
import { timeCell } from './console-time.js';
import { element, show } from './dom.js';
import { money } from './format.js';
import { say } from './language.js';
import { english } from './problem.js';

const EVERY_MS = 10_000;
const OUTCOMES = ['refund_due', 'unmatched', 'pending', 'applied'];
// `OWED`: outcomes where money is owed back. `SETTLED`: the parameter `settled` by the choice. `MATCHED`: outcomes of payments
// that have an order, and with it a sale and an account.
const OWED = ['refund_due', 'unmatched'];
const SETTLED = { no: 'false', yes: 'true', all: '' };
const MATCHED = ['refund_due', 'applied'];
const PAYMENTS = '/v1/admin/payments';
const REFERENCE_MAX = 200;

// The address of a sale's money that is still owed back.
export const refundsPath = (sale) => `/console/money?outcome=refund_due&settled=false&sale_id=${sale}`;

/** Why money is owed back, or else what became of it. @param {ListedPayment} payment */
function whyOf({ amount_minor: amount, currency, outcome, reason, order }) {
    if (!reason) {
        return say(`payment_${outcome}`);
    }
    const words = [];
    if (order && order.state !== 'reserved') {
        words.push(say('orderIs', { state: say(`ostate_${order.state}`) }));
    }
    if (order && (order.amount_minor !== amount || order.currency !== currency)) {
        words.push(say('orderCosts', { amount: money(order.amount_minor, order.currency) }));
    }
    // An instance of an earlier version does not say the order.
    return words.length > 0 ? words.join(say('comma')) : english(reason);
}

export function moneyView(view) {
    const outcome = choiceOf({ id: 'outcome', label: 'paymentsThatAre', prefix: 'payment', options: OUTCOMES });
    const settled = choiceOf({ id: 'settled', label: 'ofWhichThose', prefix: 'settled', options: Object.keys(SETTLED) });
    const fields = searchFields();
    const { user, sale, from, to } = fields.rows;
    const result = resultLine();
    const search = searchOf({
        page: '/console/money',
        list: PAYMENTS,
        file: 'payments.csv',
        fields,
        rows: [outcome.row, settled.row, user, sale, from, to],
        query(values) {
            const became = outcome.select.value;
            const ofOrder = MATCHED.includes(became) ? values : { ...values, user: '', sale_id: '' };
            return { outcome: became, settled: OWED.includes(became) ? SETTLED[settled.select.value] : '', ...ofOrder };
        },
        takeUp(asked) {
            outcome.select.value = OUTCOMES.includes(asked('outcome')) ? asked('outcome') : 'refund_due';
            // Unless the address says otherwise, what is still owed.
            const chosen = OWED.includes(asked('outcome')) ? asked('settled') : 'false';
            settled.select.value = Object.keys(SETTLED).find((choice) => SETTLED[choice] === chosen) ?? 'all';
            offerFilters();
            return true;
        },
        restart: () => table.restart(),
        result,
    });
    // Refund references that were typed but not stored, by payment.
    const typed = begunIn('flashsale.references');
    const table = listTable({
        caption: 'money',
        columns: ['when', 'amount', 'order', 'ofSale', 'payment', 'why', 'paidBack', 'action'],
        path: () => `${PAYMENTS}?limit=100&${search.wanted()}`,
        idOf: (entry) => entry.payment_id,
        /** @param {ListedPayment} entry */
        row: (entry) => [
            timeCell(entry.received_at),
            element('span', { class: 'whole' }, money(entry.amount_minor, entry.currency)),
            orderCell(entry.order_id),
            entry.order ? saleLink(entry.order.sale_id) : '',
            code(entry.payment_id),
            whyOf(entry),
            entry.settled_at
                ? element('span', {}, timeCell(entry.settled_at), ' ', code(entry.settled_reference))
                : '',
            OWED.includes(entry.outcome) && !entry.settled_at ? settleButton(entry) : '',
        ],
        empty: 'noPayments',
        every: EVERY_MS,
    });

    const settleButton = (entry) =>
        needs('run', rowButton('settle', say('settlePayment', { payment: entry.payment_id }), (button) => settle(entry, button)));

    async function settle({ payment_id, amount_minor, currency }, button) {
        const field = fieldOf({ id: 'refund-reference', label: 'refundReference', kind: 'text', max: REFERENCE_MAX, isExact: true });
        typed.follow(payment_id, field);
        const question = say('sureSettle', { amount: money(amount_minor, currency) });
        const reference = await sure(question, say('aboutSettle', { payment: payment_id }), say('doSettle'), { field });
        if (reference === false) {
            return;
        }
        const request = () => call('POST', `${PAYMENTS}/settle`, { body: { payment_id, reference } });
        await result.run(button, request, ({ body }) => {
            typed.forget(payment_id);
            return say('didSettle', { payment: payment_id, reference: body.settled_reference });
        }, () => {
            readBadges();
            return table.read();
        });
    }

    // Only owed payments have refunds, and only matched ones a sale and an account, so only they have those filters.
    function offerFilters() {
        show(settled.row, OWED.includes(outcome.select.value));
        [user, sale].forEach((row) => show(row, MATCHED.includes(outcome.select.value)));
    }

    [outcome, settled].forEach(({ select }) =>
        select.addEventListener('change', () => {
            offerFilters();
            search.apply();
        }),
    );
    view.append(word('h1', 'money'), word('p', 'moneyHint', { class: 'muted' }), search.form, result.node, table.node);
    return search.begin(table);
}
