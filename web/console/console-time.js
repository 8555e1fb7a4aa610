// Times for tables and sentences: short where the day is today's. Operators in several countries read one sale, so a start or an end names its zone.

import { now } from './clock.js';
import { element } from './dom.js';
import { momentExact } from './format.js';
import { locale } from './language.js';

const format = (time, options) => new Intl.DateTimeFormat(locale(), options).format(new Date(time));

export const timeOfDay = (time) => format(time, { timeStyle: 'medium' });

/** @type {Intl.DateTimeFormatOptions} */
const WITH_ZONE = { year: 'numeric', month: 'short', day: 'numeric', hour: '2-digit', minute: '2-digit', timeZoneName: 'short' };

export const momentWithZone = (time) => format(time, WITH_ZONE);

/** @type {Intl.DateTimeFormatOptions} */
const OTHER_DAY = { year: 'numeric', month: 'short', day: 'numeric', hour: '2-digit', minute: '2-digit' };

const isToday = (time) => new Date(time).toDateString() === new Date(now() ?? Date.now()).toDateString();

// The time in a cell: today's time of day, or a date. The title has it exactly.
export const timeCell = (time) =>
    element('time', { datetime: String(time), title: momentExact(time) }, isToday(time) ? timeOfDay(time) : format(time, OTHER_DAY));
