// The guards of a sale: their fields in the form, and their words where they are on or have a stage.

import { CONFIGURED } from './console-fields.js';
import { isStage, stageText } from './console-stages.js';
import { word } from './console-table.js';
import { SECOND, termText } from './console-terms.js';
import { element } from './dom.js';
import { say } from './language.js';

const asksFor = (challenge) => (guards) => guards.challenge === challenge;

// `isOn` and `on` give the words of an enabled guard; the words may use `n`, its value, and the values of `others`.
// Guards that the form leaves out take the instance's defaults. A guard that can have a stage has the `layer` that counts its
// refusals; `mayShadow` if the stage may be in shadow, and `mayTry` if it depends on the guards for all.
// `zero` is the key of the words for 0.
export const GUARDS = [
    { name: 'purchase_token', label: 'guardToken', kind: 'switch', on: 'on_token', layer: 'purchase_token', mayShadow: true },
    {
        name: 'challenge',
        label: 'guardChallenge',
        kind: 'choice',
        prefix: 'challenge',
        options: [CONFIGURED, 'none', 'proof_of_work', 'captcha'],
        hint: 'challengeHint',
        isOn: asksFor('captcha'),
        on: 'on_captcha',
        layer: 'challenge',
        mayShadow: true,
        mayTry: (guards) => guards.purchase_token && guards.challenge === 'none',
    },
    {
        name: 'proof_cost',
        label: 'guardProofCost',
        kind: 'whole',
        min: 1,
        max: 1_000_000,
        mayLack: true,
        isOn: asksFor('proof_of_work'),
        on: 'on_proof',
    },
    {
        name: 'captcha_proof_cost',
        label: 'guardCaptchaProof',
        kind: 'whole',
        min: 0,
        max: 1_000_000,
        mayLack: true,
        hint: 'proofHint',
        zero: 'limitOff',
        isOn: (guards) => guards.challenge === 'captcha' && guards.captcha_proof_cost > 0,
        on: 'on_captcha_proof',
    },
    {
        name: 'holds_max',
        label: 'guardHolds',
        kind: 'whole',
        min: 0,
        max: 100_000,
        mayLack: true,
        on: 'on_holds',
        layer: 'holds',
        zero: 'noLimit',
    },
    {
        name: 'unpaid_cooldown_seconds',
        label: 'guardCooldown',
        kind: 'duration',
        unit: SECOND,
        min: 0,
        max: 86_400,
        mayLack: true,
        on: 'on_cooldown',
        layer: 'cooldown',
        zero: 'limitOff',
    },
    {
        name: 'waiting_room',
        label: 'guardRoom',
        kind: 'switch',
        on: 'on_room',
        others: ['admissions_per_second', 'admission_seconds'],
        layer: 'waiting_room',
        mayShadow: true,
        isWide: true,
    },
    { name: 'admissions_per_second', label: 'guardAdmissions', kind: 'whole', min: 1, max: 1_000_000, mayLack: true },
    { name: 'admission_seconds', label: 'guardAdmissionTime', kind: 'duration', unit: SECOND, min: 10, max: 86_400, mayLack: true },
];

const isAbove0OrTrue = (value) => value === true || value > 0;

// The value of a guard in words. A bare 0 could be read as "lets nobody in".
export function valueText(definition, value) {
    if (typeof value === 'boolean') {
        return say(value ? 'switch_yes' : 'switch_no');
    }
    return value === 0 && definition.zero ? say(definition.zero) : termText(definition, value);
}

// The value of a stage in words; of a switch that is on, none.
const stagedValue = (definition, value) => (value === undefined || value === true ? '' : valueText(definition, value));

// The enabled guards of a sale and its stages, each in words. A request may have a stage in the place of a guard, or null to
// end it.
/** @type {(guards: Partial<AdminSale['guards']>, stages?: Record<string, any>) => string} */
export function guardsText(guards, stages = guards) {
    const texts = [];
    // A request may leave a value as configured.
    const textOf = (name) => {
        const definition = GUARDS.find((guard) => guard.name === name) ?? { kind: '' };
        return (guards[name] ?? null) === null ? say('asConfigured') : termText(definition, guards[name]);
    };
    for (const { name, on, isOn = (of) => isAbove0OrTrue(of[name]), others = [] } of GUARDS) {
        if (on && isOn(guards)) {
            const values = Object.fromEntries(others.map((it) => [it, textOf(it)]));
            texts.push(say(on, { n: textOf(name), ...values }));
        }
    }
    const parts = texts.length > 0 ? [texts.join(say('comma'))] : [];
    for (const definition of GUARDS.filter(({ layer }) => layer)) {
        const stage = stages[definition.name];
        if (stage === null || isStage(stage)) {
            const text = stage === null ? say('stageEnded') : stageText(stagedValue(definition, stage.value), stage);
            parts.push(`${say(`layer_${definition.layer}`)}${say('colon')}${text}`);
        }
    }
    return parts.join(say('semicolon')) || say('on_none');
}

// The refusals of each guard as the entries of a list, and what guards in shadow would have refused.
/** @type {(stopped: Record<string, number>, wouldStop?: Record<string, number>) => HTMLElement[]} */
export function stoppedEntries(stopped, wouldStop = {}) {
    const rowOf = (name, count) => element('li', {}, `${name} `, element('b', {}, String(count)));
    const rows = Object.entries(stopped).map(([layer, count]) => rowOf(say(`layer_${layer}`), count));
    const shadows = Object.entries(wouldStop).map(([layer, count]) => rowOf(say('inShadow', { layer: say(`layer_${layer}`) }), count));
    const all = [...rows, ...shadows];
    return all.length > 0 ? all : [word('li', 'noneRefused')];
}
