// The check after the run, in teardown. It counts orders, keys and units through the API. Every difference becomes a
// metric with a threshold of zero, so k6's exit code has the verdict.

import http from 'k6/http';
import { sleep } from 'k6';
import { Counter, Gauge } from 'k6/metrics';

import { acknowledgedNotFound, breach, describe, expect } from './answers.js';
import {
  SKU,
  audit,
  closeSale,
  header,
  isWorthRetrying,
  json,
  listOrders,
  ordersRequest,
  purchaseRequest,
  stats,
  waitRetryAfter,
} from './api.js';
import { CHECK_USERS, CHECK_WAIT_SECONDS } from './config.js';

/** @typedef {Map<string, Order & { n: number }>} Orders by id, each with the number of its shopper */

const BATCH = 20;
const RETRY_ROUNDS_MAX = 5;
const PAGES_MAX = 1000;
const POLL_SECONDS = 0.5;

const oversold = new Counter('oversold');
const readingsOversold = new Counter('readings_oversold');
const leaked = new Counter('leaked');
const duplicates = new Counter('duplicate_orders');
const miscounted = new Counter('miscounted_orders');
const unbalanced = new Counter('unbalanced');
const undrained = new Counter('undrained');
const unsold = new Counter('unsold');
const checked = new Counter('sale_checked');

const drainSeconds = new Gauge('drain_seconds');
const unitsTotal = new Gauge('units_total');
const unitsAvailable = new Gauge('units_available');
const unitsHeld = new Gauge('units_held');
const unitsSold = new Gauge('units_sold');
const ordersFound = new Gauge('orders_found');
const ordersCounted = new Gauge('orders_counted');

export const CHECK_THRESHOLDS = {
  // A check that never ran would find no difference. This threshold fails such a run.
  sale_checked: ['count>=1'],
  oversold: ['count==0'],
  readings_oversold: ['count==0'],
  leaked: ['count==0'],
  duplicate_orders: ['count==0'],
  miscounted_orders: ['count==0'],
  unbalanced: ['count==0'],
  undrained: ['count==0'],
  unsold: ['count==0'],
};

// The threshold for the number of orders. It counts the orders in the shoppers' lists. If the check asks only some
// shoppers, it takes the API's count of all orders.
export const ordersThreshold = (shoppers, orders) => ({
  [shoppers <= CHECK_USERS ? 'orders_found' : 'orders_counted']: [`value==${orders}`],
});

// Checks a sale after its last request, and closes it.
//
// shoppers  the number of shoppers
// user(n)   the name of the n-th shopper
// keys(n)   every idempotency key of the n-th shopper's purchases, one unit each: a key for the item SKU, or {key, sku}
// soldOut   the SKUs with a demand certainly above the stock: none of their units may be left
/** @type {(sale: RunSale, check: SaleCheck) => void} */
export function checkSale(sale, { shoppers, user, keys, soldOut = [] }) {
  waitUntilSettled(sale.id);
  const before = stats(sale.id);

  const asked = Math.min(shoppers, CHECK_USERS);
  const complete = asked === shoppers;
  const orders = ordersOfShoppers(sale.id, asked, user);
  ordersFound.add(orders.size);
  ordersCounted.add(orderTotal(before));
  checkCounts(before, orders, complete);
  if (complete) {
    checkItems(before, orders);
  }

  // In a closed sale, a key with an order still gets that order. A key without an order gets none. So repeating every
  // key counts the orders and changes nothing.
  const closed = closeSale(sale.id);
  expect(closed.state === 'closed', `a closed sale has the state ${closed.state}`);
  const found = checkKeys(sale.id, orders, asked, user, keys);
  acknowledgedNotFound.add(-(complete ? found : orderTotal(before)));

  checkUnits(before, stats(sale.id), soldOut);
  checkAudit(sale.id);
  checked.add(1);
}

// The units of all items together.
/** @param {Stats} sheet */
export function unitsOf(sheet) {
  if (sheet.items.length === 0) {
    throw new Error(`the stats have no item: ${JSON.stringify(sheet)}`);
  }
  const sum = { total: 0, available: 0, held: 0, sold: 0, in_transit: 0 };
  for (const item of sheet.items) {
    for (const place of Object.keys(sum)) {
      sum[place] += item[place];
    }
  }
  return sum;
}

/** @param {Stats} sheet */
function orderTotal(sheet) {
  return Object.values(sheet.orders).reduce((sum, count) => sum + count, 0);
}

// Waits until every order is decided and every unpaid unit is free. Returns the last reading.
export function waitUntilDecided(saleId, secondsMax) {
  const deadline = Date.now() + secondsMax * 1000;
  let sheet = stats(saleId);
  const isOver = () => sheet.orders.reserved === 0 && sheet.undrained_events === 0 && unitsOf(sheet).held === 0;
  while (!isOver() && Date.now() < deadline) {
    sleep(POLL_SECONDS);
    sheet = stats(saleId);
  }
  return sheet;
}

// Waits until the ledger has every event and the stock has every decision of the ledger.
function waitUntilSettled(saleId) {
  const started = Date.now();
  const deadline = started + CHECK_WAIT_SECONDS * 1000;
  let sheet = stats(saleId);
  while (!isSettled(sheet) && Date.now() < deadline) {
    sleep(POLL_SECONDS);
    sheet = stats(saleId);
  }
  drainSeconds.add((Date.now() - started) / 1000);
  if (sheet.undrained_events > 0) {
    console.error(`check: ${sheet.undrained_events} events are still not in the ledger`);
    undrained.add(sheet.undrained_events);
  }
}

// Every order has one unit. So the held units equal the reserved orders, and the sold units equal the paid orders.
/** @param {Stats} sheet */
function isSettled(sheet) {
  const units = unitsOf(sheet);
  return (
    sheet.undrained_events === 0 &&
    units.in_transit === 0 &&
    units.held === sheet.orders.reserved &&
    units.sold === sheet.orders.paid
  );
}

// All orders in the shoppers' lists, by id.
/** @type {(saleId: string, shoppers: number, user: (n: number) => string) => Orders} */
function ordersOfShoppers(saleId, shoppers, user) {
  /** @type {Orders} */
  const orders = new Map();
  for (let first = 0; first < shoppers; first += BATCH) {
    const names = [];
    for (let n = first; n < Math.min(first + BATCH, shoppers); n += 1) {
      names.push(user(n));
    }
    const answers = askAll(names.map((name) => ordersRequest(saleId, name)));
    answers.forEach((answer, position) => {
      for (const order of allPages(saleId, names[position], answer)) {
        if (orders.has(order.id)) {
          console.error(`check: order ${order.id} is listed twice`);
          duplicates.add(1);
        }
        orders.set(order.id, { ...order, n: first + position });
      }
    });
  }
  return orders;
}

/** @type {(saleId: string, name: string, firstAnswer: LoadAnswer) => Order[]} */
function allPages(saleId, name, firstAnswer) {
  /** @type {Order[]} */
  const orders = [];
  let answer = firstAnswer;
  for (let pages = 0; pages < PAGES_MAX; pages += 1) {
    const page = answer.status === 200 ? json(answer) : null;
    if (page === null || !Array.isArray(page.data)) {
      throw new Error(`listing the orders of ${name}: ${describe(answer)}`);
    }
    orders.push(...page.data);
    if (!page.has_more) {
      return orders;
    }
    answer = listOrders(saleId, name, page.data[page.data.length - 1].id);
  }
  throw new Error(`listing the orders of ${name}: no end after ${PAGES_MAX} pages`);
}

// Compares the shoppers' lists with the operators' count, state by state.
/** @type {(sheet: Stats, orders: Orders, complete: boolean) => void} */
function checkCounts(sheet, orders, complete) {
  const listed = { reserved: 0, paid: 0, cancelled: 0, expired: 0, revoked: 0 };
  for (const { id, state, confirmed } of orders.values()) {
    listed[state] += 1;
    expect(confirmed === true || sheet.undrained_events > 0, `order ${id} is not confirmed after the last drain`);
  }
  for (const state of Object.keys(listed)) {
    const counted = sheet.orders[state];
    const difference = complete ? Math.abs(counted - listed[state]) : Math.max(0, listed[state] - counted);
    if (difference > 0 || typeof counted !== 'number') {
      console.error(`check: ${counted} orders are ${state} by the stats, ${listed[state]} by the shoppers' lists`);
      miscounted.add(difference || 1);
    }
  }
  const units = unitsOf(sheet);
  if (units.held !== sheet.orders.reserved || units.sold !== sheet.orders.paid) {
    console.error(`check: units and orders differ: ${JSON.stringify(units)} ${JSON.stringify(sheet.orders)}`);
    unbalanced.add(1);
  }
}

// Compares each item's units with the shoppers' orders for that item.
/** @type {(sheet: Stats, orders: Orders) => void} */
function checkItems(sheet, orders) {
  const listed = {};
  for (const { sku, state } of orders.values()) {
    listed[`${sku} ${state}`] = (listed[`${sku} ${state}`] || 0) + 1;
  }
  for (const { sku, held, sold } of sheet.items) {
    const ordered = { held: listed[`${sku} reserved`] || 0, sold: listed[`${sku} paid`] || 0 };
    if (held !== ordered.held || sold !== ordered.sold) {
      console.error(`check: ${sku} has ${held} held and ${sold} sold units, by the orders ${JSON.stringify(ordered)}`);
      unbalanced.add(1);
    }
  }
}

// The units in one reading that exceed the total, and those that are missing: {over, gone}.
/** @param {ItemStats} reading */
function unitDifferences({ total, available, held, sold, in_transit: inTransit }) {
  const sum = available + held + sold + inTransit;
  return { over: Math.max(0, held + sold - total, sum - total), gone: Math.max(0, total - sum) };
}

// For each item, takes the worse of the readings before and after the close.
/** @type {(before: Stats, after: Stats, soldOut: string[]) => void} */
function checkUnits(before, after, soldOut) {
  for (const sku of soldOut) {
    if (!after.items.some((item) => item.sku === sku)) {
      throw new Error(`the stats have no item ${sku}: ${JSON.stringify(after)}`);
    }
  }
  for (const last of after.items) {
    const readings = [...before.items.filter(({ sku }) => sku === last.sku), last];
    const over = Math.max(...readings.map((item) => unitDifferences(item).over));
    const gone = Math.max(...readings.map((item) => unitDifferences(item).gone));
    const isOut = soldOut.includes(last.sku);
    const left = isOut ? Math.max(0, ...readings.map((item) => item.available + item.in_transit)) : 0;
    if (over > 0 || gone > 0 || left > 0) {
      console.error(`check: ${over} units too many, ${gone} missing, ${left} unsold: ${JSON.stringify(readings)}`);
    }
    oversold.add(over);
    leaked.add(gone);
    unsold.add(left);
  }

  const { total, available, held, sold } = unitsOf(after);
  unitsTotal.add(total);
  unitsAvailable.add(available);
  unitsHeld.add(held);
  unitsSold.add(sold);
}

// The keys of the n-th of `shoppers`, if shoppers took turns and request number `at` had key(at).
export function keysByTurn(n, shoppers, requests, key) {
  const keys = [];
  for (let at = n; at < requests; at += shoppers) {
    keys.push(key(at));
  }
  return keys;
}

// Reads the stock during the sale. Counts a reading with more held and sold units than the total. Returns the reading.
export function watchStock(saleId) {
  const sheet = stats(saleId);
  readingsOversold.add(sheet.items.some(({ held, sold, total }) => held + sold > total) ? 1 : 0);
  return sheet;
}

// Repeats every key of every shopper with an order. Each order must come back under exactly one key.
/** @type {(saleId: string, orders: Orders, shoppers: number, user: (n: number) => string, keys: SaleCheck['keys']) => number} */
function checkKeys(saleId, orders, shoppers, user, keys) {
  const owners = new Set();
  for (const { n } of orders.values()) {
    owners.add(n);
  }
  const asks = [];
  for (const n of [...owners].sort((a, b) => a - b)) {
    for (const entry of keys(n)) {
      asks.push({ n, ...(typeof entry === 'string' ? { key: entry, sku: SKU } : entry) });
    }
  }
  const keyOf = new Map();
  for (let first = 0; first < asks.length; first += BATCH) {
    const some = asks.slice(first, first + BATCH);
    const requests = some.map(({ n, key, sku }) => purchaseRequest(saleId, user(n), key, { name: 'replay', sku }));
    const answers = askAll(requests);
    answers.forEach((answer, position) => checkReplay(answer, some[position], orders, keyOf));
  }
  const keyless = orders.size - keyOf.size;
  if (keyless > 0) {
    console.error(`check: ${keyless} orders are under no used key: a request made two orders`);
    duplicates.add(keyless);
  }
  return keyOf.size;
}

/** @type {(answer: LoadAnswer, ask: { n: number, key: string, sku: string }, orders: Orders, keyOf: Map<string, string>) => void} */
function checkReplay(answer, { n, key, sku }, orders, keyOf) {
  const body = json(answer);
  if (answer.status === 409 && body !== null && body.code === 'sale_not_open') {
    return; // The key has no order.
  }
  if (answer.status !== 200 || body === null || header(answer, 'Idempotency-Replayed') !== 'true') {
    breach(`key ${key}, repeated after the sale, got: ${describe(answer)}`);
    return;
  }
  const order = orders.get(body.id);
  if (order === undefined || order.n !== n || order.sku !== sku) {
    console.error(`check: order ${body.id} of key ${key} is not in its shopper's list, or is for another item`);
    miscounted.add(1);
  } else if (keyOf.has(body.id)) {
    console.error(`check: keys ${keyOf.get(body.id)} and ${key} have the same order ${body.id}`);
    miscounted.add(1);
  } else {
    keyOf.set(body.id, key);
  }
}

function checkAudit(saleId) {
  const sheet = audit(saleId);
  if (sheet.balanced !== true || sheet.differences.length > 0) {
    console.error(`check: the audit does not balance: ${JSON.stringify(sheet)}`);
    unbalanced.add(1);
  }
}

// Sends requests together. Repeats those with no answer, 429 or 503, after Retry-After and up to a bound.
/** @type {(requests: LoadRequest[]) => LoadAnswer[]} */
function askAll(requests) {
  const answers = http.batch(requests);
  for (let round = 0; round < RETRY_ROUNDS_MAX; round += 1) {
    const open = answers.map((_, position) => position).filter((position) => isWorthRetrying(answers[position]));
    if (open.length === 0) {
      break;
    }
    waitRetryAfter(answers[open[0]]);
    http.batch(open.map((position) => requests[position])).forEach((answer, index) => {
      answers[open[index]] = answer;
    });
  }
  return answers;
}
