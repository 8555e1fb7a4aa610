// What the server says of itself at /metrics: memory, and how long its purchases took. With several instances in
// BASE_URL these are sums, except for what all of them say of the same Redis.

import { sleep } from 'k6';

import { describe } from './answers.js';
import { readMetrics } from './api.js';
import { BASE_URLS } from './config.js';

const TELLS_AFTER_SECONDS_MAX = 15;

// {memory, redisMemory, redisServers, purchases, purchaseSeconds}; what an instance does not tell is 0.
export function readServer() {
  const sum = { memory: 0, redisMemory: 0, redisServers: 0, purchases: 0, purchaseSeconds: 0 };
  for (let instance = 0; instance < BASE_URLS.length; instance += 1) {
    const answer = readMetrics(instance);
    if (answer.status !== 200) {
      throw new Error(`reading the metrics: ${describe(answer)}`);
    }
    const value = valuesOf(answer.body);
    sum.memory += value('resident_memory_bytes');
    sum.redisMemory = Math.max(sum.redisMemory, value('redis_memory_bytes'));
    sum.redisServers = Math.max(sum.redisServers, value('redis_servers'));
    sum.purchases += value('purchase_duration_seconds_count');
    sum.purchaseSeconds += value('purchase_duration_seconds_sum');
  }
  return sum;
}

// Waits until the server tells of its memory and of Redis, which it does some seconds after its start.
export function waitForServer() {
  for (let waited = 0; waited <= TELLS_AFTER_SECONDS_MAX; waited += 1) {
    const server = readServer();
    if (server.memory > 0 && server.redisServers > 0) {
      return server;
    }
    sleep(1);
  }
  throw new Error('/metrics does not tell the memory: is BASE_URL an instance of this version that runs the jobs?');
}

// Milliseconds that the server took for a purchase, on average between two readings; 0 when there was none.
export function meanPurchaseMs(before, after) {
  const purchases = after.purchases - before.purchases;
  return purchases > 0 ? ((after.purchaseSeconds - before.purchaseSeconds) * 1000) / purchases : 0;
}

// Looks up a metric without labels by its name.
function valuesOf(text) {
  return (name) => {
    const line = text.split('\n').find((candidate) => candidate.startsWith(`flashsale_${name} `));
    return line === undefined ? 0 : Number(line.split(' ')[1]);
  };
}
