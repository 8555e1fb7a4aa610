// Does a sale hold when its shards lie on several Redis servers? `./dev load cluster` starts a private Redis Cluster.
//
// The load is an open model. Demand exceeds the stock, shards are many and each has few shoppers. So shards borrow
// units from shards on other servers until the last unit is sold. Every fourth buyer pays at once.
//
// The check after the run fails unless:
// - the orders equal the stock;
// - every shard has orders;
// - no purchase got `sold_out` while a unit was free on any server.

import exec from 'k6/execution';
import { Counter, Gauge, Trend } from 'k6/metrics';

import { ANSWER_THRESHOLDS, acknowledge, expect, judgePurchase, noteSoldOut } from './lib/answers.js';
import { COMMON_OPTIONS, SKU, buyPatiently, openSale, payPatiently, stats } from './lib/api.js';
import { CHECK_THRESHOLDS, checkSale, keysByTurn, ordersThreshold, watchStock } from './lib/check_sale.js';
import { DURABILITY, droppedMax, seconds, steady, userName, webhookSecret, whole } from './lib/config.js';
import { waitForServer } from './lib/server.js';
import { summaryOf } from './lib/summary.js';

const SCENARIO = 'cluster';
const RATE = whole('RATE', 150, 1, 100000);
const DURATION = seconds('DURATION', '20s');
const PLANNED = RATE * DURATION;
const STOCK = whole('STOCK', Math.ceil((PLANNED * 2) / 3), 1, 1000000000);
const SHARDS = whole('SHARDS', 12, 2, 256);
const SHOPPERS = whole('USERS', Math.max(SHARDS * 10, Math.ceil(PLANNED / 10)), 1, 10000000);
const VUS_MAX = whole('MAX_VUS', Math.max(50, RATE * 3), 1, 100000);
const DROPPED_MAX = droppedMax(PLANNED);

const redisServers = new Gauge('redis_servers');
const idleShards = new Counter('shards_without_orders');
const paymentsNotFound = new Trend('payments_not_found');

webhookSecret();

/** @type {import('k6/options').Options} */
export const options = {
  ...COMMON_OPTIONS,
  scenarios: {
    [SCENARIO]: steady('default', DURATION, RATE, Math.min(VUS_MAX, RATE), VUS_MAX),
    watch: steady('watch', DURATION, 1, 2, 2),
  },
  thresholds: {
    ...ANSWER_THRESHOLDS,
    ...CHECK_THRESHOLDS,
    redis_servers: ['value>=2'],
    shards_without_orders: ['count==0'],
    payments_not_found: ['avg==0'],
    ...ordersThreshold(SHOPPERS, STOCK),
    refused_sold_out: ['count>=1'],
    'http_req_failed{name:buy}': ['rate<0.01'],
    'http_req_duration{name:buy}': ['p(95)<1000', 'p(99)<2000'],
    'http_req_duration{name:pay}': ['p(95)<3000'],
    'dropped_iterations{scenario:cluster}': [`count<=${DROPPED_MAX}`],
  },
};

export function setup() {
  const servers = waitForServer().redisServers;
  if (servers < 2) {
    throw new Error('all stock is on one Redis server: ./dev load cluster starts a cluster');
  }
  redisServers.add(servers);
  return openSale(SCENARIO, {
    stock: STOCK,
    shards: SHARDS,
    perUserLimit: STOCK,
    purchaseRate: { limit: 1000, window_ms: 1000 },
  });
}

const user = (n) => userName(SCENARIO, n);
const key = (run, n) => `${SCENARIO}-${run}-${n}`;

/** @param {RunSale} sale */
export default function cluster({ id: saleId, run }) {
  const n = exec.scenario.iterationInTest;
  const answer = buyPatiently(saleId, user(n % SHOPPERS), key(run, n), { instance: n });
  const { outcome, order } = judgePurchase(answer);
  noteSoldOut(outcome);
  if (order === undefined) {
    return;
  }
  acknowledge();
  if (n % 4 === 0) {
    paymentsNotFound.add(payPatiently(order, `pay-${run}-${n}`) ? 1 : 0);
  }
}

/** @param {RunSale} sale */
export function watch({ id: saleId }) {
  watchStock(saleId);
}

/** @param {RunSale} sale */
export function teardown(sale) {
  const keys = (n) => keysByTurn(n, SHOPPERS, PLANNED + RATE, (at) => key(sale.run, at));
  checkSale(sale, { shoppers: SHOPPERS, user, keys, soldOut: [SKU] });
  const { orders, shards } = stats(sale.id);
  paymentsNotFound.add(-orders.paid);
  expect(shards.length === SHARDS, `${shards.length} of ${SHARDS} shards are in the stats`);
  idleShards.add(shards.filter(({ held, sold }) => (held[SKU] || 0) + (sold[SKU] || 0) === 0).length);
}

export const handleSummary = summaryOf(
  SCENARIO,
  {
    rate: RATE,
    duration: `${DURATION}s`,
    stock: STOCK,
    shards: SHARDS,
    shoppers: SHOPPERS,
    durability: DURABILITY,
  },
  {
    latencies: [['payments', 'http_req_duration{name:pay}']],
    figures: [['Redis servers with stock', 'redis_servers', 'value']],
  },
);
