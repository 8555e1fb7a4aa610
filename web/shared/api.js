// Asks the API. An answer is always an object: whatever goes wrong on the way is the code `no_answer`.

// The server answers within two seconds; whoever waits longer has lost it.
const PATIENCE_MS = 8000;

// `credentials` says whether cookies go along, which shoppers have none of; `patience` how long to wait, in milliseconds;
// `isStream` that what is there has no end, and only whether it is there is asked for.
export async function ask(method, path, { token, headers = {}, body, credentials = 'omit', patience = PATIENCE_MS, isStream } = {}) {
    const sent = performance.now();
    const giveUp = new AbortController();
    const timer = setTimeout(() => giveUp.abort(), patience);
    const all = { Accept: 'application/json', ...headers };
    if (token) {
        all.Authorization = `Bearer ${token}`;
    }
    if (body !== undefined) {
        all['Content-Type'] = 'application/json';
    }
    try {
        const response = await fetch(path, {
            method,
            headers: all,
            body: body === undefined ? undefined : JSON.stringify(body),
            cache: 'no-store',
            credentials,
            signal: giveUp.signal,
        });
        const said = isStream && response.ok ? {} : await response.json();
        return {
            isOk: response.ok,
            status: response.status,
            body: said,
            code: response.ok ? 'ok' : String(said.code ?? 'no_answer'),
            // The version of what was answered, if it has one.
            tag: response.headers.get('ETag'),
            date: response.headers.get('Date'),
            wait: Math.max(1, Number.parseInt(response.headers.get('Retry-After') ?? '1', 10) || 1),
            sent,
            received: performance.now(),
        };
    } catch {
        // No connection, no answer in time, or one that is not from the API.
        return { isOk: false, status: 0, body: {}, code: 'no_answer', wait: 1, sent, received: performance.now() };
    } finally {
        clearTimeout(timer);
        if (isStream) {
            giveUp.abort();
        }
    }
}

// 128 random bits for a key; `crypto.randomUUID` is not there for pages from an origin that is not secure.
export const draw = () =>
    Array.from(crypto.getRandomValues(new Uint8Array(16)), (byte) => byte.toString(16).padStart(2, '0')).join('');

// Whether a refusal is certain that the key has no order. Any other says nothing of an earlier request with the key.
export const tellsOfKey = (answer) => answer.body?.key_has_order === false;

// Whether it is unknown what became of what was asked. `overloaded` says that nothing did, and so does `nothing_done` of what
// operators ask.
export function isUnknown(answer) {
    const isNothing = answer.code === 'overloaded' || answer.body?.nothing_done === true;
    return answer.code === 'no_answer' || (answer.status >= 500 && !isNothing);
}
