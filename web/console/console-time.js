// Times in tables: short where the day is today's, or with the date in each row.

import { now } from './clock.js';
import { element } from './dom.js';
import { isToday, momentExact, timeExact } from './format.js';
import { form } from './language.js';

/** @type {Intl.DateTimeFormatOptions} */
const WITH_DATE = { year: 'numeric', month: 'short', day: 'numeric', hour: 'numeric', minute: '2-digit' };

const withDate = (time) => new Intl.DateTimeFormat(form(), WITH_DATE).format(new Date(time));

// The title has the time exactly.
const cellOf = (time, text) => element('time', { datetime: String(time), title: momentExact(time) }, text);

// The time in a cell: today's time of day, or a date.
export const timeCell = (time) => cellOf(time, isToday(time, now() ?? Date.now()) ? timeExact(time) : withDate(time));

// The same with the date also of today, for a column whose times are of many days.
export const dateCell = (time) => cellOf(time, withDate(time));
