// Payments that somebody has to look at.

import { listTable, word } from './console-table.js';
import { element } from './dom.js';
import { momentExact, money } from './format.js';
import { say } from './language.js';
import { english } from './problem.js';

const EVERY_MS = 10_000;
const OUTCOMES = ['refund_due', 'unmatched', 'pending', 'applied'];

export function moneyView(view) {
    const choice = element('select', { id: 'outcome' });
    for (const outcome of OUTCOMES) {
        choice.append(word('option', `payment_${outcome}`, { value: outcome }));
    }
    const wanted = new URLSearchParams(location.search).get('outcome');
    choice.value = OUTCOMES.includes(wanted) ? wanted : 'refund_due';
    const label = word('label', 'paymentsThatAre', { for: 'outcome' });
    const table = listTable({
        caption: 'money',
        columns: ['when', 'amount', 'order', 'payment', 'why'],
        path: (last) =>
            `/v1/admin/payments?limit=100&outcome=${choice.value}${last ? `&starting_after=${encodeURIComponent(last.payment_id)}` : ''}`,
        idOf: (entry) => entry.payment_id,
        row: (entry) => [
            momentExact(entry.received_at),
            money(entry.amount_minor, entry.currency),
            element('code', {}, entry.order_id),
            element('code', {}, entry.payment_id),
            entry.reason ? english(entry.reason) : say(`payment_${entry.outcome}`),
        ],
        empty: 'noPayments',
        every: EVERY_MS,
    });
    choice.addEventListener('change', () => table.again());
    const row = element('div', { class: 'row' }, label, choice);
    view.append(word('h1', 'money'), word('p', 'moneyHint', { class: 'muted' }), row, table.node);
    table.read();
    return { resume: table.read, translate: table.again };
}
