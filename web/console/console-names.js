// The names of languages and operators, and those of sales and items, which lists show instead of ids. An id stays
// where the newest hundred sales lack it.

import { call, isSignedIn } from './console-api.js';
import { element, setText } from './dom.js';
import { locale, plainly, say } from './language.js';

// The pause between two readings.
const AGAIN_MS = 10_000;

/** @type {Map<string, AdminSale>} */
const sales = new Map();
/** @type {{ id: string, write: (sale: AdminSale | null) => void }[]} */
let waiting = [];
/** @type {number | undefined} */
let timer;
let readAt = -Infinity;

const ID = /^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$/;

/** Whether a text may be the id of a sale or an order. @param {unknown} text */
export const isId = (text) => ID.test(String(text));

/** An item in one line, for a choice or a title. @param {Pick<Item, 'sku' | 'name'>} item */
export const itemLabel = ({ sku, name }) => `${sku} · ${plainly(name)}`;

// The label of the text of a message, by the code of its language.
export const messageLabel = (code) =>
    say('messageIn', { language: new Intl.DisplayNames(locale(), { type: 'language' }).of(code) });

// The name that an operator gave. A right-to-left name must not change the order of the text around it.
export const nameOfOperator = (name) => element('bdi', {}, plainly(name));

async function read() {
    if (isSignedIn()) {
        const answer = await call('GET', '/v1/admin/sales?limit=100');
        (answer.isOk ? answer.body.data : []).forEach((sale) => sales.set(sale.id, sale));
    }
    readAt = performance.now();
    timer = undefined;
    waiting.filter(({ id }) => sales.has(id)).forEach(({ id, write }) => write(sales.get(id) ?? null));
    waiting = waiting.filter(({ id }) => !sales.has(id));
}

// Calls `write` with the sale: at once, and again when it becomes known.
function whenKnown(id, write) {
    write(sales.get(id) ?? null);
    if (!sales.has(id)) {
        waiting.push({ id, write });
        timer ??= setTimeout(read, Math.max(0, readAt + AGAIN_MS - performance.now()));
    }
}

// A link to a sale, by its name.
export function saleLink(id) {
    const name = element('bdi');
    whenKnown(id, (sale) => setText(name, sale ? plainly(sale.name) : id.slice(0, 8)));
    return element('a', { href: `/console/sales/${id}` }, name);
}

// An item of a sale, by its name.
export function itemName(id, sku) {
    const name = element('bdi', { title: plainly(sku) });
    whenKnown(id, (sale) => setText(name, plainly(sale?.items.find((item) => item.sku === sku)?.name ?? sku)));
    return name;
}
