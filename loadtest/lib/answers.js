// Judges the answers to purchases against the contract, and counts and times them by outcome.

import { Counter, Trend } from 'k6/metrics';

import { header, json } from './api.js';

const ORDER_STATES = ['reserved', 'paid', 'cancelled', 'expired', 'revoked'];
const LINES_A_VU_MAX = 3;

const reserved = new Counter('orders_reserved');
const replayed = new Counter('orders_replayed');
const soldOut = new Counter('refused_sold_out');
const limitReached = new Counter('refused_purchase_limit');
const rateLimited = new Counter('refused_rate_limited');
const shed = new Counter('refused_503');
const unanswered = new Counter('unanswered');
const otherRefusals = new Counter('refused_otherwise');

// Accepting and refusing are different work, so each has a latency of its own.
const reservedDuration = new Trend('buy_reserved_duration', true);
const soldOutDuration = new Trend('buy_sold_out_duration', true);

const breaches = new Counter('contract_breaches');
const untrue = new Counter('sold_out_untrue');

// Every acknowledged order adds one. Every order that the check finds under its key subtracts one. Above zero, an
// acknowledged order is lost. This is a trend, since a counter may refuse a negative number.
export const acknowledgedNotFound = new Trend('acknowledged_not_found');

export const ANSWER_THRESHOLDS = {
  contract_breaches: ['count==0'],
  refused_otherwise: ['count==0'],
  sold_out_untrue: ['count==0'],
  acknowledged_not_found: ['avg<=0'],
};

let lines = 0;

// Counts an answer that the contract does not allow. Prints the first few.
export function breach(text) {
  breaches.add(1);
  lines += 1;
  if (lines <= LINES_A_VU_MAX) {
    console.error(`contract: ${text}`);
  }
}

// Counts a breach unless `holds`.
export function expect(holds, text) {
  if (!holds) {
    breach(text);
  }
  return holds;
}

// True if the answer is an error of this status and code, in the common form of errors.
/** @type {(response: LoadAnswer, status: number, code: string, what: string) => boolean} */
export function expectRefusal(response, status, code, what) {
  const problem = json(response);
  const isProblem = (header(response, 'Content-Type') || '').startsWith('application/problem+json');
  return expect(
    response.status === status && isProblem && problem !== null && problem.code === code && problem.status === status,
    `${what}: expected ${status} ${code}, got ${describe(response)}`,
  );
}

// An answer in a few words.
/** @param {LoadAnswer} response */
export function describe(response) {
  if (response.status === 0) {
    return `no answer (${response.error})`;
  }
  return `${response.status} ${String(response.body).slice(0, 200)}`;
}

// Judges and counts the answer to a purchase. Returns {outcome, order}. The outcome is `reserved` or `replayed`, which
// have an order, or the error's code, `unanswered` or `unknown`.
/** @type {(response: LoadAnswer) => Judged} */
export function judgePurchase(response) {
  if (response.status === 0) {
    unanswered.add(1);
    return { outcome: 'unanswered' };
  }
  const body = json(response);
  expect(header(response, 'X-Request-Id') !== undefined, `an answer without X-Request-Id: ${describe(response)}`);
  if (response.status === 201 || response.status === 200) {
    return judgeOrder(response, body);
  }
  const isProblem = (header(response, 'Content-Type') || '').startsWith('application/problem+json');
  if (!isProblem || body === null || body.status !== response.status || typeof body.code !== 'string') {
    breach(`an error without problem+json or code: ${describe(response)}`);
    return { outcome: 'unknown' };
  }
  return { outcome: judgeRefusal(response, body.code) };
}

/** @type {(response: LoadAnswer, order: Order) => Judged} */
function judgeOrder(response, order) {
  if (order === null || typeof order.id !== 'string' || !ORDER_STATES.includes(order.state)) {
    breach(`an order without an id or a state: ${describe(response)}`);
    return { outcome: 'unknown' };
  }
  const saysReplayed = header(response, 'Idempotency-Replayed') === 'true';
  if (response.status === 200) {
    replayed.add(1);
    expect(saysReplayed, `200 without Idempotency-Replayed: ${order.id}`);
    return { outcome: 'replayed', order };
  }
  reserved.add(1);
  reservedDuration.add(response.timings.duration);
  expect(!saysReplayed, `201 with Idempotency-Replayed: ${order.id}`);
  const location = header(response, 'Location') || '';
  expect(location.endsWith(`/v1/orders/${order.id}`), `201 without the order's Location: ${order.id}`);
  expect(order.state === 'reserved', `a new order is ${order.state}: ${order.id}`);
  return { outcome: 'reserved', order };
}

/** @type {(response: LoadAnswer, code: string) => string} */
function judgeRefusal(response, code) {
  if (response.status === 409 && code === 'sold_out') {
    soldOut.add(1);
    soldOutDuration.add(response.timings.duration);
  } else if (response.status === 409 && code === 'purchase_limit_reached') {
    limitReached.add(1);
  } else if (response.status === 429 && code === 'rate_limited') {
    rateLimited.add(1);
  } else if (response.status === 503 && (code === 'overloaded' || code === 'unavailable')) {
    shed.add(1);
  } else {
    otherRefusals.add(1);
    expect(response.status < 500, `a purchase got ${describe(response)}`);
  }
  if (response.status === 429 || response.status === 503) {
    expect(/^[0-9]+$/.test(header(response, 'Retry-After') || ''), `${response.status} without Retry-After in seconds`);
  }
  return code;
}

// Counts an order once, when its shopper first receives it.
export function acknowledge() {
  acknowledgedNotFound.add(1);
}

// For scenarios in which no unit returns. After this VU got `sold_out`, no later purchase of one unit may succeed: that
// unit was free at the refusal. Takes the outcomes of requests that were sent together.
let hasSoldOut = false;

export function noteSoldOut(...outcomes) {
  if (hasSoldOut && outcomes.includes('reserved')) {
    untrue.add(1);
  }
  hasSoldOut = hasSoldOut || outcomes.includes('sold_out');
}
