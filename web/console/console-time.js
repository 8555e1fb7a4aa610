// Times in tables, short where the day is today's, or with the date in each row; and when a sale starts and ends.

import { now } from './clock.js';
import { element } from './dom.js';
import { isToday, momentExact, timeExact } from './format.js';
import { form, say } from './language.js';

/** @type {Intl.DateTimeFormatOptions} */
const WITH_DATE = { year: 'numeric', month: 'short', day: 'numeric', hour: 'numeric', minute: '2-digit' };

const withDate = (time) => new Intl.DateTimeFormat(form(), WITH_DATE).format(new Date(time));

// The title has the time exactly.
const cellOf = (time, text) => element('time', { datetime: String(time), title: momentExact(time) }, text);

// The time in a cell: today's time of day, or a date.
export const timeCell = (time) => cellOf(time, isToday(time, now() ?? Date.now()) ? timeExact(time) : withDate(time));

// The same with the date also of today, for a column whose times are of many days.
export const dateCell = (time) => cellOf(time, withDate(time));

/** @typedef {Pick<AdminSale, 'starts_at' | 'ends_at' | 'closed_at'>} SaleTimes */

const plannedEnd = (time) => say('plannedEnd', { time });

/** The end of a sale, in a cell. One that was closed early has its planned end beside it. @param {SaleTimes} sale */
export function endCell({ ends_at: planned, closed_at: closed }) {
    const about = closed ? [' ', element('span', { class: 'muted small' }, plannedEnd(withDate(planned)))] : [];
    return element('span', {}, dateCell(closed ?? planned), ...about);
}

/** From when to when a sale sells, or has sold, with the planned end likewise. @param {SaleTimes} sale */
export function sellingTime({ starts_at: starts, ends_at: planned, closed_at: closed }) {
    const span = `${momentExact(starts)} – ${momentExact(closed ?? planned)}`;
    return closed ? `${span} · ${plannedEnd(momentExact(planned))}` : span;
}
