// What the guards tell of accounts, and who may not buy.

import { call } from './console-api.js';
import { resultLine, sure, wordsOf } from './console-dialog.js';
import { fieldOf, typedIn } from './console-fields.js';
import { code, listTable, word } from './console-table.js';
import { announce, element, onPress, setAttribute, setBusy, setPressable } from './dom.js';
import { momentExact } from './format.js';
import { say } from './language.js';
import { english, write } from './problem.js';

const EVERY_MS = 5000;
const HOUR_MS = 3_600_000;
const SPANS = { hour: HOUR_MS, day: 24 * HOUR_MS, week: 7 * 24 * HOUR_MS, ever: null };

// The latest alerts, each with the way to a ban. `ban(user)` is what its button does.
export function alertsTable(limit, ban) {
    return listTable({
        caption: 'alerts',
        columns: ['when', 'account', 'what', 'action'],
        path: (last) => `/v1/admin/alerts?limit=${limit}${last ? `&starting_after=${last.id}` : ''}`,
        idOf: (entry) => entry.id,
        row(entry) {
            const button = element('button', { type: 'button' }, say('banThis'));
            setAttribute(button, 'aria-label', say('banAccount', { user: entry.user }));
            onPress(button, () => ban(entry.user));
            const what = element('span', {}, `${say(`alert_${entry.kind}`)}: `, english(entry.detail));
            return [momentExact(entry.raised_at), code(entry.user), what, button];
        },
        empty: 'noAlerts',
        every: EVERY_MS,
    });
}

function banForm(done) {
    // An account's id is what it is, also with a blank at its end.
    const user = fieldOf({ id: 'ban-user', label: 'account', kind: 'text' });
    user.control.spellcheck = false;
    const reason = fieldOf({ id: 'ban-reason', label: 'reason', kind: 'text' });
    const span = element('select', { id: 'ban-span' });
    for (const name of Object.keys(SPANS)) {
        span.append(word('option', `span_${name}`, { value: name }));
    }
    span.value = 'day';
    const sessions = element('input', { id: 'ban-sessions', type: 'checkbox' });
    const wrong = element('p', { class: 'warning', role: 'alert', id: 'ban-wrong' });
    const button = word('button', 'ban', { class: 'strong', type: 'submit' });
    const labelled = (key, input) => element('div', { class: 'row' }, word('label', key, { for: input.id }), input);
    const form = element(
        'form',
        { class: 'panel', novalidate: '' },
        word('h2', 'banTitle'),
        user.node,
        reason.node,
        labelled('howLong', span),
        element('div', { class: 'check' }, sessions, word('label', 'endSessions', { for: sessions.id })),
        wrong,
        button,
    );
    const select = { text: () => span.value, set: (value) => (span.value = Object.hasOwn(SPANS, value) ? value : 'day') };
    const check = { text: () => (sessions.checked ? 'yes' : 'no'), set: (value) => (sessions.checked = value === 'yes') };
    const typed = typedIn(form, 'flashsale.typed.ban', { user, reason, span: select, sessions: check });
    typed.takeUp();
    function clear() {
        form.reset();
        span.value = 'day';
        typed.forget();
    }
    // Begins to fill it in for somebody: what was typed for another account is not said of this one.
    function begin(whom) {
        if (user.text() !== whom) {
            clear();
            user.set(whom);
            typed.keep();
        }
        reason.control.focus();
        user.control.scrollIntoView({ block: 'center' });
    }
    // `detail` is what the API said itself: that names the field.
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
        const length = SPANS[span.value];
        const body = { user: user.text(), reason: reason.text(), end_sessions: sessions.checked };
        if (length !== null) {
            body.until = new Date(Date.now() + length).toISOString();
        }
        setPressable(button, false);
        setBusy(form, true);
        announce(say('working'));
        const answer = await call('POST', '/v1/admin/bans', { body });
        setPressable(button, true);
        setBusy(form, false);
        complain(answer.isOk ? '' : wordsOf(answer), answer.isOk ? '' : answer.body.detail);
        if (answer.isOk) {
            clear();
            done(say('banned', { user: body.user }));
        }
    });
    return { node: form, begin };
}

export function accountsView(view) {
    const result = resultLine();
    const alerts = alertsTable(50, (user) => form.begin(user));
    const bans = listTable({
        caption: 'bans',
        columns: ['account', 'reason', 'by', 'since', 'until', 'action'],
        path: (last) => `/v1/admin/bans?limit=100${last ? `&starting_after=${encodeURIComponent(last.user)}` : ''}`,
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
        empty: 'noBans',
        every: EVERY_MS,
    });
    async function lift(user, button) {
        if (!(await sure(say('liftBan', { user }), say('liftHint'), say('lift')))) {
            return;
        }
        result.busy();
        setPressable(button, false);
        const answer = await call('POST', '/v1/admin/bans/lift', { body: { user } });
        setPressable(button, true);
        if (answer.isOk) {
            result.good(say('lifted', { user }));
        } else {
            result.bad(answer);
        }
        bans.read();
    }
    const form = banForm((words) => {
        result.good(words);
        bans.read();
    });
    view.append(
        word('h1', 'accounts'),
        result.node,
        element('section', {}, word('h2', 'alerts'), alerts.node),
        element('section', {}, word('h2', 'bans'), bans.node),
        form.node,
    );
    alerts.read();
    bans.read();
    const wanted = new URLSearchParams(location.search).get('ban');
    if (wanted) {
        form.begin(wanted);
        // Loaded anew, the page shows what has been typed since.
        history.replaceState(null, '', location.pathname);
    }
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
