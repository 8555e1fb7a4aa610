// The limits on shoppers' requests: configured, changed by operators, and in force.

import { call } from './console-api.js';
import { busyWhile, restoreFocus, resultLine, sure, wordsOf } from './console-dialog.js';
import { begunIn, fieldOf } from './console-fields.js';
import { listTable, rowButton, word } from './console-table.js';
import { element, setText } from './dom.js';
import { say } from './language.js';

const EVERY_MS = 5000;
const GUARDS = '/v1/admin/guards';
const NUMBER_MAX = 4_294_967_295;
const RATE_MAX = 1_000_000;
const PAGE_VIEWS_MAX = 1_000_000;
const LATENCY_MAX_MS = 60_000;
const BAN_SECONDS_MAX = 31_622_400;

const adapts = (effective) => effective.adaptive_max_rate > 0;
const bans = (effective) => effective.browsing_ban_above > 0;

// Limits on requests a second. The others are switched off by 0.
const RATES = ['address_rate', 'account_rate', 'instance_rate', 'shared_rate'];

// A bare 0 could be read as "lets nobody in".
const limitText = (name, value) => (value !== 0 ? String(value) : say(RATES.includes(name) ? 'noLimit' : 'limitOff'));

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
    browsing_alert_above: () => [0, PAGE_VIEWS_MAX],
    browsing_ban_above: () => [0, PAGE_VIEWS_MAX],
    browsing_ban_seconds: (it) => [bans(it) ? 1 : 0, BAN_SECONDS_MAX],
};

export function limitsView(view) {
    const result = resultLine();
    const now = element('p', { class: 'muted', id: 'limits-now' });
    // Values that were typed but are not in force.
    const typed = begunIn('flashsale.limits');
    /** @type {Guards} */
    let last;

    const table = listTable({
        caption: 'limits',
        columns: ['setting', 'configured', 'changed', 'effective', 'action'],
        path: () => GUARDS,
        /** @param {Guards} guards */
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
            limitText(name, configured),
            changed === null ? '' : limitText(name, changed),
            limitText(name, effective),
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
        // Reads first: another operator may have changed it, and the question shows the current value.
        async function readAndAct(button) {
            if (await busyWhile(button, button, table.read)) {
                await act(name, button);
            }
        }
        return rowButton(key, say(what, { name: say(`set_${name}`) }), readAndAct, `${key}-${name}`);
    }

    async function change(name, button) {
        const value = last.effective[name];
        const [min, max] = SETTINGS[name](last.effective);
        const hint = min > 0 ? undefined : RATES.includes(name) ? 'zeroNoLimit' : 'zeroOff';
        const field = fieldOf({ id: 'limit-value', label: 'newValue', kind: 'whole', min, max, hint });
        typed.follow(name, field, String(value));
        const words = { name: say(`set_${name}`), value: limitText(name, value) };
        // A refused value stays in the field, so that the operator can correct it.
        const store = async (wanted) => {
            result.busy();
            const answer = await busyWhile(button, button, () => patch(name, wanted));
            if (answer.isOk) {
                typed.forget(name);
                result.good(say('didLimit', { name: words.name, value: limitText(name, wanted) }));
            } else if (answer.code === 'invalid_request' && field.node.isConnected) {
                result.clear();
                return wordsOf(answer);
            } else {
                result.bad(answer);
            }
            return null;
        };
        await sure(say('sureLimit', words), say('aboutLimit', words), say('doChange'), { field, act: store });
        await readAgain(button.id);
    }

    async function takeBack(name, button) {
        const words = { name: say(`set_${name}`), value: limitText(name, last.configured[name]) };
        if (await sure(say('sureTakeBack', words), say('aboutTakeBack', words), say('takeBack'))) {
            await result.run(button, () => patch(name, null), () => say('didLimit', words));
        }
        await readAgain(button.id);
    }

    const patch = (name, value) => call('PATCH', GUARDS, { body: { [name]: value } });

    async function readAgain(id) {
        await table.read();
        restoreFocus(id);
    }

    view.append(word('h1', 'limits'), word('p', 'limitsHint', { class: 'muted' }), result.node, now, table.node);
    table.read();
    return {
        read: table.read,
        again() {
            if (last) {
                sayNow();
            }
            table.again();
        },
    };
}
