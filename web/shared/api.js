// Sends requests to the API. Every call returns an object. A network failure becomes the code `no_answer`.

// The server replies within two seconds, so after eight the reply is lost.
const PATIENCE_MS = 8000;

// `credentials`: whether the browser sends cookies; shoppers have none. `patience`: timeout in milliseconds.
// `isStream`: the reply is an endless stream. The call then reads only the status and headers of a success. `isFile`: the
// body of a success is a file, as a `Blob`.
/** @type {(method: string, path: string, options?: AskOptions) => Promise<Answer>} */
export async function ask(method, path, { token, headers = {}, body, credentials = 'omit', patience = PATIENCE_MS, isStream, isFile } = {}) {
    const sent = performance.now();
    const giveUp = new AbortController();
    const timer = setTimeout(() => giveUp.abort(), patience);
    /** @type {Record<string, string>} */
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
        const read = () => (isFile ? response.blob() : response.json());
        const said = response.ok ? await (isStream ? {} : read()) : await response.json();
        return {
            isOk: response.ok,
            status: response.status,
            body: said,
            code: response.ok ? 'ok' : /** @type {Answer['code']} */ (String(said.code ?? 'no_answer')),
            tag: response.headers.get('ETag'),
            date: response.headers.get('Date'),
            wait: Math.max(1, Number.parseInt(response.headers.get('Retry-After') ?? '1', 10) || 1),
            sent,
            received: performance.now(),
        };
    } catch {
        // No connection, a timeout, or a reply that is not from the API.
        return { isOk: false, status: 0, body: {}, code: 'no_answer', wait: 1, sent, received: performance.now() };
    } finally {
        clearTimeout(timer);
        if (isStream) {
            giveUp.abort();
        }
    }
}

// 128 random bits for a key. `crypto.randomUUID` is missing on pages from an insecure origin.
export const draw = () =>
    Array.from(crypto.getRandomValues(new Uint8Array(16)), (byte) => byte.toString(16).padStart(2, '0')).join('');

// Whether a refusal proves that the key has no order. Any other refusal leaves an earlier request with the key open.
export const tellsOfKey = (answer) => answer.body?.key_has_order === false;

// Whether the outcome of a request is unknown. Two replies prove that nothing was done: `overloaded`, and `nothing_done` on
// operator requests.
export function isUnknown(answer) {
    const isNothing = answer.code === 'overloaded' || answer.body?.nothing_done === true;
    return answer.code === 'no_answer' || (answer.status >= 500 && !isNothing);
}
