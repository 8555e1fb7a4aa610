// Saves tables of the API as files. No link can ask for a table, so a script reads it and saves it by a link of its own.

import { call, REPORT_MS } from './console-api.js';
import { element } from './dom.js';
import { say } from './language.js';

// How long the browser may take to begin the file.
const KEPT_MS = 60_000;

// `result` shows what comes of the press of `button`. `name` is the file's.
export function saveTable(button, result, path, name) {
    const read = () => call('GET', path, { headers: { Accept: 'text/csv' }, isText: true, patience: REPORT_MS });
    return result.run(button, read, ({ body }) => {
        const address = URL.createObjectURL(new Blob([body], { type: 'text/csv' }));
        element('a', { href: address, download: name }).click();
        setTimeout(() => URL.revokeObjectURL(address), KEPT_MS);
        return say('didDownload', { name });
    });
}
