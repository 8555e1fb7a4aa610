// The limits on shoppers' requests: configured, changed by operators, and in force.

import { call } from './console-api.js';
import { resultLine, sure, wordsOf } from './console-dialog.js';
import { begunIn, fieldOf } from './console-fields.js';
import { listTable, word } from './console-table.js';
import { byId, element, onPress, setAttribute, setPressable, setText } from './dom.js';
import { say } from './language.js';

const EVERY_MS = 5000;
const GUARDS = '/v1/admin/guards';
const NUMBER_MAX = 4_294_967_295;
const RATE_MAX = 1_000_000;
const LOOKS_MAX = 1_000_000;
const LATENCY_MAX_MS = 60_000;
const BAN_SECONDS_MAX = 31_622_400;

const adapts = (effective) => effective.adaptive_max_rate > 0;
const bans = (effective) => effective.browsing_ban_above > 0;

// The bounds of each limit, given the values in force. A limit that is off has no bounds of its own.
const SETTINGS = {
    address_rate: () => [0, RATE_MAX],
    account_rate: () => [0, RATE_MAX],
    instance_rate: () => [0, RATE_MAX],
    shared_rate: () => [0, RATE_MAX],
    adaptive_min_rate: (it) => (adapts(it) ? [1, it.adaptive_max_rate] : [0, RATE_MAX]),
    adaptive_max_rate: () => [0, RATE_MAX],
    adaptive_latency_ms: (it) => (adapts(it) ? [1, LATENCY_MAX_MS] : [0, NUMBER_MAX]),
    adaptive_in_flight: (it) => [adapts(it) ? 1 : 0, NUMBER_MAX],
    browsing_alert_above: () => [0, LOOKS_MAX],
    browsing_ban_above: () => [0, LOOKS_MAX],
    browsing_ban_seconds: (it) => [bans(it) ? 1 : 0, BAN_SECONDS_MAX],
};

export function limitsView(view) {
    const result = resultLine();
    const now = element('p', { class: 'muted', id: 'limits-now' });
    // Values that were typed but are not in force.
    const typed = begunIn('flashsale.limits');
    /** @type {Limits} */
    let last;

    const table = listTable({
        caption: 'limits',
        columns: ['setting', 'configured', 'changed', 'effective', 'action'],
        path: () => GUARDS,
        /** @param {Limits} guards */
        pageOf(guards) {
            last = guards;
            sayNow();
            const data = Object.keys(SETTINGS).map((name) => ({
                name,
                configured: guards.configured[name],
                changed: guards.changed[name] ?? null,
                effective: guards.effective[name],
            }));
            return { data, has_more: false };
        },
        idOf: (entry) => entry.name,
        nameOf: (entry) => `limit-${entry.name}`,
        row: ({ name, configured, changed, effective }) => [
            element('span', {}, say(`set_${name}`), ' ', element('code', {}, name)),
            String(configured),
            changed === null ? '' : String(changed),
            String(effective),
            actionsOf(name, changed !== null),
        ],
        empty: 'loading',
        every: EVERY_MS,
    });

    function sayNow() {
        const { rate, in_flight: n } = last;
        setText(now, rate === 0 ? say('limitsNowAll', { n }) : say('limitsNow', { rate, n }));
    }

    function actionsOf(name, isChanged) {
        const buttons = [buttonOf(name, 'changeIt', 'changeLimit', change)];
        if (isChanged) {
            buttons.push(buttonOf(name, 'takeBack', 'takeBackLimit', takeBack));
        }
        return element('div', { class: 'actions' }, ...buttons);
    }

    function buttonOf(name, key, what, act) {
        const button = element('button', { type: 'button', id: `${key}-${name}` }, say(key));
        setAttribute(button, 'aria-label', say(what, { name: say(`set_${name}`) }));
        // Reads first: another operator may have changed it, and the question shows the current value.
        onPress(button, async () => {
            setPressable(button, false);
            const isRead = await table.read();
            setPressable(button, true);
            if (isRead) {
                await act(name, button);
            }
        });
        return button;
    }

    async function change(name, button) {
        const value = last.effective[name];
        const [min, max] = SETTINGS[name](last.effective);
        const field = fieldOf({ id: 'limit-value', label: 'newValue', kind: 'whole', min, max });
        field.set(typed.get(name) ?? String(value));
        field.control.addEventListener('input', () => typed.set(name, field.text()));
        const words = { name: say(`set_${name}`), value };
        // A refused value stays in the field, so that the operator can correct it.
        const store = async (wanted) => {
            const answer = await patch(button, { [name]: wanted });
            if (answer.isOk) {
                typed.forget(name);
                result.good(say('didLimit', { name: words.name, value: wanted }));
            } else if (answer.code === 'invalid_request' && field.node.isConnected) {
                result.clear();
                return wordsOf(answer);
            } else {
                result.bad(answer);
            }
            return null;
        };
        await sure(say('sureLimit', words), say('aboutLimit', words), say('doChange'), field, store);
        await lookAgain(button.id);
    }

    async function takeBack(name, button) {
        const words = { name: say(`set_${name}`), value: last.configured[name] };
        if (await sure(say('sureTakeBack', words), say('aboutTakeBack', words), say('takeBack'))) {
            const answer = await patch(button, { [name]: null });
            if (answer.isOk) {
                result.good(say('didLimit', words));
            } else {
                result.bad(answer);
            }
        }
        await lookAgain(button.id);
    }

    async function patch(button, changes) {
        result.busy();
        setPressable(button, false);
        const answer = await call('PATCH', GUARDS, { body: changes });
        setPressable(button, true);
        return answer;
    }

    async function lookAgain(id) {
        await table.read();
        if (document.activeElement === document.body) {
            (byId(id) ?? byId('main')).focus();
        }
    }

    view.append(word('h1', 'limits'), word('p', 'limitsHint', { class: 'muted' }), result.node, now, table.node);
    table.read();
    return {
        resume: table.read,
        translate() {
            if (last) {
                sayNow();
            }
            table.again();
        },
    };
}
