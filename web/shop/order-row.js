// One order: item, state, time left to pay, and the shopper's actions. In short, if the item's own card has these.

import { element, setAttribute, setText, show } from './dom.js';
import { money, momentNear, secondsLeft } from './format.js';
import { say } from './language.js';
import { orderNumber } from './order-number.js';
import { payment } from './payment.js';

const TONES = { reserved: 'is-due', paid: 'is-available' };

/** What was ordered. @type {(itemName: string, order: Order) => string} */
export const inShort = (itemName, { quantity }) => (quantity > 1 ? `${itemName} × ${quantity}` : itemName);

/**
 * @param {string} id
 * @param {import('./payment.js').Act} act
 */
export function orderRow(id, act) {
    const name = element('h3', { id: `order-${id}-name`, tabindex: '-1' });
    const state = element('span', { class: 'pill' });
    const amount = element('p', { class: 'price' });
    const note = element('p', { class: 'note' });
    const below = element('a');
    const short = element('p', {}, below);
    const number = orderNumber(id);
    const paying = payment(id, act, () => name.focus());
    const head = element('div', { class: 'item-head' }, name, state);
    const whole = element('div', { class: 'whole' }, amount, note, paying.node);
    const row = element('li', { id: `order-${id}`, class: 'order', 'data-order': id, tabindex: '-1' }, head, whole, short, number.node);
    /** @type {OrderState | null} */
    let seen = null;

    // `isInCard`: the item's card has the payment. Returns the change in words, for screen readers.
    /** @type {(now: number | null, order: Order, itemName: string, isInCard: boolean) => string} */
    function update(now, order, itemName, isInCard) {
        const isOpen = order.state === 'reserved';
        const isOver = isOpen && now !== null && secondsLeft(Date.parse(order.expires_at), now) === 0;
        setText(name, inShort(itemName, order));
        setAttribute(row, 'data-state', order.state);
        setText(state, say(isOver ? 'order_over' : `order_${order.state}`));
        setAttribute(state, 'class', `pill ${(!isOver && TONES[order.state]) || ''}`);
        setText(amount, money(order.amount_minor, order.currency));
        setText(note, isOpen ? '' : say(`order_${order.state}_note`));
        show(note, !isOpen);
        paying.update(now, order);
        show(whole, !isInCard);
        setText(below, say('payBelow', { time: momentNear(order.expires_at, now) }));
        setAttribute(below, 'href', `#item-${order.sku}`);
        show(short, isInCard && !isOver);
        number.update();
        const isNews = seen !== null && seen !== order.state;
        seen = order.state;
        const words = { item: itemName, state: state.textContent, note: note.textContent };
        return isNews ? say('orderNews', words) : '';
    }

    return { row, update };
}
