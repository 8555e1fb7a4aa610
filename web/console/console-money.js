// Payments that need an operator, and their refunds.

import { call } from './console-api.js';
import { readBadges } from './console-badges.js';
import { resultLine, sure } from './console-dialog.js';
import { begunIn, choiceOf, fieldOf } from './console-fields.js';
import { saleLink } from './console-names.js';
import { orderCell } from './console-orders.js';
import { code, listTable, needs, rowButton, word } from './console-table.js';
import { timeCell } from './console-time.js';
import { element, show } from './dom.js';
import { money } from './format.js';
import { say } from './language.js';
import { english } from './problem.js';

const EVERY_MS = 10_000;
const OUTCOMES = ['refund_due', 'unmatched', 'pending', 'applied'];
// `OWED`: outcomes where money is owed back. `SETTLED`: filters for their list.
const OWED = ['refund_due', 'unmatched'];
const SETTLED = { no: '&settled=false', yes: '&settled=true', all: '' };
const REFERENCE_MAX = 200;

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
    const wanted = new URLSearchParams(location.search).get('outcome') ?? '';
    const outcome = choiceOf({
        id: 'outcome',
        label: 'paymentsThatAre',
        prefix: 'payment',
        options: OUTCOMES,
        value: OUTCOMES.includes(wanted) ? wanted : 'refund_due',
    });
    const settled = choiceOf({
        id: 'settled',
        label: 'ofWhichThose',
        prefix: 'settled',
        options: Object.keys(SETTLED),
        value: 'no',
    });
    const result = resultLine();
    // Refund references that were typed but not stored, by payment.
    const typed = begunIn('flashsale.references');
    const table = listTable({
        caption: 'money',
        columns: ['when', 'amount', 'order', 'ofSale', 'payment', 'why', 'paidBack', 'action'],
        path() {
            const which = OWED.includes(outcome.select.value) ? SETTLED[settled.select.value] : '';
            return `/v1/admin/payments?limit=100&outcome=${outcome.select.value}${which}`;
        },
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
        const request = () => call('POST', '/v1/admin/payments/settle', { body: { payment_id, reference } });
        await result.run(button, request, ({ body }) => {
            typed.forget(payment_id);
            return say('didSettle', { payment: payment_id, reference: body.settled_reference });
        }, () => {
            readBadges();
            return table.read();
        });
    }

    // Only owed payments have refunds, so only they have that filter.
    function choose() {
        show(settled.row, OWED.includes(outcome.select.value));
        table.restart();
    }

    outcome.select.addEventListener('change', choose);
    settled.select.addEventListener('change', choose);
    const choices = element('div', { class: 'grid' }, outcome.row, settled.row);
    view.append(word('h1', 'money'), word('p', 'moneyHint', { class: 'muted' }), result.node, choices, table.node);
    choose();
    return table;
}
