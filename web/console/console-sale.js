// One sale, live: the verdict on it, the actions, its items and money, the plots, and the system. The plots begin with the
// sale's history. The system is folded while it is well.

import { ask, isUnknown } from './api.js';
import { hear, now } from './clock.js';
import { accountsPart } from './console-accounts.js';
import { call, onceOnly, REBUILD_MS } from './console-api.js';
import { itemText } from './console-asked.js';
import { changesOf, messageText } from './console-change.js';
import { contractOf } from './console-contract.js';
import { coursePlots, GOOD, pointsOf } from './console-course.js';
import { busyWhile, onSubmit, resultLine, sure, wordsOf } from './console-dialog.js';
import { choiceOf, fieldOf, typedIn } from './console-fields.js';
import { guardsText, stoppedEntries } from './console-guards.js';
import { followSale } from './console-live.js';
import { refundsPath } from './console-money.js';
import { itemLabel } from './console-names.js';
import { ordersPath } from './console-orders.js';
import { shadowLink } from './console-shadow.js';
import { button, needs, tilesOf, word } from './console-table.js';
import { TERMS, termOf, termText } from './console-terms.js';
import { sellingTime } from './console-time.js';
import { auditLogTable } from './console-audit-log.js';
import { unitsOf } from './console-units.js';
import { isOfSystem, observed, pausedSince, troublesOf, verdictPart } from './console-verdict.js';
import { announce, byId, element, setAttribute, setChildren, setPressable, setText, setTitle, show } from './dom.js';
import { clockTime, momentExact, secondsLeft, timeExact } from './format.js';
import { apart, plainly, say, worded } from './language.js';
import { english, write } from './problem.js';
import { stateAt, timeOf } from './sale-state.js';

const POINTS_MAX = 400;
// How much of the sale's history the plots begin with. The report counts an answer within two seconds.
const HISTORY_MS = 300_000;
const COUNTED_MS = 2000;
const SALE_EVERY_MS = 20_000;
// The stock audit reads every order. The server allows it two minutes.
const AUDIT_MS = 130_000;

// The actions allowed in each state, in the order of the buttons.
const ACTIONS = {
    draft: ['preload'],
    scheduled: ['open', 'pause', 'close'],
    open: ['pause', 'close'],
    paused: ['resume', 'close'],
    closed: [],
};
// Terms that the head of the page shows.
const ABOVE = ['name', 'starts_at', 'ends_at'];
// How the buttons look: the safe way on, and what keeps shoppers from buying.
const TONES = { preload: 'strong', open: 'strong', resume: 'strong', pause: 'strong danger big', close: 'danger' };
const DANGERS = ['pause', 'close', 'rebuild', 'delete'];
// Actions behind *More*, with the rebuild.
const RARE = ['close'];
// The verdicts by which nobody can buy, whatever the state says.
const NOBODY_BUYS = ['redis', 'postgres_strict'];
// Restock refusals that concern the quantity.
/** @type {Answer['code'][]} */
const OF_QUANTITY = ['invalid_request', 'insufficient_stock'];
export function saleView(view, id) {
    const path = `/v1/admin/sales/${id}`;
    const name = element('h1', { id: 'sale-name' });
    const state = element('span', { class: 'pill', id: 'sale-state' });
    const until = element('p', { class: 'muted', id: 'sale-until' });
    const countdown = element('p', { class: 'countdown', role: 'timer', 'aria-live': 'off' });
    const times = element('p', { class: 'muted small', id: 'sale-times' });
    const stream = element('p', { class: 'stream', role: 'status', id: 'stream' });
    const actions = element('div', { class: 'actions', id: 'actions' });
    const result = resultLine(() => reload());
    const attention = `/console/sales/${id}/attention`;
    const verdict = verdictPart({
        dead: attention,
        failed: attention,
        revoked: ordersPath(id, 'revoked'),
        refunds: refundsPath(id),
        unmatched: '/console/money?outcome=unmatched&settled=false',
    });
    const seen = observed();
    const numbers = tilesOf();
    const inside = tilesOf();
    const units = unitsOf();
    const plots = coursePlots();
    // The plots show the last minutes alone.
    const wholeCourse = word('a', 'wholeCourse', { id: 'to-course', href: `/console/sales/${id}/report#report-course` });
    const report = word('a', 'toReport', { class: 'button', id: 'to-report', href: `/console/sales/${id}/report` });
    const instances = element('p', { class: 'muted small', id: 'instances' });
    const refused = element('ul', { class: 'legend', id: 'guards-refused' });
    // Not in the list, which is made again with each sample.
    const toShadow = shadowLink(id);
    show(toShadow, false);
    const details = element('div', { class: 'facts' });
    const audit = auditPart(path);
    const restocked = () => {
        refresh();
        auditLog.read();
    };
    const restock = restockPart(id, path, freeOf, restocked);
    const auditLog = auditLogTable(id, learnActions);
    const accounts = accountsPart();
    const page = word('a', 'shopPage', { class: 'button', id: 'to-shop', href: `/sales/${id}` });
    const edit = needs('all', word('a', 'editSale', { class: 'button', href: `/console/sales/${id}/edit` }));
    const changes = changesOf(id, path, result, () => reload());
    /** @type {(button: HTMLElement, dialog: (button: HTMLElement, sale: AdminSale) => Promise<void>) => Promise<void>} */
    const openDialog = async (button, dialog) => {
        const found = await busyWhile(button, button, present);
        if (found) {
            await dialog(button, found);
        }
    };
    const message = button('do_message', { id: 'do-message' }, () => openDialog(message, changes.message));
    const amend = button('do_amend', { id: 'do-amend', 'data-needs': 'all' }, () => openDialog(amend, changes.amend));
    const amendItem = button('do_item', { id: 'do-item', 'data-needs': 'all' }, () => openDialog(amendItem, changes.amendItem));
    const tryGuard = button('do_try', { id: 'do-try', 'data-needs': 'all' }, () => openDialog(tryGuard, changes.tryGuard));
    const endTrials = button('endTrials', { id: 'do-end-trials', 'data-needs': 'all' }, () => {
        const guards = Object.fromEntries(trials().map((name) => [name, null]));
        return act('trials', endTrials, say('doEndTrials'), () => call('PATCH', path, { body: { guards } }));
    });
    const rebuild = button('rebuild', { class: 'danger', id: 'do-rebuild' }, () =>
        act('rebuild', rebuild, say('rebuild'), () => call('POST', `${path}/rebuild`, { patience: REBUILD_MS })),
    );
    const remove = button('deleteDraft', { class: 'danger', id: 'do-delete', 'data-needs': 'all' }, () =>
        act('delete', remove, say('doDelete'), () => call('DELETE', path), (answer) => (answer.isOk ? leave() : reload(answer))),
    );
    const buttons = new Map();
    const rare = element('div', { class: 'actions' });
    const furtherTitle = word('summary', 'furtherActions', { class: 'button' });
    const further = element('details', { class: 'further', id: 'further', 'data-needs': 'run' }, furtherTitle, rare);
    // The menu closes with each action, before a dialog opens. Its hidden button passes the focus on.
    actions.addEventListener(
        'click',
        ({ target }) => {
            if (!(target instanceof Node) || furtherTitle.contains(target)) {
                return;
            }
            if (rare.contains(target)) {
                furtherTitle.focus();
            }
            further.open = false;
        },
        true,
    );

    /** @type {AdminSale | null} */
    let sale = null;
    let isMissing = false;
    /** @type {Partial<LiveSale> & Pick<LiveSample, 'health' | 'fault'> | null} */
    let live = null;
    /** @type {boolean | null} */
    let isConnected = null;
    // Why there is no stream, if the API gave a reason.
    let refusal = '';
    /** @type {LivePoint[]} */
    let points = [];
    /** @type {SaleState | null} */
    let stateBefore = null;
    // The answer to an action with an unknown outcome, and the state before the action. Another state settles it.
    /** @type {{ answer: Answer, before: SaleState | null } | null} */
    let unsettled = null;
    // What the audit log has of this sale, as far as it was read.
    /** @type {Map<Action['id'], Action>} */
    const actionsKnown = new Map();
    /** @type {number | null} */
    let pausedAt = null;
    // Whether the last sample has the units, though not the rest.
    let hasUnitsAlone = false;
    let isWell = true;
    // Instances whose report is overdue.
    let silent = 0;

    // Stays in view, so that a sale can be paused from anywhere on its page.
    const bar = element('div', { class: 'sticky' }, state, element('div', {}, until, countdown), actions);
    const trialText = element('span');
    const onTrial = element('p', { id: 'on-trial' }, word('b', 'onTrial'), ' ', trialText);
    show(onTrial, false);
    const above = [bar, stream, verdict.node, onTrial];
    const systemTitle = element('summary');
    const faults = element('p', { class: 'warning small' });
    const system = element(
        'details',
        { class: 'panel', id: 'system' },
        systemTitle,
        element('div', { class: 'list' }, inside.node, faults, instances, units.shards),
    );
    const between = [
        units.node,
        numbers.node,
        element('section', { class: 'list' }, element('div', { class: 'head' }, word('h2', 'course'), report), plots.node, element('p', {}, wholeCourse)),
        system,
        element('section', { class: 'two' }, audit.node, restock.node),
        element('section', { class: 'list' }, word('h2', 'guardsRefused'), word('p', 'guardsRefusedHint', { class: 'muted small' }), refused, element('p', {}, toShadow)),
        accounts.node,
    ];
    const below = element('section', { class: 'list' }, word('h2', 'details'), details);
    view.append(
        element('div', { class: 'head' }, name, times),
        ...above,
        result.node,
        ...between,
        element('section', { class: 'list' }, word('h2', 'audit-log'), auditLog.node),
        below,
    );

    async function refresh() {
        const answer = await call('GET', path);
        if (answer.isOk) {
            const isFirst = sale === null;
            sale = /** @type {AdminSale} */ (answer.body);
            hear(sale.server_time, answer.sent, answer.received);
            if (live?.fault) {
                // The samples lack the state now, which an operator may have changed.
                live.state = sale.state;
                live.starts_at = sale.starts_at;
            }
            restock.learn(sale);
            units.learn(sale.items);
            renderDetails(sale);
            if (isFirst) {
                render();
            }
        } else if (answer.status === 404) {
            lose();
        } else if (sale === null) {
            setText(name, say('loading'));
        }
        render();
        return answer;
    }

    // The sale is missing or deleted. Only its audit log stays on the page.
    function lose() {
        if (isMissing) {
            return;
        }
        const parts = [times, ...above, ...between, below];
        const hadFocus = parts.some((part) => part.contains(document.activeElement));
        sale = null;
        live = null;
        isMissing = true;
        follower.end();
        clearInterval(refreshing);
        setAttribute(view, 'class', 'view');
        parts.forEach((part) => show(part, false));
        setText(name, say('noSale'));
        announce(say('noSale'));
        if (hadFocus) {
            byId('main').focus();
        }
    }

    function render() {
        setTitle(`${sale ? apart(sale.name) : say(isMissing ? 'noSale' : 'sale')} · ${say('console')}`);
        if (isMissing) {
            setText(name, say('noSale'));
            return;
        }
        renderStream();
        if (!sale) {
            return;
        }
        const at = stateAt({ ...sale, state: live?.state ?? sale.state }, now());
        setText(name, plainly(sale.name));
        setText(state, say(`sale_${at}`));
        const isNews = stateBefore !== null && stateBefore !== at;
        stateBefore = at;
        if (isNews) {
            // The stream does not carry the final values of a draft, nor since when a sale is paused.
            refresh();
            auditLog.read();
        }
        if (unsettled && unsettled.before !== at) {
            result.settle(unsettled.answer);
            unsettled = null;
        }
        const isDown = NOBODY_BUYS.includes(renderVerdict(sale, at));
        setAttribute(state, 'class', `pill is-${isDown ? 'bad' : at}`);
        const { word: key, until: end } = timeOf({ starts_at: live?.starts_at ?? sale.starts_at, ends_at: sale.ends_at }, at);
        setText(until, say(at === 'draft' ? 'draftWaits' : key));
        setText(countdown, end === null || now() === null ? '' : clockTime(secondsLeft(end, now())));
        setText(times, sellingTime({ ...sale, starts_at: live?.starts_at ?? sale.starts_at }));
        renderActions(at);
        renderRoom(at);
        [report, wholeCourse].forEach((link) => show(link, at !== 'draft'));
        show(restock.node, !['draft', 'closed'].includes(at));
        show(audit.node, at !== 'draft');
    }

    // Whether the numbers are of now. Large words are for a loss alone: beside the sale's state they would pass for it.
    function renderStream() {
        const since = seen.lastAt();
        const lost = since > 0 ? say('numbersOld', { time: timeExact(since) }) : say('reconnecting');
        const isOld = isConnected === false || Boolean(live?.fault);
        if (isConnected === false) {
            write(stream, refusal ? { text: say('liveRefused'), more: refusal } : lost);
        } else {
            setText(stream, isConnected && live ? ageText(live) : '');
        }
        setAttribute(stream, 'class', isConnected === false ? 'stream is-lost' : 'stream');
        setAttribute(view, 'class', isOld ? `view is-old${isConnected && hasUnitsAlone ? ' has-units' : ''}` : 'view');
    }

    // How old the numbers of a stream are; empty without any.
    function ageText({ fault }) {
        if (!fault) {
            return say('upToDate');
        }
        const at = seen.lastGoodAt();
        return at === 0 ? '' : say(hasUnitsAlone ? 'numbersOfButUnits' : 'numbersOf', { time: timeExact(at) });
    }

    // Returns the verdict's key.
    /** @type {(sale: AdminSale, state: SaleState) => string} */
    function renderVerdict(sale, state) {
        const troubles = troublesOf(live, points, silent);
        const name = (sku) => sale.items.find((item) => item.sku === sku)?.name ?? sku;
        const key = verdict.update({ sale, state, live, points, isConnected, now: now(), pausedAt, name }, seen, troubles);
        const unwell = troubles.filter(isOfSystem).length + (live?.fault && troubles.length === 0 ? 1 : 0);
        setText(systemTitle, unwell > 0 ? say('systemUnwell', { n: unwell }) : say('systemWell'));
        // Only the change opens it: the operator may close it again.
        if (isWell && unwell > 0) {
            system.open = true;
        }
        isWell = unwell === 0;
        return key;
    }

    // A pause stands in the audit log, so that a page opened later knows it, too.
    /** @param {Action[]} entries */
    function learnActions(entries) {
        entries.forEach((entry) => actionsKnown.set(entry.id, entry));
        pausedAt = pausedSince([...actionsKnown.values()]);
    }

    // Nobody waits for a sale that is over, though Redis still has the places.
    function renderRoom(at) {
        const room = live?.waiting_room;
        if (at === 'closed') {
            ['waiting', 'admitted'].forEach(numbers.remove);
        } else if (room) {
            numbers.update('waiting', String(room.waiting));
            numbers.update('admitted', String(room.admitted));
        }
    }

    // The free units of an item by the latest numbers, if there are any.
    function freeOf(sku) {
        const item = live?.items?.find((one) => one.sku === sku);
        return item && item.available + item.in_transit;
    }

    // The guards that have a stage, also one that picks nobody.
    const trials = () => Object.keys(sale?.staged_guards ?? {});

    function renderActions(at) {
        const buttonOf = (action) => {
            if (!buttons.has(action)) {
                const attributes = { class: TONES[action], id: `do-${action}`, 'data-needs': action === 'preload' ? 'all' : 'run' };
                const post = () => call('POST', `${path}/${action}`);
                const made = button(`do_${action}`, attributes, () => act(action, made, say(`do_${action}`), post));
                buttons.set(action, made);
            }
            return buttons.get(action);
        };
        const allowed = ACTIONS[at] ?? [];
        const main = allowed.filter((action) => !RARE.includes(action)).map(buttonOf);
        const rareActions = allowed.filter((action) => RARE.includes(action)).map(buttonOf);
        const amendments = [amend, amendItem, tryGuard, ...(trials().length > 0 ? [endTrials] : [])];
        setChildren(rare, [message, ...(at === 'closed' ? [] : amendments), ...rareActions, rebuild]);
        worded(page, at === 'draft' ? 'previewPage' : 'shopPage');
        setChildren(actions, [...main, ...(at === 'draft' ? [edit, page, remove] : [page, further])]);
    }

    // Confirms and runs an action. Only the pressed button waits: a rebuild takes long, and an operator may have to pause the
    // sale meanwhile.
    /** @type {(action: string, button: HTMLElement, yes: string, request: () => Promise<Answer>, after?: (answer: Answer) => unknown) => Promise<void>} */
    async function act(action, button, yes, request, after = reload) {
        const text = action === 'preload' ? await busyWhile(button, button, contract) : say(`about_${action}`);
        const isDanger = DANGERS.includes(action);
        if (text !== null && (await sure(say(`sure_${action}`, { name: sale?.name }), text, yes, { isDanger }))) {
            const before = stateBefore;
            const answer = await result.run(button, request, () => say(`did_${action}`), after);
            unsettled = isUnknown(answer) ? { answer, before } : null;
            render();
        }
    }

    // The sale as it is now: another operator may have changed it. Null if it cannot be read.
    async function present() {
        const answer = await refresh();
        if (!answer.isOk && !isMissing) {
            result.bad(answer);
        }
        return answer.isOk ? sale : null;
    }

    // Null if there is nothing to publish.
    async function contract() {
        const draft = await present();
        return draft?.state === 'draft' ? contractOf(draft) : null;
    }

    // Returns whether the state is known.
    /** @param {Answer} [answer] to an action that changes the state */
    async function reload(answer) {
        if (answer?.isOk && live && answer.body.state) {
            live.state = answer.body.state;
        }
        const { isOk } = await refresh();
        auditLog.read();
        return isOk;
    }

    // Ends the page of a deleted sale.
    function leave() {
        setPressable(remove, false);
        follower.end();
        clearInterval(refreshing);
        // The browser may restore this page when the operator returns.
        window.addEventListener('pageshow', (event) => event.persisted && refresh());
        location.assign('/console');
    }

    /** @param {AdminSale} sale */
    function renderDetails(sale) {
        const facts = [
            ['saleId', id],
            ...TERMS.filter(({ name }) => !ABOVE.includes(name)).map((term) => [term.label, termText(term, termOf(term, sale))]),
            ['theGuards', guardsText(sale.guards, sale.staged_guards ?? {})],
            ['saleMessage', apart(messageText(sale.message) || '–')],
            ...sale.items.map((item) => [null, itemText(item)]),
        ];
        setText(trialText, guardsText({}, sale.staged_guards ?? {}));
        show(onTrial, trials().length > 0 && sale.state !== 'closed');
        details.replaceChildren(...facts.map(([key, text]) => element('p', {}, ...(key ? [word('b', key), ` ${text}`] : [text]))));
    }

    /** @param {LiveSample} sample */
    function heard(sample) {
        isConnected = true;
        hasUnitsAlone = sample.sale === null && sample.stock !== null;
        seen.see(sample);
        live = { ...(sample.sale ? {} : { state: live?.state, starts_at: live?.starts_at }), ...sample.sale, health: sample.health, fault: sample.fault };
        add([sample.point]);
        if (sample.sale) {
            renderNumbers(sample.sale, sample.point);
            units.update(sample.sale);
            refused.replaceChildren(...stoppedEntries(sample.sale.stopped, sample.sale.would_stop));
            show(toShadow, Object.keys(sample.sale.would_stop).length > 0);
        } else if (sample.stock) {
            // Postgres is down. Redis still knows the units and the undrained events.
            renderUndrained(sample.stock);
            units.update(sample.stock);
        }
        renderHealth(sample);
        renderInstances(sample);
        render();
    }

    // The instances that the refusals and latencies come from.
    /** @param {LiveSample} sample */
    function renderInstances({ instances: all, others_fault: fault }) {
        const overdue = all.filter((one) => one.silent_seconds !== null);
        silent = overdue.length;
        const words = [say('ofInstances', { n: all.length - silent, all: all.length })];
        for (const one of overdue) {
            words.push(say('silentInstance', { name: one.name, n: Math.round(one.silent_seconds ?? 0) }));
        }
        if (fault) {
            words.push(say('othersUnknown'));
        }
        setText(instances, words.join(' '));
        setAttribute(instances, 'class', words.length > 1 ? 'warning small' : 'muted small');
    }

    // Merges the points from before and after a reconnect, in order and without duplicates.
    /** @param {LivePoint[]} more */
    function add(more) {
        const known = new Set(points.map(({ at }) => at));
        points = [...points, ...more.filter(({ at }) => !known.has(at))].sort((a, b) => a.at - b.at).slice(-POINTS_MAX);
        plots.update(points);
    }

    // Adds the sale's history where there are no samples: from before the page was opened, and while the connection was lost.
    async function readHistory() {
        const to = now();
        if (to === null || sale === null || sale.state === 'draft') {
            return;
        }
        const { starts_at: start } = sale;
        const [from, until] = [to - HISTORY_MS, to - COUNTED_MS];
        const query = new URLSearchParams({ from: new Date(from).toISOString(), to: new Date(until).toISOString() });
        const answer = await call('GET', `${path}/report?${query}`);
        if (answer.isOk) {
            const isKnown = ({ at }) => points.some((point) => at < point.at && at + 1000 > point.at - 1000 * point.seconds);
            add(pointsOf(answer.body, from, until).filter((point) => !isKnown(point)));
            seen.learn(answer.body.items, start);
        }
    }

    /** @type {(stats: LiveSale, point: LivePoint) => void} */
    function renderNumbers(stats, point) {
        const { orders, alerts: due } = stats;
        const a = (count) => (count === null ? '–' : String(Math.round(count / Math.max(point.seconds, 0.1))));
        const refusals = Object.entries(point.answers).reduce((sum, [code, count]) => (GOOD.includes(code) ? sum : sum + count), 0);
        const bad = (name, count, link = '') => inside.update(name, String(count), count > 0 ? 'is-bad' : '', link);
        numbers.update('accepted', a(point.accepted));
        numbers.update('refused', a(refusals));
        numbers.update('p99', point.p99 === null ? '–' : say('milliseconds', { n: Math.round(point.p99 * 10) / 10 }));
        renderUndrained(stats);
        inside.update('expiry_lag', say('secondsExact', { n: Math.round(stats.expiry_lag_seconds) }), stats.expiry_lag_seconds > 10 ? 'is-bad' : '');
        numbers.update('reserved', String(orders.reserved));
        numbers.update('paid', String(orders.paid));
        numbers.update('returned', String(orders.cancelled + orders.expired));
        bad('revoked', orders.revoked, ordersPath(id, 'revoked'));
        bad('dead', due.dead_letters, attention);
        bad('failed', due.failed_releases, attention);
        bad('lost', due.lost_orders);
    }

    function renderUndrained({ undrained_events: events }) {
        inside.update('undrained', String(events), events > 10_000 ? 'is-bad' : '');
    }

    // The texts of faults are the program's own, so they stand with the system.
    /** @param {LiveSample} sample */
    function renderHealth({ health, fault: lack }) {
        write(faults, ...[health.redis.fault, health.postgres.fault, lack].map((more) => ({ text: '', more: more ?? '' })));
        for (const server of ['redis', 'postgres']) {
            const { milliseconds, fault } = health[server];
            const took = say('milliseconds', { n: Math.round(milliseconds * 10) / 10 });
            inside.update(server, fault ? say('away_now') : took, fault ? 'is-bad' : '');
        }
    }

    const follower = followSale(id, {
        heard,
        course: add,
        changed(connected, why = '') {
            isConnected = connected;
            refusal = why;
            render();
            if (connected) {
                again();
            }
        },
    });
    // The points of the time without a stream are in the history.
    async function again() {
        const { isOk } = await refresh();
        if (isOk) {
            readHistory();
        }
    }
    // With a separate operator address, the shop is on another address.
    async function findShop() {
        const { status } = await ask('GET', '/v1/sales?limit=1');
        show(page, status !== 404);
    }
    setText(name, say('loading'));
    refresh();
    findShop();
    const refreshing = setInterval(refresh, SALE_EVERY_MS);
    auditLog.read();
    accounts.read();
    return {
        read() {
            auditLog.read();
            if (isMissing) {
                return;
            }
            follower.again();
            refresh();
            accounts.read();
        },
        again() {
            auditLog.again();
            accounts.again();
            if (sale) {
                renderDetails(sale);
            }
        },
        tick: render,
    };
}

// The stock audit: counts every unit on both sides, on request.
function auditPart(path) {
    const start = button('auditNow', { id: 'audit' }, audit);
    const result = element('p', { role: 'status', class: 'note' });
    const differences = element('ul', { class: 'differences' });
    const more = button('more', { class: 'quiet' }, readMore);
    const node = element('div', { class: 'panel' }, word('h2', 'audit'), word('p', 'auditHint', { class: 'muted small' }), start, result, differences, more);
    show(more, false);
    let last;
    // One result page of differences. They are sorted by text, so the last one is the cursor.
    async function read(query) {
        setPressable(more, false);
        const answer = await busyWhile(start, node, () => call('GET', `${path}/audit${query}`, { patience: AUDIT_MS }));
        setPressable(more, true);
        if (answer.isOk) {
            const { differences: found, has_more: hasMore } = answer.body;
            last = found.at(-1);
            show(more, hasMore);
            differences.append(...found.map((text) => element('li', {}, english(text))));
        }
        return answer;
    }
    async function readMore() {
        const answer = await read(`?starting_after=${encodeURIComponent(last)}`);
        if (!answer.isOk) {
            write(result, wordsOf(answer, 'auditFailed'));
        }
    }
    async function audit() {
        setText(result, say('working'));
        differences.replaceChildren();
        show(more, false);
        const answer = await read('');
        if (!answer.isOk) {
            write(result, wordsOf(answer, 'auditFailed'));
            setAttribute(result, 'class', 'note warning');
            return;
        }
        const { balanced, ledger_only: isLedgerOnly, items, differences_total: n } = answer.body;
        const total = items.reduce((sum, item) => sum + item.total, 0);
        const words = [say(!balanced ? 'auditBad' : isLedgerOnly ? 'auditLedger' : 'auditGood', { total, n, time: momentExact(new Date()) })];
        if (isLedgerOnly) {
            words.push(say('auditOneSide'));
        }
        setText(result, words.join(' '));
        setAttribute(result, 'class', balanced ? 'note is-good' : 'note warning');
    }
    return { node };
}

// Adds units or takes unsold ones back. `freeOf(sku)` has how many are free, if that is known. The request keeps its key
// until its outcome is known, even after a reload.
function restockPart(id, path, freeOf, done) {
    const result = resultLine();
    const once = onceOnly(`flashsale.restock.${id}`);
    const { select: sku, row } = choiceOf({ id: 'restock-sku', label: 'sku', options: [] });
    const quantity = fieldOf({ id: 'restock-quantity', label: 'restockQuantity', kind: 'whole', min: -1_000_000_000, max: 1_000_000_000, hint: 'restockHint' });
    const form = element(
        'form',
        { class: 'panel', novalidate: '', 'data-needs': 'run' },
        word('h2', 'restock'),
        row,
        quantity.node,
        result.node,
        word('button', 'do_restock', { type: 'submit' }),
    );
    const typed = typedIn(form, `flashsale.typed.restock.${id}`, {
        quantity,
        sku: { text: () => sku.value, set: (value) => [...sku.options].some((it) => it.value === value) && (sku.value = value) },
    });
    form.addEventListener('input', () => quantity.complain(''));
    onSubmit(form, async (send) => {
        const units = quantity.read();
        if (units === 0) {
            quantity.complain(say('restockZero'));
        }
        if (!units) {
            quantity.control.focus();
            return;
        }
        const words = { sku: sku.value, n: Math.abs(units) };
        const body = { sku: sku.value, quantity: units };
        const text = JSON.stringify(body);
        const about = once.isOpen(text) ? 'about_again' : units > 0 ? 'about_add' : 'about_take';
        if (!(await sure(say(units > 0 ? 'sure_add' : 'sure_take', words), say(about), say(units > 0 ? 'do_restock' : 'doTakeUnits')))) {
            return;
        }
        result.busy();
        const answer = await send(() => once.post(`${path}/restock`, text, body));
        if (answer.isOk) {
            result.good(say(units > 0 ? 'did_add' : 'did_take', words));
            quantity.set('');
            typed.forget();
        } else if (OF_QUANTITY.includes(answer.code)) {
            const free = answer.code === 'insufficient_stock' ? freeOf(sku.value) : undefined;
            result.beside(quantity, free === undefined ? wordsOf(answer) : say('tooFewFree', { n: free }));
            quantity.control.focus();
        } else {
            result.bad(answer);
        }
        done();
    });
    return {
        node: form,
        learn(sale) {
            // A changed draft may have other items, but as many as before.
            const isOther = sale.items.some((item, at) => sku.options[at]?.textContent !== itemLabel(item));
            if (isOther || sku.options.length !== sale.items.length) {
                sku.replaceChildren(...sale.items.map((item) => element('option', { value: item.sku }, itemLabel(item))));
                typed.takeUp();
            }
        },
    };
}
