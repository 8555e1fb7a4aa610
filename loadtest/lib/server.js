// What the server says of itself at /metrics: memory, and how long its purchases took. With several instances in
// BASE_URL these are sums, except for what all of them say of the same Redis.

import { sleep } from 'k6';

import { describe } from './answers.js';
import { readMetrics } from './api.js';
import { BASE_URLS } from './config.js';

const TELLS_AFTER_SECONDS_MAX = 15;

const sum = (one, other) => one + other;
// Read before they were measured, or gone.
const NEVER_ZERO = ['memory', 'redisMemory', 'redisServers'];

// What is read, by its metric without labels, and what the values of several instances come to.
/** @type {Record<string, [string, (one: number, other: number) => number]>} */
const METRICS = {
  memory: ['flashsale_resident_memory_bytes', sum],
  redisMemory: ['flashsale_redis_memory_bytes', Math.max],
  redisServers: ['flashsale_redis_servers', Math.max],
  purchases: ['flashsale_purchase_duration_seconds_count', sum],
  purchaseSeconds: ['flashsale_purchase_duration_seconds_sum', sum],
};

// {memory, redisMemory, redisServers, purchases, purchaseSeconds}, or those of them that are named. One that no instance
// tells is no zero: whoever compares it would find that all is well.
/** @type {(...names: (keyof ServerReading)[]) => ServerReading} */
export function readServer(...names) {
  const server = readTold();
  for (const name of names.length > 0 ? names : Object.keys(METRICS)) {
    if (server[name] === undefined || (server[name] === 0 && NEVER_ZERO.includes(name))) {
      throw new Error(`/metrics of no instance tells ${METRICS[name][0]}`);
    }
  }
  return server;
}

function readTold() {
  /** @type {any} */
  const server = {};
  for (let instance = 0; instance < BASE_URLS.length; instance += 1) {
    const answer = readMetrics(instance);
    if (answer.status !== 200) {
      throw new Error(`reading the metrics: ${describe(answer)}`);
    }
    const lines = answer.body.split('\n');
    for (const [name, [metric, join]] of Object.entries(METRICS)) {
      const line = lines.find((candidate) => candidate.startsWith(`${metric} `));
      const value = line === undefined ? NaN : Number(line.split(' ')[1]);
      if (!Number.isNaN(value)) {
        server[name] = server[name] === undefined ? value : join(server[name], value);
      }
    }
  }
  return server;
}

// Waits until the server tells of its memory and of Redis, which it does some seconds after its start.
/** @type {() => ServerReading} */
export function waitForServer() {
  for (let waited = 0; waited <= TELLS_AFTER_SECONDS_MAX; waited += 1) {
    const server = readTold();
    if (server.memory > 0 && server.redisServers > 0) {
      return server;
    }
    sleep(1);
  }
  throw new Error('/metrics does not tell the memory: is BASE_URL an instance of this version that runs the jobs?');
}

// Milliseconds that the server took for a purchase, on average between two readings.
/** @type {(before: ServerReading, after: ServerReading) => number} */
export function meanPurchaseMs(before, after) {
  const purchases = after.purchases - before.purchases;
  if (!(purchases > 0)) {
    throw new Error(`/metrics counts ${purchases} purchases while shoppers bought`);
  }
  return ((after.purchaseSeconds - before.purchaseSeconds) * 1000) / purchases;
}
