// Can a guard be introduced in steps, while honest shoppers buy without a refusal? The load is an open model and begins
// at once. Two thirds of the requests come from a few bots, the others from many honest shoppers.
//
// Meanwhile an operator stages `account_rate`: in shadow for a tenth of the accounts, then refusing for them, then for
// all, then off. Each step takes a fifth of DURATION. The limit is far above an honest shopper's pace, and far below a
// bot's.
//
// The run computes the server's keyed hash, so it knows which bots the tenth picks. Only these, and then all bots, may
// be refused. In shadow, the report counts them, and the list of shadow refusals names them and nobody else. From a
// second after the stage is off, nobody may be refused.

import { sleep } from 'k6';
import crypto from 'k6/crypto';
import exec from 'k6/execution';
import { Counter, Gauge, Rate } from 'k6/metrics';

import { ANSWER_THRESHOLDS, acknowledge, expect, judgePurchase } from './lib/answers.js';
import { COMMON_OPTIONS, buy, changeGuards, openSale, report, shadowRefusals, showGuards } from './lib/api.js';
import { CHECK_THRESHOLDS, checkSale, keysByTurn, watchStock } from './lib/check_sale.js';
import { DURABILITY, JWT_SECRET, droppedMax, seconds, steady, userName, whole } from './lib/config.js';
import { summaryOf } from './lib/summary.js';

const SCENARIO = 'staged';
const RATE = whole('RATE', 300, 60, 100000);
const DURATION = seconds('DURATION', '25s', 15, 600);
const PLANNED = RATE * DURATION;
const HONEST_RATE = Math.round(RATE / 3);
const BOT_RATE = RATE - HONEST_RATE;
// Seconds between two requests of an honest shopper; requests a second of a bot; the limit on both.
const HONEST_PAUSE = 10;
const BOT_PACE = 10;
const LIMIT = 3;
const SHOPPERS = HONEST_RATE * HONEST_PAUSE;
const BOTS = Math.floor(BOT_RATE / BOT_PACE);
const TENTH = 10;
// The bots that the stage of a tenth picks come first. The run has more of them than a tenth, so that they show.
const PICKED = Math.ceil(BOTS / 5);
// With so many units, nobody meets an empty stock, and no honest shopper the limit on units.
const PER_USER_LIMIT = Math.ceil((DURATION + 1) / HONEST_PAUSE);
const STOCK = (SHOPPERS + BOTS) * PER_USER_LIMIT;
const SHARDS = whole('SHARDS', 4, 1, 256);
const VUS_MAX = whole('MAX_VUS', Math.min(1000, RATE), 50, 100000);
const DROPPED_MAX = droppedMax(PLANNED);

// What the operator changes at the beginning of each step, and how many of the bots may then be refused.
const STEPS = [
  { name: 'before', refuses: 0 },
  { name: 'shadow', change: { value: LIMIT, percent: TENTH, shadow: true }, refuses: 0 },
  { name: 'tenth', change: { shadow: false }, refuses: PICKED },
  { name: 'all', change: { percent: 100 }, refuses: BOTS },
  { name: 'taken_back', change: { percent: 0 }, refuses: 0 },
];
const STEP_MS = (DURATION * 1000) / STEPS.length;
// Every instance follows within a second after the operator's answer, which must come in time.
const CHANGE_MS_MAX = 500;
const SETTLE_MS = CHANGE_MS_MAX + 1000;
// The operator reads the counts so long before the next change.
const READ_MS = 500;

const honestServed = new Rate('honest_served');
const honestRefused = new Counter('honest_refused');
const wronglyRefused = new Counter('wrongly_refused');
const pickedRefused = new Rate('picked_refused');
const countedWouldStop = new Gauge('counted_would_stop');
const countedStopped = new Gauge('counted_stopped');
const reportedWouldStop = new Gauge('reported_would_stop');
const shadowListed = new Gauge('shadow_listed');
const wronglyListed = new Counter('wrongly_listed');

/** @type {import('k6/options').Options} */
export const options = {
  ...COMMON_OPTIONS,
  scenarios: {
    [SCENARIO]: steady('buyHonestly', DURATION, HONEST_RATE, Math.min(50, HONEST_RATE), VUS_MAX),
    bots: steady('buyGreedily', DURATION, BOT_RATE, Math.min(50, BOT_RATE), VUS_MAX),
    operator: {
      executor: 'per-vu-iterations',
      exec: 'operate',
      vus: 1,
      iterations: 1,
      maxDuration: `${DURATION + 10}s`,
    },
  },
  thresholds: {
    ...ANSWER_THRESHOLDS,
    ...CHECK_THRESHOLDS,
    honest_refused: ['count==0'],
    honest_served: ['rate>0.99'],
    ...Object.fromEntries(STEPS.map(({ name }) => [`wrongly_refused{step:${name}}`, ['count==0']])),
    'picked_refused{step:tenth}': ['rate>0.5'],
    'picked_refused{step:all}': ['rate>0.5'],
    'counted_would_stop{step:shadow}': ['value>0'],
    'counted_stopped{step:shadow}': ['value==0'],
    reported_would_stop: ['value>0'],
    shadow_listed: ['value>0'],
    wrongly_listed: ['count==0'],
    'counted_stopped{step:tenth}': ['value>0'],
    'http_req_duration{name:change_guards}': [`max<=${CHANGE_MS_MAX}`],
    'http_req_failed{name:buy}': ['rate<0.01'],
    'http_req_duration{name:buy}': ['p(95)<500', 'p(99)<1500'],
    'dropped_iterations{scenario:staged}': [`count<=${DROPPED_MAX}`],
    'dropped_iterations{scenario:bots}': [`count<=${DROPPED_MAX}`],
  },
};

export function setup() {
  const { changed, staged } = showGuards();
  if (changed.account_rate !== undefined || staged.account_rate !== undefined) {
    throw new Error('an operator has changed account_rate, which this run would take back');
  }
  const bots = botNames();
  const sale = openSale(SCENARIO, {
    stock: STOCK,
    shards: SHARDS,
    perUserLimit: PER_USER_LIMIT,
    purchaseRate: { limit: 1000, window_ms: 1000 },
  });
  return { ...sale, bots, began: Date.now() };
}

// First those that a tenth picks, then others.
function botNames() {
  const picked = [];
  const others = [];
  for (let n = 0; picked.length < PICKED || others.length < BOTS - PICKED; n += 1) {
    const name = userName(SCENARIO, `bot-${n}`);
    (placeOf(name) < TENTH ? picked : others).push(name);
  }
  return [...picked.slice(0, PICKED), ...others.slice(0, BOTS - PICKED)];
}

const stageKey = crypto.hmac('sha256', JWT_SECRET, 'flashsale staged guards', 'binary');

// An account's place from 0 to 99 at `account_rate`, as in `src/domain/stage.rs`. A stage picks the places below its
// percentage.
function placeOf(account) {
  const hash = crypto.hmac('sha256', stageKey, `account_rate\n${account}`, 'hex');
  return [...hash.slice(0, 16)].reduce((rest, digit) => (rest * 16 + parseInt(digit, 16)) % 100, 0);
}

const user = (n) => userName(SCENARIO, n);
const honestKey = (run, n) => `${SCENARIO}-${run}-${n}`;
const botKey = (run, n) => `${SCENARIO}-${run}-bot-${n}`;

/** @param {ReturnType<typeof setup>} sale */
export function buyHonestly({ id: saleId, run }) {
  const n = exec.scenario.iterationInTest;
  const answer = buy(saleId, user(n % SHOPPERS), honestKey(run, n), { instance: n });
  const { outcome, order } = judgePurchase(answer);
  honestServed.add(order !== undefined);
  honestRefused.add(outcome === 'rate_limited' ? 1 : 0);
  if (order !== undefined) {
    acknowledge();
  }
}

// A bot stays at one instance, since each instance counts an account alone.
/** @param {ReturnType<typeof setup>} sale */
export function buyGreedily({ id: saleId, run, bots, began }) {
  const n = exec.scenario.iterationInTest;
  const bot = n % BOTS;
  const sentAt = Date.now();
  const { outcome, order } = judgePurchase(buy(saleId, bots[bot], botKey(run, n), { instance: bot }));
  if (order !== undefined) {
    acknowledge();
  }
  const isRefused = outcome === 'rate_limited';
  const first = stepAt(sentAt - SETTLE_MS - began);
  const last = stepAt(Date.now() - began);
  const step = { step: STEPS[last].name };
  const mayBeRefused = STEPS.slice(first, last + 1).some(({ refuses }) => bot < refuses);
  wronglyRefused.add(isRefused && !mayBeRefused ? 1 : 0, step);
  if (first === last && mayBeRefused) {
    pickedRefused.add(isRefused, step);
  }
}

// The number of the step so many milliseconds after the beginning.
function stepAt(ms) {
  return Math.min(Math.max(0, Math.floor(ms / STEP_MS)), STEPS.length - 1);
}

/** @param {ReturnType<typeof setup>} sale */
export function operate({ id: saleId, bots, began }) {
  STEPS.forEach(({ name, change }, n) => {
    sleepUntil(began + n * STEP_MS);
    if (change !== undefined) {
      changeGuards({ account_rate: change });
    }
    sleepUntil(began + (n + 1) * STEP_MS - READ_MS);
    const { stopped, would_stop: wouldStop } = watchStock(saleId);
    countedStopped.add(stopped.account || 0, { step: name });
    countedWouldStop.add(wouldStop.account || 0, { step: name });
    if (name === 'shadow') {
      readShadow(saleId, bots.slice(0, PICKED));
    }
  });
}

// What the operator learns before the guard refuses anybody: how often, and whom. Only picked bots may be named.
/** @type {(saleId: string, picked: string[]) => void} */
function readShadow(saleId, picked) {
  reportedWouldStop.add(report(saleId).would_stop.account || 0);
  const listed = shadowRefusals(saleId);
  shadowListed.add(listed.length);
  const wrong = listed.filter(({ layer, user: account }) => layer !== 'account' || !picked.includes(account || ''));
  wronglyListed.add(wrong.length);
  for (const { layer, user: account } of wrong) {
    console.error(`guards/shadow lists ${account} at ${layer}, who is no picked bot`);
  }
}

function sleepUntil(at) {
  sleep(Math.max(0, at - Date.now()) / 1000);
}

/** @param {ReturnType<typeof setup>} sale */
export function teardown(sale) {
  const { changed, staged } = changeGuards({ account_rate: null });
  expect(changed.account_rate === undefined && staged.account_rate === undefined, 'account_rate is not taken back');
  const honestKeys = (n) => keysByTurn(n, SHOPPERS, HONEST_RATE * (DURATION + 1), (at) => honestKey(sale.run, at));
  const botKeys = (n) => keysByTurn(n, BOTS, BOT_RATE * (DURATION + 1), (at) => botKey(sale.run, at));
  checkSale(sale, {
    shoppers: BOTS + SHOPPERS,
    user: (n) => (n < BOTS ? sale.bots[n] : user(n - BOTS)),
    keys: (n) => (n < BOTS ? botKeys(n) : honestKeys(n - BOTS)),
  });
}

export const handleSummary = summaryOf(
  SCENARIO,
  {
    rate: RATE,
    duration: `${DURATION}s`,
    limit: LIMIT,
    bots: BOTS,
    picked_bots: PICKED,
    honest_shoppers: SHOPPERS,
    stock: STOCK,
    shards: SHARDS,
    durability: DURABILITY,
  },
  {
    figures: [
      ['would have been refused', 'counted_would_stop', 'value'],
      ['refused by the limit', 'counted_stopped', 'value'],
    ],
  },
);
