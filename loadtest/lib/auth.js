// The shoppers' tokens and the payment provider's signature.

import crypto from 'k6/crypto';
import encoding from 'k6/encoding';

import { JWT_SECRET, webhookSecret } from './config.js';

// Longer than any run.
const TOKEN_SECONDS = 24 * 3600;
const HEADER = encoding.b64encode(JSON.stringify({ alg: 'HS256', typ: 'JWT' }), 'rawurl');

// One token for each shopper. A VU signs a token when it first needs it.
const tokens = {};

// A shopper's bearer token.
export function shopperToken(user) {
  if (tokens[user] === undefined) {
    const now = Math.floor(Date.now() / 1000);
    const claims = encoding.b64encode(JSON.stringify({ sub: user, iat: now, exp: now + TOKEN_SECONDS }), 'rawurl');
    const signature = crypto.hmac('sha256', JWT_SECRET, `${HEADER}.${claims}`, 'base64rawurl');
    tokens[user] = `${HEADER}.${claims}.${signature}`;
  }
  return tokens[user];
}

// The three headers of Standard Webhooks over exactly the bytes of `body`.
export function webhookHeaders(id, body, sentAt) {
  const timestamp = String(Math.floor(sentAt / 1000));
  const key = encoding.b64decode(webhookSecret().slice('whsec_'.length).replace(/=+$/, ''), 'rawstd');
  return {
    'webhook-id': id,
    'webhook-timestamp': timestamp,
    'webhook-signature': `v1,${crypto.hmac('sha256', key, `${id}.${timestamp}.${body}`, 'base64')}`,
  };
}
