// Do units come back, and only those that were not paid for? Every shopper takes a unit for a short while; every second
// one pays at once, the others never do. When the time is over, every order is paid or expired, none both, the units
// of the expired ones are for sale again, and one of them is sold again.

import { sleep } from 'k6';
import { Counter } from 'k6/metrics';
import exec from 'k6/execution';

import { ANSWER_THRESHOLDS, acknowledge, describe, expect, judgePurchase } from './lib/answers.js';
import { COMMON_OPTIONS, buyPatiently, isWorthRetrying, json, openSale, pay, stats, waitAsTold } from './lib/api.js';
import { CHECK_THRESHOLDS, checkSale, keysByTurn } from './lib/check_sale.js';
import { CHECK_WAIT_SECONDS, DURABILITY, userName, webhookSecret, whole } from './lib/config.js';
import { summaryOf } from './lib/summary.js';

const SCENARIO = 'pay_and_expire';
const STOCK = whole('STOCK', 200, 2, 1000000);
const SHARDS = whole('SHARDS', 4, 1, 256);
const PAYMENT_WINDOW = whole('PAYMENT_WINDOW', 5, 2, 3600);
const VUS = whole('VUS', Math.min(20, STOCK), 1, 10000);
const PAY_TRIES_MAX = 5;

const paymentsMisjudged = new Counter('payments_misjudged');
const ordersExpired = new Counter('orders_expired');
const unitsNotReturned = new Counter('units_not_returned');

webhookSecret();

export const options = {
  ...COMMON_OPTIONS,
  scenarios: {
    [SCENARIO]: { executor: 'shared-iterations', vus: VUS, iterations: STOCK, maxDuration: '5m' },
  },
  thresholds: {
    ...ANSWER_THRESHOLDS,
    ...CHECK_THRESHOLDS,
    iterations: [`count==${STOCK}`],
    payments_misjudged: ['count==0'],
    units_not_returned: ['count==0'],
    orders_expired: [`count==${Math.floor(STOCK / 2)}`],
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

export default function payAndExpire({ id: saleId, run }) {
  const n = exec.scenario.iterationInTest;
  const answer = buyPatiently(saleId, user(n), key(run, n), { instance: n });
  const { order } = judgePurchase(answer);
  if (!expect(order !== undefined, `one unit for everybody, yet: ${describe(answer)}`)) {
    return;
  }
  acknowledge();
  if (n % 2 === 0) {
    payPatiently(order, `pay-${run}-${n}`);
  }
}

// As a payment provider does it: the same payment again until it is answered.
function payPatiently(order, paymentId) {
  let answer = pay(order, paymentId);
  for (let tries = 1; tries < PAY_TRIES_MAX && isWorthRetrying(answer); tries += 1) {
    waitAsTold(answer);
    answer = pay(order, paymentId);
  }
  const body = answer.status === 200 ? json(answer) : null;
  const isTaken = body !== null && ['applied', 'pending', 'duplicate'].includes(body.outcome);
  if (!isTaken) {
    console.error(`a payment in time: ${describe(answer)}`);
  }
  paymentsMisjudged.add(isTaken ? 0 : 1);
}

export function teardown(sale) {
  const sheet = waitForExpiry(sale.id);
  ordersExpired.add(sheet.orders.expired);
  const { available, in_transit: inTransit, total, sold } = sheet.items[0];
  unitsNotReturned.add(total - sold - available - inTransit);

  const again = buyPatiently(sale.id, user(STOCK), key(sale.run, STOCK), {});
  if (expect(judgePurchase(again).outcome === 'reserved', `a returned unit: ${describe(again)}`)) {
    acknowledge();
  }
  const shoppers = STOCK + 1;
  const keys = (n) => keysByTurn(n, shoppers, shoppers, (at) => key(sale.run, at));
  checkSale(sale, { shoppers, user, keys });
}

// Waits until no order is open any more and every unit that was not paid for is free.
function waitForExpiry(saleId) {
  const deadline = Date.now() + (PAYMENT_WINDOW + CHECK_WAIT_SECONDS) * 1000;
  let sheet = stats(saleId);
  const isOver = () => sheet.orders.reserved === 0 && sheet.undrained_events === 0 && sheet.items[0].held === 0;
  while (!isOver() && Date.now() < deadline) {
    sleep(0.5);
    sheet = stats(saleId);
  }
  return sheet;
}

export const handleSummary = summaryOf(SCENARIO, {
  stock: STOCK,
  shards: SHARDS,
  payment_window: `${PAYMENT_WINDOW}s`,
  durability: DURABILITY,
});
