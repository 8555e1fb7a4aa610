// What the guards tell of accounts, and who may not buy.

import { call } from './console-api.js';
import { resultLine, sure } from './console-dialog.js';
import { listTable, word } from './console-table.js';
import { byId, element, onPress, setAttribute, setText } from './dom.js';
import { momentExact } from './format.js';
import { say } from './language.js';

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
            const what = `${say(`alert_${entry.kind}`)}: ${entry.detail}`;
            return [momentExact(entry.raised_at), element('code', {}, entry.user), what, button];
        },
        empty: 'noAlerts',
        every: EVERY_MS,
    });
}

function banForm(done) {
    const user = element('input', { id: 'ban-user', autocomplete: 'off', spellcheck: 'false' });
    const reason = element('input', { id: 'ban-reason', autocomplete: 'off' });
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
        labelled('account', user),
        labelled('reason', reason),
        labelled('howLong', span),
        element('div', { class: 'check' }, sessions, word('label', 'endSessions', { for: sessions.id })),
        wrong,
        button,
    );
    const mark = (input, isWrong) => {
        setAttribute(input, 'aria-invalid', isWrong ? 'true' : 'false');
        setAttribute(input, 'aria-describedby', wrong.id);
    };
    form.addEventListener('submit', async (event) => {
        event.preventDefault();
        const length = SPANS[span.value];
        const body = { user: user.value.trim(), reason: reason.value.trim(), end_sessions: sessions.checked };
        if (length !== null) {
            body.until = new Date(Date.now() + length).toISOString();
        }
        const answer = await call('POST', '/v1/admin/bans', { body });
        const said = answer.isOk ? '' : (answer.body.detail ?? say('unknownAction'));
        setText(wrong, said);
        mark(user, said.startsWith('user'));
        mark(reason, said.startsWith('reason'));
        if (answer.isOk) {
            const banned = user.value.trim();
            form.reset();
            span.value = 'day';
            done(say('banned', { user: banned }));
        } else if (said.startsWith('user')) {
            user.focus();
        } else if (said.startsWith('reason')) {
            reason.focus();
        }
    });
    return form;
}

// Begins to fill in a ban.
function begin(user) {
    byId('ban-user').value = user;
    byId('ban-reason').focus();
    byId('ban-user').scrollIntoView({ block: 'center' });
}

export function accountsView(view) {
    const result = resultLine();
    const alerts = alertsTable(50, begin);
    const bans = listTable({
        caption: 'bans',
        columns: ['account', 'reason', 'by', 'since', 'until', 'action'],
        path: (last) => `/v1/admin/bans?limit=100${last ? `&starting_after=${encodeURIComponent(last.user)}` : ''}`,
        idOf: (entry) => entry.user,
        row(entry) {
            const button = element('button', { type: 'button' }, say('lift'));
            setAttribute(button, 'aria-label', say('liftBan', { user: entry.user }));
            onPress(button, () => lift(entry.user));
            return [
                element('code', {}, entry.user),
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
    async function lift(user) {
        if (!(await sure(say('liftBan', { user }), say('liftHint'), say('lift')))) {
            return;
        }
        result.busy();
        const answer = await call('POST', '/v1/admin/bans/lift', { body: { user } });
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
        form,
    );
    alerts.read();
    bans.read();
    const wanted = new URLSearchParams(location.search).get('ban');
    if (wanted) {
        begin(wanted);
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
