// Saves tables and reports of the API as files. No link can ask for one, so a script reads it and saves it by a link of its
// own.

import { call } from './console-api.js';
import { busyWhile, wordsOf } from './console-dialog.js';
import { say } from './language.js';
import { save } from './save.js';

// The server allows an export ten minutes.
const FILE_MS = 610_000;

// `button` is busy meanwhile, `result` shows the outcome, `name` is the file's, and `kind` its content type.
export async function saveFile(button, result, path, name, kind) {
    result.busy();
    const headers = { Accept: kind };
    const answer = await busyWhile(button, button, () => call('GET', path, { headers, isFile: true, patience: FILE_MS }));
    if (!answer.isOk) {
        result.wrong(wordsOf(answer, 'noAnswerConsole'));
        return;
    }
    save(answer.body, name);
    result.good(say('didDownload', { name }));
}
