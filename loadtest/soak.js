// Do backlog, holds and memory stay level over a long run? The rate is steady for DURATION. One shopper in three pays,
// one cancels, and one does nothing. Without cancelled and expired units the stock would be sold out halfway.
//
// The run reads the backlog, the live holds, the memory of the program and of Redis, and the time of a purchase. It
// compares the last quarter with the second one. From then on, only the memory of orders in Redis may grow.

import { sleep } from 'k6';
import { Counter, Gauge, Trend } from 'k6/metrics';
import exec from 'k6/execution';

import { ANSWER_THRESHOLDS, acknowledge, describe, expect, judgePurchase } from './lib/answers.js';
import {
  COMMON_OPTIONS,
  buyPatiently,
  cancel,
  isWorthRetrying,
  openSale,
  payPatiently,
  waitRetryAfter,
} from './lib/api.js';
import { CHECK_THRESHOLDS, checkSale, keysByTurn, unitsOf, waitUntilDecided, watchStock } from './lib/check_sale.js';
import {
  CHECK_WAIT_SECONDS,
  DURABILITY,
  droppedMax,
  seconds,
  steady,
  userName,
  webhookSecret,
  whole,
} from './lib/config.js';
import { meanPurchaseMs, readServer, waitForServer } from './lib/server.js';
import { summaryOf } from './lib/summary.js';

const SCENARIO = 'soak';
const RATE = whole('RATE', 50, 3, 100000);
const DURATION = seconds('DURATION', '10m', 40, 12 * 3600);
const PLANNED = RATE * DURATION;
const PAYMENT_WINDOW = whole('PAYMENT_WINDOW', Math.min(20, Math.floor(DURATION / 8)), 2, 3600);
// How much later than its deadline a unit may come back.
const EXPIRY_SECONDS_MAX = 10;
// Orders that nobody pays or cancels, until they expire, and two seconds of all other orders.
const HOLDS_MAX = Math.ceil((RATE / 3) * (PAYMENT_WINDOW + EXPIRY_SECONDS_MAX)) + RATE * 2;
const STOCK = whole('STOCK', Math.ceil(PLANNED / 3) + HOLDS_MAX, 1, 1000000000);
const SHARDS = whole('SHARDS', 4, 1, 256);
const SHOPPERS = whole('USERS', Math.ceil(PLANNED / 10), 1, 10000000);
const VUS_MAX = whole('MAX_VUS', Math.max(20, RATE * 4), 1, 100000);
const DROPPED_MAX = droppedMax(PLANNED);
// Events that may wait for the ledger at any time.
const BACKLOG_MAX = whole('BACKLOG_MAX', RATE * 5, 1, 1000000000);
const MEMORY_GROWTH_MIB_MAX = whole('MEMORY_GROWTH', 32, 0, 1000000);
// Three times the measured figure: each further order of a shopper takes about 50 bytes.
const REDIS_BYTES_AN_ORDER_MAX = 150;
// How many times longer the server may take for a purchase in the last quarter than in the second.
const LATENCY_GROWTH_MAX = 2;
const READINGS = 40;
const READ_EVERY_SECONDS = Math.min(10, DURATION / READINGS);
const CANCEL_TRIES_MAX = 5;

// Shoppers add to these counts. The check subtracts what it finds, so zero means that both agree.
const paymentsNotFound = new Trend('payments_not_found');
const cancelsNotFound = new Trend('cancels_not_found');
const expiriesNotFound = new Trend('expiries_not_found');

const backlog = new Trend('undrained_events');
const holds = new Trend('live_holds');
const alerts = new Gauge('orders_in_trouble');
const driftJudged = new Counter('drift_judged');
const memory = new Trend('server_memory_mib');
const memoryGrowth = new Gauge('server_memory_growth_mib');
const redisMemory = new Trend('redis_memory_mib');
const redisBytes = new Gauge('redis_bytes_an_order');
const serverTime = new Trend('server_purchase_mean', true);
const serverTimeGrowth = new Gauge('server_purchase_growth');

webhookSecret();

/** @type {import('k6/options').Options} */
export const options = {
  ...COMMON_OPTIONS,
  teardownTimeout: '1h',
  scenarios: {
    [SCENARIO]: steady('default', DURATION, RATE, Math.min(VUS_MAX, RATE), VUS_MAX),
    watch: {
      executor: 'per-vu-iterations',
      exec: 'watch',
      vus: 1,
      iterations: 1,
      maxDuration: `${DURATION + 60}s`,
    },
  },
  thresholds: {
    ...ANSWER_THRESHOLDS,
    ...CHECK_THRESHOLDS,
    refused_sold_out: ['count==0'],
    payments_not_found: ['avg==0'],
    cancels_not_found: ['avg==0'],
    expiries_not_found: ['avg==0'],
    undrained_events: [`max<=${BACKLOG_MAX}`],
    live_holds: [`max<=${HOLDS_MAX}`],
    orders_in_trouble: ['value==0'],
    // A watch that never ended would find no drift. This threshold fails such a run.
    drift_judged: ['count==1'],
    server_memory_growth_mib: [`value<=${MEMORY_GROWTH_MIB_MAX}`],
    redis_bytes_an_order: [`value<=${REDIS_BYTES_AN_ORDER_MAX}`],
    server_purchase_growth: [`value<=${LATENCY_GROWTH_MAX}`],
    'http_req_failed{name:buy}': ['rate<0.01'],
    'http_req_duration{name:buy}': ['p(95)<500', 'p(99)<1500'],
    'http_req_duration{name:pay}': ['p(95)<3000'],
    'http_req_duration{name:cancel}': ['p(95)<1000'],
    'dropped_iterations{scenario:soak}': [`count<=${DROPPED_MAX}`],
  },
};

export function setup() {
  waitForServer();
  return openSale(SCENARIO, {
    stock: STOCK,
    shards: SHARDS,
    perUserLimit: 1000,
    purchaseRate: { limit: 1000, window_ms: 1000 },
    paymentWindowSeconds: PAYMENT_WINDOW,
    openSeconds: DURATION + 3600,
  });
}

const user = (n) => userName(SCENARIO, n);
const key = (run, n) => `${SCENARIO}-${run}-${n}`;

/** @param {RunSale} sale */
export default function soak({ id: saleId, run }) {
  const n = exec.scenario.iterationInTest;
  const answer = buyPatiently(saleId, user(n % SHOPPERS), key(run, n), { instance: n });
  const { order } = judgePurchase(answer);
  if (order === undefined) {
    return;
  }
  acknowledge();
  if (n % 3 === 0) {
    paymentsNotFound.add(payPatiently(order, `pay-${run}-${n}`) ? 1 : 0);
  } else if (n % 3 === 1) {
    cancelPatiently(user(n % SHOPPERS), order);
  } else {
    expiriesNotFound.add(1);
  }
}

function cancelPatiently(name, order) {
  let answer = cancel(name, order.id);
  for (let tries = 1; tries < CANCEL_TRIES_MAX && isWorthRetrying(answer); tries += 1) {
    waitRetryAfter(answer);
    answer = cancel(name, order.id);
  }
  if (expect(answer.status === 200, `cancelling in time: ${describe(answer)}`)) {
    cancelsNotFound.add(1);
  }
}

// Reads stock and server during the whole run, and judges the growth.
/** @param {RunSale} sale */
export function watch({ id: saleId }) {
  const end = Date.now() + DURATION * 1000;
  const readings = [read(saleId)];
  while (Date.now() + READ_EVERY_SECONDS * 1000 <= end) {
    sleep(READ_EVERY_SECONDS);
    const reading = read(saleId);
    reading.meanMs = meanPurchaseMs(readings[readings.length - 1].server, reading.server);
    serverTime.add(reading.meanMs);
    readings.push(reading);
  }
  const quarter = Math.floor(readings.length / 4);
  judgeDrift(readings.slice(quarter, quarter * 2), readings.slice(-quarter));
}

/** @type {(saleId: string) => { server: ServerReading, orders: number, meanMs?: number }} */
function read(saleId) {
  const sheet = watchStock(saleId);
  const server = readServer();
  backlog.add(sheet.undrained_events);
  holds.add(unitsOf(sheet).held);
  memory.add(mebibytes(server.memory));
  redisMemory.add(mebibytes(server.redisMemory));
  const { dead_letters: dead, failed_releases: failed, lost_orders: lost } = sheet.alerts;
  alerts.add(dead + failed + lost);
  const orders = Object.values(sheet.orders).reduce((sum, count) => sum + count, 0);
  return { server, orders };
}

function judgeDrift(early, late) {
  const grown = (value) => median(late.map(value)) - median(early.map(value));
  memoryGrowth.add(mebibytes(grown(({ server }) => server.memory)));
  const meanMs = (readings) => median(readings.map((reading) => reading.meanMs));
  serverTimeGrowth.add(meanMs(late) / meanMs(early));
  const orders = grown((reading) => reading.orders);
  if (expect(orders > 0, 'no order reached the ledger between the second quarter and the last')) {
    redisBytes.add(grown(({ server }) => server.redisMemory) / orders);
    driftJudged.add(1);
  }
}

function median(values) {
  const sorted = [...values].sort((a, b) => a - b);
  return sorted[Math.floor(sorted.length / 2)];
}

function mebibytes(bytes) {
  return bytes / 1048576;
}

/** @param {RunSale} sale */
export function teardown(sale) {
  const { orders } = waitUntilDecided(sale.id, PAYMENT_WINDOW + CHECK_WAIT_SECONDS);
  paymentsNotFound.add(-orders.paid);
  cancelsNotFound.add(-orders.cancelled);
  expiriesNotFound.add(-orders.expired);
  const keys = (n) => keysByTurn(n, SHOPPERS, PLANNED + RATE, (at) => key(sale.run, at));
  checkSale(sale, { shoppers: SHOPPERS, user, keys });
}

export const handleSummary = summaryOf(
  SCENARIO,
  {
    rate: RATE,
    duration: `${DURATION}s`,
    payment_window: `${PAYMENT_WINDOW}s`,
    stock: STOCK,
    shards: SHARDS,
    shoppers: SHOPPERS,
    durability: DURABILITY,
  },
  {
    latencies: [
      ['payments', 'http_req_duration{name:pay}'],
      ['cancels', 'http_req_duration{name:cancel}'],
      ['purchase, by the server', 'server_purchase_mean'],
    ],
    figures: [
      ['undrained events, most', 'undrained_events', 'max'],
      ['live holds, most', 'live_holds', 'max'],
      ['program MiB, most', 'server_memory_mib', 'max'],
      ['program MiB, growth', 'server_memory_growth_mib', 'value'],
      ['Redis MiB, most', 'redis_memory_mib', 'max'],
      ['Redis bytes an order', 'redis_bytes_an_order', 'value'],
      ['time of a purchase, growth', 'server_purchase_growth', 'value'],
    ],
  },
);
