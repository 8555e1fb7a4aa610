// Do shoppers of other items still buy while most want one item? A sale has ITEMS items.
//
// The load is an open model of RATE purchases a second. HOT_SHARE percent are for one item with far too few units. The
// other items have enough units: each of their shoppers must get a unit soon, whatever the load on the hot item.

import exec from 'k6/execution';
import { Rate } from 'k6/metrics';

import { ANSWER_THRESHOLDS, acknowledge, describe, expect, judgePurchase, noteSoldOut } from './lib/answers.js';
import { COMMON_OPTIONS, buy, buyPatiently, openSale } from './lib/api.js';
import { CHECK_THRESHOLDS, checkSale, keysByTurn, watchStock } from './lib/check_sale.js';
import { DURABILITY, droppedMax, seconds, steady, userName, whole } from './lib/config.js';
import { summaryOf } from './lib/summary.js';

const SCENARIO = 'hot_item';
const RATE = whole('RATE', 600, 20, 1000000);
const DURATION = seconds('DURATION', '20s');
const ITEMS = whole('ITEMS', 50, 2, 1000);
const HOT_SHARE = whole('HOT_SHARE', 95, 1, 99);
const OTHER_RATE = Math.max(1, Math.round((RATE * (100 - HOT_SHARE)) / 100));
const HOT_RATE = RATE - OTHER_RATE;
const PLANNED = RATE * DURATION;
const STOCK = whole('STOCK', Math.ceil((HOT_RATE * DURATION) / 5), 1, HOT_RATE * DURATION - 1);
const OTHER_STOCK = Math.ceil((OTHER_RATE * (DURATION + 1)) / (ITEMS - 1)) + 1;
const SHARDS = whole('SHARDS', 4, 1, 256);
const SHOPPERS = whole('USERS', Math.ceil(PLANNED / 3), 1, 10000000);
const VUS = whole('VUS', Math.min(200, HOT_RATE), 1, 100000);
const VUS_MAX = whole('MAX_VUS', Math.max(VUS, Math.min(1000, HOT_RATE)), VUS, 100000);
const DROPPED_MAX = droppedMax(PLANNED);
const HOT = 'HOT';

const othersServed = new Rate('others_served');

/** @type {import('k6/options').Options} */
export const options = {
  ...COMMON_OPTIONS,
  scenarios: {
    [SCENARIO]: steady('buyHot', DURATION, HOT_RATE, VUS, VUS_MAX),
    others: steady('buyOther', DURATION, OTHER_RATE, Math.min(20, OTHER_RATE), Math.min(500, OTHER_RATE * 5)),
    watch: steady('watch', DURATION, 1, 1, 2),
  },
  thresholds: {
    ...ANSWER_THRESHOLDS,
    ...CHECK_THRESHOLDS,
    others_served: ['rate==1'],
    refused_sold_out: ['count>=1'],
    'http_req_failed{name:buy}': ['rate<0.01'],
    'http_req_duration{name:buy}': ['p(95)<500', 'p(99)<1500'],
    'http_req_duration{name:buy_other}': ['p(95)<500', 'p(99)<1500'],
    'dropped_iterations{scenario:hot_item}': [`count<=${DROPPED_MAX}`],
    'dropped_iterations{scenario:others}': [`count<=${Math.ceil((OTHER_RATE * DURATION) / 100)}`],
  },
};

const user = (n) => userName(SCENARIO, n);
const hotKey = (run, n) => `${SCENARIO}-${run}-hot-${n}`;
const otherKey = (run, n) => `${SCENARIO}-${run}-other-${n}`;
const otherSku = (n) => `OTHER-${n % (ITEMS - 1)}`;

export function setup() {
  const items = [{ sku: HOT, stock: STOCK }];
  for (let n = 0; n < ITEMS - 1; n += 1) {
    items.push({ sku: otherSku(n), stock: OTHER_STOCK });
  }
  return openSale(SCENARIO, {
    items,
    shards: SHARDS,
    perUserLimit: 1000,
    purchaseRate: { limit: 1000, window_ms: 1000 },
  });
}

/** @param {RunSale} sale */
export function buyHot({ id: saleId, run }) {
  const n = exec.scenario.iterationInTest;
  const answer = buy(saleId, user(n % SHOPPERS), hotKey(run, n), { instance: n, sku: HOT });
  const { outcome, order } = judgePurchase(answer);
  noteSoldOut(outcome);
  if (order !== undefined) {
    acknowledge();
    expect(order.sku === HOT, `the shopper asked for ${HOT} and got ${order.sku}`);
  }
}

// Now and then the same shoppers want another item.
/** @param {RunSale} sale */
export function buyOther({ id: saleId, run }) {
  const n = exec.scenario.iterationInTest;
  const sku = otherSku(n);
  const answer = buyPatiently(saleId, user(n % SHOPPERS), otherKey(run, n), { name: 'buy_other', instance: n, sku });
  const { order } = judgePurchase(answer);
  othersServed.add(order !== undefined);
  if (order === undefined) {
    console.error(`${sku} has a unit for every shopper, but a purchase got: ${describe(answer)}`);
    return;
  }
  acknowledge();
  expect(order.sku === sku, `the shopper asked for ${sku} and got ${order.sku}`);
}

/** @param {RunSale} sale */
export function watch({ id: saleId }) {
  watchStock(saleId);
}

/** @param {RunSale} sale */
export function teardown(sale) {
  const { run } = sale;
  const keys = (n) => [
    ...keysByTurn(n, SHOPPERS, HOT_RATE * (DURATION + 1), (at) => ({ key: hotKey(run, at), sku: HOT })),
    ...keysByTurn(n, SHOPPERS, OTHER_RATE * (DURATION + 1), (at) => ({ key: otherKey(run, at), sku: otherSku(at) })),
  ];
  checkSale(sale, { shoppers: SHOPPERS, user, keys, soldOut: [HOT] });
}

export const handleSummary = summaryOf(
  SCENARIO,
  {
    rate: RATE,
    hot_share: `${HOT_SHARE} %`,
    duration: `${DURATION}s`,
    items: ITEMS,
    stock: STOCK,
    stock_of_each_other: OTHER_STOCK,
    shards: SHARDS,
    shoppers: SHOPPERS,
    durability: DURABILITY,
  },
  {
    latencies: [['purchases of other items', 'http_req_duration{name:buy_other}']],
    figures: [['share of others served', 'others_served', 'rate']],
  },
);
