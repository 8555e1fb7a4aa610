// Guard warnings about accounts, and the banned accounts.

import { now } from './clock.js';
import { call } from './console-api.js';
import { onSubmit, resultLine, sure, wordsOf } from './console-dialog.js';
import { errorSummary } from './console-errors.js';
import { begunIn, fieldOf, setTexts, textsIn, typedIn } from './console-fields.js';
import { nameOfOperator } from './console-names.js';
import { accountLink } from './console-orders.js';
import { listsOf, listTable, needs, rowButton, word } from './console-table.js';
import { timeCell } from './console-time.js';
import { announce, element, setText, show } from './dom.js';
import { momentExact } from './format.js';
import { plainly, say } from './language.js';
import { write } from './problem.js';

const EVERY_MS = 5000;
const HOUR_MS = 3_600_000;
const SPANS = { hour: HOUR_MS, day: 24 * HOUR_MS, week: 7 * 24 * HOUR_MS, until: null, ever: null };
const REASON_MAX = 500;
const BANS = '/v1/admin/bans';
// The time now, by the server's clock as soon as it is known.
const present = () => now() ?? Date.now();
// How many guard warnings and bans the page of a sale shows.
const ALERTS_BESIDE = 5;
const BANS_BESIDE = 10;

// The API's sentence about page views, which is English.
const VIEWS = /^more than (\d+) page views within a minute$/;

// What a guard has noticed. Another sentence, of a newer instance, stays as it is.
/** @type {(alert: Pick<ListedAlert, 'kind' | 'detail'>) => string} */
function warningText({ kind, detail }) {
    const n = VIEWS.exec(detail)?.[1];
    return `${say(`alert_${kind}`)}${say('colon')}${n ? say('viewsAbove', { n }) : detail}`;
}

// The latest guard warnings, each with a ban button. `ban(alert, button)` handles the button.
function alertsTable(limit, ban) {
    return listTable({
        caption: 'alerts',
        columns: ['when', 'account', 'what', 'action'],
        path: () => `/v1/admin/alerts?limit=${limit}`,
        idOf: (entry) => entry.id,
        /** @param {ListedAlert} entry */
        row(entry) {
            const button = rowButton('banThis', say('banAccount', { user: entry.user }), (pressed) => ban(entry, pressed));
            return [timeCell(entry.raised_at), accountLink(entry.user), warningText(entry), needs('run', button)];
        },
        empty: 'noAlerts',
        every: EVERY_MS,
    });
}

/**
 * The bans in force, each with a button to lift it. `lift(user, button)` handles the button.
 * @param {Pick<Listing<Ban>, 'caption' | 'path' | 'mayGrow'> & Partial<Listing<Ban>>} listing
 */
function bansTable({ caption, path, mayGrow, empty = 'noBans' }, lift) {
    return listTable({
        caption,
        columns: ['account', 'reason', 'by', 'since', 'until', 'action'],
        path,
        idOf: (entry) => entry.user,
        row: (entry) => [
            accountLink(entry.user),
            entry.reason,
            entry.operator ? nameOfOperator(entry.operator) : say(`by_${entry.banned_by}`),
            timeCell(entry.banned_at),
            entry.banned_until ? timeCell(entry.banned_until) : say('span_ever'),
            needs('run', rowButton('lift', say('liftBan', { user: entry.user }), (button) => lift(entry.user, button))),
        ],
        empty,
        every: EVERY_MS,
        mayGrow,
    });
}

// The fields of a ban: reason, duration or end, and whether the account's sessions end.
function banFields(id) {
    const reason = fieldOf({ id: `${id}-reason`, label: 'reason', kind: 'text', max: REASON_MAX });
    const options = Object.keys(SPANS).map((name) => word('option', `span_${name}`, { value: name }));
    const span = element('select', { id: `${id}-span` }, ...options);
    const until = fieldOf({ id: `${id}-until`, label: 'until', kind: 'time', hint: 'zoneHint' });
    const hasEnd = () => span.value === 'until';
    // An end that is not asked for has no error.
    const showEnd = () => {
        show(until.node, hasEnd());
        until.complain('');
    };
    span.addEventListener('input', showEnd);
    const sessions = element('input', { id: `${id}-sessions`, type: 'checkbox' });
    const nodes = [
        reason.node,
        element('div', { class: 'row' }, word('label', 'howLong', { for: span.id }), span),
        until.node,
        element('div', { class: 'check' }, sessions, word('label', 'endSessions', { for: sessions.id })),
    ];
    const each = {
        reason,
        span: {
            text: () => span.value,
            set(value) {
                span.value = Object.hasOwn(SPANS, value) ? value : 'day';
                showEnd();
            },
        },
        until,
        sessions: { text: () => (sessions.checked ? 'yes' : 'no'), set: (value) => (sessions.checked = value === 'yes') },
    };
    setTexts(Object.entries(each), {});
    return {
        each,
        nodes,
        // The ban in words, for the confirmation.
        text() {
            const [label, length] = hasEnd() ? ['until', momentExact(until.text())] : ['howLong', say(`span_${span.value}`)];
            const why = `${say('reason')}${say('colon')}${plainly(reason.text())}`;
            const ends = say(sessions.checked ? 'sessionsEnd' : 'sessionsStay');
            const lines = [say('aboutBan'), `${say(label)}${say('colon')}${length}`, why, ends];
            return element('div', { class: 'list' }, ...lines.map((line) => element('p', {}, line)));
        },
        // Whether the ban can be sent; else its errors are shown.
        isGood() {
            const end = hasEnd() ? until.read() : null;
            const isPast = typeof end === 'string' && Date.parse(end) <= present();
            if (isPast) {
                until.complain(say('mustBeAhead'));
            }
            return reason.read() !== undefined && end !== undefined && !isPast;
        },
        // The request body of a ban that can be sent.
        body() {
            const length = SPANS[span.value];
            const end = hasEnd() ? Date.parse(until.text()) : length && present() + length;
            const ends = end === null ? {} : { until: new Date(end).toISOString() };
            return { reason: reason.text(), end_sessions: sessions.checked, ...ends };
        },
    };
}

// The ban and lift actions of a list, each after a confirmation. `result` shows the outcome, and `after` reloads the lists.
function actionsOn(result, after) {
    // Ban forms that were filled in but not sent successfully, by account.
    const begun = begunIn('flashsale.bans.begun');

    function run(button, path, body, done) {
        return result.run(button, () => call('POST', path, { body }), () => done, () => {
            result.node.scrollIntoView({ block: 'nearest' });
            return after();
        });
    }

    async function ban(warning, button) {
        const { user } = warning;
        const { each, nodes, isGood, body: bodyOf } = banFields('alert-ban');
        const fields = Object.entries(each);
        setTexts(fields, begun.get(user) ?? { reason: warningText(warning) });
        const node = element('div', { class: 'list' }, ...nodes);
        node.addEventListener('input', () => begun.set(user, textsIn(fields)));
        const body = await sure(say('sureBan', { user }), say('aboutBan'), say('ban'), {
            field: {
                node,
                control: each.reason.control,
                read: () => (isGood() ? bodyOf() : undefined),
            },
            isDanger: true,
        });
        if (body && (await run(button, BANS, { user, ...body }, say('banned', { user }))).isOk) {
            begun.forget(user);
        }
    }

    async function lift(user, button) {
        if (await sure(say('liftBan', { user }), say('liftHint'), say('lift'))) {
            await run(button, `${BANS}/lift`, { user }, say('lifted', { user }));
        }
    }

    return { ban, lift };
}

// The latest guard warnings and the newest bans, for the page of a sale.
export function accountsPart() {
    const result = resultLine();
    const act = actionsOn(result, () => bans.read());
    const alerts = alertsTable(ALERTS_BESIDE, act.ban);
    const path = () => `${BANS}?newest_first=true&limit=${BANS_BESIDE}`;
    const bans = bansTable({ caption: 'newestBans', path, mayGrow: false }, act.lift);
    const node = element(
        'section',
        { class: 'list', id: 'accounts' },
        word('h2', 'alerts'),
        alerts.node,
        result.node,
        word('h2', 'newestBans'),
        word('p', 'newestBansHint', { class: 'muted small' }),
        bans.node,
        element('p', {}, word('a', 'allBans', { href: '/console/accounts' })),
    );
    return { node, ...listsOf(alerts, bans) };
}

function banForm(done) {
    // An account id is taken literally, so a trailing blank counts.
    const user = fieldOf({ id: 'ban-user', label: 'account', kind: 'text', isExact: true });
    const { each, nodes, text, isGood, body: bodyOf } = banFields('ban');
    const fields = { user, reason: each.reason, until: each.until };
    const wrong = element('p', { class: 'warning', role: 'alert', id: 'ban-wrong' });
    const form = element(
        'form',
        { class: 'panel', novalidate: '', 'data-needs': 'run' },
        word('h2', 'banTitle'),
        user.node,
        ...nodes,
        wrong,
        word('button', 'ban', { class: 'strong danger', type: 'submit' }),
    );
    const errors = errorSummary(form);
    user.node.before(errors.node);
    const typed = typedIn(form, 'flashsale.typed.ban', { user, ...each });
    typed.takeUp();
    // `detail` is the API's own text; it starts with the name of the field.
    function complain(words, detail = '') {
        const place = Object.keys(fields).find((name) => detail.startsWith(name));
        Object.entries(fields).forEach(([name, field]) => field.complain(name === place ? words : ''));
        write(wrong, place ? '' : words);
        errors.update();
    }
    onSubmit(form, async (send) => {
        if ([user.read() !== undefined, isGood()].includes(false)) {
            setText(wrong, '');
            errors.update();
            return;
        }
        errors.clear();
        if (!(await sure(say('sureBan', { user: user.text() }), text(), say('ban'), { isDanger: true }))) {
            return;
        }
        const body = { user: user.text(), ...bodyOf() };
        announce(say('working'));
        const answer = await send(() => call('POST', BANS, { body }));
        complain(answer.isOk ? '' : wordsOf(answer), answer.isOk ? '' : answer.body.detail);
        if (answer.isOk) {
            user.set('');
            setTexts(Object.entries(each), {});
            typed.forget();
            done(say('banned', { user: body.user }));
        }
    });
    return form;
}

// Filters the bans by account. `changed` is called when the filter changes.
function filterForm(changed) {
    const user = fieldOf({ id: 'look-up', label: 'lookUpAccount', kind: 'text', isExact: true });
    const node = element('form', { class: 'look-up', novalidate: '', id: 'look-up-form' }, user.node, word('button', 'lookUp', { type: 'submit' }));
    let account = '';
    onSubmit(node, () => {
        account = user.text();
        changed();
    });
    return { node, account: () => account };
}

export function accountsView(view) {
    const result = resultLine();
    const act = actionsOn(result, () => bans.read());
    const alerts = alertsTable(50, act.ban);
    const one = filterForm(() => bans.restart());
    const path = () => (one.account() === '' ? `${BANS}?newest_first=true&limit=100` : `${BANS}?user=${encodeURIComponent(one.account())}`);
    const empty = () => (one.account() === '' ? 'noBans' : 'notBanned');
    const bans = bansTable({ caption: 'bans', path, mayGrow: true, empty }, act.lift);
    const form = banForm((words) => {
        result.good(words);
        bans.read();
    });
    // A search and a ban are of another account.
    [one.node, form].forEach((it) => it.addEventListener('submit', result.clear));
    view.append(
        word('h1', 'accounts'),
        result.node,
        element('section', { class: 'list' }, word('h2', 'alerts'), alerts.node),
        element('section', { class: 'list' }, word('h2', 'bans'), one.node, bans.node),
        form,
    );
    const lists = listsOf(alerts, bans);
    lists.read();
    return lists;
}
