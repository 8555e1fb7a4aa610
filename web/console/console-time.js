// Times for sentences. Operators in several countries read one sale, so a start or an end names its zone.

import { locale } from './language.js';

const format = (time, options) => new Intl.DateTimeFormat(locale(), options).format(new Date(time));

export const timeOfDay = (time) => format(time, { timeStyle: 'medium' });

/** @type {Intl.DateTimeFormatOptions} */
const WITH_ZONE = { year: 'numeric', month: 'short', day: 'numeric', hour: '2-digit', minute: '2-digit', timeZoneName: 'short' };

export const momentWithZone = (time) => format(time, WITH_ZONE);
