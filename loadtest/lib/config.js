// The settings of a run. We read the environment once, and refuse a wrong setting with one line.

// The value of the first name that is set. The project's own names (FLASHSALE_…) come last.
function setting(names, fallback) {
  for (const name of names) {
    if (__ENV[name] !== undefined && __ENV[name] !== '') {
      return __ENV[name];
    }
  }
  return fallback;
}

function required(names, check, demand) {
  const value = setting(names, '');
  if (value === '') {
    throw new Error(`${names[0]} or ${names.slice(1).join(' or ')} must be set: ${demand}`);
  }
  if (!check(value)) {
    throw new Error(`${names[0]} is not usable: ${demand}`);
  }
  return value;
}

// A whole number within its bounds, from the environment or the scenario's own default.
export function whole(name, fallback, min, max) {
  const text = setting([name], String(fallback));
  const value = Number(text);
  if (!Number.isInteger(value) || value < min || value > max) {
    throw new Error(`${name} must be a whole number from ${min} to ${max}, not "${text}"`);
  }
  return value;
}

// How many of the planned iterations k6 may fail to start in time: one in a hundred, or MAX_DROPPED.
export const droppedMax = (planned) => whole('MAX_DROPPED', Math.ceil(planned / 100), 0, planned);

function choice(name, fallback, choices) {
  const value = setting([name], fallback);
  if (!choices.includes(value)) {
    throw new Error(`${name} must be one of ${choices.join(', ')}, not "${value}"`);
  }
  return value;
}

// A duration in k6's form ("90s", "1m30s"), in seconds, within its bounds.
export function seconds(name, fallback, min = 1, max = 24 * 3600) {
  const text = setting([name], fallback);
  const parts = /^(?:(\d+)h)?(?:(\d+)m)?(?:(\d+)s)?$/.exec(text);
  const value = parts === null ? 0 : Number(parts[1] || 0) * 3600 + Number(parts[2] || 0) * 60 + Number(parts[3] || 0);
  if (value < min || value > max) {
    throw new Error(`${name} must be a duration like 15s or 1m30s, from ${min}s to ${max}s, not "${text}"`);
  }
  return value;
}

// A scenario that calls `name` `rate` times a second for `duration` seconds, however long answers take.
/** @type {(name: string, duration: number, rate: number, vus: number, vusMax: number) => import('k6/options').Scenario} */
export const steady = (name, duration, rate, vus, vusMax) => ({
  executor: 'constant-arrival-rate',
  exec: name,
  rate,
  timeUnit: '1s',
  duration: `${duration}s`,
  preAllocatedVUs: vus,
  maxVUs: vusMax,
});

function addresses() {
  const text = setting(['BASE_URL', 'FLASHSALE_URL'], 'http://127.0.0.1:8080');
  return text.split(',').map((address) => {
    const url = address.trim().replace(/\/+$/, '');
    if (!/^https?:\/\/[^/\s]+/.test(url)) {
      throw new Error(`BASE_URL must be http://host:port, or several with commas between, not "${text}"`);
    }
    return url;
  });
}

export const BASE_URLS = addresses();
export const DURABILITY = choice('DURABILITY', 'redis', ['redis', 'replica', 'postgres']);

// How long the check after a run waits until the ledger has the last event.
export const CHECK_WAIT_SECONDS = seconds('CHECK_WAIT', '60s');

// The check after a run checks at most this many shoppers.
export const CHECK_USERS = whole('CHECK_USERS', 20000, 1, 1000000);

export const ADMIN_KEY = required(
  ['ADMIN_KEY', 'FLASHSALE_ADMIN_KEY'],
  (key) => key.length >= 16,
  "the operators' bearer key, at least 16 bytes",
);

export const JWT_SECRET = required(
  ['JWT_SECRET', 'FLASHSALE_JWT_SECRET'],
  (secret) => secret.length >= 32,
  "the HS256 secret of the shoppers' tokens, at least 32 bytes",
);

// Only scenarios with payments need it, so only they call this.
export function webhookSecret() {
  return required(
    ['WEBHOOK_SECRET', 'FLASHSALE_WEBHOOK_SECRET'],
    (secret) => /^whsec_[A-Za-z0-9+/]+={0,2}$/.test(secret),
    "the payment provider's secret, whsec_ followed by base64",
  );
}

// The name of a scenario's n-th shopper.
export function userName(scenario, n) {
  return `${setting(['USER_PREFIX'], `u-${scenario}`)}-${n}`;
}
