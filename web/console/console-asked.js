// Describes what operators requested: the terms of a sale, and the requests in the audit log.

import { guardsText } from './console-guards.js';
import { limitText, LIMITS } from './console-limits.js';
import { messageLabel } from './console-names.js';
import { isStage, stageText } from './console-stages.js';
import { ITEM_TERMS, TERMS, termText, timeText } from './console-terms.js';
import { money } from './format.js';
import { apart, LANGUAGES, say } from './language.js';

const isList = (value) => Array.isArray(value);
const isObject = (value) => typeof value === 'object' && value !== null && !isList(value);

const WINDOW = TERMS.find(({ name }) => name === 'purchase_rate.window_ms') ?? { kind: '' };

/** @param {Partial<AdminSale['purchase_rate']>} rate */
export const rateText = ({ limit, window_ms: window }) => say('rateNote', { n: limit, time: termText(WINDOW, window) });

/** An item of a sale, in one line. @param {Partial<Item>} item */
export function itemText(item) {
    if (!isObject(item)) {
        return apart(item);
    }
    const parts = [];
    if (item.name !== undefined) {
        parts.push(apart(item.name));
    }
    if (item.price_minor !== undefined) {
        parts.push(money(Number(item.price_minor), String(item.currency ?? '')));
    }
    if (item.stock !== undefined) {
        parts.push(say('stockNote', { n: item.stock }));
    }
    if (item.per_user_limit !== undefined) {
        parts.push(say('limitNote', { n: item.per_user_limit }));
    }
    for (const { name, label } of ITEM_TERMS.filter(({ mayLack }) => mayLack)) {
        if (item[name] !== undefined) {
            parts.push(`${say(label)}${say('colon')}${apart(item[name] || '–')}`);
        }
    }
    return `${apart(item.sku ?? '–')}${say('colon')}${parts.join(say('comma'))}`;
}

// A query has its values as text.
const yesOrNo = (value) => say(String(value) === 'true' ? 'switch_yes' : 'switch_no');

/** @type {(name: string) => [string, (value: any) => string]} */
function ofLimit(name) {
    const text = (value) => (Number.isInteger(value) && value >= 0 ? limitText(name, value) : value === null ? say('takeBack') : apart(value));
    return [`set_${name}`, (value) => otherText(value, text)];
}

// JSON fields and query parameters with a label of their own, and a formatter where the raw value is not readable.
const MEMBERS = {
    ...Object.fromEntries(LIMITS.map((name) => [name, ofLimit(name)])),
    ...Object.fromEntries(TERMS.map((term) => [term.name, [term.label, (value) => termText(term, value)]])),
    id: ['orderToFind'],
    sale_id: ['sale'],
    state: ['ofState', (value) => termText({ kind: 'choice', prefix: 'ostate' }, value)],
    from: ['fromTime', timeText],
    to: ['toTime', timeText],
    outcome: ['paymentsThatAre', (value) => termText({ kind: 'choice', prefix: 'payment' }, value)],
    settled: ['lettersThatAre', (value) => say(String(value) === 'true' ? 'letters_yes' : 'letters_no')],
    sku: ['sku'],
    quantity: ['restockQuantity'],
    user: ['account'],
    reason: ['reason'],
    reference: ['refundReference'],
    position: ['position'],
    note: ['letterNote'],
    admissions_per_second: ['guardAdmissions'],
    payment_id: ['payment'],
    end_sessions: ['endSessions', yesOrNo],
    limit: ['rowsMax'],
    newest_first: ['newestFirst', yesOrNo],
    starting_after: ['rowsAfter'],
    until: ['until', (value) => (value === null ? say('span_ever') : timeText(value))],
    purchase_rate: ['rateLimit', (value) => (isObject(value) ? rateText(value) : apart(value))],
    guards: ['theGuards', (value) => (isObject(value) ? guardsText(value) : apart(value))],
    items: ['theItems', (value) => (isList(value) ? value.map(itemText).join(say('semicolon')) : apart(value))],
};

// Members that mean another thing in a request for payments.
const OF_PAYMENTS = {
    ...MEMBERS,
    settled: ['ofWhichThose', (value) => say(String(value) === 'true' ? 'settled_yes' : 'settled_no')],
};

// `text` formats a value that is neither a stage nor an object.
function otherText(value, text = apart) {
    if (isStage(value)) {
        return stageText(value.value === undefined ? '' : text(value.value), value);
    }
    return typeof value === 'object' && value !== null ? apart(JSON.stringify(value)) : text(value);
}

// A request from the audit log, with labels for the common fields.
export function requestText(action, detail) {
    const labelled = action === 'payments.read' ? OF_PAYMENTS : MEMBERS;
    const parts = Object.entries(detail).map(([member, value]) => {
        const inLanguage = LANGUAGES.includes(member) ? [messageLabel(member)] : [];
        const [key, format = (other) => otherText(other)] = Object.hasOwn(labelled, member) ? labelled[member] : inLanguage;
        return `${key ? say(key) : apart(member)}${say('colon')}${format(value)}`;
    });
    return parts.join(' · ');
}
