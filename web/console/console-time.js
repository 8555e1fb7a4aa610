// Times in tables: short where the day is today's.

import { now } from './clock.js';
import { element } from './dom.js';
import { isToday, momentExact, timeExact } from './format.js';
import { form } from './language.js';

/** @type {Intl.DateTimeFormatOptions} */
const OTHER_DAY = { year: 'numeric', month: 'short', day: 'numeric', hour: '2-digit', minute: '2-digit' };

const otherDay = (time) => new Intl.DateTimeFormat(form(), OTHER_DAY).format(new Date(time));

// The time in a cell: today's time of day, or a date. The title has it exactly.
export function timeCell(time) {
    const text = isToday(time, now() ?? Date.now()) ? timeExact(time) : otherDay(time);
    return element('time', { datetime: String(time), title: momentExact(time) }, text);
}
