// One item of a sale: picture, description, availability, the buy button and the state of the attempt.

import { element, onPress, setAttribute, setPressable, setText, show } from './dom.js';
import { clockTime, moment, momentNear, money, secondsLeft, shortNumber } from './format.js';
import { say } from './language.js';
import { picture, showDescription, showPicture } from './look.js';
import { orderNumber } from './order-number.js';
import { payment } from './payment.js';
import { meaning } from './problem.js';
import { waitingRoom } from './room.js';
import { isOffered, mayQueue } from './sale-state.js';
import { mapOfTab } from './storage.js';
import { noteOutcome, onTap } from './tap.js';

// Up to this many, the shopper picks the quantity from a list. Above it, the shopper types the number.
const CHOICE_MAX = 10;

// The chosen quantities. A tab keeps them over a reload, until a purchase begins.
const quantities = mapOfTab('flashsale.quantities', 100);

// Texts for refusal codes. Any other code gets a general text.
/** @type {Partial<Record<StepCode, string>>} */
const REFUSALS = {
    sold_out: 'refusedSoldOut',
    purchase_limit_reached: 'refusedLimit',
    too_many_holds: 'refusedHolds',
    banned: 'refusedBanned',
    challenge_failed: 'refusedChallenge',
    challenge_required: 'refusedChallenge',
    idempotency_key_reused: 'refusedKey',
};
const CLOSED_STATES = { draft: 'refusedEarly', scheduled: 'refusedEarly', paused: 'refusedPaused', closed: 'refusedClosed' };
// The buttons' texts while the sale is not open, and to stop an attempt.
const CLOSED_BUTTONS = { paused: 'pausedButton', closed: 'closedButton' };
const STOP_BUTTONS = { queued: 'leaveRoom', begun: 'leaveIt', trying: 'stopTrying' };
// The texts of a button that begins an attempt.
const PRESSABLE = ['buy', 'enterRoom', 'keepTrying'];
// Texts during a wait, and after it when the shopper has to decide.
const SLOW = { overloaded: 'slowBusy', cooling_down: 'slowUnpaid', early: 'slowEarly' };
const SLOW_END = { overloaded: 'slowBusyEnd', cooling_down: 'slowUnpaid', early: 'refusedEarly' };

// The button's text during an attempt.
const BUSY = {
    sending: 'sending',
    checking: 'checking',
    proving: 'checking',
    letters: 'answerBelow',
    queued: 'queued',
    trying: 'tryingButton',
    unknown: 'asking',
    slow: 'waiting',
    elsewhere: 'elsewhereButton',
};

// Why no other item can be bought during an attempt. The short phases need no reason.
/** @type {Partial<Record<Phase['kind'], string>>} */
const OTHERS = {
    trying: 'otherTried',
    queued: 'otherQueued',
    letters: 'otherFirst',
    slow: 'otherFirst',
    unknown: 'otherFirst',
    elsewhere: 'otherFirst',
};

// What asks something of the shopper, or takes long, has the card's box for itself.
const ALONE = ['letters', 'proving', 'queued', 'trying'];

// Whether the card shows an unpaid order beside this phase of an attempt.
/** @param {Phase | null} phase */
export const showsOrder = (phase) => !ALONE.includes(phase?.kind ?? '');

// The text for a phase of the attempt.
/** @type {(phase: Phase | null | undefined, itemName: string, now: number | null) => string} */
function words(phase, itemName, now) {
    switch (phase?.kind) {
        case 'sending':
            return say('sendingNote');
        case 'checking':
            return say('checkingNote');
        case 'proving':
            return say('provingNote');
        case 'letters':
            return say('lettersNote');
        case 'queued':
            return say(phase.isSoldOut ? 'queuedSoldOut' : phase.isAgain ? 'queuedAgain' : 'queuedNote');
        case 'trying':
            return say(phase.isEarly ? 'earlyNote' : 'tryingNote');
        case 'unknown':
            if (phase.sentAt) {
                return say('oldNote', { time: moment(phase.sentAt) });
            }
            return say(phase.isEnd ? 'unknownEnd' : 'unknownNote');
        case 'slow':
            return say(phase.isEnd ? (SLOW_END[phase.code ?? ''] ?? 'slowEnd') : (SLOW[phase.code ?? ''] ?? 'slowNote'));
        case 'elsewhere':
            return say('elsewhere');
        case 'begun':
            return say('begunNote', { n: phase.quantity, item: itemName });
        case 'unsolvable':
            return say('unsolvable');
        case 'refused':
            return tooMany(phase) ? say('refusedFew', { n: tooMany(phase) }) : refusedWords(phase, now);
        default:
            return '';
    }
}

// A quantity of which a refusal says that fewer units are left.
/** @param {Phase | null} phase */
const tooMany = (phase) => (phase?.code === 'sold_out' && (phase.quantity ?? 1) > 1 ? phase.quantity : undefined);

// A code without a text of its own gets the general refusal and the code's meaning.
/** @type {(phase: Phase, now: number | null) => string} */
function refusedWords({ code, state, bannedUntil }, now) {
    if (bannedUntil) {
        return say('refusedBannedUntil', { time: momentNear(bannedUntil, now) });
    }
    const word = code === 'sale_not_open' ? CLOSED_STATES[state ?? ''] : code && REFUSALS[code];
    return word ? say(word) : `${say('refused')} ${meaning(code ?? '')}`.trim();
}

// What became of an order.
function endedWords(state) {
    return say('decidedNote', { state: say(`order_${state}`), note: say(`order_${state}_note`) });
}

// The time that is left of the shopper's turn, for a challenge in a sale with a waiting room.
/** @type {(phase: Phase | null, now: number | null) => string} */
function turnWords(phase, now) {
    if (!phase?.turnUntil || now === null) {
        return '';
    }
    const left = secondsLeft(phase.turnUntil, now);
    return left > 0 ? say('turnLeft', { time: clockTime(left) }) : say('turnOver');
}

const TONES = { refused: 'is-bad', unsolvable: 'is-bad', letters: 'is-due', begun: 'is-due' };

// `isDue`: whether there is an unpaid order that can still be paid; undefined without an unpaid order. `ended`: the order
// whose end is shown.
/** @type {(phase: Phase | null, isDue: boolean | undefined, ended: Order | undefined) => string} */
function toneOf(phase, isDue, ended) {
    if (isDue !== undefined) {
        return isDue ? 'is-due' : 'is-over';
    }
    if (ended) {
        return ended.state === 'paid' ? 'is-good' : 'is-over';
    }
    // The shopper has to decide what is still unknown.
    return phase?.kind === 'unknown' && phase.isEnd ? 'is-due' : (TONES[phase?.kind ?? ''] ?? '');
}

// Whether units of a sold-out item may come back, and when.
/** @type {(item: PublicItem, now: number | null) => string} */
function holdWords(item, now) {
    if (item.availability !== 'sold_out') {
        return '';
    }
    if (!item.on_hold) {
        return say('noneOnHold');
    }
    const next = item.next_release_at;
    const isAhead = next !== undefined && now !== null && Date.parse(next) > now;
    return isAhead ? say('onHoldUntil', { time: momentNear(next, now) }) : say('onHold');
}

// The quantity field, from 1 to `most`.
function quantityField(id, most) {
    if (most > CHOICE_MAX) {
        return element('input', { id, type: 'number', min: '1', max: String(most), step: '1', value: '1', inputmode: 'numeric' });
    }
    const numbers = Array.from({ length: most }, (_none, at) => String(at + 1));
    return element('select', { id }, ...numbers.map((number) => element('option', { value: number }, number)));
}

// Lets the shopper choose no more than so many.
function limitChoice(field, free) {
    if (field instanceof HTMLInputElement) {
        field.max = String(free);
        return;
    }
    for (const option of field.options) {
        option.disabled = Number(option.value) > free;
    }
    if (Number(field.value) > Math.max(free, 1)) {
        field.value = '1';
    }
}

/**
 * @param {PublicItem} item
 * @param {import('./payment.js').Act & { buy(sku: string, quantity: number, isTrying: boolean): void, again(isTrying: boolean): void, stop(): void }} act handles the buttons
 * @param {boolean} isVariant whether it stands in the card of a group, which has picture and description
 */
export function itemCard(item, act, isVariant) {
    const id = `item-${item.sku}`;
    const image = picture();
    const name = element(isVariant ? 'h4' : 'h3', { id, tabindex: '-1' });
    const price = element('p', { class: 'price' });
    const left = element('span', { class: 'pill' });
    const limit = element('p', { class: 'muted small' });
    const toOther = element('a');
    const why = element('p', { class: 'why' }, toOther);
    const hold = element('p', { class: 'small hold' });
    const most = item.per_user_limit;
    const quantity = quantityField(`${id}-quantity`, most);
    const quantityLabel = element('label', { for: quantity.id });
    const buy = element('button', { class: 'strong buy', type: 'button', 'aria-describedby': id });
    const total = element('output', { for: quantity.id, class: 'total' });
    const wrong = element('p', { id: `${id}-wrong`, class: 'warning', role: 'alert' });
    const note = element('p', { class: 'note' });
    const timer = element('p', { class: 'timer', role: 'timer', 'aria-live': 'off' });
    const place = element('div');
    const again = element('button', { type: 'button' });
    const stop = element('button', { class: 'quiet', type: 'button' });
    const due = element('div');
    const toOrder = element('a');
    const below = element('p', { class: 'small' }, toOrder);
    const room = waitingRoom();
    const outcome = element('div', { class: 'outcome' }, note, timer, due, below, room.node, place, element('div', { class: 'actions' }, again, stop));
    const head = element('div', { class: 'item-head' }, name, left);
    const choice = element('div', { class: 'choice' }, quantityLabel, quantity);
    const buying = element('div', { class: 'buying' }, choice, buy);
    const description = element('p', { class: 'description' });
    const parts = [head, price, limit, why, hold, buying, total, wrong, outcome];
    const all = isVariant ? parts : [image, ...parts, description];
    const card = element(isVariant ? 'div' : 'li', { class: 'item', tabindex: '-1' }, ...all);
    const chosen = `${location.pathname} ${item.sku}`;
    const kept = Number(quantities.get(chosen));
    if (kept >= 1 && kept <= most) {
        quantity.value = String(kept);
    }
    let isWrong = false;
    // What the button says.
    let word = 'buy';
    // How many more the shopper may have, and may be left.
    let free = most;
    /** @type {{ id: string, paying: ReturnType<typeof payment>, number: ReturnType<typeof orderNumber> } | null} */
    let unpaid = null;
    // The wanted quantity; null if it is not a valid number.
    const wanted = () => {
        const number = Number(quantity.value);
        return Number.isInteger(number) && number >= 1 && number <= free ? number : null;
    };
    onTap(buy, () => {
        const units = wanted();
        isWrong = units === null;
        if (units === null) {
            quantity.focus();
        } else {
            quantities.forget(chosen);
            act.buy(item.sku, units, word === 'keepTrying');
        }
    });
    quantity.addEventListener('input', () => {
        quantities.set(chosen, quantity.value);
        isWrong = false;
    });
    onPress(again, () => act.again(word === 'keepTrying'));
    onPress(stop, (tap) => {
        act.stop();
        noteOutcome(tap);
    });

    // `phase`: the attempt at this item, if any. `isBusy`: an attempt is under way at any item.
    // Returns the news in words, for screen readers.
    /** @type {(now: number | null, sale: PublicSale, item: PublicItem, phase: Phase | null, isBusy: boolean, own: Own) => string} */
    function update(now, sale, item, phase, isBusy, own) {
        const { has, reserved, order: unpaidOrder, ended: endedOrder, other, isFull, isAdmitted, isBanned } = own;
        const order = showsOrder(phase) ? unpaidOrder : undefined;
        const isBegun = phase?.kind === 'begun';
        const focused = [buy, again, stop].find((button) => button === document.activeElement);
        free = Math.max(0, Math.min(most - has, (tooMany(phase) ?? Infinity) - 1));
        const hasAll = has >= most;
        setText(name, item.name);
        showPicture(image, isVariant ? undefined : item.image_url);
        showDescription(description, item.description);
        setText(price, money(item.price_minor, item.currency));
        // The waiting room may know it before the sale's next reading.
        const availability = phase?.isSoldOut ? 'sold_out' : item.availability;
        setText(left, say(`left_${availability}`));
        setAttribute(left, 'class', `pill is-${availability}`);
        const haveWord = reserved === 0 ? 'hasAll' : reserved === has ? 'hasReserved' : 'hasBoth';
        setText(limit, has > 0 && !hasAll ? say(haveWord, { n: has, limit: most }) : say('limitNote', { n: most }));
        setText(quantityLabel, say('quantity'));
        const mayChoose = free > 1 && !isFull && !Object.hasOwn(CLOSED_BUTTONS, sale.state);
        show(choice, mayChoose);
        // A begun purchase has its one button in the box.
        show(buying, !isBegun);
        limitChoice(quantity, free);
        quantity.disabled = isBusy;
        const units = wanted() ?? 0;
        const several = mayChoose && units > 1 ? money(units * item.price_minor, item.currency) : '';
        setText(total, several && say('total', { amount: several }));
        show(total, several !== '' && !isBegun);
        setText(wrong, isWrong ? say('quantityWrong', { n: free }) : '');
        setAttribute(quantity, 'aria-invalid', isWrong ? 'true' : 'false');
        setAttribute(quantity, 'aria-describedby', isWrong ? wrong.id : id);

        const isHere = phase && !phase.isEnd && Object.hasOwn(BUSY, phase.kind);
        const wait = phase?.until && now !== null ? secondsLeft(phase.until, now) : 0;
        const mayComeBack = ['open', 'paused'].includes(sale.state) && reserved === 0 && !hasAll;
        setText(hold, mayComeBack ? holdWords(item, now) : '');
        show(hold, hold.textContent !== '');
        const isSoldOut = item.availability === 'sold_out' && !mayQueue(sale);
        word = 'buy';
        if (isHere) {
            word = BUSY[phase.kind];
        } else if (!isOffered(sale)) {
            word = CLOSED_BUTTONS[sale.state] ?? 'notYet';
        } else if (hasAll) {
            word = haveWord;
        } else if (isSoldOut && !item.on_hold) {
            // What is paid for does not come back by itself.
            word = 'left_sold_out';
        } else if (isFull) {
            word = 'payFirst';
        } else if (isSoldOut) {
            word = 'keepTrying';
        } else if (phase?.isEnd && phase.kind === 'slow' && wait > 0) {
            word = 'waiting';
        } else if (sale.guards.waiting_room && !isAdmitted) {
            word = 'enterRoom';
        }
        // Units are available only to a shopper who may buy one now. For a shopper who has all, it is not sold out, either:
        // the units on hold may be the shopper's own.
        const mayBuy = sale.state === 'open' && !isBanned && !hasAll;
        const mustWait = (sale.guards.waiting_room && !isAdmitted) || word === 'waiting' || ['queued', 'slow'].includes(phase?.kind ?? '');
        show(left, mayBuy && !(mustWait && availability === 'available') && (!isFull || availability === 'sold_out'));
        const label = say(word, { n: has, limit: most });
        setText(buy, label);
        setPressable(buy, !isBusy && PRESSABLE.includes(word));
        // It stands in the place of the limit, so that little moves.
        const reason = other && PRESSABLE.includes(word) && OTHERS[other.kind];
        show(limit, !reason);
        show(why, Boolean(reason));
        if (other && reason) {
            const otherName = sale.items.find(({ sku }) => sku === other.sku)?.name ?? '';
            setText(toOther, say(reason, { item: otherName }));
            setAttribute(toOther, 'href', `#item-${other.sku}`);
        }
        // Paying comes before buying more.
        setAttribute(buy, 'class', unpaidOrder ? 'buy' : 'strong buy');
        setAttribute(card, 'aria-busy', isHere ? 'true' : 'false');

        const isDue = order && (now === null || secondsLeft(Date.parse(order.expires_at), now) > 0);
        const attempted = words(phase, item.name, now);
        // A replayed order may have ended before.
        const replayed = phase?.order && phase.order.state !== 'reserved' ? phase.order : undefined;
        const ended = order || attempted ? undefined : (replayed ?? endedOrder);
        const text = attempted || (isDue ? say('reservedNote') : '') || (ended ? endedWords(ended.state) : '');
        if (!ended) {
            outcome.style.minHeight = '';
        } else if (ended.id === unpaid?.id && !due.hidden) {
            // The box keeps its height, so that no other button slides under the finger.
            outcome.style.minHeight = `${outcome.offsetHeight}px`;
        }
        setText(note, text);
        show(below, ended !== undefined);
        if (ended) {
            setText(toOrder, say('orderNumber', { id: shortNumber(ended.id) }));
            setAttribute(toOrder, 'href', `#order-${ended.id}`);
        }
        setAttribute(outcome, 'class', `outcome ${toneOf(phase, isDue, ended)}`);
        show(outcome, text !== '' || order !== undefined);
        if (order && unpaid?.id !== order.id) {
            unpaid = { id: order.id, paying: payment(order.id, act, () => name.focus({ preventScroll: true })), number: orderNumber(order.id) };
            due.replaceChildren(unpaid.paying.node, unpaid.number.node);
        }
        show(due, order !== undefined);
        if (order && unpaid) {
            unpaid.paying.update(now, order);
            unpaid.number.update();
            // The shop asks for the number of an order that is paid there without a link.
            show(unpaid.number.node, !act.mayPay() && act.payLink(order.id) === null);
        }
        const isQueued = phase?.kind === 'queued';
        card.toggleAttribute('data-queued', isQueued);
        show(room.node, isQueued);
        if (isQueued) {
            room.update(now, phase, sale.state === 'scheduled' ? Date.parse(sale.starts_at) : null);
        }
        setText(timer, wait > 0 ? say('againIn', { time: clockTime(wait) }) : turnWords(phase, now));
        show(timer, timer.textContent !== '');
        const isOld = phase?.kind === 'unknown' && Boolean(phase.sentAt);
        setText(again, isBegun ? label : say('askAgain'));
        setPressable(again, !isBegun || PRESSABLE.includes(word));
        setAttribute(again, 'class', isBegun && !order ? 'strong' : '');
        show(again, isBegun || (phase?.kind === 'unknown' && Boolean(phase.isEnd)));
        setText(stop, say(isOld ? 'forgetIt' : (STOP_BUTTONS[phase?.kind ?? ''] ?? 'stop')));
        show(stop, isBegun || isOld || (Boolean(isHere) && ['queued', 'trying', 'slow', 'letters', 'proving'].includes(phase?.kind ?? '')));
        // Hiding the pressed button would lose the focus.
        if (focused?.closest('[hidden]')) {
            card.focus();
        }
        return text;
    }

    return { card, place, update };
}
