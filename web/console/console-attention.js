// The parts of a sale that need an operator: dead letters, and decisions that shards refuse.

import { call, REBUILD_MS } from './console-api.js';
import { resultLine, sure } from './console-dialog.js';
import { begunIn, choiceOf, fieldOf } from './console-fields.js';
import { button, code, listsOf, listTable, needs, rowButton, word } from './console-table.js';
import { timeCell } from './console-time.js';
import { element, setText, setTitle } from './dom.js';
import { apart, plainly, say } from './language.js';
import { english } from './problem.js';

const EVERY_MS = 10_000;
const SETTLED = { no: '&settled=false', yes: '&settled=true', all: '' };
const NOTE_MAX = 200;

// The units that an event or a message concerns, as far as it states them. All of it is text from outside.
function unitsCell({ user, sku, units }) {
    /** @type {(Node | string)[]} */
    const parts = [user, sku].filter((it) => it !== null).map(code);
    if (units !== null) {
        parts.push(`× ${units}`);
    }
    return element('span', {}, ...parts.flatMap((it) => [it, ' ']));
}

export function attentionView(view, id) {
    const path = `/v1/admin/sales/${id}`;
    const settled = choiceOf({
        id: 'settled',
        label: 'lettersThatAre',
        prefix: 'letters',
        options: Object.keys(SETTLED),
        value: 'no',
    });
    const result = resultLine();
    // Notes that were typed but not stored, by event of this sale.
    const typed = begunIn('flashsale.notes');
    const about = (position) => `${id} ${position}`;
    const ofSale = element('bdi', { id: 'of-sale' });
    let name = id;

    const letters = listTable({
        caption: 'deadLetters',
        columns: ['when', 'position', 'says', 'revokedOrder', 'why', 'dealtWith'],
        path: () => `${path}/dead-letters?limit=100${SETTLED[settled.select.value]}`,
        idOf: (entry) => entry.position,
        /** @param {DeadLetter} entry */
        row: (entry) => [
            timeCell(entry.created_at),
            code(entry.position),
            entry.event ? unitsCell({ ...entry.event, units: entry.event.quantity }) : code(entry.bytes),
            entry.order_id ? code(entry.order_id) : '',
            english(entry.reason),
            entry.settled_at
                ? element('span', {}, timeCell(entry.settled_at), ' ', element('bdi', {}, plainly(entry.note)))
                : settleButton(entry),
        ],
        empty: 'noLetters',
        every: EVERY_MS,
    });
    const refused = listTable({
        caption: 'refusedMessages',
        columns: ['since', 'shard', 'what', 'about', 'order', 'why'],
        path: () => `${path}/refused-messages?limit=100`,
        idOf: (entry) => entry.id,
        /** @param {RefusedMessage} entry */
        row: (entry) => [
            timeCell(entry.since),
            String(entry.shard),
            say(`message_${entry.kind ?? 'unknown'}`, { state: say(`order_${entry.order_state}`) }),
            unitsCell(entry),
            entry.order_id ? code(entry.order_id) : '',
            english(entry.failure),
        ],
        empty: 'noRefused',
        every: EVERY_MS,
    });

    const settleButton = ({ position }) =>
        needs('run', rowButton('settleLetter', say('settleThisLetter', { position }), (button) => settle(position, button)));

    async function settle(position, button) {
        const field = fieldOf({ id: 'letter-note', label: 'letterNote', kind: 'text', max: NOTE_MAX });
        typed.follow(about(position), field);
        const note = await sure(say('sureLetter', { position }), say('aboutLetter'), say('doLetter'), { field });
        if (note === false) {
            return;
        }
        await run(button, () => call('POST', `${path}/dead-letters/settle`, { body: { position, note } }), (answer) => {
            typed.forget(about(position));
            return say('didLetter', { position, note: answer.body.note });
        });
    }

    const lists = listsOf(letters, refused);
    const run = (button, request, done) => result.run(button, request, done, lists.read);

    const rebuild = button('rebuild', { class: 'danger', id: 'rebuild', 'data-needs': 'run' }, async () => {
        if (await sure(say('sure_rebuild', { name }), say('about_rebuild'), say('rebuild'), { isDanger: true })) {
            await run(rebuild, () => call('POST', `${path}/rebuild`, { patience: REBUILD_MS }), () => say('did_rebuild'));
        }
    });

    const render = () => setTitle(`${say('attention')} · ${apart(name)} · ${say('console')}`);
    async function learnName() {
        const answer = await call('GET', path);
        if (answer.isOk) {
            name = answer.body.name;
            setText(ofSale, plainly(name));
            render();
        }
    }

    settled.select.addEventListener('change', letters.restart);
    view.append(
        word('h1', 'attention'),
        element('p', {}, ofSale, ' · ', word('a', 'toSale', { href: `/console/sales/${id}` })),
        result.node,
        element('section', { class: 'list', id: 'letters' }, word('h2', 'deadLetters'), word('p', 'deadLettersHint', { class: 'muted' }), settled.row, letters.node),
        element('section', { class: 'list', id: 'refused' }, word('h2', 'refusedMessages'), word('p', 'refusedHint', { class: 'muted' }), element('div', { class: 'actions' }, rebuild), refused.node),
    );
    render();
    learnName();
    lists.read();
    return {
        read: lists.read,
        again() {
            render();
            lists.again();
        },
    };
}
