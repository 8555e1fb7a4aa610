// Do exactly the unpaid units come back? The load has three waves:
//
// 1. The first crowd takes every unit within moments.
// 2. Shortly before the deadline every second shopper pays, all at the same time. The other orders expire together.
// 3. From the deadline on, a second crowd has one shopper for each returning unit. They ask until they get one and pay.
//
// In the end each order is either paid or expired, and all units are sold.

import { sleep } from 'k6';
import { Counter, Gauge, Trend } from 'k6/metrics';
import exec from 'k6/execution';

import { ANSWER_THRESHOLDS, acknowledge, describe, expect, judgePurchase } from './lib/answers.js';
import { COMMON_OPTIONS, SKU, buyPatiently, openSale, payPatiently } from './lib/api.js';
import { CHECK_THRESHOLDS, checkSale, waitUntilDecided } from './lib/check_sale.js';
import { CHECK_WAIT_SECONDS, DURABILITY, userName, webhookSecret, whole } from './lib/config.js';
import { summaryOf } from './lib/summary.js';

const SCENARIO = 'pay_and_expire';
const STOCK = whole('STOCK', 1000, 2, 100000);
const SHARDS = whole('SHARDS', 4, 1, 256);
const PAYMENT_WINDOW = whole('PAYMENT_WINDOW', 10, 5, 3600);
const VUS = whole('VUS', Math.min(50, STOCK), 1, STOCK);
const PAY_BEFORE_SECONDS = 3;
const ASK_EVERY_SECONDS = 0.5;
const BACK_SECONDS_MAX = 30;
const UNPAID = Math.floor(STOCK / 2);

const paymentsMisjudged = new Counter('payments_misjudged');
const unitsNotReturned = new Counter('units_not_returned');
const backAfter = new Trend('unit_back_after', true);
const ordersExpired = new Gauge('orders_expired');
const ordersPaid = new Gauge('orders_paid');

webhookSecret();

/** @type {import('k6/options').Options} */
export const options = {
  ...COMMON_OPTIONS,
  scenarios: {
    [SCENARIO]: {
      executor: 'per-vu-iterations',
      vus: VUS,
      iterations: 1,
      maxDuration: `${PAYMENT_WINDOW + BACK_SECONDS_MAX + 120}s`,
    },
  },
  thresholds: {
    ...ANSWER_THRESHOLDS,
    ...CHECK_THRESHOLDS,
    iterations: [`count==${VUS}`],
    payments_misjudged: ['count==0'],
    units_not_returned: ['count==0'],
    orders_expired: [`value==${UNPAID}`],
    orders_paid: [`value==${STOCK}`],
    unit_back_after: ['p(95)<5000'],
    'http_req_duration{name:buy}': ['p(95)<1000'],
    'http_req_duration{name:pay}': ['p(95)<3000'],
  },
};

export function setup() {
  return openSale(SCENARIO, {
    stock: STOCK,
    shards: SHARDS,
    perUserLimit: 1,
    purchaseRate: { limit: 100, window_ms: 1000 },
    paymentWindowSeconds: PAYMENT_WINDOW,
  });
}

const user = (n) => userName(SCENARIO, n);
const key = (run, n) => `${SCENARIO}-${run}-${n}`;
const isPaidFor = (n) => n % 2 === 0;

/** @param {RunSale} sale */
export default function payAndExpire(sale) {
  const reserved = takeAll(sale);
  if (reserved.length === 0) {
    return;
  }
  sleepUntil(reserved[0].deadline - PAY_BEFORE_SECONDS * 1000);
  for (const { n, order } of reserved.filter(({ n: at }) => isPaidFor(at))) {
    payInTime(order, `pay-${sale.run}-${n}`);
  }
  const unpaid = reserved.filter(({ n }) => !isPaidFor(n));
  if (unpaid.length > 0) {
    sleepUntil(unpaid[0].deadline);
  }
  for (const { n, deadline } of unpaid) {
    takeReturned(sale, STOCK + n, deadline);
  }
}

// Buys for this VU's shoppers of the first crowd. Returns [{n, order, deadline}].
function takeAll({ id, run }) {
  const reserved = [];
  for (let n = exec.scenario.iterationInTest; n < STOCK; n += VUS) {
    const asked = Date.now();
    const answer = buyPatiently(id, user(n), key(run, n), { instance: n });
    const { order } = judgePurchase(answer);
    expect(order !== undefined, `there is a unit for every shopper, but a purchase got: ${describe(answer)}`);
    if (order !== undefined) {
      acknowledge();
      // By the clock of this machine, and rather a little early than late.
      const deadline = asked + Date.parse(order.expires_at) - Date.parse(order.created_at);
      reserved.push({ n, order, deadline });
    }
  }
  return reserved;
}

// A shopper of the second crowd asks until a unit is free, and pays for it.
function takeReturned({ id, run }, n, deadline) {
  let outcome;
  let order;
  do {
    ({ outcome, order } = judgePurchase(buyPatiently(id, user(n), key(run, n), { instance: n })));
    if (outcome !== 'sold_out') {
      break;
    }
    sleep(ASK_EVERY_SECONDS);
  } while (Date.now() < deadline + BACK_SECONDS_MAX * 1000);
  unitsNotReturned.add(order === undefined ? 1 : 0);
  if (order !== undefined) {
    acknowledge();
    backAfter.add(Math.max(0, Date.now() - deadline));
    payInTime(order, `pay-${run}-${n}`);
  }
}

function payInTime(order, paymentId) {
  paymentsMisjudged.add(payPatiently(order, paymentId) ? 0 : 1);
}

function sleepUntil(moment) {
  const left = (moment - Date.now()) / 1000;
  if (left > 0) {
    sleep(left);
  }
}

/** @param {RunSale} sale */
export function teardown(sale) {
  const sheet = waitUntilDecided(sale.id, PAYMENT_WINDOW + CHECK_WAIT_SECONDS);
  ordersExpired.add(sheet.orders.expired);
  ordersPaid.add(sheet.orders.paid);
  checkSale(sale, { shoppers: STOCK * 2, user, keys: (n) => [key(sale.run, n)], soldOut: [SKU] });
}

export const handleSummary = summaryOf(
  SCENARIO,
  {
    stock: STOCK,
    shards: SHARDS,
    payment_window: `${PAYMENT_WINDOW}s`,
    durability: DURABILITY,
  },
  {
    latencies: [
      ['payments', 'http_req_duration{name:pay}'],
      ['from deadline to next sale', 'unit_back_after'],
    ],
    figures: [
      ['orders paid', 'orders_paid', 'value'],
      ['orders expired', 'orders_expired', 'value'],
      ['units not returned', 'units_not_returned', 'count'],
    ],
  },
);
