// Is exactly the stock sold, whatever shard it is on? Many shards share the stock. A few shoppers, with few home
// shards, ask for more than there is. So most units come from other shards. At the end every unit is in an order, and
// no purchase got `sold_out` while a unit was free.

import exec from 'k6/execution';
import { sleep } from 'k6';

import { ANSWER_THRESHOLDS, acknowledge, expect, judgePurchase, noteSoldOut } from './lib/answers.js';
import { COMMON_OPTIONS, SKU, buyPatiently, json, openSale, readSale } from './lib/api.js';
import { CHECK_THRESHOLDS, checkSale, keysByTurn, ordersThreshold } from './lib/check_sale.js';
import { DURABILITY, seconds, userName, whole } from './lib/config.js';
import { summaryOf } from './lib/summary.js';

const SCENARIO = 'sellout';
const STOCK = whole('STOCK', 1000, 1, 1000000);
const SHARDS = whole('SHARDS', 64, 1, 256);
const SHOPPERS = whole('USERS', 40, 1, 1000000);
const DEMAND = whole('DEMAND', Math.ceil(STOCK * 1.3), STOCK + 1, 10000000);
const VUS = whole('VUS', Math.min(40, DEMAND), 1, 10000);
const DURATION = seconds('DURATION', '5m');
const SOLD_OUT_SEEN_SECONDS = 5;

/** @type {import('k6/options').Options} */
export const options = {
  ...COMMON_OPTIONS,
  scenarios: {
    [SCENARIO]: {
      executor: 'shared-iterations',
      vus: VUS,
      iterations: DEMAND,
      maxDuration: `${DURATION}s`,
    },
  },
  thresholds: {
    ...ANSWER_THRESHOLDS,
    ...CHECK_THRESHOLDS,
    iterations: [`count==${DEMAND}`],
    ...ordersThreshold(SHOPPERS, STOCK),
    refused_sold_out: ['count>=1'],
    'http_req_failed{name:buy}': ['rate<0.01'],
    'http_req_duration{name:buy}': ['p(95)<1000'],
  },
};

export function setup() {
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
export default function sellout({ id: saleId, run }) {
  const n = exec.scenario.iterationInTest;
  const answer = buyPatiently(saleId, user(n % SHOPPERS), key(run, n), { instance: n });
  const { outcome, order } = judgePurchase(answer);
  noteSoldOut(outcome);
  if (order !== undefined) {
    acknowledge();
  }
}

/** @param {RunSale} sale */
export function teardown(sale) {
  const keys = (n) => keysByTurn(n, SHOPPERS, DEMAND, (at) => key(sale.run, at));
  const last = judgePurchase(buyPatiently(sale.id, user(SHOPPERS), key(sale.run, 'last'), {}));
  expect(last.outcome === 'sold_out', `a purchase after the last unit: ${last.outcome}`);
  expect(isShownSoldOut(sale.id), 'the public sale does not show sold_out');
  checkSale(sale, { shoppers: SHOPPERS, user, keys, soldOut: [SKU] });
}

export const handleSummary = summaryOf(SCENARIO, {
  demand: DEMAND,
  stock: STOCK,
  shards: SHARDS,
  shoppers: SHOPPERS,
  durability: DURABILITY,
});

// The public sale may be a moment old.
function isShownSoldOut(saleId) {
  for (let waited = 0; waited <= SOLD_OUT_SEEN_SECONDS; waited += 1) {
    const sale = json(readSale(saleId));
    const item = sale === null ? undefined : sale.items.find(({ sku }) => sku === SKU);
    if (item !== undefined && item.availability === 'sold_out') {
      return true;
    }
    sleep(1);
  }
  return false;
}
