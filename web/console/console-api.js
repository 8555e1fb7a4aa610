// The operators' requests to the API, with this browser's session. A change also carries the session's request token, which
// no other site can read.

import { ask, draw, isUnknown } from './api.js';
import { hearRoughly } from './clock.js';
import { mapOfTab } from './storage.js';

const SESSION = '/v1/admin/session';
const HEADER = 'X-Console-Token';
const MINE = 'same-origin';
// A change may take the server fifteen seconds.
const ACTION_MS = 20_000;
// A rebuild writes every order of a sale.
export const REBUILD_MS = 1_810_000;
// A report reads every order of a sale. The server allows it as long as a change.
export const REPORT_MS = ACTION_MS;
// The most requests with an unknown outcome that a tab keeps, per kind.
const OPEN_MAX = 20;
// Refusals that the server decides after it checks the idempotency key. They also settle an earlier request with that key.
const DECIDED_CODES = ['insufficient_stock', 'idempotency_key_reused'];

/** @type {string | null} */
let token = null;
/** @type {string | null} */
let operator = null;
/** @type {string | null} */
let session = null;
// What the session may do: `view`, `run` or `all`.
let role = '';
let changed = () => {};

// Calls `listener` after each sign-in and sign-out.
export function onSession(listener) {
    changed = listener;
}

export const isSignedIn = () => token !== null;

// The name that the operator gave at sign-in; empty if none was given.
export const operatorName = () => operator ?? '';

// The role of the key that the session began with; empty without a session.
export const operatorRole = () => role;

// The id of this browser's session; null without one.
export const sessionId = () => session;

function hear(answer) {
    const before = token;
    token = answer.isOk && answer.body.signed_in ? String(answer.body.request_token) : null;
    operator = token === null ? null : answer.body.name;
    session = token === null ? null : answer.body.session_id;
    // An instance of an earlier version does not say it, and decides itself.
    role = token === null ? '' : (answer.body.role ?? 'all');
    if (before !== token) {
        changed();
    }
    return answer;
}

// Asks the API whether this browser has a session. If the request fails, the known session stands.
export async function findSession() {
    const answer = await ask('GET', SESSION, { credentials: MINE });
    return answer.isOk ? hear(answer) : answer;
}

// `name` is the name that the operator gave; it may be empty.
export async function signIn(key, name) {
    const answer = await ask('POST', SESSION, { body: name === '' ? { key } : { key, name }, credentials: MINE });
    return answer.isOk ? hear(answer) : answer;
}

export async function signOut() {
    const answer = await ask('DELETE', SESSION, { headers: { [HEADER]: token ?? '' }, credentials: MINE });
    return answer.isOk || answer.status === 401 ? hear({ isOk: false }) : answer;
}

// Why the API refuses a stream. Empty if the API accepts it or does not reply.
export async function whyRefused(path) {
    const { isOk, body } = await ask('GET', path, { credentials: MINE, isStream: true });
    return !isOk && typeof body.detail === 'string' ? body.detail : '';
}

/** @type {(method: string, path: string, options?: AskOptions) => Promise<Answer>} */
export async function call(method, path, { headers = {}, body, patience = method === 'GET' ? undefined : ACTION_MS, isFile } = {}) {
    const send = () => {
        const all = method === 'GET' ? headers : { ...headers, [HEADER]: token ?? '' };
        return ask(method, path, { headers: all, body, credentials: MINE, patience, isFile });
    };
    let answer = await send();
    if (answer.code === 'console_token_required' && (await findSession()).isOk && isSignedIn()) {
        // Another tab has signed in again. The refused request did nothing, and the session has a new token.
        answer = await send();
    }
    if (answer.status === 401) {
        hear({ isOk: false });
    }
    hearRoughly(answer.date, answer.sent, answer.received);
    return answer;
}

// Sends requests that must not run twice. The tab stores the key of each, so that it survives a reload, until the outcome
// is known. Until then, the same `text` means the same request. `name` is the storage key.
export function onceOnly(name) {
    const open = mapOfTab(name, OPEN_MAX);
    return {
        isOpen: (text) => open.get(text) !== undefined,
        async post(path, text, body) {
            const before = open.get(text);
            const key = before ?? draw();
            // Stored before the request: the page may be gone when the reply arrives.
            open.set(text, key);
            const answer = await call('POST', path, { body, headers: { 'Idempotency-Key': key } });
            // A refusal settles this request. Only some refusals also settle earlier requests with the same key.
            const isDecided = before === undefined ? !isUnknown(answer) : DECIDED_CODES.includes(answer.code);
            if (answer.isOk || isDecided) {
                open.forget(text);
            }
            return answer;
        },
    };
}
