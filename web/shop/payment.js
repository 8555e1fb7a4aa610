// The actions for an unpaid order, and the time left for them: pay, or give it back.

import { WORK_MS } from './attempt.js';
import { element, onPress, setAttribute, setPressable, setText, show } from './dom.js';
import { clockTime, money, momentNear, secondsLeft } from './format.js';
import { say } from './language.js';
import { noteOutcome, onTap } from './tap.js';

// `act` has:
// - `cancel(id)` and `pay(id)`: promises of an error key, or of nothing on success;
// - `mayPay()`: true in development mode;
// - `payLink(id)`: the shop's payment page, or null;
// - `readAt()`: when the page asked for the orders that it shows, by the monotonic counter.
/**
 * @typedef {(id: string) => Promise<string>} Change
 * @typedef {{ cancel: Change, pay: Change, mayPay(): boolean, payLink(id: string): string | null, readAt(): number }} Act
 * @param {string} id
 * @param {Act} act
 * @param {() => void} lostFocus called when the pressed button is gone
 */
export function payment(id, act, lostFocus) {
    const note = element('p', { class: 'note' });
    const timer = element('p', { class: 'timer', role: 'timer', 'aria-live': 'off' });
    const link = act.payLink(id);
    const payAtShop = element('a', { class: 'button strong', ...(link === null ? {} : { href: link }) });
    const pay = element('button', { class: 'strong', type: 'button' });
    const cancel = element('button', { class: 'quiet', type: 'button' });
    const sure = element('button', { type: 'button' });
    const keep = element('button', { class: 'quiet', type: 'button' });
    const wrong = element('p', { class: 'warning', role: 'alert' });
    const actions = element('div', { class: 'actions' }, ...(link === null ? [] : [payAtShop]), pay, cancel, sure, keep);
    const node = element('div', { class: 'payment' }, note, timer, actions, wrong);
    let isAsked = false;
    let isBusy = false;
    let wrongWord = '';
    let triedAt = 0;

    async function run(what, tap) {
        isBusy = true;
        wrongWord = '';
        wrongWord = (await what(id)) ?? '';
        triedAt = performance.now();
        noteOutcome(tap);
        isBusy = false;
        isAsked = false;
        // Browsers take the focus off a hidden button only at the next drawing. After a failure, the button to pay stays.
        const { activeElement: focused } = document;
        const isGone = focused === sure || (wrongWord === '' && node.contains(focused));
        if (isGone || focused === document.body) {
            lostFocus();
        }
    }
    onTap(pay, (tap) => run(act.pay, tap));
    onPress(cancel, () => {
        isAsked = true;
        show(sure, true);
        sure.focus();
    });
    onTap(sure, (tap) => run(act.cancel, tap));
    onPress(keep, () => {
        isAsked = false;
        show(cancel, true);
        cancel.focus();
    });

    /** @type {(now: number | null, order: Order) => void} */
    function update(now, order) {
        // Unknown until the server's clock is known.
        const left = now === null ? null : secondsLeft(Date.parse(order.expires_at), now);
        const isOpen = order.state === 'reserved' && left !== 0;
        const mayPay = act.mayPay() || link !== null;
        const amount = money(order.amount_minor, order.currency);
        show(node, order.state === 'reserved');
        setText(note, isAsked && isOpen ? say('cancelAsk') : noteOf(order, now, left, mayPay));
        setText(timer, left ? clockTime(left) : '');
        show(timer, isOpen && left !== null);
        setAttribute(timer, 'class', left !== null && left <= 60 ? 'timer is-urgent' : 'timer');
        setText(payAtShop, say('payAmount', { amount }));
        show(payAtShop, isOpen && !isBusy && !isAsked);
        setText(pay, say('payAmountHere', { amount }));
        show(pay, isOpen && act.mayPay() && !isAsked);
        setText(cancel, say('cancel'));
        show(cancel, isOpen && !isAsked);
        setText(sure, say('cancelSure'));
        show(sure, isOpen && isAsked);
        setText(keep, say('cancelNot'));
        show(keep, isOpen && isAsked);
        for (const button of [pay, cancel, sure, keep]) {
            setPressable(button, !isBusy);
        }
        // Read so much later, the order is as the request has left it.
        const isKnown = wrongWord === 'tryAgain' && act.readAt() > triedAt + WORK_MS;
        setText(wrong, wrongWord && say(isKnown ? 'notDone' : wrongWord));
        show(wrong, isOpen);
    }

    return { node, update };
}

/** @type {(order: Order, now: number | null, left: number | null, mayPay: boolean) => string} */
function noteOf(order, now, left, mayPay) {
    if (left === 0) {
        return say('payOver');
    }
    return say(mayPay ? 'payBy' : 'payInShop', { time: momentNear(order.expires_at, now) });
}
