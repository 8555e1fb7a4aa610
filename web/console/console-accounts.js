// Guard warnings about accounts, and the banned accounts.

import { now } from './clock.js';
import { call } from './console-api.js';
import { resultLine, sure, wordsOf } from './console-dialog.js';
import { begunIn, fieldOf, typedIn } from './console-fields.js';
import { code, listTable, word } from './console-table.js';
import { announce, byId, element, onPress, setAttribute, setBusy, setPressable } from './dom.js';
import { momentExact } from './format.js';
import { say } from './language.js';
import { english, write } from './problem.js';

const EVERY_MS = 5000;
const HOUR_MS = 3_600_000;
const SPANS = { hour: HOUR_MS, day: 24 * HOUR_MS, week: 7 * 24 * HOUR_MS, ever: null };
const REASON_MAX = 500;
const BANS = '/v1/admin/bans';
// How many guard warnings and bans the page of a sale shows.
const ALERTS_BESIDE = 5;
const BANS_BESIDE = 10;

// The latest guard warnings, each with a ban button. `ban(alert, button)` handles the button.
function alertsTable(limit, ban) {
    return listTable({
        caption: 'alerts',
        columns: ['when', 'account', 'what', 'action'],
        path: (last) => `/v1/admin/alerts?limit=${limit}${last ? `&starting_after=${last.id}` : ''}`,
        idOf: (entry) => entry.id,
        /** @param {GuardWarning} entry */
        row(entry) {
            const button = element('button', { type: 'button' }, say('banThis'));
            setAttribute(button, 'aria-label', say('banAccount', { user: entry.user }));
            onPress(button, () => ban(entry, button));
            const what = element('span', {}, `${say(`alert_${entry.kind}`)}: `, english(entry.detail));
            return [momentExact(entry.raised_at), code(entry.user), what, button];
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
        row(entry) {
            const button = element('button', { type: 'button' }, say('lift'));
            setAttribute(button, 'aria-label', say('liftBan', { user: entry.user }));
            onPress(button, () => lift(entry.user, button));
            return [
                code(entry.user),
                entry.reason,
                say(`by_${entry.banned_by}`),
                momentExact(entry.banned_at),
                entry.banned_until ? momentExact(entry.banned_until) : say('span_ever'),
                button,
            ];
        },
        empty,
        every: EVERY_MS,
        mayGrow,
    });
}

// The fields of a ban: reason, duration, and whether the account's sessions end.
function banFields(id) {
    const reason = fieldOf({ id: `${id}-reason`, label: 'reason', kind: 'text', max: REASON_MAX });
    const span = element('select', { id: `${id}-span` });
    for (const name of Object.keys(SPANS)) {
        span.append(word('option', `span_${name}`, { value: name }));
    }
    const sessions = element('input', { id: `${id}-sessions`, type: 'checkbox' });
    const nodes = [
        reason.node,
        element('div', { class: 'row' }, word('label', 'howLong', { for: span.id }), span),
        element('div', { class: 'check' }, sessions, word('label', 'endSessions', { for: sessions.id })),
    ];
    function set({ why = '', howLong = 'day', endsSessions = false }) {
        reason.set(why);
        span.value = howLong;
        sessions.checked = endsSessions;
    }
    set({});
    return {
        reason,
        nodes,
        set,
        // The raw field values, for `typedIn` to store.
        each: {
            reason,
            span: { text: () => span.value, set: (value) => (span.value = Object.hasOwn(SPANS, value) ? value : 'day') },
            sessions: { text: () => (sessions.checked ? 'yes' : 'no'), set: (value) => (sessions.checked = value === 'yes') },
        },
        typed: () => ({ why: reason.text(), howLong: span.value, endsSessions: sessions.checked }),
        // The request body.
        body() {
            const length = SPANS[span.value];
            const until = length === null ? {} : { until: new Date((now() ?? Date.now()) + length).toISOString() };
            return { reason: reason.text(), end_sessions: sessions.checked, ...until };
        },
    };
}

// The ban and lift actions of a list, each after a confirmation. `result` shows the outcome, and `after` reloads the lists.
function actionsOn(result, after) {
    // Ban forms that were filled in but not sent successfully, by account.
    const begun = begunIn('flashsale.bans.begun');

    async function run(button, path, body, done) {
        result.busy();
        setPressable(button, false);
        const answer = await call('POST', path, { body });
        setPressable(button, true);
        if (answer.isOk) {
            result.good(done);
        } else {
            result.bad(answer);
        }
        result.node.scrollIntoView({ block: 'nearest' });
        await after();
        if (document.activeElement === document.body) {
            byId('main').focus();
        }
        return answer.isOk;
    }

    async function ban({ user, kind, detail }, button) {
        const fields = banFields('alert-ban');
        fields.set(begun.get(user) ?? { why: `${say(`alert_${kind}`)}: ${detail}` });
        const node = element('div', { class: 'list' }, ...fields.nodes);
        node.addEventListener('input', () => begun.set(user, fields.typed()));
        const body = await sure(say('sureBan', { user }), say('aboutBan'), say('ban'), {
            node,
            control: fields.reason.control,
            read: () => (fields.reason.read() === undefined ? undefined : fields.body()),
        });
        if (body && (await run(button, BANS, { user, ...body }, say('banned', { user })))) {
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
    return {
        node,
        read() {
            alerts.read();
            bans.read();
        },
        again() {
            alerts.again();
            bans.again();
        },
    };
}

function banForm(done) {
    // An account id is taken literally, so a trailing blank counts.
    const user = fieldOf({ id: 'ban-user', label: 'account', kind: 'text' });
    user.control.spellcheck = false;
    const fields = banFields('ban');
    const { reason } = fields;
    const wrong = element('p', { class: 'warning', role: 'alert', id: 'ban-wrong' });
    const button = word('button', 'ban', { class: 'strong', type: 'submit' });
    const form = element(
        'form',
        { class: 'panel', novalidate: '' },
        word('h2', 'banTitle'),
        user.node,
        ...fields.nodes,
        wrong,
        button,
    );
    const typed = typedIn(form, 'flashsale.typed.ban', { user, ...fields.each });
    typed.takeUp();
    // `detail` is the API's own text; it starts with the name of the field.
    function complain(words, detail = '') {
        const field = [user, reason].find((it) => detail.startsWith(it === user ? 'user' : 'reason'));
        user.complain(field === user ? words : '');
        reason.complain(field === reason ? words : '');
        write(wrong, field ? '' : words);
        field?.control.focus();
    }
    form.addEventListener('submit', async (event) => {
        event.preventDefault();
        if (button.getAttribute('aria-disabled') === 'true') {
            return;
        }
        const body = { user: user.text(), ...fields.body() };
        setPressable(button, false);
        setBusy(form, true);
        announce(say('working'));
        const answer = await call('POST', BANS, { body });
        setPressable(button, true);
        setBusy(form, false);
        complain(answer.isOk ? '' : wordsOf(answer), answer.isOk ? '' : answer.body.detail);
        if (answer.isOk) {
            user.set('');
            fields.set({});
            typed.forget();
            done(say('banned', { user: body.user }));
        }
    });
    return form;
}

// Filters the bans by account. `changed` is called when the filter changes.
function lookUpForm(changed) {
    const user = fieldOf({ id: 'look-up', label: 'lookUpAccount', kind: 'text' });
    user.control.spellcheck = false;
    const node = element('form', { novalidate: '', id: 'look-up-form' }, user.node, word('button', 'lookUp', { type: 'submit' }));
    let account = '';
    node.addEventListener('submit', (event) => {
        event.preventDefault();
        account = user.text();
        changed();
    });
    return { node, account: () => account };
}

export function accountsView(view) {
    const result = resultLine();
    const act = actionsOn(result, () => bans.read());
    const alerts = alertsTable(50, act.ban);
    const one = lookUpForm(() => bans.anew());
    const path = (last) => {
        const only = one.account();
        const after = last ? `&starting_after=${encodeURIComponent(last.user)}` : '';
        return only === '' ? `${BANS}?limit=100${after}` : `${BANS}?user=${encodeURIComponent(only)}`;
    };
    const empty = () => (one.account() === '' ? 'noBans' : 'notBanned');
    const bans = bansTable({ caption: 'bans', path, mayGrow: true, empty }, act.lift);
    const form = banForm((words) => {
        result.good(words);
        bans.read();
    });
    view.append(
        word('h1', 'accounts'),
        result.node,
        element('section', {}, word('h2', 'alerts'), alerts.node),
        element('section', {}, word('h2', 'bans'), one.node, bans.node),
        form,
    );
    alerts.read();
    bans.read();
    return {
        resume() {
            alerts.read();
            bans.read();
        },
        translate() {
            alerts.again();
            bans.again();
        },
    };
}
