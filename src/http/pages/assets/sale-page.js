// The page of one sale: how it stands, what can be bought, and what this shopper has bought.

import { ask } from './api.js';
import { drive } from './attempt.js';
import { begin, forget, isOurs, load, onOtherTab, touch } from './attempt-store.js';
import { readLetters } from './captcha.js';
import { distrust, hear, now } from './clock.js';
import { announce, byId, element, setAttribute, setText, show } from './dom.js';
import { countdownParts, moment, secondsLeft } from './format.js';
import { itemCard } from './item-card.js';
import { say, startLanguage } from './language.js';
import { orderRow } from './order-row.js';
import { poll, showConnection } from './poll.js';
import { stateAt, timeOf } from './sale-state.js';
import { isDevelopment, shopper, showSignIn, signOut, startSignIn, wantSignIn } from './sign-in.js';

const TICK_MS = 250;
// How often the sale is asked for: while it sells or is about to, and while nothing happens.
const SOON_MS = 3000;
const LATER_MS = 15_000;
const SOON_SECONDS = 90;
// How often orders are asked for while one can still be paid, and while none can.
const ORDERS_SOON_MS = 4000;
const ORDERS_LATER_MS = 60_000;
// How often this tab shows that it goes on with an attempt.
const TOUCH_MS = 2000;
// News stand so long at the least: what is answered meanwhile may be older.
const NEWS_MS = 2000;

const id = location.pathname.split('/')[2] ?? '';

let sale = null;
let isMissing = false;
let orders = [];
// How the attempt stands, for the shopper's eye: `{ kind, sku, … }`; `isEnd` when nothing goes on by itself any more.
let phase = null;
// What stops the attempt that is driven here.
let driving = null;
let said = '';

const cards = new Map();
const rows = new Map();

// One thing after the other: also while it is not known what became of the last.
const isBusy = () => Boolean(phase) && (!phase.isEnd || phase.kind === 'unknown');

function render() {
    showConnection();
    showSignIn();
    const state = sale && stateAt(sale, now());
    document.title = sale ? sale.name : say('sale');
    renderHead(state);
    if (sale) {
        for (const item of sale.items) {
            if (!cards.has(item.sku)) {
                cards.set(item.sku, itemCard(item, { buy, again: resume, stop }));
                byId('items').append(cards.get(item.sku).card);
            }
            const own = phase?.sku === item.sku ? phase : null;
            const text = cards.get(item.sku).update(now(), { ...sale, state }, item, own, isBusy());
            if (own && text !== said) {
                said = text;
                announce(text);
            }
        }
    }
    renderOrders();
}

function renderHead(state) {
    if (!sale) {
        setText(byId('name'), say(isMissing ? 'noSale' : 'loading'));
        return;
    }
    setText(byId('name'), sale.name);
    setText(byId('state'), say(`state_${state}`));
    setAttribute(byId('state'), 'class', `pill is-${state}`);
    const { word, until } = timeOf(sale, state);
    setText(byId('until'), say(word));
    show(byId('countdown'), until !== null && now() !== null);
    if (until !== null && now() !== null) {
        renderCountdown(secondsLeft(until, now()));
    }
    setText(byId('when'), `${moment(sale.starts_at)} – ${moment(sale.ends_at)}`);
}

function renderCountdown(seconds) {
    const parts = countdownParts(seconds);
    const place = byId('countdown');
    while (place.children.length > parts.length) {
        place.lastChild.remove();
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
    show(byId('orders-section'), Boolean(shopper()));
    show(byId('no-orders'), orders.length === 0);
    // Newest first.
    const sorted = [...orders].sort((a, b) => b.created_at.localeCompare(a.created_at));
    for (const order of sorted) {
        if (!rows.has(order.id)) {
            rows.set(order.id, orderRow(order.id, { cancel, pay: isDevelopment ? pay : null }));
        }
        const item = sale?.items.find(({ sku }) => sku === order.sku);
        rows.get(order.id).update(now(), order, item?.name ?? order.sku);
    }
    const wanted = sorted.map((order) => rows.get(order.id).row);
    const list = byId('orders');
    if (wanted.length !== list.children.length || wanted.some((row, at) => list.children[at] !== row)) {
        list.replaceChildren(...wanted);
    }
}

// Without the shopper's token: looks that say who looks are counted, and this page looks often.
async function refreshSale() {
    const answer = await ask('GET', `/v1/sales/${encodeURIComponent(id)}`);
    isMissing = answer.status === 404;
    if (answer.isOk) {
        sale = answer.body;
        hear(sale.server_time, answer.sent, answer.received);
        forgetOldNews();
        resumeIfOurs();
    }
    render();
    return answer.isOk || isMissing;
}

async function refreshOrders() {
    const who = shopper();
    if (!who || isMissing) {
        orders = [];
        return true;
    }
    const answer = await ask('GET', `/v1/orders?sale_id=${encodeURIComponent(id)}`, { token: who.token });
    if (answer.isOk && shopper()?.user === who.user) {
        orders = answer.body.data;
        forgetOldNews();
    } else if (answer.status === 401) {
        signOut();
        wantSignIn('signInAgain');
    }
    render();
    // What is refused was answered all the same.
    return answer.status !== 0 && answer.status < 500;
}

// What was said of an attempt goes when it is not so any more.
function forgetOldNews() {
    if (!phase?.isEnd || performance.now() - phase.at < NEWS_MS) {
        return;
    }
    const order = orders.find((one) => one.id === phase.order?.id);
    const isDecided = phase.kind === 'reserved' && order && order.state !== 'reserved';
    const item = sale?.items.find(({ sku }) => sku === phase.sku);
    const isBack = phase.code === 'sold_out' && phase.quantity === 1 && item && item.availability !== 'sold_out';
    const goesOn = phase.code === 'sale_not_open' && sale?.state === 'open';
    if (isDecided || isBack || goesOn) {
        phase = null;
    }
}

function keepOrder(order) {
    orders = [order, ...orders.filter((other) => other.id !== order.id)];
    render();
}

function buy(sku, quantity) {
    const who = shopper();
    if (!who) {
        wantSignIn('signInToBuy');
        return;
    }
    // Whatever another tab has begun is gone on with first.
    if (!load(id, who.user)) {
        begin(id, who.user, sku, quantity);
    }
    resume();
}

// Goes on with what was begun.
function resume() {
    const who = shopper();
    const attempt = who && load(id, who.user);
    if (attempt && sale) {
        run(attempt, who);
    }
}

// Goes on with what was begun if no other tab does; else shows that one does.
function resumeIfOurs() {
    const who = shopper();
    const attempt = who && load(id, who.user);
    if (driving) {
        return;
    }
    if (!attempt) {
        if (phase?.kind === 'elsewhere') {
            phase = null;
            askOrders();
        }
    } else if (!isOurs(attempt)) {
        phase = { kind: 'elsewhere', sku: attempt.sku };
    } else if (phase?.kind !== 'unknown') {
        run(attempt, who);
    }
}

async function run(attempt, who) {
    if (driving) {
        return;
    }
    if (!sale.items.some(({ sku }) => sku === attempt.sku)) {
        // Kept by somebody else than this page.
        forget(id, who.user);
        return;
    }
    const stopping = new AbortController();
    driving = stopping;
    const keep = () => touch(id, who.user, attempt);
    const touching = setInterval(keep, TOUCH_MS);
    keep();
    const world = {
        id,
        user: who.user,
        token: who.token,
        sale: () => sale,
        now,
        keep,
        show(next) {
            phase = { sku: attempt.sku, ...next };
            render();
        },
        pause: (ms) => pause(ms, stopping.signal),
        letters(image, wasWrong) {
            world.show({ kind: 'letters' });
            return readLetters(cards.get(attempt.sku).place, image, wasWrong, stopping.signal);
        },
    };
    world.show({ kind: 'sending' });
    const end = await drive(attempt, world);
    clearInterval(touching);
    driving = null;
    finish(end, attempt, who);
}

// What became of it. The key is forgotten when that is known, and not before.
function finish(end, attempt, who) {
    const isKept = ['unknown', 'signed_out'].includes(end.kind) || (end.kind === 'stopped' && shopper()?.user !== who.user);
    if (!isKept) {
        forget(id, who.user);
    }
    phase = { ...end, sku: attempt.sku, quantity: attempt.quantity, isEnd: true, at: performance.now() };
    if (end.kind === 'stopped') {
        phase = null;
    } else if (end.kind === 'signed_out') {
        phase = null;
        signOut();
        wantSignIn('signInAgain');
    } else if (end.kind === 'reserved') {
        keepOrder(end.order);
    }
    render();
    askSale();
    askOrders();
}

function stop() {
    driving?.abort();
}

// Whether the time has passed; not if it was stopped before.
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

// Asks for what happens to an order; the word for what went wrong, or nothing.
async function change(path, body) {
    const who = shopper();
    if (!who) {
        return 'signInAgain';
    }
    const answer = await ask('POST', path, { token: who.token, body });
    await refreshOrders();
    askSale();
    return answer.isOk || answer.code === 'order_not_cancellable' ? '' : 'tryAgain';
}

const cancel = (order) => change(`/v1/orders/${order}/cancel`);
const pay = (order) => change('/dev/pay', { order_id: order });

function changedShopper() {
    stop();
    orders = [];
    phase = null;
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
    // At the start everybody comes; what is on the page then changes by itself.
    return state === 'open' || state === 'paused' || left < SOON_SECONDS ? SOON_MS : LATER_MS;
}

startLanguage(render);
startSignIn(changedShopper);
document.addEventListener('visibilitychange', distrust);
onOtherTab(id, resumeIfOurs);
const ordersPause = () => (orders.some((order) => order.state === 'reserved') ? ORDERS_SOON_MS : ORDERS_LATER_MS);
const askSale = poll(refreshSale, salePause, true);
const askOrders = poll(refreshOrders, ordersPause, false);
setInterval(render, TICK_MS);
