// The check after the run: counts orders, keys and units through the API and turns every difference into a metric
// whose threshold is zero, so that k6's exit code carries the verdict. Runs in teardown.

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
  waitAsTold,
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
  // Without this one, a check that never ran would have found nothing wrong.
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

// The threshold that a sale with so many shoppers came to so many orders: those that the shoppers list, or where the check
// asks only some of them those that the API counts of all.
export const ordersThreshold = (shoppers, orders) => ({
  [shoppers <= CHECK_USERS ? 'orders_found' : 'orders_counted']: [`value==${orders}`],
});

// Checks a sale to which nobody sends requests any more, and closes it.
//
// shoppers  how many there were
// user(n)   the name of the n-th
// keys(n)   every idempotency key that the n-th may have bought under, one unit each: a key for one of the item SKU, or
//           {key, sku}
// soldOut   the SKUs of the items for which demand was certainly above the stock: nothing of them may be left
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

  // Once the sale is closed a key that has an order still answers with it, and a key that has none can no longer get
  // one. So asking every key again is a census that changes nothing.
  const closed = closeSale(sale.id);
  expect(closed.state === 'closed', `a closed sale that says it is ${closed.state}`);
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
    throw new Error(`the stats know no item: ${JSON.stringify(sheet)}`);
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

// Waits until no order is open any more and every unit that was not paid for is free; returns the last reading.
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

// Waits until the ledger has taken in every event and the stock has heard of every decision of the ledger.
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

// One unit an order, so units held are orders reserved and units sold are orders paid.
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

// Every order that the shoppers say is theirs, by id.
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

// The shoppers' own lists against the operators' count, state by state.
/** @type {(sheet: Stats, orders: Orders, complete: boolean) => void} */
function checkCounts(sheet, orders, complete) {
  const listed = { reserved: 0, paid: 0, cancelled: 0, expired: 0, revoked: 0 };
  for (const { id, state, confirmed } of orders.values()) {
    listed[state] += 1;
    expect(confirmed === true || sheet.undrained_events > 0, `order ${id} is not confirmed though all is drained`);
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
    console.error(`check: the units do not fit the orders: ${JSON.stringify(units)} ${JSON.stringify(sheet.orders)}`);
    unbalanced.add(1);
  }
}

// Each item's units against the shoppers' orders for it.
/** @type {(sheet: Stats, orders: Orders) => void} */
function checkItems(sheet, orders) {
  const listed = {};
  for (const { sku, state } of orders.values()) {
    listed[`${sku} ${state}`] = (listed[`${sku} ${state}`] || 0) + 1;
  }
  for (const { sku, held, sold } of sheet.items) {
    const ordered = { held: listed[`${sku} reserved`] || 0, sold: listed[`${sku} paid`] || 0 };
    if (held !== ordered.held || sold !== ordered.sold) {
      console.error(`check: of ${sku} ${held} are held and ${sold} sold, the orders say ${JSON.stringify(ordered)}`);
      unbalanced.add(1);
    }
  }
}

// Counts what is out of place in one reading of the stock: {over, gone}.
/** @param {ItemStats} reading */
function unitDifferences({ total, available, held, sold, in_transit: inTransit }) {
  const sum = available + held + sold + inTransit;
  return { over: Math.max(0, held + sold - total, sum - total), gone: Math.max(0, total - sum) };
}

// Of each item, the worst of the readings before and after the sale was closed.
/** @type {(before: Stats, after: Stats, soldOut: string[]) => void} */
function checkUnits(before, after, soldOut) {
  for (const sku of soldOut) {
    if (!after.items.some((item) => item.sku === sku)) {
      throw new Error(`the stats know no item ${sku}: ${JSON.stringify(after)}`);
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

// The keys of the n-th of `shoppers` when they took turns and request number `at` was sent under key(at).
export function keysByTurn(n, shoppers, requests, key) {
  const keys = [];
  for (let at = n; at < requests; at += shoppers) {
    keys.push(key(at));
  }
  return keys;
}

// Reads the stock while the sale runs: never more promised than there is. Returns what it read.
export function watchStock(saleId) {
  const sheet = stats(saleId);
  readingsOversold.add(sheet.items.some(({ held, sold, total }) => held + sold > total) ? 1 : 0);
  return sheet;
}

// Every key of every shopper who has an order is asked again. Each order has to come back under exactly one key.
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
    console.error(`check: ${keyless} orders are under no key that was used: two orders for one request`);
    duplicates.add(keyless);
  }
  return keyOf.size;
}

/** @type {(answer: LoadAnswer, ask: { n: number, key: string, sku: string }, orders: Orders, keyOf: Map<string, string>) => void} */
function checkReplay(answer, { n, key, sku }, orders, keyOf) {
  const body = json(answer);
  if (answer.status === 409 && body !== null && body.code === 'sale_not_open') {
    return; // The key was refused in its time.
  }
  if (answer.status !== 200 || body === null || header(answer, 'Idempotency-Replayed') !== 'true') {
    breach(`key ${key} asked again after the sale: ${describe(answer)}`);
    return;
  }
  const order = orders.get(body.id);
  if (order === undefined || order.n !== n || order.sku !== sku) {
    console.error(`check: key ${key} has order ${body.id}, which is not on its shopper's list, or for another item`);
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

// Sends requests together and asks again, as told and within a bound, those that were put off.
/** @type {(requests: LoadRequest[]) => LoadAnswer[]} */
function askAll(requests) {
  const answers = http.batch(requests);
  for (let round = 0; round < RETRY_ROUNDS_MAX; round += 1) {
    const open = answers.map((_, position) => position).filter((position) => isWorthRetrying(answers[position]));
    if (open.length === 0) {
      break;
    }
    waitAsTold(answers[open[0]]);
    http.batch(open.map((position) => requests[position])).forEach((answer, index) => {
      answers[open[index]] = answer;
    });
  }
  return answers;
}
