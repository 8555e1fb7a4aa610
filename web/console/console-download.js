// Saves tables of the API as files. No link can ask for a table, so a script reads it and saves it by a link of its own.

import { call } from './console-api.js';
import { busyWhile, wordsOf } from './console-dialog.js';
import { say } from './language.js';
import { save } from './save.js';

// The server allows an export ten minutes.
const TABLE_MS = 600_000;

// `button` is busy meanwhile, `result` shows the outcome, and `name` is the file's.
export async function saveTable(button, result, path, name) {
    result.busy();
    const headers = { Accept: 'text/csv' };
    const answer = await busyWhile(button, button, () => call('GET', path, { headers, isFile: true, patience: TABLE_MS }));
    if (!answer.isOk) {
        result.wrong(wordsOf(answer, 'noAnswerConsole'));
        return;
    }
    save(answer.body, name);
    result.good(say('didDownload', { name }));
}
