// Does a sale hold when everybody comes in the same second? The load is an open model: requests start at their rate,
// answered or not. The rate rises from zero to RATE in one second, stays for DURATION, and falls back.
//
// Demand is several times the stock. So the run sees the few who get a unit and the many who do not, each with their
// own latency. Latency thresholds are generous, but orders and counts must agree to the unit.

import { ANSWER_THRESHOLDS, acknowledge, judgePurchase, noteSoldOut } from './lib/answers.js';
import { COMMON_OPTIONS, SKU, buy, openSale } from './lib/api.js';
import { CHECK_THRESHOLDS, checkSale, keysByTurn, watchStock } from './lib/check_sale.js';
import { DURABILITY, droppedMax, seconds, steady, userName, whole } from './lib/config.js';
import { summaryOf } from './lib/summary.js';
import exec from 'k6/execution';

const SCENARIO = 'spike';
const RATE = whole('RATE', 1000, 1, 1000000);
const DURATION = seconds('DURATION', '15s');
const PLANNED = RATE * (DURATION + 1);
const STOCK = whole('STOCK', Math.ceil(PLANNED / 5), 1, 1000000000);
const SHARDS = whole('SHARDS', 4, 1, 256);
const SHOPPERS = whole('USERS', Math.ceil(PLANNED / 3), 1, 10000000);
const VUS = whole('VUS', Math.min(200, RATE), 1, 100000);
const VUS_MAX = whole('MAX_VUS', Math.max(VUS, Math.min(1000, RATE)), VUS, 100000);
const DROPPED_MAX = droppedMax(PLANNED);
const PER_USER_LIMIT = 2;
// Counts only the certain demand, within the shoppers' limit: k6 may drop requests, and the server may refuse some for
// other reasons.
const SELLS_OUT = Math.min(RATE * DURATION, SHOPPERS * PER_USER_LIMIT) * 0.9 - DROPPED_MAX > STOCK;

/** @type {import('k6/options').Options} */
export const options = {
  ...COMMON_OPTIONS,
  scenarios: {
    [SCENARIO]: {
      executor: 'ramping-arrival-rate',
      startRate: 0,
      timeUnit: '1s',
      preAllocatedVUs: VUS,
      maxVUs: VUS_MAX,
      stages: [
        { target: RATE, duration: '1s' },
        { target: RATE, duration: `${DURATION}s` },
        { target: 0, duration: '1s' },
      ],
    },
    watch: steady('watch', DURATION + 2, 1, 2, 2),
  },
  thresholds: {
    ...ANSWER_THRESHOLDS,
    ...CHECK_THRESHOLDS,
    ...(SELLS_OUT ? { refused_sold_out: ['count>=1'] } : {}),
    'http_req_failed{name:buy}': ['rate<0.01'],
    'http_req_duration{name:buy}': ['p(95)<500', 'p(99)<1500'],
    'dropped_iterations{scenario:spike}': [`count<=${DROPPED_MAX}`],
  },
};

export function setup() {
  return openSale(SCENARIO, {
    stock: STOCK,
    shards: SHARDS,
    perUserLimit: PER_USER_LIMIT,
    purchaseRate: { limit: 1000, window_ms: 1000 },
  });
}

const user = (n) => userName(SCENARIO, n);
const key = (run, n) => `${SCENARIO}-${run}-${n}`;

/** @param {RunSale} sale */
export default function spike({ id: saleId, run }) {
  const n = exec.scenario.iterationInTest;
  const { outcome, order } = judgePurchase(buy(saleId, user(n % SHOPPERS), key(run, n), { instance: n }));
  noteSoldOut(outcome);
  if (order !== undefined) {
    acknowledge();
  }
}

/** @param {RunSale} sale */
export function watch({ id: saleId }) {
  watchStock(saleId);
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
