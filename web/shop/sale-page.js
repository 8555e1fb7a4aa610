// The page of one sale: its state, its items and the shopper's orders.

import { ask } from './api.js';
import { drive, hasTurn } from './attempt.js';
import {
    begin,
    forget,
    isFromReload,
    isOurs,
    isRecent,
    keep,
    keepWish,
    load,
    loadRoom,
    onOtherTab,
    sentAt,
    sleepWatch,
    takeWish,
} from './attempt-store.js';
import { addToCalendar } from './calendar.js';
import { readLetters } from './captcha.js';
import { hear, hearRoughly, now, resync } from './clock.js';
import { developmentHeaders, hasLink, isDevelopment } from './development.js';
import { announce, byId, element, onPress, setAttribute, setChildren, setText, setTitle, show } from './dom.js';
import { about, clockTime, countdownParts, moment, momentNear, money, secondsLeft, span } from './format.js';
import { itemCard, showsOrder } from './item-card.js';
import { groupCard, grouped } from './item-group.js';
import { inOwn, say, startLanguage } from './language.js';
import { showDescription, showPicture, titled, watch } from './look.js';
import { inShort, orderRow } from './order-row.js';
import { poll, showConnection } from './poll.js';
import { takeReading } from './reading.js';
import { crowd, notify } from './room.js';
import { stateAt, timeOf } from './sale-state.js';
import { payLink } from './shop-links.js';
import { showSignIn, signOut, startSignIn, wantSignIn } from './sign-in.js';
import { shopper } from './token.js';
import { noteUnpaid } from './unpaid.js';

const TICK_MS = 250;
// How often the page requests the sale: when it is open or about to start, and otherwise.
const SOON_MS = 3000;
const LATER_MS = 15_000;
const SOON_SECONDS = 90;
// How often the page requests the orders: when one is unpaid or the list is unknown, and otherwise.
const ORDERS_SOON_MS = 4000;
const ORDERS_LATER_MS = 60_000;
// How often this tab marks the attempt as its own.
const KEEP_MS = 2000;
// News of an attempt stays at least this long. A reply within this time may be older than the news.
const NEWS_MS = 2000;
// After this time, more units may be left than a refusal has said.
const FEW_MS = 60_000;
// The refusals that end with an unpaid order.
const OF_UNPAID = ['too_many_holds', 'purchase_limit_reached'];
// Two presses of the bar within this time are one.
const TWICE_MS = 1000;
// How many minutes before the end of the time to pay screen readers say so.
const MILESTONES = [1, 2, 5];

const id = location.pathname.split('/')[2] ?? '';

/** @type {PublicSale | null} */
let sale = null;
// When it was read, by the monotonic counter.
let saleRead = -Infinity;
let isMissing = false;
/** @type {Order[]} */
let orders = [];
// State of the list: `loading` before the first reply, `lost` while it cannot be read, `heard` once complete.
/** @type {'loading' | 'lost' | 'heard'} */
let ordersState = 'loading';
// The number of order requests sent, and the latest one whose reply counts.
let ordersAsked = 0;
let ordersHeard = 0;
// When the page asked for the list that it shows, by the monotonic counter.
let ordersRead = -Infinity;
// The order of each item that was the last to end before the shopper's eyes.
/** @type {Map<string, string>} */
const endedLast = new Map();
// The attempt as shown to the shopper: `{ kind, sku, … }`. `isEnd`: nothing continues by itself.
/** @type {Phase | null} */
let phase = null;
// Stops the attempt that this page drives.
/** @type {AbortController | null} */
let driving = null;
// Whether the page was just loaded or the shopper just signed in.
let isFresh = true;
// The texts announced last, of the attempt and of the sale.
let said = '';
/** @type {SaleState | null} */
let toldState = null;
// The texts of the shop's message that was shown last; null before the first reading.
/** @type {string | null} */
let messageBefore = null;

/** @type {Map<string, ReturnType<typeof itemCard>>} */
const cards = new Map();
/** @type {Map<string, ReturnType<typeof groupCard>>} */
const groups = new Map();
/** @type {Map<string, ReturnType<typeof orderRow>>} */
const rows = new Map();
// The time of the last drawing. All that a drawing shows is of one moment, so that no two timers differ.
/** @type {number | null} */
let drawnAt = null;
// When the bar's button to pay was pressed last.
let pressedAt = -Infinity;
// The milestone that each unpaid order has passed.
/** @type {Map<string, number>} */
const passed = new Map();

// Only one attempt at a time. An attempt with an unknown outcome still counts.
const isBusy = () => phase !== null && (!phase.isEnd || phase.kind === 'unknown');

// A banned account may buy nothing until the ban ends. A reload of the page asks again.
const isBanned = () => phase?.kind === 'refused' && phase.code === 'banned';

function render() {
    drawnAt = now();
    showConnection();
    showSignIn();
    const state = sale && stateAt(sale, drawnAt);
    // Until a reading, the page shows what the server has written into it.
    if (sale || isMissing) {
        setTitle(titleOf());
        renderHead(state);
        renderMessage();
    }
    if (sale && state) {
        const present = { ...sale, state };
        const parts = grouped(sale.items);
        const all = parts.map((part) => (part.length > 1 ? renderGroup(present, part) : renderItem(present, part[0], false)));
        setChildren(byId('items'), all);
    }
    renderOrders();
}

// Returns the item's card.
/** @type {(present: PublicSale, item: PublicItem, isVariant: boolean) => HTMLElement} */
function renderItem(present, item, isVariant) {
    const act = { ...paying, buy, again: resume, stop: leave };
    const card = cards.get(item.sku) ?? itemCard(item, act, isVariant);
    cards.set(item.sku, card);
    const own = phase?.sku === item.sku ? phase : null;
    const text = card.update(drawnAt, present, item, own, isBusy() || isBanned(), ownOf(item.sku));
    if (own && text !== said) {
        said = text;
        announce(text);
    }
    return card.card;
}

// Returns the card of items of one group.
/** @type {(present: PublicSale, items: PublicItem[]) => HTMLElement} */
function renderGroup(present, items) {
    const id = `group-${items[0].sku}`;
    const group = groups.get(id) ?? groupCard(id, render);
    groups.set(id, group);
    const variants = items.map((item) => {
        const { has, order, ended } = ownOf(item.sku);
        const hasNews = phase?.sku === item.sku || Boolean(order ?? ended);
        return { item, card: renderItem(present, item, true), hasNews, hasAll: has >= item.per_user_limit };
    });
    group.update(present, variants);
    return group.card;
}

// What the shopper has of an item.
/** @type {(sku: string) => Own} */
function ownOf(sku) {
    const unitsIn = (state) => {
        const counted = orders.filter((order) => order.sku === sku && order.state === state);
        return counted.reduce((units, order) => units + order.quantity, 0);
    };
    return {
        has: unitsIn('reserved') + unitsIn('paid'),
        reserved: unitsIn('reserved'),
        order: unpaidOf(sku),
        ended: endedOf(sku),
        other: phase && isBusy() && phase.sku !== sku ? phase : undefined,
        isFull: reserved().length >= (sale?.guards.holds_max ?? Infinity),
        isAdmitted: isAdmitted(),
        isBanned: isBanned(),
    };
}

// Whether the waiting room has let the shopper in, and the turn still lasts.
function isAdmitted() {
    const who = sale?.guards.waiting_room ? shopper() : null;
    return sale !== null && who !== null && drawnAt !== null && hasTurn(loadRoom(id, who.user), sale.guards, drawnAt);
}

/** @param {Order} order */
const isInTime = (order) => secondsLeft(Date.parse(order.expires_at), drawnAt ?? 0) > 0;

// The unpaid orders; the one whose time ends first comes first.
function reserved() {
    const unpaid = orders.filter((order) => order.state === 'reserved');
    return unpaid.sort((a, b) => a.expires_at.localeCompare(b.expires_at));
}

// The first of an item; one that can still be paid, if there is one.
function unpaidOf(sku) {
    const ofItem = reserved().filter((order) => order.sku === sku);
    return ofItem.find(isInTime) ?? ofItem.at(0);
}

// The order of an item that its card shows when none is unpaid: the last to end before the shopper's eyes, or else the newest
// that is paid.
function endedOf(sku) {
    const ofItem = orders.filter((order) => order.sku === sku);
    const paid = ofItem.filter((order) => order.state === 'paid').sort((a, b) => b.created_at.localeCompare(a.created_at));
    return ofItem.find((order) => order.id === endedLast.get(sku)) ?? paid.at(0);
}

// Whether the card of its item shows this order, with its payment.
/** @type {(order: Order) => boolean} */
function isInCard(order) {
    const own = phase?.sku === order.sku ? phase : null;
    return cards.has(order.sku) && order.id === unpaidOf(order.sku)?.id && showsOrder(own);
}

// The first that can still be paid.
const firstUnpaid = () => reserved().find(isInTime);

// The id of the heading above an order's payment, and that payment.
/** @param {Order} order */
const headingOf = (order) => (isInCard(order) ? `item-${order.sku}` : `order-${order.id}-name`);
/** @param {Order} order */
const paymentOf = (order) => byId(headingOf(order))?.closest('.item, .order')?.querySelector('.payment');

// The news comes before the sale's name, so that it shows in a tab's short title.
function titleOf() {
    const name = titled(sale ? sale.name : say('noSale'));
    const told = titleNews();
    return told ? `${told} · ${name}` : name;
}

// The most urgent first: a line and an attempt wait by themselves, but the time to pay runs.
function titleNews() {
    if (phase?.kind === 'letters') {
        return say('titleLetters');
    }
    const unpaid = firstUnpaid();
    const left = unpaid && drawnAt !== null ? secondsLeft(Date.parse(unpaid.expires_at), drawnAt) : 0;
    if (left > 0) {
        return say('titlePay', { time: about(left) });
    }
    if (phase?.kind === 'queued') {
        const ahead = phase.position === undefined ? null : phase.position - 1;
        return ahead === null ? say('queued') : ahead === 0 ? say('titleNext') : say('titleQueued', { n: crowd(ahead) });
    }
    if (phase?.kind === 'trying') {
        return say('titleTrying');
    }
    return phase?.isEnd && ['unknown', 'begun'].includes(phase.kind) ? say('titleGoOn') : '';
}

function renderHead(state) {
    byId('main').classList.toggle('is-missing', isMissing);
    const notice = isMissing ? 'noSaleNote' : state === 'paused' ? 'pausedNote' : '';
    setText(byId('notice'), notice && say(notice));
    show(byId('notice'), notice !== '');
    show(byId('see-all'), isMissing);
    if (!sale) {
        setText(byId('name'), say('noSale'));
        return;
    }
    setText(byId('name'), sale.name);
    setText(byId('state'), say(`state_${state}`));
    if (toldState !== null && toldState !== state) {
        announce(say(`state_${state}`));
    }
    toldState = state;
    setAttribute(byId('state'), 'class', `pill is-${state}`);
    const { word, until } = timeOf(sale, state);
    setText(byId('until'), say(word));
    show(byId('countdown'), until !== null && drawnAt !== null);
    if (until !== null && drawnAt !== null) {
        renderCountdown(secondsLeft(until, drawnAt));
    }
    // A sale may have been closed before its time.
    setText(byId('when'), state === 'closed' ? moment(sale.starts_at) : span(sale.starts_at, sale.ends_at, drawnAt));
    setText(byId('calendar'), say('addToCalendar'));
    show(byId('calendar'), state === 'scheduled' && !isMissing);
    showPicture(byId('picture'), sale.image_url);
    showDescription(byId('description'), sale.description);
    const isEarly = state === 'scheduled' && !shopper();
    setText(byId('sign-in-early'), isEarly ? say('signInEarly', { time: momentNear(sale.starts_at, drawnAt) }) : '');
    show(byId('sign-in-early'), isEarly);
}

// The shop's message in the reader's language, or else in the first that it has.
function renderMessage() {
    if (!sale) {
        return;
    }
    /** @type {SaleMessage} */
    const message = (!isMissing && sale.message) || {};
    const { text, lang } = inOwn(message);
    setText(byId('message-text'), text);
    setAttribute(byId('message-text'), 'lang', lang);
    show(byId('message'), text !== '');
    // A change of language is no news.
    const inAll = JSON.stringify(message);
    if (text !== '' && messageBefore !== null && messageBefore !== inAll) {
        announce(say('shopSays', { text }));
    }
    messageBefore = inAll;
}

function renderCountdown(seconds) {
    const parts = countdownParts(seconds);
    const place = byId('countdown');
    while (place.children.length > parts.length) {
        place.lastChild?.remove();
    }
    while (place.children.length < parts.length) {
        place.append(element('span', { class: 'part' }, element('b'), element('small')));
    }
    parts.forEach(([number, word], at) => {
        setText(place.children[at].children[0], number);
        setText(place.children[at].children[1], word);
    });
}

function renderOrders() {
    show(byId('orders-section'), Boolean(shopper()) && !isMissing);
    const none = { loading: 'loading', lost: 'ordersLost', heard: orders.length === 0 ? 'noOrders' : '' }[ordersState];
    setText(byId('no-orders'), none && say(none));
    show(byId('no-orders'), none !== '');
    // Unpaid orders come first.
    const isUnpaid = (order) => Number(order.state === 'reserved');
    const sorted = [...orders].sort((a, b) => isUnpaid(b) - isUnpaid(a) || b.created_at.localeCompare(a.created_at));
    const shown = sorted.map((order) => {
        const row = rows.get(order.id) ?? orderRow(order.id, paying);
        rows.set(order.id, row);
        const change = row.update(drawnAt, order, nameOf(order), isInCard(order));
        if (change) {
            announce(change);
        }
        return row.row;
    });
    setChildren(byId('orders'), shown);
    reserved().filter(isInTime).forEach(announceTime);
    renderToPay();
}

// The time that is left when the page sees the order first is no news.
/** @param {Order} order */
function announceTime(order) {
    if (drawnAt === null) {
        return;
    }
    const left = secondsLeft(Date.parse(order.expires_at), drawnAt);
    const minutes = MILESTONES.find((milestone) => left <= milestone * 60) ?? Infinity;
    const before = passed.get(order.id) ?? minutes;
    passed.set(order.id, minutes);
    if (minutes < before) {
        announce(say('minutesLeft', { item: nameOf(order), n: minutes }));
    }
}

/** @param {Order} order */
const nameOf = (order) => sale?.items.find(({ sku }) => sku === order.sku)?.name ?? order.sku;

// As long as something is unpaid, the orders come first: above the items, and in the bar at the bottom. A large screen has
// the bar only while the payment is out of view.
function renderToPay() {
    const who = shopper();
    const unpaid = who && !isMissing ? firstUnpaid() : undefined;
    const [section, items] = [byId('orders-section'), byId('items-section')];
    if (Boolean(unpaid) !== (section.compareDocumentPosition(items) === Node.DOCUMENT_POSITION_FOLLOWING)) {
        const focused = document.activeElement;
        keepInPlace(items, () => items[unpaid ? 'before' : 'after'](section));
        // A node that moves loses the focus.
        if (focused instanceof HTMLElement && section.contains(focused)) {
            focused.focus();
        }
    }
    // Only the whole list shows that nothing is unpaid.
    if (who && drawnAt !== null && (unpaid || ordersState === 'heard')) {
        noteUnpaid(id, who.user, unpaid ? Date.parse(unpaid.expires_at) : null, drawnAt);
    }
    byId('main').classList.toggle('has-unpaid', Boolean(unpaid));
    show(byId('to-pay'), Boolean(unpaid));
    if (!unpaid) {
        return;
    }
    const { top, bottom } = paymentOf(unpaid)?.getBoundingClientRect() ?? { top: 0, bottom: 0 };
    byId('to-pay').classList.toggle('is-near', top >= 0 && bottom > 0 && bottom <= innerHeight);
    const more = reserved().filter(isInTime).length - 1;
    setText(byId('to-pay-what'), say('toPay', { item: inShort(nameOf(unpaid), unpaid) }));
    setText(byId('to-pay-more'), more > 0 ? say('toPayMore', { n: more }) : '');
    setText(byId('to-pay-timer'), drawnAt === null ? '' : clockTime(secondsLeft(Date.parse(unpaid.expires_at), drawnAt)));
    const link = payLink(unpaid.id);
    const isHere = link === null && hasLink();
    const payWords = say('payAmount', { amount: money(unpaid.amount_minor, unpaid.currency) });
    setText(byId('to-pay-now'), payWords);
    show(byId('to-pay-now'), isHere);
    setText(byId('to-pay-link'), link === null ? say('payHow') : payWords);
    setAttribute(byId('to-pay-link'), 'href', link ?? `#${headingOf(unpaid)}`);
    show(byId('to-pay-link'), !isHere);
}

// The bar pays by the payment's own button, which shows what comes of it. The second press of a double click must not pay
// for the next order.
function payNow() {
    const unpaid = firstUnpaid();
    const isTwice = performance.now() - pressedAt < TWICE_MS;
    pressedAt = performance.now();
    if (unpaid && !isTwice) {
        byId(headingOf(unpaid))?.focus();
        /** @type {HTMLElement | null | undefined} */ (paymentOf(unpaid)?.querySelector('button.strong'))?.click();
    }
}

// A browser scrolls a page that is loaded again before there is a bar, and so the bar may cover the payment.
function uncoverPayment() {
    const unpaid = firstUnpaid();
    const payment = unpaid && paymentOf(unpaid);
    const { top } = payment?.getBoundingClientRect() ?? { top: -1 };
    if (scrollY > 0 && top >= 0 && top < innerHeight) {
        payment?.scrollIntoView({ block: 'nearest' });
    }
}

// Changes the page above a node without moving it on the screen, as some browsers do by themselves: a button must not slide
// under the finger. At its top, a page shows what comes first.
/** @type {(node: Element, change: () => unknown) => void} */
function keepInPlace(node, change) {
    const { top } = node.getBoundingClientRect();
    const root = document.documentElement;
    root.style.overflowAnchor = 'none';
    change();
    if (scrollY > 0) {
        scrollBy({ top: node.getBoundingClientRect().top - top, behavior: 'instant' });
    }
    afterLayout(() => {
        root.style.overflowAnchor = '';
    });
}

// After two frames, the browser has made up for parts of the page that moved.
const afterLayout = (act) => requestAnimationFrame(() => requestAnimationFrame(act));

// Sent without the shopper's token: the server counts page views that carry a token, and this page polls often.
async function refreshSale() {
    const answer = await (takeReading() ?? ask('GET', `/v1/sales/${encodeURIComponent(id)}`));
    isMissing = answer.status === 404;
    if (answer.isOk) {
        sale = /** @type {PublicSale} */ (answer.body);
        saleRead = answer.received;
        (answer.isRough ? hearRoughly : hear)(sale.server_time, answer.sent, answer.received);
        forgetOldNews();
        resumeIfOurs();
    }
    render();
    return answer;
}

async function refreshOrders() {
    const who = shopper();
    if (!who || isMissing) {
        orders = [];
        ordersState = 'loading';
        return null;
    }
    ordersAsked += 1;
    const turn = ordersAsked;
    const answer = await ask('GET', `/v1/orders?sale_id=${encodeURIComponent(id)}`, { token: who.token });
    // Another shopper may have signed in since, or a newer reply may have arrived.
    if (shopper()?.token === who.token && turn > ordersHeard) {
        ordersHeard = turn;
        if (answer.isOk) {
            takeOrders(answer.body.data);
            ordersRead = answer.sent;
            if (ordersState !== 'heard') {
                afterLayout(uncoverPayment);
            }
            ordersState = 'heard';
            forgetOldNews();
        } else if (answer.status === 401) {
            signOut();
            wantSignIn('signInAgain');
        } else if (ordersState === 'loading') {
            // A list from an earlier reply stays on the page.
            ordersState = 'lost';
        }
    }
    render();
    return answer;
}

// Removes the news of an attempt when it is no longer true.
function forgetOldNews() {
    const news = phase;
    if (!news?.isEnd) {
        return;
    }
    const unpaid = reserved().length;
    news.unpaid = Math.max(news.unpaid ?? 0, unpaid);
    const age = performance.now() - (news.at ?? -Infinity);
    if (age < NEWS_MS) {
        return;
    }
    const order = orders.find((one) => one.id === news.order?.id);
    const isDecided = news.kind === 'reserved' && order && order.state !== news.order?.state;
    const item = sale?.items.find(({ sku }) => sku === news.sku);
    const isLeft = item !== undefined && item.availability !== 'sold_out';
    const isBack = news.code === 'sold_out' && (news.quantity === 1 ? isLeft : age > FEW_MS);
    const goesOn = news.code === 'sale_not_open' && sale?.state === 'open';
    const isWaitedOut = news.kind === 'slow' && (news.until ?? 0) <= (now() ?? 0);
    const isBanOver = Date.parse(news.bannedUntil ?? '') <= (now() ?? 0);
    const isFreed = OF_UNPAID.includes(news.code ?? '') && unpaid < news.unpaid;
    if (isDecided || isBack || goesOn || isWaitedOut || isBanOver || isFreed) {
        phase = null;
    }
}

// Takes the newest list, and notes which orders have ended since the last one.
/** @param {Order[]} list */
function takeOrders(list) {
    const unpaid = reserved().map((order) => order.id);
    for (const order of list) {
        if (order.state !== 'reserved' && unpaid.includes(order.id)) {
            endedLast.set(order.sku, order.id);
        }
    }
    orders = list;
}

/** @param {Order} order */
function keepOrder(order) {
    ordersHeard = ordersAsked;
    takeOrders([order, ...orders.filter((other) => other.id !== order.id)]);
    render();
}

/** @type {(sku: string, quantity: number, isTrying: boolean) => void} */
function buy(sku, quantity, isTrying) {
    const wish = { sku, quantity, isTrying };
    const who = shopper();
    if (!who) {
        keepWish(id, wish);
        wantSignIn('signInToBuy');
        return;
    }
    // An attempt that was never sent makes way. A sent one is resumed first.
    if (phase?.kind === 'begun') {
        forgetBegun();
    }
    if (!load(id, who.user)) {
        begin(id, who.user, wish);
    }
    resume(isTrying);
}

// Resumes the stored attempt at the shopper's request.
/** @type {(isTrying: boolean) => void} */
function resume(isTrying) {
    const who = shopper();
    const attempt = who && load(id, who.user);
    if (attempt && sale) {
        if (attempt.isOpen) {
            attempt.sentAt = Date.now();
        } else {
            attempt.isTrying = isTrying;
        }
        run(attempt, who);
    }
}

// Resumes the stored attempt if no other tab owns it; otherwise shows that another tab does.
// A given-up attempt resumes by a press, a reload or a sign-in.
// An old attempt, sent or not, needs a press: nothing is bought without one. The exceptions are a reload, and a request
// sent moments ago.
function resumeIfOurs() {
    if (!sale || driving) {
        return;
    }
    const who = shopper();
    const isWished = who !== null && takeWish(id, who.user);
    const attempt = who && load(id, who.user);
    if (!attempt) {
        if (['elsewhere', 'unknown', 'begun'].includes(phase?.kind ?? '')) {
            phase = null;
            askOrders();
        }
    } else if (!attempt.isParked && !isOurs(attempt)) {
        phase = { kind: 'elsewhere', sku: attempt.sku };
    } else if (attempt.isOpen ? isRecent(attempt) && (isFresh || !attempt.isParked) : isFresh && !attempt.isParked && isFromReload(attempt)) {
        run(attempt, who);
    } else {
        const kind = attempt.isOpen ? 'unknown' : 'begun';
        const old = attempt.isOpen && !isRecent(attempt) ? { sentAt: sentAt(attempt) } : {};
        phase = { kind, sku: attempt.sku, quantity: attempt.quantity, isEnd: true, ...old };
    }
    if (isWished) {
        render();
        cards.get(phase?.sku ?? '')?.card.focus();
    }
    isFresh = false;
}

// Whether an attempt that waits for a free unit may go on. It also goes on to read that the sale is over.
async function isFree(sku) {
    // A hidden page does not poll.
    if (document.visibilityState === 'hidden' && performance.now() - saleRead > SOON_MS) {
        await refreshSale();
    }
    const state = sale && stateAt(sale, now());
    const item = sale?.items.find((one) => one.sku === sku);
    return state === 'closed' || (state === 'open' && item?.availability !== 'sold_out');
}

/** @type {(attempt: Attempt, who: Shopper) => Promise<void>} */
async function run(attempt, who) {
    if (driving || !sale) {
        return;
    }
    if (!sale.items.some(({ sku }) => sku === attempt.sku)) {
        // Another page stored this attempt; the sale has no such item.
        forget(id, who.user, attempt);
        return;
    }
    const stopping = new AbortController();
    driving = stopping;
    attempt.isParked = false;
    let hasWaited = false;
    const notifyOfEnd = () => hasWaited && notify(titleNews() || say('titleGoOn'), sale?.name ?? '');
    const keepIt = () => keep(id, who.user, attempt);
    const keeping = setInterval(keepIt, KEEP_MS);
    keepIt();
    /** @type {World} */
    const world = {
        id,
        user: who.user,
        token: who.token,
        sale: /** @type {() => PublicSale} */ (() => sale),
        now: /** @type {() => number} */ (now),
        isFree,
        keep: keepIt,
        isStopped: () => stopping.signal.aborted,
        signal: stopping.signal,
        hasSlept: sleepWatch(),
        show(next) {
            // Another shopper who has signed in since must not see this attempt.
            if (!stopping.signal.aborted) {
                phase = { sku: attempt.sku, ...next };
                render();
                hasWaited ||= next.kind === 'queued' || next.kind === 'trying';
                if (next.kind === 'letters') {
                    notifyOfEnd();
                }
            }
        },
        pause: (ms) => pause(ms, stopping.signal),
        async letters(image, how) {
            world.show({ kind: 'letters', turnUntil: how.turnUntil });
            const { place } = /** @type {ReturnType<typeof itemCard>} */ (cards.get(attempt.sku));
            const read = await readLetters(place, image, how, stopping.signal);
            // The shopper has just pressed a button and is waiting. The time spent on the picture is no sleep.
            world.hasSlept();
            return read;
        },
    };
    world.show({ kind: 'sending' });
    /** @type {End} */
    let end;
    try {
        end = await drive(attempt, world);
    } catch (error) {
        reportError(error);
        end = { kind: attempt.isOpen ? 'unknown' : 'refused' };
    }
    clearInterval(keeping);
    const isCurrent = driving === stopping;
    if (isCurrent) {
        driving = null;
    }
    finish(end, attempt, who, isCurrent);
    if (isCurrent && end.kind !== 'stopped') {
        notifyOfEnd();
    }
}

// Handles the end of an attempt. The key is removed only when the outcome is known. `isCurrent` is false if another shopper
// has signed in since.
/** @type {(end: End, attempt: Attempt, who: Shopper, isCurrent: boolean) => void} */
function finish(end, attempt, who, isCurrent) {
    const isKnown = end.kind === 'reserved' || (!attempt.isOpen && !['signed_out', 'begun'].includes(end.kind));
    if (isKnown && (isCurrent || end.kind !== 'stopped')) {
        forget(id, who.user, attempt);
    }
    if (!isCurrent) {
        askOrders();
        return;
    }
    const isHidden = end.kind === 'unknown' || (end.kind === 'stopped' && attempt.isOpen);
    if (isHidden || end.kind === 'begun') {
        attempt.isParked = true;
        keep(id, who.user, attempt);
    }
    const kind = isHidden ? 'unknown' : end.kind;
    const isNews = kind !== 'stopped' && kind !== 'signed_out';
    const news = { ...end, kind, sku: attempt.sku, quantity: attempt.quantity, isEnd: true, at: performance.now() };
    phase = isNews ? news : null;
    if (kind === 'stopped') {
        said = '';
        announce(say('stopped'));
    } else if (kind === 'signed_out') {
        signOut();
        wantSignIn('signInAgain');
    } else if (kind === 'reserved' && end.order) {
        keepOrder(end.order);
        afterLayout(() => cards.get(attempt.sku)?.card.scrollIntoView({ block: 'nearest' }));
    }
    render();
    askSale();
    askOrders();
}

function stop() {
    driving?.abort();
}

// Also drops an attempt that was sent long ago. If it bought something, the order is in the list.
function forgetBegun() {
    const who = shopper();
    const attempt = who && load(id, who.user);
    if (attempt && (!attempt.isOpen || !isRecent(attempt))) {
        forget(id, who.user, attempt);
    }
    phase = null;
}

// The shopper gives up the attempt.
function leave() {
    if (phase?.kind === 'begun' || phase?.sentAt) {
        forgetBegun();
        render();
    } else {
        stop();
    }
}

// Resolves to true after the time, or to false if it was stopped first.
function pause(ms, signal) {
    return new Promise((resolve) => {
        const timer = setTimeout(() => resolve(true), ms);
        signal.addEventListener('abort', () => {
            clearTimeout(timer);
            resolve(false);
        });
        if (signal.aborted) {
            clearTimeout(timer);
            resolve(false);
        }
    });
}

// Requests a change of an order. Returns an error key, or nothing on success. `missing` is the key for a 404.
async function change(path, more, missing) {
    const who = shopper();
    if (!who) {
        return 'signInAgain';
    }
    const answer = await ask('POST', path, { token: who.token, ...more });
    await refreshOrders();
    askSale();
    if (answer.isOk || answer.code === 'order_not_cancellable') {
        return '';
    }
    /** @type {Partial<Record<Answer['code'], string>>} */
    const words = { rate_limited: 'tryLater', overloaded: 'tryLater', not_found: missing };
    return words[answer.code] ?? 'tryAgain';
}

const cancel = (order) => change(`/v1/orders/${order}/cancel`);
const pay = (order) => change('/dev/pay', { headers: developmentHeaders(), body: { order_id: order } }, 'wrongLink');
const paying = { cancel, pay, mayPay: hasLink, payLink, readAt: () => ordersRead };

function changedShopper() {
    stop();
    // The stopped attempt ends by itself, unseen by the next shopper.
    driving = null;
    orders = [];
    ordersState = 'loading';
    phase = null;
    isFresh = true;
    askOrders();
    resumeIfOurs();
    render();
}

function salePause() {
    if (!sale || isMissing) {
        return LATER_MS;
    }
    const state = stateAt(sale, now());
    const { until } = timeOf(sale, state);
    const left = until === null ? Infinity : secondsLeft(until, now());
    // The start of a sale brings the most shoppers. The page switches by its own clock then.
    return state === 'open' || state === 'paused' || left < SOON_SECONDS ? SOON_MS : LATER_MS;
}

show(byId('development'), isDevelopment);
watch(byId('picture'));
onPress(byId('to-pay-now'), payNow);
byId('calendar').addEventListener('click', () => sale && addToCalendar(sale));
startLanguage(render);
document.addEventListener('visibilitychange', resync);
onOtherTab(id, resumeIfOurs);
const areOrdersSoon = () => ordersState === 'lost' || orders.some((order) => order.state === 'reserved');
const ordersPause = () => (areOrdersSoon() ? ORDERS_SOON_MS : ORDERS_LATER_MS);
const askSale = poll(refreshSale, salePause, true);
const askOrders = poll(refreshOrders, ordersPause, false);
startSignIn(changedShopper);
setInterval(render, TICK_MS);
