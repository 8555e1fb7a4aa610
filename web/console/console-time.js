// Times for sentences.

import { locale } from './language.js';

export const timeOfDay = (time) => new Intl.DateTimeFormat(locale(), { timeStyle: 'medium' }).format(new Date(time));
