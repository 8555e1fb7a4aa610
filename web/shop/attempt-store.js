// What a shopper has begun to buy and not heard the end of: its key, so that a reload, another tab and tomorrow ask for
// the same. It is forgotten when the outcome is known, and not before.

import { draw } from './api.js';
import { lasting, ofTab } from './storage.js';

// A tab that has not shown itself for so long does not go on with it any more.
const GONE_MS = 6000;
// For so long whoever loads the page anew means to go on.
const RELOAD_MS = 60_000;
// For so long a page goes on by itself with what was sent and not answered: asking again may buy it only now.
const GO_ON_MS = 600_000;
const TAB = 'flashsale.tab';

// This tab, also after a reload.
const tab = ofTab.get(TAB) ?? draw();
ofTab.set(TAB, tab);

const name = (sale, user) => `flashsale.attempt.${sale}.${user}`;

export function load(sale, user) {
    try {
        const attempt = JSON.parse(lasting.get(name(sale, user)) ?? 'null');
        return typeof attempt?.key === 'string' ? attempt : null;
    } catch {
        return null;
    }
}

export function begin(sale, user, sku, quantity) {
    // `isOpen` says that it was sent and that nobody has heard what became of it, `sentAt` when, `askedAt` when last;
    // `isParked`, that no page asks any more.
    keep(sale, user, { key: draw(), sku, quantity, isOpen: false, sentAt: null, askedAt: null, isParked: false });
}

// Keeps it, and shows that this tab goes on with it; unless a later one has taken its place.
export function keep(sale, user, attempt) {
    const kept = load(sale, user);
    if (kept === null || kept.key === attempt.key) {
        attempt.tab = tab;
        attempt.seen = Date.now();
        lasting.set(name(sale, user), JSON.stringify(attempt));
    }
}

export function forget(sale, user, attempt) {
    if (load(sale, user)?.key === attempt.key) {
        lasting.remove(name(sale, user));
    }
}

// Whether this tab goes on with it: its own, or one that nobody goes on with any more.
export function isOurs(attempt) {
    return attempt.tab === tab || Math.abs(Date.now() - attempt.seen) > GONE_MS;
}

// Whether this tab went on with it a moment ago, before the page was loaded anew.
export function isFromReload(attempt) {
    return attempt.tab === tab && Math.abs(Date.now() - attempt.seen) <= RELOAD_MS;
}

// When it was sent, or the shopper last wanted it to be.
export const sentAt = (attempt) => attempt.sentAt ?? attempt.seen;

// Whether it was sent so lately that a page may go on with it unasked.
export function isRecent(attempt) {
    return Math.abs(Date.now() - sentAt(attempt)) <= GO_ON_MS;
}

// Tells whether this page has slept since it was last asked: then nobody waits for what it would do next.
export function sleepWatch() {
    let seen = Date.now();
    return () => {
        const before = seen;
        seen = Date.now();
        return Math.abs(seen - before) > GO_ON_MS;
    };
}

// Calls `changed` when another tab has begun, gone on with or ended one.
export function onOtherTab(sale, changed) {
    window.addEventListener('storage', (event) => {
        if (event.key === null || event.key.startsWith(name(sale, ''))) {
            changed();
        }
    });
}

// The shopper's place in a sale's waiting room: his ticket, and the admission when it was his turn.
const roomName = (sale, user) => `flashsale.room.${sale}.${user}`;

export function loadRoom(sale, user) {
    try {
        return JSON.parse(lasting.get(roomName(sale, user)) ?? '{}') ?? {};
    } catch {
        return {};
    }
}

export function keepRoom(sale, user, room) {
    lasting.set(roomName(sale, user), JSON.stringify(room));
}
