// Stages: a guard's value for a part of the shoppers. Their words, and the fields of their dialogs.

import { durationText } from './console-duration.js';
import { fieldOf } from './console-fields.js';
import { say } from './language.js';

const MEMBERS = ['value', 'percent', 'shadow'];
// A new stage refuses nobody before an operator has seen its counts.
const NEW = { percent: 10, shadow: true };

/** Whether a member of a request is a stage, or a part of one. */
export const isStage = (value) =>
    typeof value === 'object' &&
    value !== null &&
    Object.keys(value).length > 0 &&
    Object.keys(value).every((member) => MEMBERS.includes(member));

// A stage in words. `value` is the text of its value. A part of a stage has fewer words.
/** @type {(value: string, stage: { percent?: number, shadow?: boolean }) => string} */
export function stageText(value, { percent, shadow }) {
    const words = [value];
    if (percent !== undefined) {
        words.push(say('stageFor', { n: percent }));
    }
    if (shadow !== undefined) {
        words.push(say(shadow ? 'effect_shadow' : 'effect_enforced'));
    }
    return words.filter((text) => text !== '').join(say('comma'));
}

// The fields of a stage: `value`, of this definition, unless it is null; `percent`; and `effect` if it may be in shadow.
/** @type {(definition: Omit<FieldDefinition, 'id'> | null, mayShadow: boolean) => Record<string, Field>} */
export function stageFields(definition, mayShadow) {
    /** @type {Record<string, Field>} */
    const fields = {};
    if (definition) {
        fields.value = fieldOf({ ...definition, id: 'stage-value', mayLack: false });
    }
    fields.percent = fieldOf({ id: 'stage-percent', label: 'stagePercent', kind: 'whole', min: 0, max: 100, hint: 'stagePercentHint' });
    if (mayShadow) {
        const options = ['shadow', 'enforced'];
        fields.effect = fieldOf({ id: 'stage-effect', label: 'stageEffect', kind: 'choice', prefix: 'effect', options, hint: 'stageEffectHint' });
    }
    return fields;
}

// The texts of these fields for a stage; for a new one, with the value `otherwise`. A value in `unit` is a duration.
/** @type {(stage: { value: unknown, percent: number, shadow: boolean } | undefined, otherwise: unknown, unit?: number) => Record<string, string>} */
export function stageTexts(stage, otherwise, unit) {
    const { value, percent, shadow } = stage ?? { ...NEW, value: otherwise };
    return { value: unit && value !== '' ? durationText(Number(value) * unit) : String(value), percent: String(percent), effect: shadow ? 'shadow' : 'enforced' };
}

// The stage that these fields say.
/** @type {(values: Record<string, any>) => { value: any, percent: number, shadow: boolean }} */
export const stageOf = ({ value, percent, effect }) => ({ value, percent, shadow: effect === 'shadow' });
