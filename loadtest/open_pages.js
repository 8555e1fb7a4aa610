// Do open pages and the console stay current while a crowd buys? The load is an open model of RATE purchases a second.
// Meanwhile PAGES shop pages are open. Each is loaded once with its files and its shopper's orders, then asks how the
// sale stands, as often as the real page does. A browser has the console's page of the sale open.
//
// Each second, an operator sets the sale's message to the time. So each page knows how old the state is that it shows.
// The clock is that of k6 alone.

import { sleep } from 'k6';
import { browser } from 'k6/browser';
import exec from 'k6/execution';
import { Counter, Rate, Trend } from 'k6/metrics';

import { ANSWER_THRESHOLDS, acknowledge, describe, judgePurchase, noteSoldOut } from './lib/answers.js';
import { COMMON_OPTIONS, SKU, buy, json, listOrders, openSale, readPage, readSale, setMessage } from './lib/api.js';
import { CHECK_THRESHOLDS, checkSale, keysByTurn } from './lib/check_sale.js';
import { ADMIN_KEY, BASE_URLS, DURABILITY, droppedMax, seconds, steady, userName, whole } from './lib/config.js';
import { summaryOf } from './lib/summary.js';

const SCENARIO = 'open_pages';
const RATE = whole('RATE', 2000, 1, 1000000);
const DURATION = seconds('DURATION', '30s', 10, 3600);
const PAGES = whole('PAGES', 100, 1, 10000);
// Pages and browser open before the crowd comes: all of them at once keep the processors busy for some seconds.
const OPENING_SECONDS = 10;
const OPEN_SECONDS = OPENING_SECONDS + DURATION;
const PLANNED = RATE * DURATION;
const STOCK = whole('STOCK', Math.ceil(PLANNED / 5), 1, 1000000000);
const SHARDS = whole('SHARDS', 4, 1, 256);
const SHOPPERS = whole('USERS', Math.ceil(PLANNED / 3), 1, 10000000);
const VUS = whole('VUS', Math.min(500, RATE), 1, 100000);
const VUS_MAX = whole('MAX_VUS', Math.max(VUS, Math.min(1000, RATE)), VUS, 100000);
const DROPPED_MAX = droppedMax(PLANNED);
const PER_USER_LIMIT = 2;
const SELLS_OUT = Math.min(PLANNED, SHOPPERS * PER_USER_LIMIT) * 0.9 - DROPPED_MAX > STOCK;
// How often the page of an open sale asks: this, and a quarter more or less.
const POLL_SECONDS = 3;
// A page shows a state until the next one comes: a pause of 3.75 s after a reading that is up to two seconds old.
const AGE_MAX_MS = 8000;
// The console gets a sample about once a second.
const SAMPLE_PAUSE_MAX_MS = 5000;
const SAMPLES_MIN = Math.floor(OPEN_SECONDS / 2);
const SIGN_IN_SECONDS_MAX = 20;

const pageAge = new Trend('page_age');
const pagesRead = new Counter('pages_read');
const pageFailed = new Rate('page_failed');
const samplePause = new Trend('console_sample_pause');
const samples = new Counter('console_samples');
const isLive = new Rate('console_live');

/** @type {import('k6/options').Options} */
export const options = {
  ...COMMON_OPTIONS,
  scenarios: {
    [SCENARIO]: { ...steady('purchase', DURATION, RATE, VUS, VUS_MAX), startTime: `${OPENING_SECONDS}s` },
    pages: { executor: 'constant-vus', exec: 'visit', vus: PAGES, duration: `${OPEN_SECONDS}s` },
    operator: steady('say', OPEN_SECONDS, 1, 2, 10),
    console: {
      executor: 'per-vu-iterations',
      exec: 'follow',
      vus: 1,
      iterations: 1,
      maxDuration: `${OPEN_SECONDS + SIGN_IN_SECONDS_MAX}s`,
      options: { browser: { type: 'chromium' } },
    },
  },
  thresholds: {
    ...ANSWER_THRESHOLDS,
    ...CHECK_THRESHOLDS,
    ...(SELLS_OUT ? { refused_sold_out: ['count>=1'] } : {}),
    page_failed: ['rate==0'],
    pages_read: [`count>=${PAGES}`],
    page_age: [`max<${AGE_MAX_MS}`],
    console_sample_pause: [`max<${SAMPLE_PAUSE_MAX_MS}`],
    console_samples: [`count>=${SAMPLES_MIN}`],
    console_live: ['rate==1'],
    'http_req_failed{name:buy}': ['rate==0'],
    'http_req_duration{name:buy}': ['p(95)<500', 'p(99)<1500'],
    'dropped_iterations{scenario:open_pages}': [`count<=${DROPPED_MAX}`],
  },
};

export function setup() {
  const sale = openSale(SCENARIO, {
    stock: STOCK,
    shards: SHARDS,
    perUserLimit: PER_USER_LIMIT,
    purchaseRate: { limit: 1000, window_ms: 1000 },
  });
  say(sale);
  for (let tries = 0; !writtenAt(json(readSale(sale.id))); tries += 1) {
    if (tries === 20) {
      throw new Error('the sale shows no message after 10 seconds');
    }
    sleep(0.5);
  }
  return sale;
}

// When the operator wrote the message of a public sale; 0 without one.
const writtenAt = (sale) => Number(sale?.message?.en ?? 0);

const user = (n) => userName(SCENARIO, n);
const key = (run, n) => `${SCENARIO}-${run}-${n}`;

/** @param {RunSale} sale */
export function purchase({ id: saleId, run }) {
  const n = exec.scenario.iterationInTest;
  const { outcome, order } = judgePurchase(buy(saleId, user(n % SHOPPERS), key(run, n), { instance: n }));
  noteSoldOut(outcome);
  if (order !== undefined) {
    acknowledge();
  }
}

/** @param {{ id: string }} sale */
export function say({ id: saleId }) {
  setMessage(saleId, String(Date.now()));
}

// When the state that this VU's page shows was written; 0 before the page is loaded.
let shown = 0;

/** @param {RunSale} sale */
export function visit({ id: saleId }) {
  if (shown === 0) {
    load(saleId);
  } else {
    const answer = readSale(saleId);
    show(answer, json(answer));
  }
  sleep(POLL_SECONDS * (0.75 + Math.random() / 2));
}

function load(saleId) {
  const page = readPage(`/sales/${saleId}`);
  const html = String(page.body);
  const files = [...html.matchAll(/(?:href|src)="(\/assets\/[^"]+\.(?:css|js))"/g)].map(([, path]) => readPage(path));
  const orders = listOrders(saleId, user(exec.vu.idInTest % SHOPPERS));
  pageFailed.add(files.length === 0 || [...files, orders].some(({ status }) => status !== 200));
  const reading = /<script id="reading" type="application\/json">(.*?)<\/script>/.exec(html);
  show(page, reading && JSON.parse(reading[1]));
}

// The page shows this state from now on. The one before has just been as old as it gets.
function show(answer, sale) {
  const at = answer.status === 200 ? writtenAt(sale) : 0;
  pageFailed.add(at === 0);
  if (at === 0) {
    console.error(`a page's state: ${describe(answer)}`);
    return;
  }
  pagesRead.add(1);
  pageAge.add(Date.now() - (shown || at));
  shown = at;
}

// What the browser runs in the console's page. A second stream, beside the page's own, notes when samples arrive.
const NOTE_SAMPLES = `(path) => {
  window.noted = [Date.now()];
  new EventSource(path).addEventListener('sample', () => window.noted.push(Date.now()));
}`;
const NOTED = '() => [...window.noted, Date.now()]';
const IS_LIVE = "() => document.querySelector('#view.is-old') === null";

/** @param {RunSale} sale */
export async function follow({ id: saleId }) {
  const ends = Date.now() + OPEN_SECONDS * 1000;
  const page = await browser.newPage();
  try {
    await page.goto(`${BASE_URLS[0]}/console/sales/${saleId}`);
    await page.locator('#key').fill(ADMIN_KEY);
    await page.locator('#by-key button[type=submit]').click();
    await page.locator('#do-pause').waitFor();
    await page.evaluate(NOTE_SAMPLES, `/v1/admin/sales/${saleId}/live`);
    while (Date.now() < ends) {
      await page.waitForTimeout(1000);
      isLive.add(await page.evaluate(IS_LIVE));
    }
    /** @type {number[]} */
    const noted = await page.evaluate(NOTED);
    samples.add(noted.length - 2);
    noted.slice(1).forEach((at, before) => samplePause.add(at - noted[before]));
  } finally {
    await page.close();
  }
}

/** @param {RunSale} sale */
export function teardown(sale) {
  const keys = (n) => keysByTurn(n, SHOPPERS, PLANNED + RATE, (at) => key(sale.run, at));
  checkSale(sale, { shoppers: SHOPPERS, user, keys, soldOut: SELLS_OUT ? [SKU] : [] });
}

export const handleSummary = summaryOf(
  SCENARIO,
  {
    rate: RATE,
    duration: `${DURATION}s`,
    pages: PAGES,
    stock: STOCK,
    shards: SHARDS,
    shoppers: SHOPPERS,
    durability: DURABILITY,
  },
  {
    figures: [
      ['states that pages showed', 'pages_read', 'count'],
      ['oldest state of a page, ms', 'page_age', 'max'],
      ["the console's samples", 'console_samples', 'count'],
      ['longest pause of them, ms', 'console_sample_pause', 'max'],
    ],
  },
);
