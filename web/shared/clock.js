// The server's clock. The browser's own may be wrong by minutes, so it is never asked: what the server said, half a
// round trip later, goes on by a counter that nobody sets.

// An answer that took longer tells less, until the better one is so old.
const BELIEVED_MS = 30_000;
// A time in whole seconds, of an answer that took a while, is off by so much at the most.
const ROUGHLY_MS = 3000;

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

// The time in an answer's head is in whole seconds: enough for what lasts an hour, as long as nothing better was heard.
export function hearRoughly(date, sent, received) {
    const rough = Date.parse(date ?? '') - (sent + received) / 2;
    const isNews = offset === null || Math.abs(rough - offset) > ROUGHLY_MS;
    if (heard === -Infinity && isNews && !Number.isNaN(rough)) {
        offset = rough;
    }
}

// After a sleep of the machine the counter may have stood still.
export function distrust() {
    heard = -Infinity;
}

// Milliseconds since the epoch; null before the server has said anything.
export function now() {
    return offset === null ? null : performance.now() + offset;
}
