#!/usr/bin/env node
// Buys in a flash sale, and asks again until it is known what became of it. `buy` runs in browsers as in Node 18 or later.
//
//     FLASHSALE_URL=http://127.0.0.1:8080 FLASHSALE_TOKEN=… node buy.mjs SALE_ID SKU [QUANTITY [KEY]]
//
// Prints the order as JSON. Exit code 0: there is an order. 1: refused, and why. 2: wrong usage. 3: not known within
// BUY_PATIENCE seconds (60): ask again with the KEY that was printed at the start, and with no other.

// Longer than the two seconds within which the server answers: whatever it was asked is over by then.
const ANSWER_MS = 5000;
const BACKOFF_MS = 200;
const BACKOFF_MAX_MS = 5000;

/** The server said no, and the same request will be told so again. */
export class Refused extends Error {
  constructor({ code, detail }) {
    super(`${code}: ${detail}`);
    this.code = code;
  }
}

/** Time is up, and there may be an order: ask again with the same key. */
export class NotKnown extends Error {}

/**
 * The order. `key` is one for one wish to buy: keep it, in a browser in `localStorage`, until this has returned or
 * thrown `Refused`.
 */
export async function buy({ url, token, saleId, sku, quantity = 1, key, patienceMs = 60_000 }) {
  const giveUp = Date.now() + patienceMs;
  for (let backoff = BACKOFF_MS; ; backoff = Math.min(backoff * 2, BACKOFF_MAX_MS)) {
    let afterMs = 0;
    let last;
    try {
      const answer = await fetch(`${url}/v1/sales/${saleId}/orders`, {
        method: 'POST',
        headers: { Authorization: `Bearer ${token}`, 'Idempotency-Key': key, 'Content-Type': 'application/json' },
        body: JSON.stringify({ sku, quantity }),
        signal: AbortSignal.timeout(ANSWER_MS),
      });
      if (answer.ok) return await answer.json();
      last = answer.status;
      if (last !== 429 && last < 500) throw new Refused(await problemOf(answer));
      afterMs = seconds(answer.headers.get('Retry-After')) * 1000;
    } catch (error) {
      if (error instanceof Refused) throw error;
      // No connection, no answer in time, half an answer.
      last = error.message;
    }
    // What the server asks for, and a little by chance, so that not all come back at once.
    const wait = afterMs + Math.random() * backoff;
    if (Date.now() + wait >= giveUp) {
      throw new NotKnown(`not known (last answer: ${last}); ask again with the key ${key}`);
    }
    await new Promise((resolve) => setTimeout(resolve, wait));
  }
}

/** The problem that an answer carries; a proxy in between may answer something else. */
async function problemOf(answer) {
  try {
    return await answer.json();
  } catch {
    return { code: `HTTP ${answer.status}`, detail: answer.statusText };
  }
}

/** `Retry-After` in seconds. */
function seconds(text) {
  return /^\d+$/.test(text ?? '') ? Number(text) : 0;
}

async function main(parts, environment, randomUUID) {
  const [saleId, sku, quantity = '1', key = randomUUID()] = parts;
  const token = environment.FLASHSALE_TOKEN;
  if (parts.length < 2 || parts.length > 4 || !token) {
    console.error('usage: FLASHSALE_TOKEN=… node buy.mjs SALE_ID SKU [QUANTITY [KEY]]');
    return 2;
  }
  console.error(`key ${key}`);
  const url = environment.FLASHSALE_URL || 'http://127.0.0.1:8080';
  const patienceMs = Number(environment.BUY_PATIENCE || 60) * 1000;
  try {
    console.log(JSON.stringify(await buy({ url, token, saleId, sku, quantity: Number(quantity), key, patienceMs })));
    return 0;
  } catch (error) {
    if (!(error instanceof Refused || error instanceof NotKnown)) throw error;
    console.error(error.message);
    return error instanceof Refused ? 1 : 3;
  }
}

// Only as a program of its own: a page, or another module, imports `buy`.
if (globalThis.process?.argv?.[1]) {
  const { realpathSync } = await import('node:fs');
  const { pathToFileURL } = await import('node:url');
  const { randomUUID } = await import('node:crypto');
  if (import.meta.url === pathToFileURL(realpathSync(process.argv[1])).href) {
    process.exitCode = await main(process.argv.slice(2), process.env, randomUUID);
  }
}
