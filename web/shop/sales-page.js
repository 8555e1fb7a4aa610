// The shop's list of sales: open ones first, each with the time until it starts or ends.

import { ask } from './api.js';
import { hear, hearRoughly, now, resync } from './clock.js';
import { isDevelopment } from './development.js';
import { byId, element, setAttribute, setChildren, setText, setTitle, show } from './dom.js';
import { clockTime, isToday, lowestPrice, moment, momentNear, secondsLeft } from './format.js';
import { say, startLanguage } from './language.js';
import { picture, showPicture, titled } from './look.js';
import { poll, showConnection } from './poll.js';
import { takeReading } from './reading.js';
import { stateAt, timeOf } from './sale-state.js';
import { showSignIn, startSignIn } from './sign-in.js';
import { shopper } from './token.js';
import { unpaidOf } from './unpaid.js';

const EVERY_MS = 15_000;
const TICK_MS = 500;
const DAY_SECONDS = 86_400;
// Open sales come first.
const ORDER = ['open', 'paused', 'scheduled', 'closed'];

/** @type {Map<string, ReturnType<typeof card>>} */
const cards = new Map();
/** @type {PublicSale[] | null} */
let sales = null;
// How many result pages are shown.
let pages = 1;
let hasMore = false;

// The time until the sale starts or ends. For a closed sale, the date when it started.
/** @type {(sale: PublicSale, state: SaleState) => string} */
function timing(sale, state) {
    const { word, date, until } = timeOf(sale, state);
    if (until === null) {
        return moment(sale.starts_at);
    }
    const left = secondsLeft(until, now());
    // More than a day ahead, the date says more than the hours left.
    if (left > DAY_SECONDS) {
        return say(date, { time: momentNear(until, now()) });
    }
    const countdown = `${say(word)} ${clockTime(left)}`;
    return isToday(until, now()) ? countdown : `${countdown} · ${momentNear(until, now())}`;
}

function card(id) {
    const image = picture();
    const name = element('a', { href: `/sales/${id}` });
    const state = element('span', { class: 'pill' });
    const time = element('p', { class: 'muted' });
    const price = element('p', { class: 'muted' });
    const head = element('div', { class: 'item-head' }, element('h2', {}, name), state);
    const row = element('li', { class: 'sale' }, image, head, time, price);
    // `unpaidUntil`: until when an order of the shopper's waits for its payment.
    /** @type {(sale: PublicSale, unpaidUntil?: number) => void} */
    function update(sale, unpaidUntil) {
        const at = stateAt(sale, now());
        showPicture(image, sale.image_url);
        setText(name, sale.name);
        const isSoldOut = at === 'open' && sale.items.every((item) => item.availability === 'sold_out');
        const isUnpaid = unpaidUntil !== undefined;
        setText(state, say(isUnpaid ? 'order_reserved' : isSoldOut ? 'left_sold_out' : `state_${at}`));
        setAttribute(state, 'class', isUnpaid ? 'pill is-due' : isSoldOut ? 'pill' : `pill is-${at}`);
        const left = isUnpaid ? `${say('leftToPay', { time: clockTime(secondsLeft(unpaidUntil, now())) })} · ` : '';
        setText(time, left + timing(sale, at));
        setText(price, lowestPrice(sale.items));
    }
    return { row, update };
}

function render() {
    showConnection();
    showSignIn();
    setTitle(titled(say('sales')));
    if (sales === null || now() === null) {
        return;
    }
    show(byId('empty'), sales.length === 0);
    show(byId('more'), hasMore);
    const who = shopper();
    const unpaid = new Map(who ? unpaidOf(who.user, now() ?? 0).map(({ sale, until }) => [sale, until]) : []);
    const rows = sales.map((sale) => {
        const shown = cards.get(sale.id) ?? card(sale.id);
        cards.set(sale.id, shown);
        shown.update(sale, unpaid.get(sale.id));
        return shown.row;
    });
    setChildren(byId('sales'), rows);
}

/** @param {PublicSale[]} all */
function sorted(all) {
    const rank = (sale) => ORDER.indexOf(sale.state);
    const shown = all.filter((sale) => ORDER.includes(sale.state));
    return shown.sort((a, b) => rank(a) - rank(b) || a.starts_at.localeCompare(b.starts_at));
}

async function refresh() {
    /** @type {PublicSale[]} */
    const found = [];
    let more = true;
    /** @type {Answer | null} */
    let answer = null;
    for (let page = 0; page < pages && more; page += 1) {
        const after = found.at(-1)?.id;
        // Sent without the shopper's token: the server counts page views that carry a token, and an open page polls often.
        answer = await (takeReading() ?? ask('GET', `/v1/sales?limit=100${after ? `&starting_after=${after}` : ''}`));
        if (!answer.isOk) {
            return answer;
        }
        found.push(...answer.body.data);
        more = answer.body.has_more;
        if (answer.body.data.length > 0) {
            (answer.isRough ? hearRoughly : hear)(answer.body.data[0].server_time, answer.sent, answer.received);
        }
    }
    hasMore = more;
    sales = sorted(found);
    if (sales.length === 0) {
        show(byId('empty'), true);
    }
    render();
    return answer;
}

show(byId('development'), isDevelopment);
startLanguage(render);
startSignIn(render);
document.addEventListener('visibilitychange', resync);
const again = poll(refresh, () => EVERY_MS, true);
byId('more').addEventListener('click', () => {
    pages += 1;
    again();
});
setInterval(render, TICK_MS);
