// What publishing a sale promises: the units, prices, times and limits, with a mark on what looks like a slip.

import { now } from './clock.js';
import { call } from './console-api.js';
import { durationText } from './console-duration.js';
import { guardsText } from './console-guards.js';
import { word } from './console-table.js';
import { SECOND } from './console-terms.js';
import { element } from './dom.js';
import { moment, money } from './format.js';
import { say } from './language.js';

// The most items that are listed. Those with a mark come first.
const LISTED_MAX = 20;
// A price in cents where the currency was meant is a hundredth of it.
const SLIP = 100;
// An end so many days ahead looks like a wrong month or year.
const FAR_DAYS = 90;
const DAY_MS = 86_400_000;

const keyOf = ({ sku, currency }) => `${currency} ${sku}`;

// The lowest and highest price of each item in sales that were published before; null if they cannot be read.
/** @type {(sale: AdminSale) => Promise<Map<string, number[]> | null>} */
async function earlierPrices(sale) {
    const answer = await call('GET', '/v1/admin/sales?limit=100');
    if (!answer.isOk) {
        return null;
    }
    /** @type {AdminSale[]} */
    const sales = answer.body.data;
    const prices = new Map();
    for (const item of sales.filter(({ id, state }) => id !== sale.id && state !== 'draft').flatMap(({ items }) => items)) {
        const [low, high] = prices.get(keyOf(item)) ?? [Infinity, 0];
        prices.set(keyOf(item), [Math.min(low, item.price_minor), Math.max(high, item.price_minor)]);
    }
    return prices;
}

// What looks like a slip about an item.
/** @type {(item: Item, sale: AdminSale, earlier: Map<string, number[]>) => string[]} */
function marksOf(item, sale, earlier) {
    const { price_minor: price, currency, stock, per_user_limit: limit } = item;
    const [low, high] = earlier.get(keyOf(item)) ?? [0, Infinity];
    const others = sale.items.filter((other) => other !== item && other.currency === currency);
    const highest = Math.max(0, ...others.map((other) => other.price_minor));
    /** @type {[boolean, string][]} */
    const marks = [
        [price === 0, say('markFree')],
        [price > 0 && price < low, say('markCheaper', { price: money(low, currency) })],
        [price > 2 * high, say('markDearer', { price: money(high, currency) })],
        [price > 0 && price * SLIP <= highest, say('markTiny')],
        [stock === 0, say('markNone')],
        [stock > 1 && limit >= stock, say('markAll')],
    ];
    return marks.filter(([isMarked]) => isMarked).map(([, text]) => text);
}

/** @type {(item: Item, marks: string[]) => HTMLElement} */
function itemLine({ sku, name, price_minor: price, currency, stock, per_user_limit: limit }, marks) {
    const most = say('limitNote', { n: limit });
    const text = say('contractItem', { n: stock, name, sku, price: money(price, currency), limit: most });
    const notes = marks.map((mark) => element('p', { class: 'warning' }, mark));
    return element('li', {}, element('b', {}, text), ...notes);
}

/** @type {(sale: AdminSale) => Promise<HTMLElement>} */
export async function contractOf(sale) {
    const earlier = await earlierPrices(sale);
    const marked = sale.items.map((item) => ({ item, marks: marksOf(item, sale, earlier ?? new Map()) }));
    const listed = marked.sort((a, b) => b.marks.length - a.marks.length).slice(0, LISTED_MAX);
    const further = sale.items.length - listed.length;
    const [from, to] = [sale.starts_at, sale.ends_at].map(moment);
    const present = now() ?? Date.now();
    const startsAtOnce = Date.parse(sale.starts_at) <= present;
    const daysToEnd = Math.floor((Date.parse(sale.ends_at) - present) / DAY_MS);
    return element(
        'div',
        { class: 'list', id: 'contract' },
        element('ul', { class: 'list' }, ...listed.map(({ item, marks }) => itemLine(item, marks))),
        ...(further > 0 ? [element('p', {}, say('contractFurther', { n: further }))] : []),
        ...(earlier === null ? [word('p', 'contractUncompared', { class: 'warning' })] : []),
        element('p', {}, startsAtOnce ? say('contractNow', { to }) : say('contractTimes', { from, to })),
        ...(daysToEnd >= FAR_DAYS ? [element('p', { class: 'warning' }, say('markFarEnd', { n: daysToEnd }))] : []),
        element('p', {}, say('contractPay', { time: durationText(SECOND * sale.payment_window_seconds) })),
        element('p', {}, `${say('theGuards')}${say('colon')}${guardsText(sale.guards)}`),
        word('p', 'about_preload'),
    );
}
