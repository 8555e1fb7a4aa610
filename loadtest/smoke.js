// Does every step of a purchase work at all? One shopper goes all the way once: buy, read, repeat the key, cancel, buy,
// pay, pay again. The contract names each refusal on the way. The check afterwards counts the few units. Run this
// scenario first: if it fails, the figures of the others mean nothing.

import { ANSWER_THRESHOLDS, acknowledge, describe, expect, expectRefusal, judgePurchase } from './lib/answers.js';
import {
  COMMON_OPTIONS,
  CURRENCY,
  PRICE_MINOR,
  SKU,
  buy,
  buyIncompletely,
  cancel,
  json,
  listOrders,
  openSale,
  pay,
  readOrder,
  readProbe,
  readSale,
  stats,
} from './lib/api.js';
import { CHECK_THRESHOLDS, checkSale } from './lib/check_sale.js';
import { DURABILITY, userName, webhookSecret } from './lib/config.js';
import { summaryOf } from './lib/summary.js';

const SCENARIO = 'smoke';
const STOCK = 3;
const SHARDS = 2;
const SHOPPERS = 2;

webhookSecret();

/** @type {import('k6/options').Options} */
export const options = {
  ...COMMON_OPTIONS,
  scenarios: { [SCENARIO]: { executor: 'per-vu-iterations', vus: 1, iterations: 1, maxDuration: '60s' } },
  thresholds: {
    ...ANSWER_THRESHOLDS,
    ...CHECK_THRESHOLDS,
    http_req_failed: ['rate==0'],
    'http_req_duration{name:buy}': ['p(95)<1000'],
    'http_req_duration{name:read_order}': ['p(95)<1000'],
  },
};

export function setup() {
  return openSale(SCENARIO, {
    stock: STOCK,
    shards: SHARDS,
    perUserLimit: 1,
    purchaseRate: { limit: 100, window_ms: 1000 },
  });
}

const user = (n) => userName(SCENARIO, n);
const key = (run, step) => `${SCENARIO}-${run}-${step}`;

/** @param {RunSale} sale */
export default function smoke({ id: saleId, run }) {
  expect(readProbe('/healthz').status === 200, 'the process is not healthy');
  expect(readProbe('/readyz').status === 200, 'the server is not ready');
  readPublicSale(saleId);
  askWrongly(saleId, run);

  const cancelled = buyAndReplay(saleId, key(run, 'first'));
  cancelTwice(saleId, cancelled);

  const paid = reserve(saleId, key(run, 'second'));
  payTwice(run, paid);
  const late = pay(cancelled, `pay-${run}-late`);
  expect(outcomeOf(late) === 'refund_due', `paying a cancelled order: ${describe(late)}`);

  const another = judgePurchase(buy(saleId, user(0), key(run, 'third')));
  expect(another.outcome === 'purchase_limit_reached', `above the limit of 1: ${another.outcome}`);
}

/** @param {RunSale} sale */
export function teardown(sale) {
  const steps = ['first', 'second', 'third', 'keyless', 'nameless'];
  checkSale(sale, { shoppers: SHOPPERS, user, keys: () => steps.map((step) => key(sale.run, step)) });
}

export const handleSummary = summaryOf(SCENARIO, { stock: STOCK, shards: SHARDS, durability: DURABILITY });

function readPublicSale(saleId) {
  const answer = readSale(saleId);
  const sale = json(answer);
  expect(answer.status === 200 && sale !== null && sale.state === 'open', `the public sale: ${describe(answer)}`);
  const item = ((sale && sale.items) || []).find(({ sku }) => sku === SKU);
  expect(
    item !== undefined && ['available', 'low'].includes(item.availability),
    `the public item: ${describe(answer)}`,
  );
  expect(sale !== null && !Number.isNaN(Date.parse(sale.server_time)), 'the public sale has no server_time');
}

function askWrongly(saleId, run) {
  const nameless = buyIncompletely(saleId, { key: key(run, 'nameless'), expected: [401] });
  expectRefusal(nameless, 401, 'unauthenticated', 'a purchase without a token');
  const keyless = buyIncompletely(saleId, { user: user(0), expected: [400] });
  expectRefusal(keyless, 400, 'idempotency_key_missing', 'a purchase without a key');
}

function reserve(saleId, orderKey) {
  const answer = buy(saleId, user(0), orderKey);
  const { outcome, order } = judgePurchase(answer);
  if (outcome !== 'reserved' || order === undefined) {
    throw new Error(`buying: ${describe(answer)}`);
  }
  acknowledge();
  expect(
    order.sale_id === saleId && order.sku === SKU && order.quantity === 1,
    `an order for something else: ${describe(answer)}`,
  );
  expect(order.amount_minor === PRICE_MINOR && order.currency === CURRENCY, `a wrong price: ${describe(answer)}`);
  expect(Date.parse(order.expires_at) > Date.parse(order.created_at), `expired when created: ${describe(answer)}`);
  return order;
}

function buyAndReplay(saleId, orderKey) {
  const order = reserve(saleId, orderKey);

  const read = json(readOrder(user(0), order.id));
  expect(read !== null && read.id === order.id && read.state === 'reserved', 'a new order is not readable at once');
  const foreign = readOrder(user(1), order.id, { expected: [404] });
  expectRefusal(foreign, 404, 'not_found', "another shopper's order");
  const list = json(listOrders(saleId, user(0)));
  expect(list !== null && list.data.length === 1 && list.data[0].id === order.id, 'the list is not that one order');

  const again = judgePurchase(buy(saleId, user(0), orderKey));
  const isSame = again.order !== undefined && again.order.id === order.id;
  expect(again.outcome === 'replayed' && isSame, `the same key again: ${again.outcome}`);
  const changed = buy(saleId, user(0), orderKey, { quantity: 2, expected: [422] });
  expectRefusal(changed, 422, 'idempotency_key_reused', 'the same key with another body');
  return order;
}

function cancelTwice(saleId, order) {
  for (const time of ['first', 'second']) {
    const answer = cancel(user(0), order.id);
    const body = json(answer);
    expect(
      answer.status === 200 && body !== null && body.state === 'cancelled',
      `cancelling for the ${time} time: ${describe(answer)}`,
    );
  }
  const { available, in_transit: inTransit } = stats(saleId).items[0];
  expect(available + inTransit === STOCK, `${available} + ${inTransit} of ${STOCK} units are free after the cancel`);
}

function payTwice(run, order) {
  const forged = pay(order, `pay-${run}-forged`, { forged: true, expected: [401] });
  expect(forged.status === 401, `a forged payment: ${describe(forged)}`);

  const first = pay(order, `pay-${run}`);
  expect(outcomeOf(first) === 'applied', `paying: ${describe(first)}`);
  const again = pay(order, `pay-${run}`);
  expect(outcomeOf(again) === 'duplicate', `the same payment again: ${describe(again)}`);
  const other = pay(order, `pay-${run}-other`);
  expect(outcomeOf(other) === 'refund_due', `another payment for a paid order: ${describe(other)}`);

  const read = json(readOrder(user(0), order.id));
  expect(read !== null && read.state === 'paid' && read.confirmed && read.paid_at !== null, 'a paid order is not paid');
  const refused = cancel(user(0), order.id);
  expectRefusal(refused, 409, 'order_not_cancellable', 'cancelling a paid order');
}

function outcomeOf(answer) {
  const body = answer.status === 200 ? json(answer) : null;
  return body === null ? undefined : body.outcome;
}
