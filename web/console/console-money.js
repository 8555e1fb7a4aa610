// Payments that need an operator, and their refunds.

import { call } from './console-api.js';
import { resultLine, sure } from './console-dialog.js';
import { begunIn, choiceOf, fieldOf } from './console-fields.js';
import { orderLink } from './console-orders.js';
import { code, listTable, word } from './console-table.js';
import { byId, element, onPress, setAttribute, setPressable, show } from './dom.js';
import { momentExact, money } from './format.js';
import { say } from './language.js';
import { english } from './problem.js';

const EVERY_MS = 10_000;
const OUTCOMES = ['refund_due', 'unmatched', 'pending', 'applied'];
// `OWED`: outcomes where money is owed back. `SETTLED`: filters for their list.
const OWED = ['refund_due', 'unmatched'];
const SETTLED = { no: '&settled=false', yes: '&settled=true', all: '' };
const REFERENCE_MAX = 200;

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
        columns: ['when', 'amount', 'order', 'payment', 'why', 'paidBack', 'action'],
        path(last) {
            const which = OWED.includes(outcome.select.value) ? SETTLED[settled.select.value] : '';
            const after = last ? `&starting_after=${encodeURIComponent(last.payment_id)}` : '';
            return `/v1/admin/payments?limit=100&outcome=${outcome.select.value}${which}${after}`;
        },
        idOf: (entry) => entry.payment_id,
        /** @param {Payment} entry */
        row: (entry) => [
            momentExact(entry.received_at),
            money(entry.amount_minor, entry.currency),
            orderLink(entry.order_id),
            code(entry.payment_id),
            entry.reason ? english(entry.reason) : say(`payment_${entry.outcome}`),
            entry.settled_at
                ? element('span', {}, `${momentExact(entry.settled_at)} `, code(entry.settled_reference))
                : '',
            OWED.includes(entry.outcome) && !entry.settled_at ? settleButton(entry) : '',
        ],
        empty: 'noPayments',
        every: EVERY_MS,
    });

    function settleButton(entry) {
        const button = element('button', { type: 'button' }, say('settle'));
        setAttribute(button, 'aria-label', say('settlePayment', { payment: entry.payment_id }));
        onPress(button, () => settle(entry, button));
        return button;
    }

    async function settle({ payment_id, amount_minor, currency }, button) {
        const field = fieldOf({ id: 'refund-reference', label: 'refundReference', kind: 'text', max: REFERENCE_MAX });
        field.control.spellcheck = false;
        field.set(typed.get(payment_id) ?? '');
        field.control.addEventListener('input', () => typed.set(payment_id, field.text()));
        const question = say('sureSettle', { amount: money(amount_minor, currency) });
        const reference = await sure(question, say('aboutSettle', { payment: payment_id }), say('doSettle'), field);
        if (reference === false) {
            return;
        }
        result.busy();
        setPressable(button, false);
        const answer = await call('POST', '/v1/admin/payments/settle', { body: { payment_id, reference } });
        setPressable(button, true);
        if (answer.isOk) {
            typed.forget(payment_id);
            result.good(say('didSettle', { payment: payment_id, reference: answer.body.settled_reference }));
        } else {
            result.bad(answer);
        }
        await table.read();
        if (document.activeElement === document.body) {
            byId('main').focus();
        }
    }

    // Only owed payments have refunds, so only they have that filter.
    function choose() {
        show(settled.row, OWED.includes(outcome.select.value));
        table.anew();
    }

    outcome.select.addEventListener('change', choose);
    settled.select.addEventListener('change', choose);
    const choices = element('div', { class: 'grid' }, outcome.row, settled.row);
    view.append(word('h1', 'money'), word('p', 'moneyHint', { class: 'muted' }), result.node, choices, table.node);
    choose();
    return { resume: table.read, translate: table.again };
}
