// Does one request stay one order, however often it arrives? Impatient clients send every purchase twice at once with
// one key, and once more later. If BASE_URL names several instances, the two go to different ones.
//
// All successful answers to a key must have the same order, and only one may have created it. In the end each key that
// was served has exactly one order. The stock runs out during the run, so keys are repeated before and after.

import http from 'k6/http';
import { sleep } from 'k6';
import { Counter } from 'k6/metrics';
import exec from 'k6/execution';

import { ANSWER_THRESHOLDS, acknowledge, expect, judgePurchase, noteSoldOut } from './lib/answers.js';
import { COMMON_OPTIONS, SKU, buyPatiently, openSale, purchaseRequest } from './lib/api.js';
import { CHECK_THRESHOLDS, checkSale, keysByTurn } from './lib/check_sale.js';
import { DURABILITY, seconds, steady, userName, whole } from './lib/config.js';
import { summaryOf } from './lib/summary.js';

const SCENARIO = 'retry_storm';
const RATE = whole('RATE', 100, 1, 100000);
const DURATION = seconds('DURATION', '10s');
const PLANNED = RATE * DURATION;
const STOCK = whole('STOCK', Math.ceil((PLANNED * 2) / 3), 1, 1000000000);
const SHARDS = whole('SHARDS', 4, 1, 256);
const SHOPPERS = whole('USERS', Math.ceil(PLANNED / 4), 1, 10000000);
const VUS_MAX = whole('MAX_VUS', Math.max(50, RATE * 3), 1, 100000);
const LATER_SECONDS_MAX = 2;
// Counts only the certain keys: k6 may drop some requests, and the server may refuse some for other reasons.
const SELLS_OUT = PLANNED * 0.9 > STOCK;

const keysWithTwoOrders = new Counter('keys_with_two_orders');
const keysCreatedTwice = new Counter('keys_created_twice');

/** @type {import('k6/options').Options} */
export const options = {
  ...COMMON_OPTIONS,
  scenarios: {
    [SCENARIO]: steady('default', DURATION, RATE, Math.min(VUS_MAX, RATE * 2), VUS_MAX),
  },
  thresholds: {
    ...ANSWER_THRESHOLDS,
    ...CHECK_THRESHOLDS,
    ...(SELLS_OUT ? { refused_sold_out: ['count>=1'] } : {}),
    keys_with_two_orders: ['count==0'],
    keys_created_twice: ['count==0'],
    'http_req_failed{name:buy}': ['rate<0.01'],
    'http_req_duration{name:buy}': ['p(95)<1000'],
  },
};

export function setup() {
  return openSale(SCENARIO, {
    stock: STOCK,
    shards: SHARDS,
    perUserLimit: 1000,
    purchaseRate: { limit: 1000, window_ms: 1000 },
  });
}

const user = (n) => userName(SCENARIO, n);
const key = (run, n) => `${SCENARIO}-${run}-${n}`;

/** @param {RunSale} sale */
export default function retryStorm({ id: saleId, run }) {
  const n = exec.scenario.iterationInTest;
  const name = user(n % SHOPPERS);
  const twin = (instance) => purchaseRequest(saleId, name, key(run, n), { instance });

  const twins = http.batch([twin(0), twin(1)]).map(judgePurchase);
  noteSoldOut(...twins.map(({ outcome }) => outcome));
  sleep(Math.random() * LATER_SECONDS_MAX);
  const later = judgePurchase(buyPatiently(saleId, name, key(run, n), { name: 'buy_later', instance: n }));
  noteSoldOut(later.outcome);

  const ids = new Set([...twins, later].flatMap(({ order }) => (order === undefined ? [] : [order.id])));
  const created = [...twins, later].filter(({ outcome }) => outcome === 'reserved');
  keysWithTwoOrders.add(ids.size > 1 ? 1 : 0);
  keysCreatedTwice.add(created.length > 1 ? 1 : 0);
  if (ids.size > 0) {
    acknowledge();
  }
  if (twins.some(({ order }) => order !== undefined) && later.outcome !== 'unanswered') {
    expect(later.outcome === 'replayed', `a key that has an order got ${later.outcome}`);
  }
}

/** @param {RunSale} sale */
export function teardown(sale) {
  const keys = (n) => keysByTurn(n, SHOPPERS, PLANNED + RATE, (at) => key(sale.run, at));
  checkSale(sale, { shoppers: SHOPPERS, user, keys, soldOut: SELLS_OUT ? [SKU] : [] });
}

export const handleSummary = summaryOf(SCENARIO, {
  rate: RATE,
  duration: `${DURATION}s`,
  stock: STOCK,
  shards: SHARDS,
  shoppers: SHOPPERS,
  durability: DURABILITY,
});
