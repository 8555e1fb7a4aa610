// A sale as a file for calendars (iCalendar, RFC 5545), with a reminder ten minutes before.

import { save } from './save.js';

// 2026-11-22T09:00:00.120Z as 20261122T090000Z.
/** @type {(time: string) => string} */
const stamp = (time) => time.replace(/\.\d+|[-:]/g, '');

/** @type {(text: string) => string} */
const escaped = (text) => text.replace(/[\\;,]/g, '\\$&');

// A line has at most 75 bytes; it goes on in the next one behind a space. Characters outside ASCII have up to four.
/** @type {(line: string) => string} */
function folded(line) {
    const part = /[^ -~]/.test(line) ? /.{18}(?=.)/gsu : /.{74}(?=.)/g;
    return line.replace(part, '$&\r\n ');
}

/** @param {PublicSale} sale */
export function addToCalendar(sale) {
    const address = `${location.origin}/sales/${sale.id}`;
    const lines = [
        'BEGIN:VCALENDAR',
        'VERSION:2.0',
        'PRODID:-//Flashsale//Shop//EN',
        'BEGIN:VEVENT',
        `UID:${sale.id}@${location.hostname}`,
        `DTSTAMP:${stamp(sale.server_time)}`,
        `DTSTART:${stamp(sale.starts_at)}`,
        `DTEND:${stamp(sale.ends_at)}`,
        `SUMMARY:${escaped(sale.name)}`,
        // Some calendars show only the place.
        `LOCATION:${address}`,
        `URL:${address}`,
        'BEGIN:VALARM',
        'ACTION:DISPLAY',
        `DESCRIPTION:${escaped(sale.name)}`,
        'TRIGGER:-PT10M',
        'END:VALARM',
        'END:VEVENT',
        'END:VCALENDAR',
        '',
    ];
    save(new Blob([lines.map(folded).join('\r\n')], { type: 'text/calendar' }), 'sale.ics');
}
