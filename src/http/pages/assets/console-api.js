// What operators ask of the API, by the session that this browser has. What changes something shows the session's token,
// which no page of anybody else can read.

import { ask } from './api.js';

const SESSION = '/v1/admin/session';
const HEADER = 'X-Console-Token';
const MINE = 'same-origin';

let token = null;
let changed = () => {};

// Calls `listener` whenever somebody has been signed in or out.
export function onSession(listener) {
    changed = listener;
}

export const isSignedIn = () => token !== null;

function hear(answer) {
    const before = token;
    token = answer.isOk && answer.body.signed_in ? String(answer.body.request_token) : null;
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

export async function signIn(key) {
    const answer = await ask('POST', SESSION, { body: { key }, credentials: MINE });
    return answer.isOk ? hear(answer) : answer;
}

export async function signOut() {
    const answer = await ask('DELETE', SESSION, { headers: { [HEADER]: token ?? '' }, credentials: MINE });
    return answer.isOk || answer.status === 401 ? hear({ isOk: false }) : answer;
}

export async function call(method, path, { headers = {}, body, patience } = {}) {
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
    return answer;
}
