// Are refusals fast, and do buyers' repeats still get their orders? Everything is sold before the flood begins.
//
// The load is an open model of RATE purchases a second; each must get `sold_out`. Meanwhile the buyers repeat their
// requests with their own keys, as clients do after a lost answer. Each must get their own order.
//
// The run also asks an endpoint that does nothing, each time right after a refused purchase. It judges how much longer
// the refusal takes.

import http from 'k6/http';
import exec from 'k6/execution';
import { Counter, Gauge, Rate, Trend } from 'k6/metrics';

import { ANSWER_THRESHOLDS, acknowledge, describe, expect, judgePurchase } from './lib/answers.js';
import { COMMON_OPTIONS, SKU, buy, isWorthRetrying, openSale, purchaseRequest, readProbe } from './lib/api.js';
import { CHECK_THRESHOLDS, checkSale, keysByTurn, ordersThreshold } from './lib/check_sale.js';
import { DURABILITY, droppedMax, seconds, steady, userName, whole } from './lib/config.js';
import { meanPurchaseMs, readServer } from './lib/server.js';
import { summaryOf } from './lib/summary.js';

const SCENARIO = 'sold_out_flood';
const RATE = whole('RATE', 1000, 1, 1000000);
const DURATION = seconds('DURATION', '15s');
const PLANNED = RATE * DURATION;
const REPLAY_RATE = whole('REPLAY_RATE', Math.max(1, Math.ceil(RATE / 20)), 1, 100000);
const STOCK = whole('STOCK', 500, 1, 10000);
const SHARDS = whole('SHARDS', 4, 1, 256);
const FLOODERS = whole('USERS', Math.ceil(PLANNED / 3), 1, 10000000);
const VUS = whole('VUS', Math.min(200, RATE), 1, 100000);
const VUS_MAX = whole('MAX_VUS', Math.max(VUS, Math.min(1000, RATE)), VUS, 100000);
const DROPPED_MAX = droppedMax(PLANNED);
const SETUP_BATCH = 20;
const PROBE_RATE = 20;
// Requests of the flood, and of the flood and the probe together.
const FLOOD_MAX = PLANNED + RATE;
const ASKED_MAX = FLOOD_MAX + PROBE_RATE * (DURATION + 1);
// How many times longer a refusal may take than an endpoint that does nothing (median): twice the measured figure.
// A refusal waits for readings of Redis that begin 2 ms apart. The lower the load, the larger is the share of this wait.
const REFUSAL_BY_PROBE_MAX = 15;

const answeredSoldOut = new Rate('told_sold_out');
const answeredOwnOrder = new Rate('told_own_order');
const refusalByProbe = new Trend('refusal_by_probe');
const pairs = new Counter('refusals_compared');
const serverMean = new Gauge('server_purchase_mean_ms');

/** @type {import('k6/options').Options} */
export const options = {
  ...COMMON_OPTIONS,
  scenarios: {
    [SCENARIO]: steady('flood', DURATION, RATE, VUS, VUS_MAX),
    repeat: steady('repeat', DURATION, REPLAY_RATE, Math.min(20, REPLAY_RATE), Math.min(200, REPLAY_RATE * 2)),
    probe: steady('probe', DURATION, PROBE_RATE, 2, 20),
  },
  thresholds: {
    ...ANSWER_THRESHOLDS,
    ...CHECK_THRESHOLDS,
    ...ordersThreshold(STOCK + FLOODERS, STOCK),
    // Purchases without an answer or with 503 count here too.
    told_sold_out: ['rate>0.99'],
    told_own_order: ['rate>0.99'],
    refusals_compared: ['count>=10'],
    refusal_by_probe: [`med<${REFUSAL_BY_PROBE_MAX}`],
    'http_req_duration{name:buy}': ['p(95)<300', 'p(99)<1000'],
    'http_req_duration{name:buy_again}': ['p(95)<300', 'p(99)<1000'],
    'http_req_duration{name:probe}': ['p(95)<300'],
    'dropped_iterations{scenario:sold_out_flood}': [`count<=${DROPPED_MAX}`],
  },
};

const user = (n) => userName(SCENARIO, n);
const key = (run, n) => `${SCENARIO}-${run}-${n}`;

// The first STOCK shoppers are the buyers. Nothing is left for the others.
export function setup() {
  const sale = openSale(SCENARIO, {
    stock: STOCK,
    shards: SHARDS,
    perUserLimit: 1,
    purchaseRate: { limit: 1000, window_ms: 1000 },
  });
  const orders = [];
  for (let first = 0; first < STOCK; first += SETUP_BATCH) {
    const requests = [];
    for (let n = first; n < Math.min(first + SETUP_BATCH, STOCK); n += 1) {
      requests.push(purchaseRequest(sale.id, user(n), key(sale.run, n), { name: 'buy_stock', instance: n }));
    }
    for (const answer of http.batch(requests)) {
      const { order } = judgePurchase(answer);
      if (order === undefined) {
        throw new Error(`selling the stock before the flood: ${describe(answer)}`);
      }
      acknowledge();
      orders.push(order.id);
    }
  }
  return { ...sale, orders, server: readPurchases() };
}

const readPurchases = () => readServer('purchases', 'purchaseSeconds');

export function flood(sale) {
  buySoldOut(sale, exec.scenario.iterationInTest);
}

function buySoldOut({ id: saleId, run }, n) {
  const shopper = user(STOCK + (n % FLOODERS));
  const answer = buy(saleId, shopper, key(run, STOCK + n), { instance: n });
  const { outcome } = judgePurchase(answer);
  answeredSoldOut.add(outcome === 'sold_out');
  expect(outcome === 'sold_out' || isWorthRetrying(answer), `a purchase from the sold-out sale: ${describe(answer)}`);
  return answer;
}

export function repeat({ id: saleId, run, orders }) {
  const n = exec.scenario.iterationInTest % STOCK;
  const answer = buy(saleId, user(n), key(run, n), { name: 'buy_again', instance: n });
  const { outcome, order } = judgePurchase(answer);
  const isOwn = outcome === 'replayed' && order !== undefined && order.id === orders[n];
  answeredOwnOrder.add(isOwn);
  expect(isOwn || isWorthRetrying(answer), `a buyer's own key, for order ${orders[n]}: ${describe(answer)}`);
}

// Both requests use one open connection, so they meet the same load.
export function probe(sale) {
  const n = FLOOD_MAX + exec.scenario.iterationInTest;
  const refusal = buySoldOut(sale, n);
  const nothing = readProbe('/healthz', n);
  expect(nothing.status === 200, 'the process is not healthy');
  if (refusal.status === 409 && nothing.timings.waiting > 0) {
    pairs.add(1);
    refusalByProbe.add(refusal.timings.waiting / nothing.timings.waiting);
  }
}

/** @param {ReturnType<typeof setup>} sale */
export function teardown(sale) {
  serverMean.add(meanPurchaseMs(sale.server, readPurchases()));
  const floodKeys = (n) => keysByTurn(n - STOCK, FLOODERS, ASKED_MAX, (at) => key(sale.run, STOCK + at));
  const keys = (n) => (n < STOCK ? [key(sale.run, n)] : floodKeys(n));
  checkSale(sale, { shoppers: STOCK + FLOODERS, user, keys, soldOut: [SKU] });
}

export const handleSummary = summaryOf(
  SCENARIO,
  {
    rate: RATE,
    replay_rate: REPLAY_RATE,
    duration: `${DURATION}s`,
    stock: STOCK,
    shards: SHARDS,
    shoppers: STOCK + FLOODERS,
    durability: DURABILITY,
  },
  {
    latencies: [
      ["buyers' own keys", 'http_req_duration{name:buy_again}'],
      ['an empty endpoint', 'http_req_duration{name:probe}'],
    ],
    figures: [
      ['ms a purchase, by the server', 'server_purchase_mean_ms', 'value'],
      ['refusal, times an empty endpoint', 'refusal_by_probe', 'med'],
    ],
  },
);
