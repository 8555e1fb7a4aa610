// Form fields: a label, a hint and an error text.

import { word } from './console-table.js';
import { element, setAttribute } from './dom.js';
import { say } from './language.js';
import { write } from './problem.js';
import { ofTab } from './storage.js';

// The most unsent dialog values that a tab keeps, per kind.
const BEGUN_MAX = 20;

// The choice that leaves a setting at the instance's default.
export const CONFIGURED = 'configured';

const WHOLE = /^-?\d{1,15}$/;
const two = (number) => String(number).padStart(2, '0');

// Formats an instant for a `datetime-local` input, in the browser's time zone.
export function localTime(instant) {
    const at = new Date(instant);
    const date = `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())}`;
    return `${date}T${two(at.getHours())}:${two(at.getMinutes())}:${two(at.getSeconds())}`;
}

// Parses a typed text into the API's value, with null for empty, or into an error text.
const KINDS = {
    text({ max = 200 }, text) {
        if (text.trim() === '') {
            return { wrong: say('wrongEmpty') };
        }
        return text.length > max ? { wrong: say('wrongLong', { max }) } : { value: text };
    },
    whole({ min, max, mayLack }, text) {
        const number = Number(text);
        if (mayLack && text.trim() === '') {
            return { value: null };
        }
        if (!WHOLE.test(text.trim()) || number < min || number > max) {
            return { wrong: say('wrongNumber', { min, max }) };
        }
        return { value: number };
    },
    time(_field, text) {
        const at = new Date(text);
        return text === '' || Number.isNaN(at.getTime()) ? { wrong: say('wrongTime') } : { value: at.toISOString() };
    },
    choice: (_field, text) => ({ value: text === CONFIGURED ? null : text }),
    switch: (_field, text) => ({ value: text === CONFIGURED ? null : text === 'yes' }),
};

/** @param {Omit<FieldDefinition, 'label'>} definition */
function input({ id, kind, options = [], prefix }) {
    if (kind === 'switch') {
        return input({ id, kind: 'choice', options: [CONFIGURED, 'no', 'yes'], prefix: 'switch' });
    }
    if (kind === 'choice') {
        const select = element('select', { id });
        select.append(...options.map((option) => word('option', `${prefix}_${option}`, { value: option })));
        return select;
    }
    const made = element('input', { id, type: kind === 'time' ? 'datetime-local' : 'text', autocomplete: 'off' });
    if (kind === 'whole') {
        made.inputMode = 'numeric';
    }
    if (kind === 'time') {
        made.step = '1';
    }
    return made;
}

// A select with a label. `prefix` is the key prefix of the option texts.
export function choiceOf({ id, label, prefix, options, value }) {
    const select = element('select', { id });
    select.append(...options.map((option) => word('option', `${prefix}_${option}`, { value: option })));
    select.value = value;
    return { select, row: element('div', { class: 'row' }, word('label', label, { for: id }), select) };
}

// Stores the typed values of a form in this tab, so that they survive a reload. `fields` have `text()` and `set(text)`.
// `takeUp` restores the stored values.
export function typedIn(form, name, fields) {
    const all = Object.entries(fields);
    const keep = () => ofTab.set(name, JSON.stringify(Object.fromEntries(all.map(([key, field]) => [key, field.text()]))));
    form.addEventListener('input', keep);
    return {
        keep,
        takeUp() {
            try {
                const kept = JSON.parse(ofTab.get(name) ?? 'null');
                for (const [key, field] of all.filter(([one]) => typeof kept?.[one] === 'string')) {
                    field.set(kept[key]);
                }
            } catch {
                ofTab.remove(name);
            }
        },
        forget: () => ofTab.remove(name),
    };
}

// Stores unsent dialog values in this tab by subject, so that they survive a reload.
export function begunIn(name) {
    function open() {
        try {
            return new Map(JSON.parse(ofTab.get(name) ?? '[]'));
        } catch {
            return new Map();
        }
    }
    const all = open();
    const keep = () => ofTab.set(name, JSON.stringify([...all].slice(-BEGUN_MAX)));
    return {
        get: (about) => all.get(about),
        set(about, typed) {
            // Moves the entry to the end: the oldest entry is dropped first.
            all.delete(about);
            all.set(about, typed);
            keep();
        },
        forget(about) {
            all.delete(about);
            keep();
        },
    };
}

// `field` has `id`, `label`, `kind`, and what the kind needs:
// - numbers: `min` and `max`, and `mayLack` if the field may stay empty;
// - choices: `options`, and the `prefix` of their texts.
/** @type {(field: FieldDefinition) => Field} */
export function fieldOf(field) {
    const control = input(field);
    const wrong = element('p', { class: 'wrong', id: `${field.id}-wrong` });
    const about = [wrong.id];
    const label = word('label', field.label, { for: field.id });
    /** @type {HTMLElement[]} */
    const parts = [label, control];
    if (field.hint) {
        about.push(`${field.id}-hint`);
        parts.push(word('p', field.hint, { class: 'muted small', id: `${field.id}-hint` }));
    }
    control.setAttribute('aria-describedby', about.join(' '));
    const node = element('div', { class: `row kind-${field.kind}` }, ...parts, wrong);
    const text = () => control.value;
    function complain(words) {
        setAttribute(control, 'aria-invalid', write(wrong, words) === '' ? 'false' : 'true');
    }
    return {
        node,
        control,
        text,
        set: (value) => (control.value = value),
        // The value; undefined after an error is shown.
        read() {
            const { value, wrong: words = '' } = KINDS[field.kind](field, text());
            complain(words);
            return value;
        },
        complain,
    };
}
