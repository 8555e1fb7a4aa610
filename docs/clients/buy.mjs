#!/usr/bin/env node
// Buys in a flash sale, and retries until the outcome is known. `buy` runs in Node 18 or later and in browsers.
//
//     FLASHSALE_URL=http://127.0.0.1:8080 FLASHSALE_TOKEN=… node buy.mjs SALE_ID SKU [QUANTITY [KEY]]
//
// Prints the key on standard error, then the order as JSON. Exit codes: 0 an order, 1 no order, 2 wrong usage, 3 unknown.
// After 3, BUY_PATIENCE seconds (60) are over, or the last answer names something to correct first. Run it again with the
// printed KEY, and with no other. For a guarded sale, set FLASHSALE_ADMISSION and FLASHSALE_PURCHASE_TOKEN.
//
// In a browser, with one key for each account, sale, SKU and quantity:
//
//     import { buy, Refused } from './buy.mjs';
//
//     const wish = `wish ${account} ${saleId} ${sku} ${quantity}`;
//     // Stored before the first request, so that a reload finds it.
//     const key = localStorage.getItem(wish) ?? crypto.randomUUID();
//     localStorage.setItem(wish, key);
//     try {
//       show(await buy({ url: '', token, saleId, sku, quantity, key }));
//       localStorage.removeItem(wish);
//     } catch (error) {
//       // After any error but `Refused` there may be an order: keep the key, show the error, and offer to ask again.
//       if (!(error instanceof Refused)) throw error;
//       localStorage.removeItem(wish);
//       say(error.code, error.retryAfter);
//     }

// Longer than the two seconds within which the server answers.
const ANSWER_MS = 5000;
// For this long the server may still work on a request whose connection broke.
const WORK_MS = 3000;
const BACKOFF_MS = 200;
const BACKOFF_MAX_MS = 5000;
/** The server refused, and the key has no order: drop it, or repeat it with what a guard's `code` asks for. `retryAfter` is in seconds, or 0. */
export class Refused extends Error {
  constructor(problem, retryAfter) {
    super(said(problem));
    this.code = problem.code;
    this.retryAfter = retryAfter;
  }
}

/** The key has an order of another item or quantity. A retry cannot succeed. */
export class KeyReused extends Error {
  constructor() {
    super('this key has an order of another item or quantity: ask for the original one, or use a new key');
  }
}

/** Nothing was bought with a new key. Correct what the message names, or wait, and ask again with the same key. */
export class NotBought extends Error {}

/** There may be an order: keep the key, correct what the message names, and ask again with it. */
export class NotKnown extends Error {}

/**
 * Returns the order. `key` stands for one wish to buy: keep it until this returns or throws `Refused`. `isNew` says that
 * no earlier request can have used the key.
 */
export async function buy({
  url,
  token,
  saleId,
  sku,
  quantity = 1,
  key,
  patienceMs = 60_000,
  admission,
  purchaseToken,
  isNew = false,
}) {
  const headers = { Authorization: `Bearer ${token}`, 'Idempotency-Key': key, 'Content-Type': 'application/json' };
  if (admission) headers['X-Admission'] = admission;
  if (purchaseToken) headers['X-Purchase-Token'] = purchaseToken;
  const address = `${url}/v1/sales/${encodeURIComponent(saleId)}/orders`;
  const request = { method: 'POST', headers, body: JSON.stringify({ sku, quantity }) };
  const giveUp = Date.now() + patienceMs;
  let mayExist = !isNew;
  let overAt = 0;
  for (let backoff = BACKOFF_MS; ; backoff = Math.min(backoff * 2, BACKOFF_MAX_MS)) {
    const sentAt = Date.now();
    const { status, after, order, problem, last } = await ask(address, request);
    if (order) return order;
    // Anything but a problem of the API comes from a proxy, which does not know the outcome.
    const isNo = Boolean(problem) && status >= 400 && status < 500;
    if (isNo && problem.code === 'idempotency_key_reused') throw new KeyReused();
    const isLimited = isNo && problem.code === 'rate_limited';
    // While an earlier request may still be under way, the key may get an order after this answer.
    const isKnown = isNo && problem.key_has_order === false;
    if (isKnown && sentAt >= overAt) {
      if (!isLimited) throw new Refused(problem, after);
      mayExist = false;
    }
    if (!isNo) {
      mayExist = true;
      overAt = sentAt + WORK_MS;
    }
    // The server's `Retry-After` and a random part, so that clients do not return together.
    const wait = after * 1000 + Math.random() * backoff;
    if ((isNo && !isKnown && !isLimited) || Date.now() + wait >= giveUp) {
      if (mayExist) throw new NotKnown(`not known (last answer: ${last}); ask again with the key ${key}`);
      throw new NotBought(`nothing was bought (${last})`);
    }
    await new Promise((resolve) => setTimeout(resolve, wait));
  }
}

/** Sends one request. Returns status, seconds to wait, order or problem, and the answer as text for messages. */
async function ask(address, request) {
  let answer;
  let text;
  try {
    answer = await fetch(address, { ...request, signal: AbortSignal.timeout(ANSWER_MS) });
    text = await answer.text();
  } catch (error) {
    // No connection, no answer in time, half an answer.
    return { status: 0, after: 0, last: error.message };
  }
  const { status } = answer;
  const after = seconds(answer.headers.get('Retry-After'));
  const kind = (answer.headers.get('Content-Type') ?? '').split(';')[0].trim().toLowerCase();
  const body = parsed(text);
  if ((status === 200 || status === 201) && kind === 'application/json' && body) {
    return { status, after, order: body, last: status };
  }
  if (kind === 'application/problem+json' && typeof body?.code === 'string') {
    return { status, after, problem: body, last: `${status} ${said(body)}` };
  }
  return { status, after, last: status };
}

/** The object in a JSON text, or null. */
function parsed(text) {
  try {
    const value = JSON.parse(text);
    return typeof value === 'object' ? value : null;
  } catch {
    return null;
  }
}

function said(problem) {
  return `${problem.code}: ${problem.detail}`;
}

/** `Retry-After` in seconds. */
function seconds(text) {
  return /^\d{1,9}$/.test(text ?? '') ? Number(text) : 0;
}

async function main(parts, environment, randomUUID) {
  const [saleId, sku, quantity = '1', key = randomUUID()] = parts;
  const token = environment.FLASHSALE_TOKEN;
  if (parts.length < 2 || parts.length > 4 || !token) {
    console.error('usage: FLASHSALE_TOKEN=… node buy.mjs SALE_ID SKU [QUANTITY [KEY]]');
    return 2;
  }
  const patience = environment.BUY_PATIENCE || '60';
  for (const [name, text, pattern, what] of [
    ['QUANTITY', quantity, /^[1-9]\d{0,5}$/, 'a whole number from 1'],
    ['KEY', key, /^[!-~]([ -~]{0,62}[!-~])?$/, '1 to 64 printable ASCII characters, no space at either end'],
    ['BUY_PATIENCE', patience, /^\d{1,6}$/, 'a whole number of seconds'],
  ]) {
    if (!pattern.test(text)) {
      console.error(`buy.mjs: ${name} must be ${what}`);
      return 2;
    }
  }
  console.error(`key ${key}`);
  try {
    const order = await buy({
      url: environment.FLASHSALE_URL || 'http://127.0.0.1:8080',
      token,
      saleId,
      sku,
      quantity: Number(quantity),
      key,
      patienceMs: Number(patience) * 1000,
      admission: environment.FLASHSALE_ADMISSION,
      purchaseToken: environment.FLASHSALE_PURCHASE_TOKEN,
      isNew: parts.length < 4,
    });
    console.log(JSON.stringify(order));
    return 0;
  } catch (error) {
    if (![Refused, KeyReused, NotBought, NotKnown].some((kind) => error instanceof kind)) throw error;
    console.error(error.message);
    return error instanceof NotKnown ? 3 : 1;
  }
}

// Only as a program: a page or another module imports `buy`.
if (globalThis.process?.argv?.[1]) {
  const { realpathSync } = await import('node:fs');
  const { pathToFileURL } = await import('node:url');
  const { randomUUID } = await import('node:crypto');
  if (import.meta.url === pathToFileURL(realpathSync(process.argv[1])).href) {
    process.exitCode = await main(process.argv.slice(2), process.env, randomUUID);
  }
}
