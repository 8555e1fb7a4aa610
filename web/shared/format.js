// Formats numbers and times for people.

import { digitsOf } from './currency.js';
import { form, say } from './language.js';

export function money(minor, currency) {
    try {
        const digits = digitsOf(currency);
        const fraction = { minimumFractionDigits: digits, maximumFractionDigits: digits };
        return new Intl.NumberFormat(form(), { style: 'currency', currency, ...fraction }).format(minor / 10 ** digits);
    } catch {
        // The browser rejects this currency code.
        return `${minor} ${currency}`;
    }
}

// The lowest price of these items.
/** @param {PublicItem[]} items */
export function lowestPrice(items) {
    const [lowest] = [...items].sort((a, b) => a.price_minor - b.price_minor);
    const amount = money(lowest.price_minor, lowest.currency);
    return items.every((item) => item.price_minor === lowest.price_minor) ? amount : say('from', { amount });
}

// With the zone: readers in other zones see these times, too.
/** @type {Intl.DateTimeFormatOptions} */
const MOMENT = {
    year: 'numeric',
    month: 'short',
    day: 'numeric',
    hour: 'numeric',
    minute: '2-digit',
    timeZoneName: 'short',
};

const moments = () => new Intl.DateTimeFormat(form(), MOMENT);

export const moment = (time) => moments().format(new Date(time));

/** The time on the clock, such as 17:28. @param {string | number} time */
const timeOfDay = (time) => new Intl.DateTimeFormat(form(), { timeStyle: 'short' }).format(new Date(time));

/** The time on the clock with seconds. @param {string | number} time */
export const timeExact = (time) => new Intl.DateTimeFormat(form(), { timeStyle: 'medium' }).format(new Date(time));

/** @type {(time: number | string, now: number | null) => boolean} */
export const isToday = (time, now) => now !== null && new Date(time).toDateString() === new Date(now).toDateString();

// Within this time, a clock shows each time only once. Shortly before midnight, "tomorrow" would sound far away.
const NEAR_MS = 12 * 3_600_000;

/** @type {(time: number | string, now: number | null) => boolean} */
const isNear = (time, now) => now !== null && Math.abs(new Date(time).getTime() - now) < NEAR_MS;

/** @type {Intl.DateTimeFormatOptions} */
const HOURS = { hour: 'numeric', minute: '2-digit', timeZoneName: 'short' };

const hours = () => new Intl.DateTimeFormat(form(), HOURS);

// The key of the word for a day, or nothing for one that has only a date.
/** @type {(time: number | string, now: number | null) => string} */
function dayWord(time, now) {
    if (isToday(time, now)) {
        return 'todayAt';
    }
    const tomorrow = new Date(now ?? NaN);
    tomorrow.setDate(tomorrow.getDate() + 1);
    return isToday(time, tomorrow.getTime()) ? 'tomorrowAt' : '';
}

/** @type {(time: string, now: number | null) => string} */
function momentByDay(time, now) {
    const word = dayWord(time, now);
    return word ? say(word, { time: hours().format(new Date(time)) }) : moment(time);
}

// The time within a sentence: today's or a near one is the time on the clock, tomorrow's and any other has its day and zone.
/** @type {(time: number | string, now: number | null) => string} */
export function momentNear(time, now) {
    const word = dayWord(time, now);
    if (word === 'todayAt' || isNear(time, now)) {
        return timeOfDay(time);
    }
    return word ? say('tomorrow', { time: hours().format(new Date(time)) }) : moment(time);
}

const exact = () => new Intl.DateTimeFormat(form(), { dateStyle: 'medium', timeStyle: 'medium' });

export const momentExact = (time) => exact().format(new Date(time));

// From one moment to another. Today and tomorrow are called so.
/** @type {(from: string, to: string, now: number | null) => string} */
export function span(from, to, now) {
    const [first, last] = [dayWord(from, now), dayWord(to, now)];
    if (first !== last) {
        return `${momentByDay(from, now)} – ${momentByDay(to, now)}`;
    }
    const range = (first ? hours() : moments()).formatRange(new Date(from), new Date(to));
    return first ? say(first, { time: range }) : range;
}

// An order's number in short: the last eight characters, which are random. The first name the sale.
/** @type {(id: string) => string} */
export const shortNumber = (id) => `…${id.slice(-8)}`;

const two = (number) => String(number).padStart(2, '0');

// Whole seconds until a time, rounded up: a countdown shows 0 only when it is over.
export function secondsLeft(until, now) {
    return Math.max(0, Math.ceil((until - now) / 1000));
}

// Formats seconds as 4:05 or 1:04:05.
export function clockTime(seconds) {
    const [hours, minutes] = [Math.floor(seconds / 3600), Math.floor(seconds / 60) % 60];
    const start = hours > 0 ? `${hours}:${two(minutes)}` : String(minutes);
    return `${start}:${two(seconds % 60)}`;
}

// Formats a wait roughly, as "about n seconds" or "about n minutes".
export function about(seconds) {
    return seconds < 90 ? say('aboutSeconds', { n: seconds }) : say('aboutMinutes', { n: Math.ceil(seconds / 60) });
}

// Days, hours, minutes and seconds with their names, from the first that is not zero.
export function countdownParts(seconds) {
    /** @type {[number, string][]} */
    const parts = [
        [Math.floor(seconds / 86_400), 'days'],
        [Math.floor(seconds / 3600) % 24, 'hours'],
        [Math.floor(seconds / 60) % 60, 'minutes'],
        [seconds % 60, 'seconds'],
    ];
    const first = parts.findIndex(([number], at) => number > 0 || at === parts.length - 1);
    return parts.slice(first).map(([number, word]) => [two(number), say(word)]);
}
