// Form fields: a label, a hint and an error text.

import { durationOf, durationText } from './console-duration.js';
import { grouped, minorOf, priceText, strangeSign, wholeOf } from './console-price.js';
import { word } from './console-table.js';
import { element, setAttribute } from './dom.js';
import { say } from './language.js';
import { write } from './problem.js';
import { mapOfTab, ofTab, readOfTab } from './storage.js';

// The most unsent dialog values that a tab keeps, per kind.
const BEGUN_MAX = 20;

// The choice that leaves a setting at the instance's default.
export const CONFIGURED = 'configured';

const two = (number) => String(number).padStart(2, '0');

// Formats an instant for a `datetime-local` input, in the browser's time zone.
export function localTime(instant) {
    const at = new Date(instant);
    const date = `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())}`;
    return `${date}T${two(at.getHours())}:${two(at.getMinutes())}:${two(at.getSeconds())}`;
}

function readText({ max = 200, mayLack, pattern, must }, text) {
    if (text.trim() === '') {
        return mayLack ? { value: null } : { wrong: say('wrongEmpty') };
    }
    if (pattern && !pattern.test(text)) {
        return { wrong: say(must) };
    }
    return text.length > max ? { wrong: say('wrongLong', { max }) } : { value: text };
}

// Parses a typed text into the API's value, with null for empty, or into an error text.
const KINDS = {
    text: readText,
    lines: readText,
    whole({ min, max, mayLack }, text) {
        if (mayLack && text.trim() === '') {
            return { value: null };
        }
        const number = wholeOf(text);
        if (number === null || number < min || number > max) {
            return { wrong: say('wrongNumber', { min: grouped(min), max: grouped(max) }) };
        }
        return { value: number };
    },
    price({ min, max, currency }, text) {
        const sign = strangeSign(text, currency());
        if (sign !== '') {
            return { wrong: say('wrongSign', { sign, currency: currency() }) };
        }
        const minor = minorOf(text, currency());
        if (minor === null || minor < min || minor > max) {
            const [example, large, most] = [49_900, 129_900, max].map((price) => grouped(priceText(price, currency())));
            return { wrong: say('wrongPrice', { example, large, most }) };
        }
        return { value: minor };
    },
    duration({ min, max, unit, mayLack }, text) {
        if (mayLack && text.trim() === '') {
            return { value: null };
        }
        const value = (durationOf(text) ?? NaN) / unit;
        if (!Number.isInteger(value) || value < min || value > max) {
            return { wrong: say('wrongDuration', { min: durationText(min * unit), max: durationText(max * unit) }) };
        }
        return { value };
    },
    time({ mayLack }, text) {
        if (mayLack && text === '') {
            return { value: null };
        }
        const at = new Date(text);
        return text === '' || Number.isNaN(at.getTime()) ? { wrong: say('wrongTime') } : { value: at.toISOString() };
    },
    choice: (_field, text) => ({ value: text === CONFIGURED ? null : text }),
    switch: (_field, text) => ({ value: text === CONFIGURED ? null : text === 'yes' }),
};

/** @param {Omit<FieldDefinition, 'label'>} definition */
function input({ id, kind, options = [], prefix, isExact }) {
    if (kind === 'switch') {
        return input({ id, kind: 'choice', options: [CONFIGURED, 'no', 'yes'], prefix: 'switch' });
    }
    if (kind === 'choice') {
        return selectOf({ id, prefix, options });
    }
    if (kind === 'lines') {
        return element('textarea', { id, rows: '4' });
    }
    const made = element('input', { id, type: kind === 'time' ? 'datetime-local' : 'text', autocomplete: 'off' });
    if (kind === 'whole') {
        made.inputMode = 'numeric';
    }
    if (kind === 'price') {
        made.inputMode = 'decimal';
    }
    if (isExact) {
        made.spellcheck = false;
    }
    if (kind === 'time') {
        made.step = '1';
    }
    return made;
}

// `prefix` is the key prefix of the option texts. An empty option stands for any.
function selectOf({ id, prefix, options }) {
    return element('select', { id }, ...options.map((value) => word('option', `${prefix}_${value || 'any'}`, { value })));
}

// A select with a label.
export function choiceOf({ id, label, prefix = '', options, value = options[0] }) {
    const select = selectOf({ id, prefix, options });
    select.value = value;
    return { select, row: element('div', { class: 'row' }, word('label', label, { for: id }), select) };
}

// The texts of fields by their names, from a map or entries.
/** @type {(fields: Iterable<[string, Pick<Field, 'text'>]>) => Record<string, string>} */
export const textsIn = (fields) => Object.fromEntries([...fields].map(([name, field]) => [name, field.text()]));

// Sets the texts of fields; a missing text is empty.
/** @type {(fields: Iterable<[string, { set(text: string): unknown }]>, texts: Record<string, string>) => void} */
export function setTexts(fields, texts) {
    for (const [name, field] of fields) {
        field.set(texts[name] ?? '');
    }
}

// Stores the typed values of a form in this tab, so that they survive a reload. `fields` have `text()` and `set(text)`.
// `takeUp` restores the stored values.
export function typedIn(form, name, fields) {
    const all = Object.entries(fields);
    const keep = () => ofTab.set(name, JSON.stringify(textsIn(all)));
    form.addEventListener('input', keep);
    return {
        keep,
        takeUp() {
            const kept = readOfTab(name);
            if (kept) {
                setTexts(all, kept);
            }
        },
        forget: () => ofTab.remove(name),
    };
}

// Stores unsent dialog values in this tab by subject, so that they survive a reload.
export function begunIn(name) {
    const all = mapOfTab(name, BEGUN_MAX);
    return {
        ...all,
        // Restores the value of a subject in its field, and stores what is typed there from now on.
        follow(about, field, otherwise = '') {
            field.set(all.get(about) ?? otherwise);
            field.control.addEventListener('input', () => all.set(about, field.text()));
        },
    };
}

// Several fields as the one of a dialog. Its value has theirs by name; it is undefined if one has none. An error text shows
// at the field of its `place`.
/** @param {Record<string, Field>} fields */
export function groupOf(fields) {
    const all = Object.values(fields);
    return {
        node: element('div', { class: 'list' }, ...all.map(({ node }) => node)),
        // The first that has to be put right, or else the first.
        get control() {
            return (all.find(({ control }) => control.getAttribute('aria-invalid') === 'true') ?? all[0]).control;
        },
        read() {
            const values = Object.entries(fields).map(([name, field]) => [name, field.read()]);
            return values.some(([, value]) => value === undefined) ? undefined : Object.fromEntries(values);
        },
        /** @param {string | Words} words */
        complain(words) {
            const place = (typeof words === 'string' ? null : words.place) ?? '';
            (fields[place] ?? all[0]).complain(words);
        },
    };
}

// `field` has `id`, `label`, `kind`, and what the kind needs:
// - numbers: `min` and `max`;
// - prices: `min` and `max` in the smallest unit, and `currency()`;
// - durations: `min` and `max` in the API's unit, and `unit`, its milliseconds;
// - choices: `options`, and the `prefix` of their texts;
// - texts of one line or of several (`lines`): `max`; `isExact` for an identifier, which the browser must not
//   spell-check; and a `pattern`, with `must`, the key of its rule.
// A number or a text has `mayLack` if the field may stay empty. A field that `isWide` fills a row of the sale's form.
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
    const node = element('div', { class: `row kind-${field.kind}${field.isWide ? ' is-wide' : ''}` }, ...parts, wrong);
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
