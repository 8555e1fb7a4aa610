// What operators ask of the API, by the session that this browser has. What changes something shows the session's token,
// which no page of anybody else can read.

import { ask, draw, isUnknown } from './api.js';
import { hearRoughly } from './clock.js';
import { ofTab } from './storage.js';

const SESSION = '/v1/admin/session';
const HEADER = 'X-Console-Token';
const MINE = 'same-origin';
// What changes something may take the server fifteen seconds.
const ACTION_MS = 20_000;
// Rebuilding writes every order of a sale.
export const REBUILD_MS = 1_800_000;
// Requests whose outcome nobody has heard, of one kind and in one tab.
const OPEN_MAX = 20;
// Refusals that are decided behind the idempotency key: they tell what became of an earlier request with it, too.
const DECIDED_CODES = ['insufficient_stock', 'idempotency_key_reused'];

let token = null;
let operator = null;
let changed = () => {};

// Calls `listener` whenever somebody has been signed in or out.
export function onSession(listener) {
    changed = listener;
}

export const isSignedIn = () => token !== null;

// What the operator of this session calls himself; nothing if he does not say.
export const operatorName = () => operator ?? '';

function hear(answer) {
    const before = token;
    token = answer.isOk && answer.body.signed_in ? String(answer.body.request_token) : null;
    operator = token === null ? null : answer.body.name;
    if (before !== token) {
        changed();
    }
    return answer;
}

// Looks whether this browser has a session. Where that cannot be told, it has the one that it had.
export async function findSession() {
    const answer = await ask('GET', SESSION, { credentials: MINE });
    return answer.isOk ? hear(answer) : answer;
}

// `name` is what the operator calls himself; nothing if he does not say.
export async function signIn(key, name) {
    const answer = await ask('POST', SESSION, { body: name === '' ? { key } : { key, name }, credentials: MINE });
    return answer.isOk ? hear(answer) : answer;
}

export async function signOut() {
    const answer = await ask('DELETE', SESSION, { headers: { [HEADER]: token ?? '' }, credentials: MINE });
    return answer.isOk || answer.status === 401 ? hear({ isOk: false }) : answer;
}

// What the API says of a stream that it does not give; nothing if it gives one, or does not answer.
export async function whyRefused(path) {
    const { isOk, body } = await ask('GET', path, { credentials: MINE, isStream: true });
    return !isOk && typeof body.detail === 'string' ? body.detail : '';
}

export async function call(method, path, { headers = {}, body, patience = method === 'GET' ? undefined : ACTION_MS } = {}) {
    const send = () => {
        const all = method === 'GET' ? headers : { ...headers, [HEADER]: token ?? '' };
        return ask(method, path, { headers: all, body, credentials: MINE, patience });
    };
    let answer = await send();
    if (answer.code === 'console_token_required' && (await findSession()).isOk && isSignedIn()) {
        // Another tab has signed in anew: nothing was done, and the session has another token now.
        answer = await send();
    }
    if (answer.status === 401) {
        hear({ isOk: false });
    }
    hearRoughly(answer.date, answer.sent, answer.received);
    return answer;
}

// Requests that must not be done twice. Each keeps its key in this tab, also over a reload, until it is known what became
// of it: meanwhile the same `text` is the same request. `name` is where they are kept.
export function onceOnly(name) {
    function open() {
        try {
            return new Map(JSON.parse(ofTab.get(name) ?? '[]'));
        } catch {
            return new Map();
        }
    }
    function write(text, key) {
        const all = open();
        all.delete(text);
        if (key !== null) {
            all.set(text, key);
        }
        ofTab.set(name, JSON.stringify([...all].slice(-OPEN_MAX)));
    }
    return {
        isOpen: (text) => open().has(text),
        async post(path, text, body) {
            const before = open().get(text);
            const key = before ?? draw();
            // Before it is sent: the page may be gone when the answer comes.
            write(text, key);
            const answer = await call('POST', path, { body, headers: { 'Idempotency-Key': key } });
            // A refusal tells what became of this request, but only some tell it of those before it.
            const isTold = before === undefined ? !isUnknown(answer) : DECIDED_CODES.includes(answer.code);
            if (answer.isOk || isTold) {
                write(text, null);
            }
            return answer;
        },
    };
}
