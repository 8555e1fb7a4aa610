// What operators set of a published sale: its message to shoppers, by amendment its name, its times, the rate of its waiting
// room, its texts and those of its items, and the stages of its guards.
// A dialog begins with the present values. A value that the API refuses stays in the dialog, and an unsent one in the tab.

import { now } from './clock.js';
import { call } from './console-api.js';
import { busyWhile, restoreFocus, sure, wordsOf } from './console-dialog.js';
import { begunIn, CONFIGURED, fieldOf, groupOf, localTime } from './console-fields.js';
import { GUARDS, valueText } from './console-guards.js';
import { itemLabel, messageLabel } from './console-names.js';
import { stageFields, stageOf, stageTexts } from './console-stages.js';
import { ITEM_TERMS, ruleOf, TERMS } from './console-terms.js';
import { element } from './dom.js';
import { LANGUAGES, say } from './language.js';

const MESSAGE_MAX = 280;
// Terms of a sale and of its items that may be removed: the API takes an empty text for that.
const REMOVABLE = ['description', 'image_url'];
// Refusals of a value, which the operator can correct.
/** @type {Answer['code'][]} */
const OF_VALUES = ['invalid_request', 'invalid_transition'];
const TIMES = ['starts_at', 'ends_at'];

/** The message in the languages that it has. @param {SaleMessage} message */
export const messageText = (message) => LANGUAGES.flatMap((code) => message[code] || []).join(' · ');

// The values that the operator has changed, an empty text for a removed one; null if there are none. A time in a field has no
// milliseconds, so an untouched one would be an earlier time.
/** @type {(fields: Record<string, Field>, present: Record<string, string>, values: Record<string, any>) => Record<string, any> | null} */
function changedOf(fields, present, values) {
    const changed = Object.entries(values).filter(([member]) => fields[member].text() !== present[member]);
    return changed.length === 0 ? null : Object.fromEntries(changed.map(([member, value]) => [member, value ?? '']));
}

// `path` is the sale's in the API, and `result` shows outcomes. `done` runs after each dialog.
export function changesOf(id, path, result, done) {
    // Values that were typed but not stored.
    const typed = begunIn('flashsale.changes');

    // `fields` begin with the texts of `present`. The tab keeps typed ones under `subject` and their names. `send` gets the
    // values, and resolves to null if there is nothing to send.
    /**
     * @param {HTMLElement} button
     * @param {{ action: string, name: string, text: string, yes: string, subject?: string }} question
     * @param {Record<string, Field>} fields
     * @param {Record<string, string>} present
     * @param {(values: Record<string, any>) => Promise<Answer> | null} send
     */
    async function ask(button, { action, name, text, yes, subject = id }, fields, present, send) {
        for (const [member, field] of Object.entries(fields)) {
            field.set(present[member]);
            // The browser may write a time in its own form.
            present[member] = field.text();
            typed.follow(`${subject} ${member}`, field, present[member]);
        }
        const group = groupOf(fields);
        async function store(values) {
            const sent = send(values);
            if (sent === null) {
                return say('nothingChanged');
            }
            result.busy();
            const answer = await busyWhile(button, button, () => sent);
            if (answer.isOk) {
                Object.keys(fields).forEach((member) => typed.forget(`${subject} ${member}`));
                result.good(say(`did_${action}`));
            } else if (OF_VALUES.includes(answer.code) && group.node.isConnected) {
                result.clear();
                // The API's own text begins with the member, of an item after the item's place.
                const place = /^(?:items\[\d+\]\.)?(\w+)/.exec(answer.body.detail)?.[1] ?? '';
                const isTime = answer.code === 'invalid_transition' && TIMES.includes(place);
                const rule = answer.code === 'invalid_request' ? ruleOf(place) : isTime ? say('mustBeLater') : '';
                return { ...(rule ? { text: rule } : wordsOf(answer)), place };
            } else {
                result.bad(answer);
            }
            return null;
        }
        await sure(say(`sure_${action}`, { name }), text, yes, { field: group, act: store });
        await done();
        restoreFocus(button.id);
    }

    /** @type {(button: HTMLElement, sale: AdminSale) => Promise<void>} */
    function message(button, { name, message: stored }) {
        const fieldIn = (code) =>
            fieldOf({ id: `message-${code}`, label: messageLabel(code), kind: 'text', max: MESSAGE_MAX, mayLack: true });
        const inAll = (textOf) => Object.fromEntries(LANGUAGES.map((code) => [code, textOf(code)]));
        const present = messageText(stored);
        const text = [say('about_message'), present && say('messageNow', { message: present })].join(' ').trim();
        const question = { action: 'message', name, text, yes: say('showIt') };
        const texts = inAll((code) => stored[code] ?? '');
        return ask(button, question, inAll(fieldIn), texts, (values) =>
            call('PUT', `${path}/message`, { body: inAll((code) => values[code] ?? '') }),
        );
    }

    /** @type {(button: HTMLElement, sale: AdminSale) => Promise<void>} */
    function amend(button, { name, description = '', image_url: picture = '', starts_at: starts, ends_at: ends, guards, staged_guards: stages }) {
        /** @type {Record<string, string>} */
        const present = { name, description, image_url: picture, ends_at: localTime(ends) };
        if (Date.parse(starts) > (now() ?? Date.now())) {
            present.starts_at = localTime(starts);
        }
        if (guards.waiting_room || stages?.waiting_room) {
            present.admissions_per_second = String(guards.admissions_per_second);
        }
        const definitions = [...TERMS, ...GUARDS].filter((definition) => definition.name in present);
        /** @type {Record<string, Field>} */
        const fields = {};
        for (const definition of definitions) {
            const mayLack = REMOVABLE.includes(definition.name);
            fields[definition.name] = fieldOf({ ...definition, id: `amend-${definition.name}`, mayLack });
        }
        const question = { action: 'amend', name, text: say('about_amend'), yes: say('doAmend') };
        return ask(button, question, fields, present, (values) => {
            const body = changedOf(fields, present, values);
            return body && call('PATCH', path, { body });
        });
    }

    // Asks which item, if there are several, and then for its texts.
    /** @type {(button: HTMLElement, sale: AdminSale) => Promise<void>} */
    async function amendItem(button, { name: saleName, items }) {
        const which = fieldOf({ id: 'which-item', label: 'theItem', kind: 'choice' });
        which.control.append(...items.map((item, at) => element('option', { value: String(at) }, itemLabel(item))));
        const asked = items.length === 1 || (await sure(say('sureAmendItem', { name: saleName }), say('about_item'), say('goOn'), { field: which }));
        if (asked === false) {
            return;
        }
        const item = items[Number(which.text())];
        const { sku } = item;
        const definitions = ITEM_TERMS.filter(({ name }) => REMOVABLE.includes(name));
        /** @type {Record<string, Field>} */
        const fields = Object.fromEntries(definitions.map((term) => [term.name, fieldOf({ ...term, id: `item-${term.name}` })]));
        const present = Object.fromEntries(definitions.map(({ name }) => [name, item[name] ?? '']));
        const question = { action: 'item', name: itemLabel(item), text: say('about_item'), yes: say('doAmend'), subject: `${id} ${sku}` };
        await ask(button, question, fields, present, (values) => {
            const changed = changedOf(fields, present, values);
            return changed && call('PATCH', path, { body: { items: [{ sku, ...changed }] } });
        });
    }

    // Asks which guard, and then for its stage. The part of the shoppers gets the opposite of a switch for all.
    /** @type {(button: HTMLElement, sale: AdminSale) => Promise<void>} */
    async function tryGuard(button, { name: saleName, guards, staged_guards: stages = {} }) {
        const possible = GUARDS.filter((guard) => guard.layer && (stages[guard.name] || (guard.mayTry?.(guards) ?? true)));
        const options = possible.map((guard) => String(guard.layer));
        const which = fieldOf({ id: 'try-guard', label: 'tryWhich', kind: 'choice', prefix: 'layer', options });
        const layer = await sure(say('sureTryGuard', { name: saleName }), say('about_try'), say('goOn'), { field: which });
        const guard = possible.find((one) => one.layer === layer);
        if (!guard) {
            return;
        }
        const { name, kind, unit } = guard;
        const values = (guard.options ?? []).filter((option) => ![CONFIGURED, 'none'].includes(option));
        const isSwitch = kind === 'switch';
        const switched = stages[name]?.value ?? !guards[name];
        const othersKeep = say('othersKeep', { value: valueText(guard, guards[name]) });
        const text = [say('about_try'), ...(isSwitch ? [say('partGets', { value: valueText(guard, switched) })] : []), othersKeep].join(' ');
        const question = { action: 'try', name: say(`layer_${layer}`), text, yes: say('doTry'), subject: `${id} ${layer}` };
        const fields = stageFields(isSwitch ? null : { ...guard, options: values }, guard.mayShadow ?? false);
        // A guard that is off has no value to begin with.
        const otherwise = kind === 'choice' ? values[0] : guards[name] || '';
        const present = stageTexts(stages[name], otherwise, unit);
        await ask(button, question, fields, present, (typedValues) => {
            const stage = stageOf(isSwitch ? { ...typedValues, value: switched } : typedValues);
            return call('PATCH', path, { body: { guards: { [name]: stage } } });
        });
    }

    return { message, amend, amendItem, tryGuard };
}
