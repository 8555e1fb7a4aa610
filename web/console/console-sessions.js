// Who is signed in at the console, each session with a button to end it.

import { call, sessionId } from './console-api.js';
import { resultLine, sure } from './console-dialog.js';
import { nameOfOperator } from './console-names.js';
import { listTable, needs, rowButton, word } from './console-table.js';
import { dateCell, timeCell } from './console-time.js';
import { element } from './dom.js';
import { say } from './language.js';

const EVERY_MS = 10_000;
const SESSIONS = '/v1/admin/sessions';

export function sessionsPart() {
    const result = resultLine();

    /** @param {ListedSession} session */
    async function end({ session_id, name, address }, button) {
        if (await sure(say('endSession', { who: name ?? address }), say('endSessionHint'), say('end'))) {
            const send = () => call('POST', `${SESSIONS}/end`, { body: { session_id } });
            await result.run(button, send, () => say('sessionIsEnded'), () => table.read());
        }
    }

    const table = listTable({
        caption: 'sessions',
        columns: ['who', 'fromWhere', 'since', 'lastUsed', 'until', 'action'],
        path: () => SESSIONS,
        idOf: (entry) => entry.session_id,
        /** @param {ListedSession} entry */
        row(entry) {
            const label = say('endSession', { who: entry.name ?? entry.address });
            const isMine = entry.session_id === sessionId();
            const endIt = () => rowButton('end', label, (button) => end(entry, button), `end-${entry.session_id}`);
            return [
                element('span', {}, nameOfOperator(entry.name ?? ''), ` ${entry.session_id.slice(0, 8)}`),
                element('span', { class: 'address' }, entry.address),
                timeCell(entry.created_at),
                // The ledger notes it once a minute, so seconds would say too much.
                dateCell(entry.last_used_at),
                timeCell(entry.expires_at),
                isMine ? say('thisSession') : needs('all', endIt()),
            ];
        },
        empty: 'noSessions',
        every: EVERY_MS,
        mayGrow: false,
    });
    const node = element('section', { class: 'list' }, word('h2', 'sessions'), result.node, table.node);
    return { node, table };
}
