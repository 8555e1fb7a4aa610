// One attempt to buy, from the click until its outcome is known. It passes the sale's guards, then sends the purchase. It
// repeats the purchase with the same key while the outcome is unknown.

import { ask, isUnknown, tellsOfKey } from './api.js';
import { isRecent, keepRoom, loadRoom, sentAt } from './attempt-store.js';
import { solve } from './proof.js';
import { stateAt } from './sale-state.js';

// Limits before the shopper has to decide: retries of an unknown outcome, passes through the guards, and waits in a row.
const UNKNOWN_MAX = 10;
const GUARDS_MAX = 5;
const GUARDS_AT_ONCE = 3;
const SLOW_MAX = 5;
// The page does not sit out a longer wait by itself.
const WAIT_MAX_SECONDS = 90;
// The waiting room gets more retries: nothing is bought yet, and the shopper keeps the place.
const ROOM_MISSES_MAX = 30;
const ROOM_LONGEST_SECONDS = 15;
// How often an attempt that waits for the sale to sell reads the page's state. How long it waits if only the page takes the
// sale for open: by a clock that is a moment ahead, or since it has not read of a pause yet.
const EARLY_MS = 500;
const AHEAD_SECONDS = 1;
const UNREAD_SECONDS = 3;
// With less time left, a shopper may not solve a challenge before the turn ends.
const TURN_LEAST_MS = 20_000;

// How often an attempt that waits for a free unit looks whether there is one, and the pause after it came too late.
const TRY_SECONDS = 1;
const TOO_LATE_SECONDS = 5;

// The time limit of a request for a token that the purchase may not need.
const COUNTED_MS = 1000;

// The server may still work on an unanswered request for this long. A refusal within this time proves nothing about that
// request.
export const WORK_MS = 3000;
// Delay before retrying an unknown outcome. It grows, with jitter, so that clients do not retry at the same moment.
const UNKNOWN_FIRST_SECONDS = WORK_MS / 1000;
const UNKNOWN_LONGEST_SECONDS = 8;

/** @type {Answer['code'][]} */
const GUARD_CODES = ['admission_required', 'purchase_token_required', 'challenge_required', 'challenge_failed'];

/** @type {(answer: Answer) => Step} */
const refused = ({ code, body }) => ({ kind: 'refused', code, state: body.sale_state, bannedUntil: body.banned_until });

// `world` gives:
// - `sale()`, `id`, `user`, `token`, `now()`;
// - `keep()`: stores the attempt;
// - `isFree(sku)`: whether a purchase of one unit may succeed, as far as the page knows;
// - `isStopped()` and `signal`: whether the attempt was stopped;
// - `hasSlept()`: whether the page slept since the last call;
// - `show(phase)`: shows the phase of the attempt;
// - `pause(ms)`: resolves to false if the attempt was stopped;
// - `letters(image, how)`: the result of `readLetters`; null if the attempt was stopped.
// Returns how the attempt ended:
// - `reserved`, with the order in its current state;
// - `refused`, with the code, and `bannedUntil` if a ban with an end is the reason;
// - `slow`, with `until`;
// - `unknown`, with `sentAt` if that is long ago;
// - `begun`: never sent, and the page slept;
// - `signed_out`, `unsolvable` or `stopped`.
/** @type {(attempt: Attempt, world: World) => Promise<End>} */
export async function drive(attempt, world) {
    const end = await tryOn(attempt, world);
    // An unanswered request may still have bought something, whatever a later reply says.
    const isHidden = attempt.isOpen && ['refused', 'slow', 'unsolvable'].includes(end.kind);
    return isHidden ? { kind: 'unknown' } : end;
}

/** @type {(attempt: Attempt, world: World) => Promise<End>} */
async function tryOn(attempt, world) {
    const counted = { unknown: 0, slow: 0, guards: 0, taken: 0 };
    for (;;) {
        /** @type {Step} */
        const step = world.isStopped() ? { kind: 'stopped' } : (outlived(attempt, world) ?? (await once(attempt, world, counted)));
        if (step.kind !== 'again') {
            return step;
        }
        if (step.why !== 'slow') {
            counted.slow = 0;
        }
        counted[step.why] += 1;
        const { unknown, slow, guards } = counted;
        if (unknown > UNKNOWN_MAX) {
            return { kind: 'unknown' };
        }
        if (step.why === 'guards') {
            if (guards > GUARDS_MAX) {
                return { kind: 'refused', code: step.code };
            }
            // Instances may disagree about a guard for a moment.
            if (step.code !== 'challenge_failed' && guards >= GUARDS_AT_ONCE && !(await world.pause(1000))) {
                return { kind: 'stopped' };
            }
            continue;
        }
        if (step.why === 'taken') {
            counted.guards = 0;
            world.show({ kind: 'trying' });
            if (!(await world.pause(step.seconds * 1000 * (1 + Math.random() / 4)))) {
                return { kind: 'stopped' };
            }
            continue;
        }
        const seconds = step.why === 'unknown' ? backOff(unknown, step.seconds) : step.seconds;
        const until = world.now() + seconds * 1000;
        if (step.why === 'slow' && (slow > SLOW_MAX || seconds > WAIT_MAX_SECONDS)) {
            return { kind: 'slow', code: step.code, until };
        }
        world.show({ kind: step.why, code: step.code, until });
        if (!(await world.pause(seconds * 1000))) {
            return { kind: 'stopped' };
        }
    }
}

// Ends an attempt that the shopper no longer waits for, such as one on a page that slept. It then continues only by a
// press.
/** @type {(attempt: Attempt, world: World) => Step | null} */
function outlived(attempt, world) {
    if (attempt.isOpen) {
        return isRecent(attempt) ? null : { kind: 'unknown', sentAt: sentAt(attempt) };
    }
    return world.hasSlept() ? { kind: 'begun' } : null;
}

function backOff(misses, asked) {
    const wait = Math.min(UNKNOWN_FIRST_SECONDS * 1.5 ** (misses - 1), UNKNOWN_LONGEST_SECONDS);
    return Math.max(asked, wait) * (1 + Math.random() / 4);
}

/** @type {(answer: Answer) => Repeat} */
const slow = (answer) => ({ kind: 'again', why: 'slow', code: answer.code, seconds: answer.wait });
/** @type {(seconds: number) => Repeat} */
const taken = (seconds) => ({ kind: 'again', why: 'taken', code: 'sold_out', seconds });
/** @type {(answer: Answer) => Repeat} */
const unknown = (answer) => ({ kind: 'again', why: 'unknown', code: answer.code, seconds: answer.wait });

/** @type {(attempt: Attempt, world: World, counted: Counted) => Promise<Step>} */
async function once(attempt, world, counted) {
    const headers = { 'Idempotency-Key': attempt.key };
    // A retry of a sent request skips the guards. If the key has an order, the server needs no tokens and no open sale.
    if (!attempt.isOpen) {
        if (attempt.isTrying && !(await world.isFree(attempt.sku))) {
            return taken(TRY_SECONDS);
        }
        const guards = guardsOf(attempt, world);
        if (guards.waiting_room) {
            const turn = await admission(attempt, world, counted);
            if ('kind' in turn) {
                return turn;
            }
            headers['X-Admission'] = turn.admission;
        }
        if (guards.purchase_token) {
            const handed = await purchaseToken(attempt, world, guards.isPosed);
            if ('kind' in handed) {
                return handed;
            }
            headers['X-Purchase-Token'] = handed.token;
        } else if (guards.isTokenCounted) {
            // Most purchases need none, so nothing waits long for it.
            const issued = goodToken(attempt, world) ? null : await issue(attempt, world, undefined, COUNTED_MS);
            attempt.purchaseToken = issued?.isOk ? issued.body : goodToken(attempt, world);
            if (attempt.purchaseToken) {
                headers['X-Purchase-Token'] = attempt.purchaseToken.token;
            }
        }
        if (world.isStopped()) {
            return { kind: 'stopped' };
        }
        const end = outlived(attempt, world);
        if (end) {
            return end;
        }
    } else {
        // If the first request has not arrived, the server still checks them.
        const [token, room] = [goodToken(attempt, world), loadRoom(world.id, world.user)];
        const admission = lastsUntil(room, world.now()) ? { 'X-Admission': room.admission } : {};
        Object.assign(headers, admission, token ? { 'X-Purchase-Token': token.token } : {});
    }
    world.show({ kind: 'sending' });
    const wasOpen = attempt.isOpen;
    // Stored before the request: the page may be gone when the reply arrives.
    attempt.isOpen = true;
    const earlier = wasOpen ? (attempt.askedAt ?? sentAt(attempt)) : -Infinity;
    attempt.askedAt = Date.now();
    if (!wasOpen) {
        attempt.sentAt = attempt.askedAt;
    }
    world.keep();
    const answer = await ask('POST', `/v1/sales/${world.id}/orders`, {
        token: world.token,
        headers,
        body: { sku: attempt.sku, quantity: attempt.quantity },
    });
    if (answer.isOk) {
        return { kind: 'reserved', order: answer.body };
    }
    const isTooEarly = Math.abs(attempt.askedAt - earlier) < WORK_MS;
    if (isUnknown(answer) || (tellsOfKey(answer) && isTooEarly)) {
        return unknown(answer);
    }
    attempt.isOpen = wasOpen && !tellsOfKey(answer);
    world.keep();
    return refusal(answer, attempt, world);
}

/** @type {(answer: Answer, attempt: Attempt, world: World) => Step} */
function refusal(answer, attempt, world) {
    if (answer.status === 401) {
        return { kind: 'signed_out' };
    }
    // These come with `Retry-After`. `isUnknown` leaves no other 503 than `overloaded`.
    if (answer.status === 429 || answer.status === 503) {
        return slow(answer);
    }
    if (answer.code === 'sold_out' && attempt.isTrying) {
        return taken(TOO_LATE_SECONDS);
    }
    if (GUARD_CODES.includes(answer.code)) {
        if (answer.code === 'admission_required') {
            // The token is good for the next turn, too.
            keepRoom(world.id, world.user, { ...loadRoom(world.id, world.user), admission: null });
        } else {
            attempt.isLate = Boolean(attempt.purchaseToken);
            attempt.purchaseToken = null;
        }
        return passes(attempt, answer.code, true);
    }
    // By our clock the sale has started: the two clocks differ by a moment.
    if (answer.code === 'sale_not_open' && answer.body.sale_state === 'scheduled') {
        return { kind: 'again', why: 'slow', code: 'early', seconds: 1 };
    }
    return refused(answer);
}

// The attempt's purchase token, unless it has expired.
/** @type {(attempt: Attempt, world: World) => PurchaseToken | null} */
function goodToken({ purchaseToken: kept }, world) {
    return kept && Date.parse(kept.expires_at) > world.now() ? kept : null;
}

// Notes whether this shopper has to pass a guard: the server knows it before the page reads it in the sale, and knows whom
// a stage picks.
/** @type {(attempt: Attempt, code: Answer['code'], isAsked: boolean) => Repeat} */
function passes(attempt, code, isAsked) {
    attempt.asked = { ...attempt.asked, [code]: isAsked };
    return { kind: 'again', why: 'guards', code };
}

// What the sale requires of this shopper.
/** @type {(attempt: Attempt, world: World) => { waiting_room: boolean, purchase_token: boolean, isTokenCounted: boolean, isPosed: boolean }} */
function guardsOf({ asked = {} }, world) {
    const sale = world.sale();
    const { staged, waiting_room: room, purchase_token: token, challenge } = sale.guards;
    return {
        // While the sale does not sell, a wish may come from a room that operators have taken back: its loop keeps the wish.
        waiting_room: asked.admission_required ?? (room || ['scheduled', 'paused'].includes(stateAt(sale, world.now()))),
        purchase_token: asked.purchase_token_required ?? token,
        isTokenCounted: Boolean(staged?.purchase_token),
        isPosed: asked.challenge_required ?? challenge !== 'none',
    };
}

// Whether the shopper or the browser must solve a challenge before the purchase.
/** @type {(attempt: Attempt, world: World) => boolean} */
function mustSolve(attempt, world) {
    const { purchase_token: needsToken, isPosed } = guardsOf(attempt, world);
    return needsToken && isPosed && !attempt.solved && goodToken(attempt, world) === null;
}

/** @type {(room: Room, time: number) => boolean} */
const lastsUntil = ({ admission: kept, until }, time) => Boolean(kept) && Date.parse(until ?? '') > time;

// Whether a new attempt can still use the shopper's turn.
/** @type {(room: Room, guards: PublicSale['guards'], now: number) => boolean} */
export const hasTurn = (room, { purchase_token: needsToken, challenge }, now) =>
    lastsUntil(room, now + (needsToken && challenge !== 'none' ? TURN_LEAST_MS : 0));

// Waits for admission from the waiting room. Returns `{ admission }`, or what ended the wait.
/** @type {(attempt: Attempt, world: World, counted: Counted) => Promise<{ admission: string } | Step>} */
async function admission(attempt, world, counted) {
    let room = loadRoom(world.id, world.user);
    let misses = 0;
    for (;;) {
        // Checked on every pass, so that a long wait does not count as a sleep.
        const end = outlived(attempt, world);
        if (end) {
            return end;
        }
        const least = mustSolve(attempt, world) ? TURN_LEAST_MS : 0;
        if (room.admission && lastsUntil(room, world.now() + least)) {
            return { admission: room.admission };
        }
        const answer = await ask('POST', `/v1/sales/${world.id}/waiting-room`, {
            token: world.token,
            body: room.ticket ? { ticket: room.ticket } : {},
        });
        let seconds;
        if (answer.isOk && answer.body.state === 'closed') {
            return { kind: 'refused', code: 'sale_not_open', state: 'closed' };
        } else if (answer.isOk) {
            misses = 0;
            /** @type {Standing} */
            const standing = answer.body;
            const { state, position, estimated_wait_seconds: wait, ticket } = standing;
            // The furthest place that the shopper has seen: how much of the line has gone since.
            const first = standing.admission ? undefined : Math.max(position ?? 1, room.first ?? 1);
            room = { ticket: ticket ?? room.ticket, admission: standing.admission, until: standing.expires_at, first };
            keepRoom(world.id, world.user, room);
            if (room.admission) {
                return { admission: room.admission };
            }
            // A reply arrived, so a new row of waits begins.
            counted.slow = 0;
            seconds = standing.ask_again_seconds ?? 2;
            const isAgain = guardsOf(attempt, world).isPosed && goodToken(attempt, world) !== null;
            const isSoldOut = state === 'sold_out';
            world.show({ kind: 'queued', isSoldOut, isAgain, position, first, wait, heardAt: world.now() });
        } else if (isUnknown(answer) || answer.code === 'overloaded') {
            // The shopper keeps the place.
            misses += 1;
            if (misses > ROOM_MISSES_MAX) {
                return { kind: 'slow', code: 'overloaded', until: world.now() };
            }
            seconds = Math.min(answer.wait * misses, ROOM_LONGEST_SECONDS);
        } else if (answer.code === 'sale_not_open' && ['scheduled', 'paused'].includes(answer.body.sale_state)) {
            // Operators have taken the room back, or not opened it yet. It may come back, too. A reload goes on here.
            attempt.asked = { ...attempt.asked, admission_required: true };
            world.keep();
            world.show({ kind: 'trying', isEarly: true });
            const isAhead = answer.body.sale_state === 'scheduled';
            if (!(await untilChanged(world, isAhead ? AHEAD_SECONDS : UNREAD_SECONDS))) {
                return { kind: 'stopped' };
            }
            continue;
        } else if (answer.code === 'not_found') {
            return passes(attempt, 'admission_required', false);
        } else {
            return refusal(answer, attempt, world);
        }
        if (!(await world.pause(seconds * 1000))) {
            return { kind: 'stopped' };
        }
    }
}

// Waits until the page knows another state of the sale, for some seconds at most: a hidden page does not read the sale.
// `contradicted` counts if the page takes the sale for open. Resolves to false if the attempt was stopped.
/** @type {(world: World, contradicted: number) => Promise<boolean>} */
async function untilChanged(world, contradicted) {
    const state = () => stateAt(world.sale(), world.now());
    const before = state();
    const until = world.now() + (before === 'open' ? contradicted : ROOM_LONGEST_SECONDS) * 1000;
    while (await world.pause(EARLY_MS)) {
        if (state() !== before || world.now() > until) {
            return true;
        }
    }
    return false;
}

/** @type {(attempt: Attempt, world: World, challenge?: Solution, patience?: number) => Promise<Answer>} */
function issue(attempt, world, challenge, patience) {
    return ask('POST', `/v1/sales/${world.id}/tokens`, {
        token: world.token,
        patience,
        body: challenge ? { idempotency_key: attempt.key, challenge } : { idempotency_key: attempt.key },
    });
}

// Gets a purchase token for this attempt. Returns `{ token }`, or the step that prevented it.
/** @type {(attempt: Attempt, world: World, isPosed: boolean) => Promise<PurchaseToken | Step>} */
async function purchaseToken(attempt, world, isPosed) {
    const kept = goodToken(attempt, world);
    if (kept) {
        return kept;
    }
    if (attempt.purchaseToken) {
        attempt.purchaseToken = null;
        attempt.isLate = true;
    }
    let challenge;
    if (isPosed) {
        const solved = attempt.solved ?? (await solution(attempt, world));
        if ('kind' in solved) {
            return solved;
        }
        challenge = { id: solved.id, answer: solved.answer };
    }
    world.show({ kind: 'checking' });
    const answer = await issue(attempt, world, challenge);
    if (answer.isOk) {
        attempt.purchaseToken = answer.body;
        attempt.solved = null;
        attempt.wasWrong = false;
        attempt.isLate = false;
        world.keep();
        return answer.body;
    }
    if (isUnknown(answer)) {
        // The server accepts the same solution of the same challenge again.
        return { kind: 'again', why: 'slow', code: 'overloaded', seconds: 2 };
    }
    attempt.solved = null;
    // A browser that is too slow for the proof of work gets the picture again.
    attempt.wasWrong = answer.code === 'challenge_failed' && !attempt.isUnseen;
    attempt.isUnseen = attempt.isUnseen && !GUARD_CODES.includes(answer.code);
    return refusal(answer, attempt, world);
}

const maySolveUnseen = (world) => Boolean(world.sale().guards.captcha_proof);

// Asks for a challenge. Returns it, or the step that prevented it.
/** @type {(attempt: Attempt, world: World) => Promise<Challenge | Step>} */
async function pose(attempt, world) {
    const body = { sale_id: world.id, ...(attempt.isUnseen && maySolveUnseen(world) ? { without_picture: true } : {}) };
    const posed = await ask('POST', '/v1/challenges', { token: world.token, body });
    if (posed.isOk) {
        return posed.body;
    }
    if (posed.code === 'not_found') {
        // Without a picture, it may also be that only the picture counts now.
        const isNone = !attempt.isUnseen;
        attempt.isUnseen = false;
        return isNone ? passes(attempt, 'challenge_required', false) : { kind: 'again', why: 'guards', code: posed.code };
    }
    return isUnknown(posed) ? { kind: 'again', why: 'slow', code: 'overloaded', seconds: 2 } : refusal(posed, attempt, world);
}

// Has the shopper or the browser solve a challenge. Returns `{ id, answer }`, or the step that prevented it.
/** @type {(attempt: Attempt, world: World) => Promise<Solution | Step>} */
async function solution(attempt, world) {
    world.show({ kind: 'checking' });
    let challenge = await pose(attempt, world);
    if (!('id' in challenge)) {
        return challenge;
    }
    const turnUntil = guardsOf(attempt, world).waiting_room ? Date.parse(loadRoom(world.id, world.user).until ?? '') : undefined;
    let why = attempt.wasWrong ? 'lettersWrong' : attempt.isLate ? 'lettersLate' : 'lettersWhy';
    let answer = '';
    while (challenge.kind === 'captcha') {
        const read = await world.letters(challenge.image, { why, mayNotSee: maySolveUnseen(world), turnUntil });
        if (read === null) {
            return { kind: 'stopped' };
        }
        if (read.letters !== '') {
            answer = read.letters;
            break;
        }
        // The shopper wants another picture, or none. Without one, the picture that is there stays.
        attempt.wasWrong = false;
        attempt.isLate = false;
        attempt.isUnseen = Boolean(read.isUnseen);
        const next = await pose(attempt, world);
        if ('id' in next) {
            challenge = next;
            why = 'lettersWhy';
        } else if (next.kind === 'again' && next.code === 'rate_limited') {
            attempt.isUnseen = false;
            why = 'lettersLimit';
        } else {
            return next;
        }
    }
    if (challenge.kind === 'proof_of_work') {
        world.show({ kind: 'proving', turnUntil });
        const proof = await solve(challenge.altcha, world.signal);
        if (proof === null) {
            attempt.isUnseen = false;
        }
        if (world.isStopped()) {
            return { kind: 'stopped' };
        }
        if (proof === null) {
            return { kind: 'unsolvable' };
        }
        answer = proof;
    }
    attempt.solved = { id: challenge.id, answer };
    world.keep();
    return attempt.solved;
}
