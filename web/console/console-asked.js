// Describes what operators requested: the terms of a sale, and the requests in the audit log.

import { guardsTold } from './console-guards.js';
import { momentExact, money } from './format.js';
import { apart, say } from './language.js';

const isList = (value) => Array.isArray(value);
const isObject = (value) => typeof value === 'object' && value !== null && !isList(value);

/** @param {Partial<AdminSale['purchase_rate']>} rate */
export const rateTold = ({ limit, window_ms: window }) => say('rateTold', { n: limit, ms: window });

/** An item of a sale, in one line. @param {Partial<Item>} item */
export function itemTold(item) {
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
    return `${apart(item.sku ?? '–')}: ${parts.join(', ')}`;
}

function timeTold(value) {
    return Number.isNaN(Date.parse(value)) ? apart(value) : momentExact(value);
}

function durabilityTold(value) {
    const told = say(`durability_${value}`);
    return told.startsWith('durability_') ? apart(value) : told;
}

// JSON fields with a label of their own, and a formatter where the raw value is not readable.
const MEMBERS = {
    sku: ['sku'],
    quantity: ['restockQuantity'],
    user: ['account'],
    reason: ['reason'],
    reference: ['refundReference'],
    position: ['position'],
    note: ['letterNote'],
    payment_id: ['payment'],
    name: ['name'],
    starts_at: ['starts', timeTold],
    ends_at: ['ends', timeTold],
    until: ['until', (value) => (value === null ? say('span_ever') : timeTold(value))],
    shards: ['shards'],
    payment_window_seconds: ['paymentWindow'],
    durability: ['durability', durabilityTold],
    purchase_rate: ['rateLimit', (value) => (isObject(value) ? rateTold(value) : apart(value))],
    guards: ['theGuards', (value) => (isObject(value) ? guardsTold(value) : apart(value))],
    items: ['theItems', (value) => (isList(value) ? value.map(itemTold).join('; ') : apart(value))],
};

function otherTold(value) {
    return apart(typeof value === 'object' && value !== null ? JSON.stringify(value) : value);
}

// A request from the audit log, with labels for the common fields.
export const askedTold = (detail) =>
    Object.entries(detail)
        .map(([member, value]) => {
            const [key, tell = otherTold] = Object.hasOwn(MEMBERS, member) ? MEMBERS[member] : [];
            return `${key ? say(key) : apart(member)}: ${tell(value)}`;
        })
        .join(' · ');
