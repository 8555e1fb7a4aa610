// The HTTP API: one function for each request. A short name tags each request instead of its address. So the number of
// time series does not grow with the number of orders.

import http from 'k6/http';
import { sleep } from 'k6';

import { shopperToken, webhookHeaders } from './auth.js';
import { ADMIN_KEY, BASE_URLS, DURABILITY } from './config.js';

const REQUEST_TIMEOUT = '10s';
const RETRY_WAIT_SECONDS_MAX = 5;
const OPEN_SECONDS = 2 * 3600;

export const SKU = 'LOAD-1';
export const PRICE_MINOR = 1990;
export const CURRENCY = 'EUR';

// A refusal is not a failure: a flash sale refuses most purchases.
http.setResponseCallback(http.expectedStatuses({ min: 200, max: 299 }, 409, 429));

// Options that every scenario shares. The check after the run sends requests in batches.
export const COMMON_OPTIONS = {
  batch: 20,
  batchPerHost: 20,
  setupTimeout: '60s',
  teardownTimeout: '10m',
  summaryTrendStats: ['avg', 'min', 'med', 'p(50)', 'p(95)', 'p(99)', 'p(99.9)', 'max', 'count'],
};

// One request for http.batch. `instance` selects an address in BASE_URL.
/** @type {(name: string, method: string, path: string, options?: RequestOptions) => LoadRequest} */
function request(name, method, path, { bearer, body, headers, instance = 0, expected } = {}) {
  /** @type {LoadRequest['params']} */
  const params = { tags: { name }, headers: { ...headers }, timeout: REQUEST_TIMEOUT };
  if (bearer) {
    params.headers.Authorization = `Bearer ${bearer}`;
  }
  if (body !== undefined) {
    params.headers['Content-Type'] = 'application/json';
  }
  if (expected) {
    params.responseCallback = http.expectedStatuses(...expected);
  }
  const url = BASE_URLS[instance % BASE_URLS.length] + path;
  return { method, url, body: body === undefined ? null : body, params };
}

/** @type {(request: LoadRequest) => LoadAnswer} */
function send({ method, url, body, params }) {
  return http.request(method, url, body, params);
}

// The body of an answer, or null when it is not JSON.
/** @type {(response: LoadAnswer) => any} */
export function json(response) {
  try {
    return response.body ? JSON.parse(response.body) : null;
  } catch (_) {
    return null;
  }
}

// A header's value whatever its case, or undefined.
/** @type {(response: LoadAnswer, name: string) => string | undefined} */
export function header(response, name) {
  const wanted = name.toLowerCase();
  const found = Object.keys(response.headers).find((candidate) => candidate.toLowerCase() === wanted);
  return found === undefined ? undefined : response.headers[found];
}

// The body of a successful answer. Any other answer ends the run.
function demand(response, what) {
  if (response.status < 200 || response.status > 299) {
    const reply = response.status === 0 ? `no answer (${response.error})` : `${response.status} ${response.body}`;
    throw new Error(`${what}: ${reply}`);
  }
  return json(response);
}

// Operators

function admin(name, method, path, body, headers) {
  const text = body === undefined ? undefined : JSON.stringify(body);
  return send(request(name, method, `/v1/admin${path}`, { bearer: ADMIN_KEY, body: text, headers }));
}

// Creates, preloads and opens a sale, and returns the data that the shoppers need. The sale has one item with `stock`
// units, or the `items`, each {sku, stock}.
/** @type {(scenario: string, terms: SaleTerms) => RunSale} */
export function openSale(
  scenario,
  { stock, items = [{ sku: SKU, stock }], shards, perUserLimit, purchaseRate, paymentWindowSeconds = 900, openSeconds },
) {
  const run = Date.now().toString(36);
  const { id } = demand(
    admin('create_sale', 'POST', '/sales', {
      name: `Load test ${scenario} ${run}`,
      starts_at: new Date(Date.now() - 1000).toISOString(),
      ends_at: new Date(Date.now() + (openSeconds || OPEN_SECONDS) * 1000).toISOString(),
      shards,
      payment_window_seconds: paymentWindowSeconds,
      purchase_rate: purchaseRate,
      durability: DURABILITY,
      items: items.map((item) => ({
        sku: item.sku,
        name: `Load test item ${item.sku}`,
        price_minor: PRICE_MINOR,
        currency: CURRENCY,
        stock: item.stock,
        per_user_limit: perUserLimit,
      })),
    }),
    'creating the sale',
  );
  const preloaded = demand(admin('preload_sale', 'POST', `/sales/${id}/preload`), 'preloading the sale');
  for (const item of items) {
    const loaded = preloaded.shards.reduce((units, shard) => units + (shard.available[item.sku] || 0), 0);
    if (loaded !== item.stock || preloaded.shards.length !== shards) {
      throw new Error(
        `preloading: ${loaded} of ${item.stock} units of ${item.sku} on ${preloaded.shards.length} of ${shards} shards`,
      );
    }
  }
  if (saleState(id) !== 'open') {
    demand(admin('open_sale', 'POST', `/sales/${id}/open`), 'opening the sale');
  }
  for (let tries = 0; saleState(id) !== 'open'; tries += 1) {
    if (tries === 20) {
      throw new Error(`the sale ${id} is not open after 10 seconds`);
    }
    sleep(0.5);
  }
  return { id, run, scenario, items, shards, durability: DURABILITY };
}

/** @type {(id: string) => SaleState} */
function saleState(id) {
  return demand(admin('read_sale', 'GET', `/sales/${id}`), 'reading the sale').state;
}

export function closeSale(id) {
  return demand(admin('close_sale', 'POST', `/sales/${id}/close`), 'closing the sale');
}

/** @type {(id: string) => Stats} */
export function stats(id) {
  return demand(admin('stats', 'GET', `/sales/${id}/stats`), 'reading the stats');
}

/** @type {(id: string) => SaleReport} */
export function report(id) {
  return demand(admin('report', 'GET', `/sales/${id}/report`), 'reading the report');
}

// Whom guards in shadow would have refused in this sale.
/** @type {(id: string) => ListedShadowRefusal[]} */
export function shadowRefusals(id) {
  return demand(admin('shadow_refusals', 'GET', `/guards/shadow?sale_id=${id}`), 'reading the shadow refusals').data;
}

/** @type {() => Guards} */
export function showGuards() {
  return demand(admin('show_guards', 'GET', '/guards'), 'reading the guards');
}

// Changes the guards of all instances by a merge patch.
/** @type {(patch: object) => Guards} */
export function changeGuards(patch) {
  return demand(admin('change_guards', 'PATCH', '/guards', patch), 'changing the guards');
}

// Sets the message that the sale's pages show.
/** @type {(id: string, text: string) => void} */
export function setMessage(id, text) {
  demand(admin('set_message', 'PUT', `/sales/${id}/message`, { en: text }), 'setting the message');
}

/** @type {(id: string) => AuditPage} */
export function audit(id) {
  return demand(admin('audit', 'GET', `/sales/${id}/audit`), 'auditing the sale');
}

// Shoppers

// A purchase for http.batch.
/** @type {(saleId: string, user: string, key: string, options?: PurchaseOptions) => LoadRequest} */
export function purchaseRequest(saleId, user, key, { name = 'buy', quantity = 1, sku = SKU, instance, expected } = {}) {
  return request(name, 'POST', `/v1/sales/${saleId}/orders`, {
    bearer: shopperToken(user),
    body: JSON.stringify({ sku, quantity }),
    headers: { 'Idempotency-Key': key },
    instance,
    expected,
  });
}

/** @type {(saleId: string, user: string, key: string, options?: PurchaseOptions) => LoadAnswer} */
export function buy(saleId, user, key, options) {
  return send(purchaseRequest(saleId, user, key, options));
}

// Buys like a patient shopper. After no answer, 429 or 503, the shopper repeats the same key after Retry-After, up to
// `attemptsMax` attempts in all.
/** @type {(saleId: string, user: string, key: string, options?: PurchaseOptions, attemptsMax?: number) => LoadAnswer} */
export function buyPatiently(saleId, user, key, options, attemptsMax = 5) {
  let response = buy(saleId, user, key, options);
  for (let attempts = 1; attempts < attemptsMax && isWorthRetrying(response); attempts += 1) {
    waitRetryAfter(response);
    response = buy(saleId, user, key, { ...options, name: 'buy_retry' });
  }
  return response;
}

/** @param {LoadAnswer} response */
export function isWorthRetrying(response) {
  return response.status === 0 || response.status === 429 || response.status === 503;
}

// Waits for the seconds of Retry-After, within a bound.
/** @param {LoadAnswer} response */
export function waitRetryAfter(response) {
  const wait = Number(header(response, 'Retry-After'));
  sleep(Math.min(wait > 0 ? wait : 1, RETRY_WAIT_SECONDS_MAX));
}

/** @type {(user: string, orderId: string, options?: RequestOptions) => LoadAnswer} */
export function readOrder(user, orderId, options) {
  return send(request('read_order', 'GET', `/v1/orders/${orderId}`, { bearer: shopperToken(user), ...options }));
}

// A result page of a shopper's orders in a sale, for http.batch.
/** @type {(saleId: string, user: string, afterId?: string) => LoadRequest} */
export function ordersRequest(saleId, user, afterId) {
  const page = afterId === undefined ? '' : `&starting_after=${afterId}`;
  return request('list_orders', 'GET', `/v1/orders?sale_id=${saleId}${page}`, { bearer: shopperToken(user) });
}

/** @type {(saleId: string, user: string, afterId?: string) => LoadAnswer} */
export function listOrders(saleId, user, afterId) {
  return send(ordersRequest(saleId, user, afterId));
}

/** @type {(user: string, orderId: string, options?: RequestOptions) => LoadAnswer} */
export function cancel(user, orderId, options) {
  return send(request('cancel', 'POST', `/v1/orders/${orderId}/cancel`, { bearer: shopperToken(user), ...options }));
}

// A web page, or a file that it names.
/** @type {(path: string) => LoadAnswer} */
export function readPage(path) {
  return send(request('page', 'GET', path));
}

export function readSale(saleId) {
  return send(request('read_public_sale', 'GET', `/v1/sales/${saleId}`));
}

// A purchase without a token or without a key, to check its refusal.
/** @type {(saleId: string, options: { user?: string, key?: string, expected: number[] }) => LoadAnswer} */
export function buyIncompletely(saleId, { user, key, expected }) {
  return send(
    request('buy_incomplete', 'POST', `/v1/sales/${saleId}/orders`, {
      bearer: user === undefined ? undefined : shopperToken(user),
      body: JSON.stringify({ sku: SKU, quantity: 1 }),
      headers: key === undefined ? {} : { 'Idempotency-Key': key },
      expected,
    }),
  );
}

// The payment provider

// Sends the webhook that reports a payment for `order`. The same payment id twice is the same payment.
/** @type {(order: Order, paymentId: string, options?: { forged?: boolean, expected?: number[] }) => LoadAnswer} */
export function pay(order, paymentId, { forged = false, expected } = {}) {
  const sentAt = Date.now();
  const body = JSON.stringify({
    type: 'payment.succeeded',
    timestamp: new Date(sentAt).toISOString(),
    data: {
      payment_id: paymentId,
      order_id: order.id,
      amount_minor: order.amount_minor,
      currency: order.currency,
    },
  });
  const headers = webhookHeaders(`msg_${paymentId}`, forged ? `${body} ` : body, sentAt);
  return send(request('pay', 'POST', '/v1/webhooks/payments', { body, headers, expected }));
}

// Repeats a payment until an answer arrives, as a payment provider does. True if the server accepted the money.
/** @type {(order: Order, paymentId: string, triesMax?: number) => boolean} */
export function payPatiently(order, paymentId, triesMax = 5) {
  let answer = pay(order, paymentId);
  for (let tries = 1; tries < triesMax && isWorthRetrying(answer); tries += 1) {
    waitRetryAfter(answer);
    answer = pay(order, paymentId);
  }
  const body = answer.status === 200 ? json(answer) : null;
  const isTaken = body !== null && ['applied', 'pending', 'duplicate'].includes(body.outcome);
  if (!isTaken) {
    console.error(`a payment in time failed: ${answer.status} ${answer.body || answer.error}`);
  }
  return isTaken;
}

// Machines

/** @type {(path: string, instance?: number) => LoadAnswer} */
export function readProbe(path, instance) {
  return send(request('probe', 'GET', path, { instance }));
}

// An instance's metrics, in the Prometheus text format.
export function readMetrics(instance) {
  return send(request('metrics', 'GET', '/metrics', { instance }));
}
