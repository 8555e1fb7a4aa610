// The limits on shoppers' requests: configured, changed by operators, in force, and tried on a part of the shoppers.

import { call } from './console-api.js';
import { busyWhile, restoreFocus, resultLine, sure, wordsOf } from './console-dialog.js';
import { durationText } from './console-duration.js';
import { begunIn, fieldOf, groupOf } from './console-fields.js';
import { grouped } from './console-price.js';
import { SHADOW } from './console-shadow.js';
import { stageFields, stageOf, stageText, stageTexts } from './console-stages.js';
import { listTable, needs, rowButton, word } from './console-table.js';
import { SECOND } from './console-terms.js';
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

// Limits that can have a stage. A guard warning refuses nobody, so its limit has no shadow.
const STAGED = [...RATES, 'browsing_alert_above', 'browsing_ban_above'];
const mayShadow = (name) => name !== 'browsing_alert_above';

// Limits that are durations, with the milliseconds of the API's unit.
const UNITS = { adaptive_latency_ms: 1, browsing_ban_seconds: SECOND };

const typedText = (name, value) => (name in UNITS ? durationText(value * UNITS[name]) : String(value));

// A bare 0 could be read as "lets nobody in".
export function limitText(name, value) {
    if (value === 0) {
        return say(RATES.includes(name) ? 'noLimit' : 'limitOff');
    }
    return name in UNITS ? typedText(name, value) : grouped(value);
}

// What 0 means where it may be typed. Limits without an entry shape the adaptive rate, and are unused while that is off.
const ZERO = {
    ...Object.fromEntries(RATES.map((name) => [name, 'zeroNoLimit'])),
    adaptive_max_rate: 'zeroAdaptive',
    browsing_alert_above: 'zeroWarnings',
    browsing_ban_above: 'zeroBans',
    browsing_ban_seconds: 'unusedBans',
};

// The bounds of each limit in the API's unit, given the values in force. A limit that is off has no bounds of its own.
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

export const LIMITS = Object.keys(SETTINGS);

export function limitsView(view) {
    const result = resultLine();
    const now = element('p', { class: 'muted', id: 'limits-now' });
    // Values that were typed but are not in force.
    const typed = begunIn('flashsale.limits');
    /** @type {Guards} */
    let last;

    const table = listTable({
        caption: 'limits',
        columns: ['setting', 'configured', 'changed', 'effective', 'tried', 'action'],
        path: () => GUARDS,
        /** @param {Guards} guards */
        pageOf(guards) {
            last = guards;
            sayNow();
            const data = LIMITS.map((name) => ({
                name,
                configured: guards.configured[name],
                changed: guards.changed[name] ?? null,
                effective: guards.effective[name],
                stage: guards.staged[name] ?? null,
            }));
            return { data, has_more: false };
        },
        idOf: (entry) => entry.name,
        nameOf: (entry) => `limit-${entry.name}`,
        row: ({ name, configured, changed, effective, stage }) => [
            element('span', {}, say(`set_${name}`), ' ', element('code', {}, name)),
            limitText(name, configured),
            changed === null ? '' : limitText(name, changed),
            limitText(name, effective),
            stage === null ? '' : stageText(limitText(name, stage.value), stage),
            actionsOf(name, changed, stage),
        ],
        empty: 'loading',
        every: EVERY_MS,
    });

    function sayNow() {
        const { rate, in_flight: n } = last;
        setText(now, rate === 0 ? say('limitsNowAll', { n }) : say('limitsNow', { rate, n }));
    }

    function actionsOf(name, changed, stage) {
        const buttons = [buttonOf(name, 'changeIt', 'changeLimit', change)];
        if (STAGED.includes(name)) {
            buttons.push(buttonOf(name, 'tryIt', 'tryLimit', tryOut));
        }
        if (stage !== null && stage.percent > 0) {
            buttons.push(buttonOf(name, 'tryNoMore', 'tryLimitNoMore', tryNoMore));
        }
        if (changed !== null || stage !== null) {
            buttons.push(buttonOf(name, 'takeBack', 'takeBackLimit', takeBack));
        }
        return needs('all', element('div', { class: 'actions' }, ...buttons));
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

    // Asks for a value in the field, or the group of fields, of the dialog, and sends what `wanted` makes of it. A refused
    // value stays there, so that the operator can correct it. `subjects` are the stored typed values, and `done` is the
    // text of a success.
    async function ask(name, button, { question, text, yes, field, subjects, wanted, done }) {
        const store = async (value) => {
            result.busy();
            const answer = await busyWhile(button, button, () => patch(name, wanted(value)));
            if (answer.isOk) {
                subjects.forEach(typed.forget);
                result.good(done(value));
            } else if (answer.code === 'invalid_request' && field.node.isConnected) {
                result.clear();
                return wordsOf(answer);
            } else {
                result.bad(answer);
            }
            return null;
        };
        await sure(question, text, yes, { field, act: store });
        await readAgain(button.id);
    }

    async function change(name, button) {
        const value = last.effective[name];
        const [min, max] = SETTINGS[name](last.effective);
        const hint = min > 0 ? undefined : (ZERO[name] ?? 'unusedAdaptive');
        const kind = name in UNITS ? 'duration' : 'whole';
        const field = fieldOf({ id: 'limit-value', label: 'newValue', kind, unit: UNITS[name], min, max, hint });
        typed.follow(name, field, typedText(name, value));
        const words = { name: say(`set_${name}`), value: limitText(name, value) };
        const about = say('aboutLimit', words);
        await ask(name, button, {
            question: say('sureLimit', words),
            text: last.staged[name] ? `${about} ${say('endsTrial')}` : about,
            yes: say('doChange'),
            field,
            subjects: [name],
            wanted: (typedValue) => typedValue,
            done: (typedValue) => say('didLimit', { name: words.name, value: limitText(name, typedValue) }),
        });
    }

    async function tryOut(name, button) {
        const value = last.effective[name];
        const [min, max] = SETTINGS[name](last.effective);
        const fields = stageFields({ label: 'stageValue', kind: 'whole', min, max }, mayShadow(name));
        // A limit that is off has no value to begin with.
        const texts = stageTexts(last.staged[name], value === 0 ? '' : value);
        const subjectOf = (member) => `${name} ${member}`;
        for (const [member, field] of Object.entries(fields)) {
            typed.follow(subjectOf(member), field, texts[member]);
        }
        const words = { name: say(`set_${name}`), value: limitText(name, value) };
        await ask(name, button, {
            question: say('sure_try', words),
            text: `${say('about_try')} ${say('othersKeep', words)}`,
            yes: say('doTry'),
            field: groupOf(fields),
            subjects: Object.keys(fields).map(subjectOf),
            wanted: stageOf,
            done: (values) => didTry(name, stageOf(values)),
        });
    }

    const didTry = (name, stage) =>
        say('didLimit', { name: say(`set_${name}`), value: stageText(limitText(name, stage.value), stage) });

    // Asks nothing: each shopper gets the value for all again.
    async function tryNoMore(name, button) {
        const stage = { ...last.staged[name], percent: 0 };
        await result.run(button, () => patch(name, { percent: 0 }), () => didTry(name, stage));
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

    view.append(word('h1', 'limits'), word('p', 'limitsHint', { class: 'muted' }), result.node, now, table.node, element('p', {}, word('a', 'toShadow', { href: SHADOW })));
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
