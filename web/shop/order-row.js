// One order: item, state, time left to pay, and the shopper's actions.

import { element, onPress, setAttribute, setPressable, setText, show } from './dom.js';
import { clockTime, money, secondsLeft } from './format.js';
import { say } from './language.js';

const TONES = { reserved: 'is-low', paid: 'is-available', cancelled: '', expired: '', revoked: 'is-sold_out' };

// `act` has:
// - `cancel(id)` and `pay(id)`: promises of an error key, or of nothing on success;
// - `mayPay()`: true in development mode;
// - `payLink(id)`: the shop's payment page, or null.
/**
 * @typedef {(id: string) => Promise<string>} Change
 * @param {string} id
 * @param {{ cancel: Change, pay: Change, mayPay: () => boolean, payLink: (id: string) => string | null }} act
 */
export function orderRow(id, act) {
    const name = element('h3');
    const state = element('span', { class: 'pill' });
    const amount = element('p', { class: 'price' });
    const note = element('p', { class: 'note' });
    const timer = element('p', { class: 'timer', role: 'timer', 'aria-live': 'off' });
    const number = element('p', { class: 'muted small number' });
    const pay = element('button', { class: 'strong', type: 'button' });
    const link = act.payLink(id);
    const payAtShop = element('a', { class: 'button strong', ...(link === null ? {} : { href: link }) });
    const cancel = element('button', { class: 'quiet', type: 'button' });
    const sure = element('button', { type: 'button' });
    const keep = element('button', { class: 'quiet', type: 'button' });
    const wrong = element('p', { class: 'warning', role: 'alert' });
    const actions = element('div', { class: 'actions' }, ...(link === null ? [] : [payAtShop]), pay, cancel, sure, keep);
    const head = element('div', { class: 'item-head' }, name, state);
    const row = element('li', { class: 'order', 'data-order': id, tabindex: '-1' }, head, amount, note, timer, actions, wrong, number);
    /** @type {OrderState | null} */
    let seen = null;
    let isAsked = false;
    let isBusy = false;
    let wrongWord = '';

    async function run(what) {
        isBusy = true;
        wrongWord = '';
        wrongWord = (await what(id)) ?? '';
        isBusy = false;
        isAsked = false;
        // The pressed button may be gone, and the focus with it.
        if (document.activeElement === document.body) {
            row.focus();
        }
    }
    onPress(pay, () => run(act.pay));
    onPress(cancel, () => {
        isAsked = true;
        show(sure, true);
        sure.focus();
    });
    onPress(sure, () => run(act.cancel));
    onPress(keep, () => {
        isAsked = false;
        show(cancel, true);
        cancel.focus();
    });

    // Returns the change in words, for screen readers.
    /** @type {(now: number | null, order: Order, itemName: string) => string} */
    function update(now, order, itemName) {
        setText(name, order.quantity > 1 ? `${itemName} × ${order.quantity}` : itemName);
        setAttribute(row, 'data-state', order.state);
        setText(state, say(`order_${order.state}`));
        setAttribute(state, 'class', `pill ${TONES[order.state] ?? ''}`);
        setText(amount, money(order.amount_minor, order.currency));
        const isOpen = order.state === 'reserved';
        const left = now === null ? 0 : secondsLeft(Date.parse(order.expires_at), now);
        setText(note, noteOf(order, isOpen, left, act.mayPay() || link !== null));
        setText(timer, isOpen && left > 0 ? clockTime(left) : '');
        show(timer, isOpen && left > 0);
        setAttribute(timer, 'class', left <= 60 ? 'timer is-urgent' : 'timer');
        setText(payAtShop, say('payAtShop'));
        show(payAtShop, isOpen && !isBusy && !isAsked);
        setText(pay, say('pay'));
        show(pay, isOpen && act.mayPay());
        setText(cancel, say('cancel'));
        show(cancel, isOpen && !isAsked);
        setText(sure, say('cancelSure'));
        show(sure, isOpen && isAsked);
        setText(keep, say('cancelNot'));
        show(keep, isOpen && isAsked);
        for (const button of [pay, cancel, sure, keep]) {
            setPressable(button, !isBusy);
        }
        setText(wrong, wrongWord && say(wrongWord));
        setText(number, say('orderNumber', { id: order.id }));
        const isNews = seen !== null && seen !== order.state;
        seen = order.state;
        return isNews ? `${itemName}: ${state.textContent}. ${note.textContent}` : '';
    }

    return { row, update };
}

/** @type {(order: Order, isOpen: boolean, left: number, mayPay: boolean) => string} */
function noteOf(order, isOpen, left, mayPay) {
    if (!isOpen) {
        return say(`order_${order.state}_note`);
    }
    if (left === 0) {
        return say('payOver');
    }
    return say(mayPay ? 'payBy' : 'payInShop');
}
