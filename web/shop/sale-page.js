// The page of one sale: how it stands, what can be bought, and what this shopper has bought.

import { ask } from './api.js';
import { drive } from './attempt.js';
import { begin, forget, isFromReload, isOurs, isRecent, keep, load, onOtherTab, sentAt, sleepWatch } from './attempt-store.js';
import { readLetters } from './captcha.js';
import { distrust, hear, now } from './clock.js';
import { developmentHeaders, hasLink, isDevelopment } from './development.js';
import { announce, byId, element, setAttribute, setChildren, setText, setTitle, show } from './dom.js';
import { about, countdownParts, secondsLeft, span } from './format.js';
import { itemCard } from './item-card.js';
import { say, startLanguage } from './language.js';
import { orderRow } from './order-row.js';
import { poll, showConnection } from './poll.js';
import { stateAt, timeOf } from './sale-state.js';
import { payLink } from './shop-links.js';
import { showSignIn, signOut, startSignIn, wantSignIn } from './sign-in.js';
import { shopper } from './token.js';

const TICK_MS = 250;
// How often the sale is asked for: while it sells or is about to, and while nothing happens.
const SOON_MS = 3000;
const LATER_MS = 15_000;
const SOON_SECONDS = 90;
// How often orders are asked for while one can still be paid or they are not known, and otherwise.
const ORDERS_SOON_MS = 4000;
const ORDERS_LATER_MS = 60_000;
// How often this tab shows that it goes on with an attempt.
const KEEP_MS = 2000;
// News stand so long at the least: what is answered meanwhile may be older.
const NEWS_MS = 2000;

const id = location.pathname.split('/')[2] ?? '';

let sale = null;
let isMissing = false;
let orders = [];
// Whether these are all of them: `loading` before anything was heard, `lost` while they cannot be read, `heard`.
let ordersState = 'loading';
// Questions about them that were sent, and the latest whose answer counts.
let ordersAsked = 0;
let ordersHeard = 0;
// How the attempt stands, for the shopper's eye: `{ kind, sku, … }`; `isEnd` when nothing goes on by itself any more.
let phase = null;
// What stops the attempt that is driven here.
let driving = null;
// Whether this page, or this shopper, has only just come.
let isFresh = true;
// What was said of it last, and of the sale.
let said = '';
let toldState = null;

const cards = new Map();
const rows = new Map();

// One thing after the other: also while it is not known what became of the last.
const isBusy = () => Boolean(phase) && (!phase.isEnd || phase.kind === 'unknown');

function render() {
    showConnection();
    showSignIn();
    const state = sale && stateAt(sale, now());
    setTitle(titleOf());
    renderHead(state);
    if (sale) {
        for (const item of sale.items) {
            if (!cards.has(item.sku)) {
                cards.set(item.sku, itemCard(item, { buy, again: resume, stop: leave }));
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

// What whoever has turned to another tab has to know comes before the sale's name.
function titleOf() {
    const name = sale ? sale.name : say('sale');
    const told = titleNews();
    return told ? `${told} · ${name}` : name;
}

function titleNews() {
    if (phase?.kind === 'letters') {
        return say('titleLetters');
    }
    if (phase?.kind === 'queued') {
        return phase.position === undefined ? say('queued') : say('titleQueued', { position: phase.position });
    }
    const unpaid = orders.filter((order) => order.state === 'reserved').map((order) => Date.parse(order.expires_at));
    const left = unpaid.length > 0 && now() !== null ? secondsLeft(Math.min(...unpaid), now()) : 0;
    if (left > 0) {
        return say('titlePay', { time: about(left) });
    }
    return phase?.isEnd && ['unknown', 'begun'].includes(phase.kind) ? say('titleGoOn') : '';
}

function renderHead(state) {
    byId('main').classList.toggle('is-missing', isMissing);
    if (!sale) {
        setText(byId('name'), say(isMissing ? 'noSale' : 'loading'));
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
    show(byId('countdown'), until !== null && now() !== null);
    if (until !== null && now() !== null) {
        renderCountdown(secondsLeft(until, now()));
    }
    setText(byId('when'), span(sale.starts_at, sale.ends_at));
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
    show(byId('orders-section'), Boolean(shopper()) && !isMissing);
    const none = { loading: 'loading', lost: 'ordersLost', heard: orders.length === 0 ? 'noOrders' : '' }[ordersState];
    setText(byId('no-orders'), none && say(none));
    show(byId('no-orders'), none !== '');
    // Newest first.
    const sorted = [...orders].sort((a, b) => b.created_at.localeCompare(a.created_at));
    for (const order of sorted) {
        if (!rows.has(order.id)) {
            rows.set(order.id, orderRow(order.id, { cancel, pay, mayPay: hasLink, payLink }));
        }
        const item = sale?.items.find(({ sku }) => sku === order.sku);
        const change = rows.get(order.id).update(now(), order, item?.name ?? order.sku);
        if (change) {
            announce(change);
        }
    }
    setChildren(
        byId('orders'),
        sorted.map((order) => rows.get(order.id).row),
    );
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
    // Somebody else may have signed in since, and news may have overtaken this answer.
    if (shopper()?.token === who.token && turn > ordersHeard) {
        ordersHeard = turn;
        if (answer.isOk) {
            orders = answer.body.data;
            ordersState = 'heard';
            forgetOldNews();
        } else if (answer.status === 401) {
            signOut();
            wantSignIn('signInAgain');
        } else if (ordersState === 'loading') {
            // Those that were heard before still stand.
            ordersState = 'lost';
        }
    }
    render();
    return answer;
}

// What was said of an attempt goes when it is not so any more.
function forgetOldNews() {
    if (!phase?.isEnd || performance.now() - phase.at < NEWS_MS) {
        return;
    }
    const order = orders.find((one) => one.id === phase.order?.id);
    const isDecided = phase.kind === 'reserved' && order && order.state !== phase.order.state;
    const item = sale?.items.find(({ sku }) => sku === phase.sku);
    const isBack = phase.code === 'sold_out' && phase.quantity === 1 && item && item.availability !== 'sold_out';
    const goesOn = phase.code === 'sale_not_open' && sale?.state === 'open';
    const isWaitedOut = phase.kind === 'slow' && phase.until <= now();
    if (isDecided || isBack || goesOn || isWaitedOut) {
        phase = null;
    }
}

function keepOrder(order) {
    ordersHeard = ordersAsked;
    orders = [order, ...orders.filter((other) => other.id !== order.id)];
    render();
}

function buy(sku, quantity) {
    const who = shopper();
    if (!who) {
        wantSignIn('signInToBuy');
        return;
    }
    // What was never sent makes way; whatever else was begun is gone on with first.
    if (phase?.kind === 'begun') {
        forgetBegun();
    }
    if (!load(id, who.user)) {
        begin(id, who.user, sku, quantity);
    }
    resume();
}

// Goes on with what was begun, as the shopper wants.
function resume() {
    const who = shopper();
    const attempt = who && load(id, who.user);
    if (attempt && sale) {
        if (attempt.isOpen) {
            attempt.sentAt = Date.now();
        }
        run(attempt, who);
    }
}

// Goes on with what was begun if no other tab does; else shows that one does. What was given up, the shopper takes up
// again: by a press, a reload, or by signing in. What was never sent may be of yesterday, and so may what was sent and not
// answered: unless the page was only loaded anew, or that was a moment ago, nothing is bought without a press.
function resumeIfOurs() {
    if (!sale || driving) {
        return;
    }
    const who = shopper();
    const attempt = who && load(id, who.user);
    if (!attempt) {
        if (['elsewhere', 'unknown', 'begun'].includes(phase?.kind)) {
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
    isFresh = false;
}

async function run(attempt, who) {
    if (driving) {
        return;
    }
    if (!sale.items.some(({ sku }) => sku === attempt.sku)) {
        // Kept by somebody else than this page.
        forget(id, who.user, attempt);
        return;
    }
    const stopping = new AbortController();
    driving = stopping;
    attempt.isParked = false;
    const keepIt = () => keep(id, who.user, attempt);
    const keeping = setInterval(keepIt, KEEP_MS);
    keepIt();
    const world = {
        id,
        user: who.user,
        token: who.token,
        sale: () => sale,
        now,
        keep: keepIt,
        isStopped: () => stopping.signal.aborted,
        signal: stopping.signal,
        hasSlept: sleepWatch(),
        show(next) {
            // Whoever has signed in since sees nothing of it.
            if (!stopping.signal.aborted) {
                phase = { sku: attempt.sku, ...next };
                render();
            }
        },
        pause: (ms) => pause(ms, stopping.signal),
        async letters(image, how) {
            world.show({ kind: 'letters' });
            const read = await readLetters(cards.get(attempt.sku).place, image, how, stopping.signal);
            // Whoever has pressed waits for what comes next, however long that took.
            world.hasSlept();
            return read;
        },
    };
    world.show({ kind: 'sending' });
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
}

// What became of it. The key is forgotten when that is known, and not before. `isCurrent` is not so when another shopper
// has come since.
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
    if (kind === 'signed_out') {
        signOut();
        wantSignIn('signInAgain');
    } else if (kind === 'reserved') {
        keepOrder(end.order);
    }
    render();
    askSale();
    askOrders();
}

function stop() {
    driving?.abort();
}

// What was sent long ago is forgotten as well: its order, if there is one, is among the others.
function forgetBegun() {
    const who = shopper();
    const attempt = who && load(id, who.user);
    if (attempt && (!attempt.isOpen || !isRecent(attempt))) {
        forget(id, who.user, attempt);
    }
    phase = null;
}

// The shopper does not want to go on.
function leave() {
    if (phase?.kind === 'begun' || phase?.sentAt) {
        forgetBegun();
        render();
    } else {
        stop();
    }
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

// Asks for what happens to an order; the word for what went wrong, or nothing. `missing` is that for what is not there.
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
    return { rate_limited: 'tryLater', overloaded: 'tryLater', not_found: missing }[answer.code] ?? 'tryAgain';
}

const cancel = (order) => change(`/v1/orders/${order}/cancel`);
const pay = (order) => change('/dev/pay', { headers: developmentHeaders(), body: { order_id: order } }, 'wrongLink');

function changedShopper() {
    stop();
    // What is stopped ends by itself, behind the next shopper's back.
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
    // At the start everybody comes; what is on the page then changes by itself.
    return state === 'open' || state === 'paused' || left < SOON_SECONDS ? SOON_MS : LATER_MS;
}

show(byId('development'), isDevelopment);
startLanguage(render);
document.addEventListener('visibilitychange', distrust);
onOtherTab(id, resumeIfOurs);
const areOrdersSoon = () => ordersState === 'lost' || orders.some((order) => order.state === 'reserved');
const ordersPause = () => (areOrdersSoon() ? ORDERS_SOON_MS : ORDERS_LATER_MS);
const askSale = poll(refreshSale, salePause, true);
const askOrders = poll(refreshOrders, ordersPause, false);
startSignIn(changedShopper);
setInterval(render, TICK_MS);
