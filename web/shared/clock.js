// The server's clock. The browser's clock may be wrong by minutes, so we never use it. We take the server's time plus half
// a round trip, and advance it by the monotonic counter.

// A reading with a slower round trip replaces a better one only after this time.
const BELIEVED_MS = 30_000;
// The largest error of a `Date` header (whole seconds) after a slow reply.
const ROUGHLY_MS = 3000;

/** @type {number | null} */
let offset = null;
let trip = Infinity;
let heard = -Infinity;

export function hear(serverTime, sent, received) {
    const took = received - sent;
    if (took <= trip + 20 || received - heard > BELIEVED_MS) {
        offset = Date.parse(serverTime) - (sent + received) / 2;
        trip = took;
        heard = received;
    }
}

// The `Date` header has whole seconds. That is enough for times of an hour, until a better reading arrives.
export function hearRoughly(date, sent, received) {
    const rough = Date.parse(date ?? '') - (sent + received) / 2;
    const isNews = offset === null || Math.abs(rough - offset) > ROUGHLY_MS;
    if (heard === -Infinity && isNews && !Number.isNaN(rough)) {
        offset = rough;
    }
}

// The counter may stop while the machine sleeps.
export function resync() {
    heard = -Infinity;
}

// Milliseconds since the Unix epoch; null before the first reading.
export function now() {
    return offset === null ? null : performance.now() + offset;
}
