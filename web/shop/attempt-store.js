// Stores a purchase attempt whose outcome is unknown, with its key. A reload, another tab or a later visit then sends the
// same key. The attempt is removed only when its outcome is known.

import { draw } from './api.js';
import { lasting, ofTab, readOfTab } from './storage.js';

// A tab that has not refreshed its attempt for this long has given it up.
const GONE_MS = 6000;
// A reload within this time continues the attempt.
const RELOAD_MS = 60_000;
// A page retries an unanswered attempt by itself for this long. A later retry might buy what the shopper no longer wants.
const GO_ON_MS = 600_000;
const TAB = 'flashsale.tab';

// The id of this tab; it survives a reload.
const tab = ofTab.get(TAB) ?? draw();
ofTab.set(TAB, tab);

const name = (sale, user) => `flashsale.attempt.${sale}.${user}`;

/** @type {(sale: string, user: string) => Attempt | null} */
export function load(sale, user) {
    try {
        const attempt = JSON.parse(lasting.get(name(sale, user)) ?? 'null');
        return typeof attempt?.key === 'string' ? attempt : null;
    } catch {
        return null;
    }
}

/** @type {(sale: string, user: string, wish: Wish, isParked?: boolean) => void} */
export function begin(sale, user, { sku, quantity, isTrying }, isParked = false) {
    // `isOpen`: the request was sent and its outcome is unknown. `sentAt`: when it was first sent. `askedAt`: when it was
    // last sent. `isParked`: no page retries it any more.
    keep(sale, user, { key: draw(), sku, quantity, isOpen: false, sentAt: null, askedAt: null, isParked, isTrying });
}

const wishName = (sale) => `flashsale.wish.${sale}`;

// Keeps over the sign-in what a shopper wants to buy.
/** @type {(sale: string, wish: Wish) => void} */
export function keepWish(sale, wish) {
    ofTab.set(wishName(sale), JSON.stringify(wish));
}

// Begins an attempt at what was wanted, if there is no other. It waits for a press: the sign-in may have been another
// shopper's. Returns whether anything was wanted.
/** @type {(sale: string, user: string) => boolean} */
export function takeWish(sale, user) {
    const wish = readOfTab(wishName(sale));
    ofTab.remove(wishName(sale));
    if (wish !== null && load(sale, user) === null) {
        begin(sale, user, wish, true);
    }
    return wish !== null;
}

// Stores the attempt and marks this tab as its owner. It does nothing if a newer attempt has replaced this one.
/** @type {(sale: string, user: string, attempt: Omit<Attempt, 'tab' | 'seen'> & Partial<Attempt>) => void} */
export function keep(sale, user, attempt) {
    const kept = load(sale, user);
    if (kept === null || kept.key === attempt.key) {
        attempt.tab = tab;
        attempt.seen = Date.now();
        lasting.set(name(sale, user), JSON.stringify(attempt));
    }
}

/** @type {(sale: string, user: string, attempt: Attempt) => void} */
export function forget(sale, user, attempt) {
    if (load(sale, user)?.key === attempt.key) {
        lasting.remove(name(sale, user));
    }
}

// Whether this tab may continue the attempt: it owns it, or the owner has given it up.
/** @param {Attempt} attempt */
export function isOurs(attempt) {
    return attempt.tab === tab || Math.abs(Date.now() - attempt.seen) > GONE_MS;
}

// Whether this tab owned the attempt just before a reload.
/** @param {Attempt} attempt */
export function isFromReload(attempt) {
    return attempt.tab === tab && Math.abs(Date.now() - attempt.seen) <= RELOAD_MS;
}

// When the attempt was sent, or when the shopper last asked to resume it.
/** @param {Attempt} attempt */
export const sentAt = (attempt) => attempt.sentAt ?? attempt.seen;

// Whether the attempt is recent enough to continue without a press.
/** @param {Attempt} attempt */
export function isRecent(attempt) {
    return Math.abs(Date.now() - sentAt(attempt)) <= GO_ON_MS;
}

// Returns a function that reports whether the page slept since its last call. After a sleep, the shopper no longer waits
// for the next step.
export function sleepWatch() {
    let seen = Date.now();
    return () => {
        const before = seen;
        seen = Date.now();
        return Math.abs(seen - before) > GO_ON_MS;
    };
}

// Calls `changed` when another tab stores or removes an attempt or a place in the waiting room.
export function onOtherTab(sale, changed) {
    window.addEventListener('storage', (event) => {
        if (event.key === null || event.key.startsWith(name(sale, ''))) {
            changed();
        }
    });
}

// The shopper's place in a sale's waiting room: the ticket, and the admission once it is granted.
const roomName = (sale, user) => `flashsale.room.${sale}.${user}`;

/** @type {(sale: string, user: string) => Room} */
export function loadRoom(sale, user) {
    try {
        return JSON.parse(lasting.get(roomName(sale, user)) ?? '{}') ?? {};
    } catch {
        return {};
    }
}

/** @type {(sale: string, user: string, room: Room) => void} */
export function keepRoom(sale, user, room) {
    lasting.set(roomName(sale, user), JSON.stringify(room));
}
