// Reads the server's memory and purchase times from /metrics. With several instances in BASE_URL, these are sums.
// Figures of Redis are the largest, since all instances report the same Redis.

import { sleep } from 'k6';

import { describe } from './answers.js';
import { readMetrics } from './api.js';
import { BASE_URLS } from './config.js';

const METRICS_WAIT_SECONDS_MAX = 15;

const sum = (one, other) => one + other;
// A zero of these means that the instance has not measured them yet, or no longer can.
const NEVER_ZERO = ['memory', 'redisMemory', 'redisServers'];

// The metric of each figure, without labels, and how the values of several instances combine.
/** @type {Record<string, [string, (one: number, other: number) => number]>} */
const METRICS = {
  memory: ['flashsale_resident_memory_bytes', sum],
  redisMemory: ['flashsale_redis_memory_bytes', Math.max],
  redisServers: ['flashsale_redis_servers', Math.max],
  purchases: ['flashsale_purchase_duration_seconds_count', sum],
  purchaseSeconds: ['flashsale_purchase_duration_seconds_sum', sum],
};

// Returns {memory, redisMemory, redisServers, purchases, purchaseSeconds}, and requires the named figures, or all. A
// missing figure is an error: as a zero, it would pass every comparison.
/** @type {(...names: (keyof ServerReading)[]) => ServerReading} */
export function readServer(...names) {
  const server = readReported();
  for (const name of names.length > 0 ? names : Object.keys(METRICS)) {
    if (server[name] === undefined || (server[name] === 0 && NEVER_ZERO.includes(name))) {
      throw new Error(`no instance's /metrics has ${METRICS[name][0]}`);
    }
  }
  return server;
}

function readReported() {
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

// Waits until /metrics has the memory and the Redis servers, some seconds after the start.
/** @type {() => ServerReading} */
export function waitForServer() {
  for (let waited = 0; waited <= METRICS_WAIT_SECONDS_MAX; waited += 1) {
    const server = readReported();
    if (server.memory > 0 && server.redisServers > 0) {
      return server;
    }
    sleep(1);
  }
  throw new Error('/metrics lacks the memory: is BASE_URL an instance of this version that runs the jobs?');
}

// The server's mean milliseconds of a purchase between two readings.
/** @type {(before: ServerReading, after: ServerReading) => number} */
export function meanPurchaseMs(before, after) {
  const purchases = after.purchases - before.purchases;
  if (!(purchases > 0)) {
    throw new Error(`/metrics counts ${purchases} purchases while shoppers bought`);
  }
  return ((after.purchaseSeconds - before.purchaseSeconds) * 1000) / purchases;
}
