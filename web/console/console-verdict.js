// The verdict on a sale: one sentence that says whether it sells. Below it stands a line for each trouble, with a link to
// the runbook's paragraph. The list of sales says with the same words that nobody can buy.

import { word } from './console-table.js';
import { announce, element, setAttribute, setChildren, setText, show } from './dom.js';
import { about, clockTime, secondsLeft, timeExact } from './format.js';
import { say } from './language.js';

const RUNBOOK = '/docs/alerts';
// The pace of an item is that of the last minute, and needs ten seconds.
const PACE_MS = 60_000;
const PACE_MIN_MS = 10_000;
// Stock that lasts longer than a day is not worth a sentence.
const LASTS_MAX_SECONDS = 86_400;
// The most items that the verdict names.
const NAMED_MAX = 3;
const BACKLOG_MAX = 10_000;
const LAG_MAX_SECONDS = 10;
const SLOW_MS = 500;
// The share of purchases without an answer that is a trouble.
const UNANSWERED_SHARE = 0.02;
const UNANSWERED = ['unavailable', 'overloaded'];

// The runbook's paragraph of each trouble.
const PARAGRAPHS = {
    redis: 'flashsaleredisdown',
    postgres: 'flashsalepostgresdown',
    silent: 'flashsaledown',
    unanswered: 'flashsalepurchasesfail',
    slow: 'flashsalepurchasesslow',
    undrained: 'flashsalebacklogold',
    expiry_lag: 'flashsaleexpirylate',
    dead: 'flashsaledeadletters',
    failed: 'flashsalereleaserefused',
    revoked: 'flashsaleordersrevoked',
    lost: 'flashsaleorderslost',
    refunds: 'flashsalerefundsdue',
    unmatched: 'flashsaleunmatchedpayments',
};
// Troubles of shoppers and money. The others are of the system.
const OF_MONEY = ['refunds', 'unmatched'];
// The states in which an outage of Redis keeps shoppers from buying.
/** @type {SaleState[]} */
const NEEDS_REDIS = ['open', 'paused', 'scheduled'];

/** @typedef {Partial<LiveSale> & Pick<LiveSample, 'health' | 'fault'>} Live */

/** @type {(state: SaleState) => boolean} */
export const needsRedis = (state) => NEEDS_REDIS.includes(state);

function runbookLink(key = '') {
    return word('a', 'whatToDo', { hreflang: 'en', href: key ? `${RUNBOOK}#${PARAGRAPHS[key]}` : RUNBOOK });
}

// Since when servers are silent. The instance says when each last answered. A server that never answered is silent since
// this page saw it first, at `at`.
function silences() {
    const since = new Map();
    /** @type {(health: Health, at: number) => void} */
    function note(health, at) {
        for (const server of ['redis', 'postgres']) {
            const { fault, answered_at: answered } = health[server];
            if (fault) {
                since.set(server, answered ?? since.get(server) ?? at);
            } else {
                since.delete(server);
            }
        }
    }
    return { since, note };
}

// The sentence of an outage of Redis, for a page of many sales. `update` returns whether Redis is silent.
export function outagePart() {
    const { since, note } = silences();
    const text = element('span');
    const node = element('p', { class: 'verdict is-bad', id: 'verdict' }, text, ' ', runbookLink('redis'));
    show(node, false);
    /** @type {(health: Health, at: number) => boolean} */
    function update(health, at) {
        note(health, at);
        const isSilent = since.has('redis');
        if (isSilent) {
            setText(text, say('verdict_redis', { time: timeExact(since.get('redis')) }));
        }
        if (isSilent && node.hidden) {
            announce(text.textContent);
        }
        show(node, isSilent);
        return isSilent;
    }
    return { node, update };
}

// Since when a sale that is paused has been so, by the sale's part of the audit log: the first pause after the last resume.
// Null if an action whose outcome is unknown leaves that open.
/** @type {(actions: Action[]) => number | null} */
export function pausedSince(actions) {
    const moves = actions
        .filter(({ action, outcome }) => ['sales.pause', 'sales.resume'].includes(action) && ['done', null].includes(outcome))
        .sort((a, b) => Date.parse(a.begun_at) - Date.parse(b.begun_at));
    const resumed = moves.findLastIndex(({ action }) => action === 'sales.resume');
    const pauses = moves.slice(resumed + 1);
    // A single pause of unknown outcome has paused the sale: nothing else has.
    const isKnown = moves[resumed]?.outcome !== null && (pauses[0]?.outcome === 'done' || pauses.length === 1);
    return isKnown ? Date.parse(pauses[0].begun_at) : null;
}

// What this page has seen of a sale: since when something is wrong, and how fast its items go.
export function observed() {
    const { since, note } = silences();
    /** @type {Map<string, number | null>} */
    const soldOut = new Map();
    // When an item first sold out, by the report. It also knows the time before this page was opened.
    /** @type {Map<string, number>} */
    const firstSoldOut = new Map();
    /** @type {{ at: number, free: Record<string, number> }[]} */
    let readings = [];
    let lastAt = 0;
    let lastGoodAt = 0;

    /** @param {LiveSample} sample */
    function see({ point: { at }, health, sale, stock }) {
        lastAt = at;
        lastGoodAt = sale ? at : lastGoodAt;
        note(health, at);
        const items = (sale ?? stock)?.items;
        if (items) {
            seeItems(at, items);
        }
    }

    function seeItems(at, items) {
        const free = Object.fromEntries(items.map((item) => [item.sku, item.available + item.in_transit]));
        /** @type {Record<string, number>} */
        const before = readings.at(-1)?.free ?? {};
        for (const [sku, left] of Object.entries(free)) {
            if (left > 0) {
                soldOut.delete(sku);
            } else if (!soldOut.has(sku)) {
                // Without a reading before, the moment is unknown.
                soldOut.set(sku, before[sku] > 0 ? at : null);
            }
        }
        readings = [...readings.filter((it) => at - it.at <= PACE_MS), { at, free }];
    }

    /** @param {{ sku: string, sold_out_after_seconds: number | null }[]} items of a report @param {string} start */
    function learn(items, start) {
        for (const { sku, sold_out_after_seconds: seconds } of items) {
            if (seconds !== null) {
                firstSoldOut.set(sku, Date.parse(start) + 1000 * seconds);
            }
        }
    }

    // For how many seconds an item lasts at the pace of the last minute; null if that is not known.
    function lasts(sku) {
        const [first, last] = [readings[0], readings.at(-1)];
        if (!first || !last || last.at - first.at < PACE_MIN_MS) {
            return null;
        }
        const taken = (first.free[sku] ?? 0) - last.free[sku];
        const seconds = (last.free[sku] * (last.at - first.at)) / 1000 / taken;
        return taken > 0 && seconds > 0 && seconds < LASTS_MAX_SECONDS ? Math.ceil(seconds) : null;
    }

    return { see, learn, since, soldOut, firstSoldOut, lasts, lastAt: () => lastAt, lastGoodAt: () => lastGoodAt };
}

// The troubles of the latest numbers, each with what it counts. `id` is the sale's.
/** @type {(live: Live | null, points: LivePoint[], silent: number) => [keyof typeof PARAGRAPHS, number][]} */
export function troublesOf(live, points, silent) {
    const latest = points.slice(-10);
    const answers = latest.flatMap((point) => Object.entries(point.answers));
    const sumOf = (entries) => entries.reduce((sum, [, count]) => sum + count, 0);
    const [all, without] = [sumOf(answers), sumOf(answers.filter(([code]) => UNANSWERED.includes(code)))];
    const p99 = points.at(-1)?.p99 ?? 0;
    const lag = live?.expiry_lag_seconds ?? 0;
    const undrained = live?.undrained_events ?? 0;
    const alerts = live?.alerts;
    /** @type {[keyof typeof PARAGRAPHS, number][]} */
    const counts = [
        ['redis', live?.health.redis.fault ? 1 : 0],
        ['postgres', live?.health.postgres.fault ? 1 : 0],
        ['unanswered', without > all * UNANSWERED_SHARE ? without : 0],
        ['slow', p99 > SLOW_MS ? Math.round(p99) : 0],
        ['silent', silent],
        ['undrained', undrained > BACKLOG_MAX ? undrained : 0],
        ['expiry_lag', lag > LAG_MAX_SECONDS ? Math.round(lag) : 0],
        ['dead', alerts?.dead_letters ?? 0],
        ['failed', alerts?.failed_releases ?? 0],
        ['revoked', live?.orders?.revoked ?? 0],
        ['lost', alerts?.lost_orders ?? 0],
        ['refunds', alerts?.refunds_due ?? 0],
        ['unmatched', alerts?.unmatched_payments ?? 0],
    ];
    return counts.filter(([, count]) => count > 0);
}

/** @param {[string, number]} trouble */
export const isOfSystem = ([key]) => !OF_MONEY.includes(key);

/**
 * What the verdict is about. `name` gives an item's name; `pausedAt` is null if it is not known.
 * @typedef {object} Facts
 * @property {AdminSale} sale
 * @property {SaleState} state
 * @property {Live | null} live
 * @property {LivePoint[]} points
 * @property {boolean | null} isConnected
 * @property {number | null} now
 * @property {number | null} pausedAt
 * @property {(sku: string) => string} name
 */

// The sentence's key, its values, and how it looks.
/** @type {(facts: Facts, seen: ReturnType<typeof observed>) => { key: string, tone: string, values?: Record<string, string | number> }} */
function judged({ sale, state, live, points, isConnected, now, pausedAt }, seen) {
    if (isConnected === false && seen.lastAt() > 0) {
        return { key: 'disconnected', tone: 'is-bad', values: { time: timeExact(seen.lastAt()) } };
    }
    if (needsRedis(state) && seen.since.has('redis')) {
        return { key: 'redis', tone: 'is-bad', values: { time: timeExact(seen.since.get('redis')) } };
    }
    if (state === 'paused') {
        const seconds = pausedAt === null || now === null ? null : secondsLeft(now, pausedAt);
        return seconds === null
            ? { key: 'paused', tone: 'is-bad' }
            : { key: 'paused_for', tone: 'is-bad', values: { time: clockTime(seconds) } };
    }
    if (state === 'scheduled' && now !== null) {
        const starts = Date.parse(live?.starts_at ?? sale.starts_at);
        return { key: 'scheduled', tone: '', values: { time: clockTime(secondsLeft(starts, now)) } };
    }
    if (state !== 'open') {
        return { key: state, tone: '' };
    }
    if (!live) {
        return { key: 'unknown', tone: '' };
    }
    if (seen.since.has('postgres')) {
        const key = sale.durability === 'postgres' ? 'postgres_strict' : 'postgres';
        return { key, tone: 'is-bad', values: { time: timeExact(seen.since.get('postgres')) } };
    }
    if (live.fault) {
        return seen.lastGoodAt() > 0
            ? { key: 'blind_since', tone: 'is-bad', values: { time: timeExact(seen.lastGoodAt()) } }
            : { key: 'blind', tone: 'is-bad' };
    }
    if (seen.soldOut.size > 0 && seen.soldOut.size === sale.items.length) {
        const held = (live.items ?? []).reduce((sum, item) => sum + item.held, 0);
        return held > 0 ? { key: 'all_held', tone: 'is-good', values: { n: held } } : { key: 'sold_out', tone: 'is-good' };
    }
    const end = points.at(-1)?.at ?? 0;
    const isSelling = points.some(({ at, accepted }) => end - at <= PACE_MS && (accepted ?? 0) > 0);
    return { key: isSelling ? 'selling' : waitingIn(live) > 0 ? 'waiting' : 'open', tone: 'is-good' };
}

/** @type {(live: Live | null) => number} */
const waitingIn = (live) => live?.waiting_room?.waiting ?? 0;

// What the verdict adds about the waiting room and the items of an open sale.
/** @type {(facts: Facts, seen: ReturnType<typeof observed>) => string[]} */
function addedText({ sale, state, live, name }, seen) {
    if (state !== 'open' || live?.fault) {
        return [];
    }
    const waiting = waitingIn(live);
    const texts = waiting > 0 ? [say('roomWaits', { n: waiting, rate: sale.guards.admissions_per_second })] : [];
    // An item whose units are held may come back, so it is not called sold out.
    const isHeld = (sku) => (live?.items ?? []).some((item) => item.sku === sku && item.held > 0);
    const gone = [...seen.soldOut].map(([sku, at]) => ({ sku, at: at ?? seen.firstSoldOut.get(sku) ?? null }));
    for (const { sku, at } of gone.slice(0, NAMED_MAX)) {
        const [plain, timed] = isHeld(sku) ? ['itemTaken', 'itemTakenAt'] : ['itemSoldOut', 'itemSoldOutAt'];
        texts.push(at === null ? say(plain, { name: name(sku) }) : say(timed, { name: name(sku), time: timeExact(at) }));
    }
    if (gone.length > NAMED_MAX) {
        texts.push(say('itemsSoldOut', { n: gone.length - NAMED_MAX }));
    }
    const paces = sale.items.map(({ sku }) => ({ sku, seconds: seen.lasts(sku) })).filter(({ seconds }) => seconds !== null);
    const next = paces.sort((a, b) => Number(a.seconds) - Number(b.seconds))[0];
    if (next) {
        texts.push(say('itemLasts', { name: name(next.sku), time: about(next.seconds) }));
    }
    return texts;
}

/** `pages` has the console's page of a trouble. @param {Record<string, string>} pages */
export function verdictPart(pages) {
    const text = element('span');
    const help = runbookLink();
    const sentence = element('p', { class: 'verdict', id: 'verdict' }, text, ' ', help);
    const list = element('ul', { class: 'troubles', id: 'troubles' });
    const node = element('div', { class: 'list' }, sentence, list);
    const lines = new Map();
    let before = '';

    function lineOf(key) {
        if (!lines.has(key)) {
            const says = element(pages[key] ? 'a' : 'span', pages[key] ? { href: pages[key] } : {});
            lines.set(key, { says, line: element('li', { id: `trouble-${key}` }, says, ' ', runbookLink(key)) });
        }
        return lines.get(key);
    }

    // Returns the verdict's key.
    /** @type {(facts: Facts, seen: ReturnType<typeof observed>, troubles: [string, number][]) => string} */
    function update(facts, seen, troubles) {
        const { key, tone, values } = judged(facts, seen);
        const whole = [say(`verdict_${key}`, values), ...addedText(facts, seen)].join(' ');
        setText(text, whole);
        setAttribute(sentence, 'class', `verdict ${tone}`);
        const topic = key.split('_')[0];
        const hasHelp = Object.hasOwn(PARAGRAPHS, topic);
        show(help, hasHelp);
        if (hasHelp) {
            setAttribute(help, 'href', `${RUNBOOK}#${PARAGRAPHS[topic]}`);
        }
        const shown = troubles.filter(([name]) => name !== topic);
        for (const [name, count] of shown) {
            setText(lineOf(name).says, say(`trouble_${name}`, { n: count }));
        }
        setChildren(
            list,
            shown.map(([name]) => lineOf(name).line),
        );
        if (before !== '' && before !== key) {
            announce(whole);
        }
        before = key;
        return key;
    }
    return { node, update };
}
