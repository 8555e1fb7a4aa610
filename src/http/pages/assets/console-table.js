// A list from the API as a table: page by page, looked up again now and then, with what is to be said where it is empty or
// cannot be read.

import { call, isSignedIn } from './console-api.js';
import { wordsOf } from './console-dialog.js';
import { element, onPress, setChildren, show } from './dom.js';
import { plainly, worded } from './language.js';
import { write } from './problem.js';

// A name or number from outside, as a cell or a part of one: whatever is in it, it turns nothing around it.
export const code = (text) => element('code', {}, element('bdi', {}, plainly(text)));

// A cell or a heading whose text follows the language.
export const word = (name, key, attributes = {}) => worded(element(name, attributes), key);

// `columns` are the words of the headings, `path(after)` where the page after a row is, `row(entry)` its cells, `idOf(entry)`
// what makes it another row, `every` how often to look again, in milliseconds; where not `mayGrow`, there is one page.
export function listTable({ caption, columns, path, row, idOf, empty, every, mayGrow = true }) {
    const body = element('tbody');
    const head = element('tr', {}, ...columns.map((column) => word('th', column, { scope: 'col' })));
    const table = element(
        'table',
        {},
        word('caption', caption, { class: 'for-readers' }),
        element('thead', {}, head),
        body,
    );
    const nothing = word('p', empty, { class: 'muted' });
    const trouble = element('p', { class: 'warning', role: 'status' });
    const more = word('button', 'more', { class: 'quiet', type: 'button' });
    const wide = element('div', { class: 'wide', tabindex: '0', role: 'region' }, table);
    const title = `table-${caption}`;
    table.caption.id = title;
    wide.setAttribute('aria-labelledby', title);
    const node = element('div', { class: 'list' }, trouble, nothing, wide, more);
    show(nothing, false);
    show(more, false);
    show(wide, false);
    let pages = 1;
    let timer = null;
    let reading = null;
    let isStale = false;
    const rows = new Map();

    // Whoever asks while it is looked up waits for a look that began after that.
    function read() {
        isStale = true;
        reading ??= look();
        return reading;
    }

    async function look() {
        clearTimeout(timer);
        try {
            while (isStale) {
                isStale = false;
                await lookOnce();
            }
        } finally {
            reading = null;
        }
        if (every && isSignedIn()) {
            timer = setTimeout(() => (document.visibilityState === 'hidden' ? null : read()), every);
        }
    }

    async function lookOnce() {
        const found = [];
        let hasMore = true;
        let answer = { isOk: true };
        for (let page = 0; page < pages && hasMore && answer.isOk; page += 1) {
            answer = await call('GET', path(found.at(-1)));
            if (answer.isOk) {
                found.push(...answer.body.data);
                hasMore = answer.body.has_more;
            }
        }
        write(trouble, answer.isOk ? '' : wordsOf(answer, 'lostConsole'));
        if (answer.isOk) {
            fill(found, hasMore);
        }
    }

    function fill(found, hasMore) {
        const ids = found.map(idOf);
        for (const id of rows.keys()) {
            if (!ids.includes(id)) {
                rows.delete(id);
            }
        }
        found.forEach((entry, at) => {
            // What changes with every answer is no news.
            const text = JSON.stringify({ ...entry, server_time: null });
            // A row that is as it was keeps its buttons, and the focus that may be on one.
            if (rows.get(ids[at])?.text !== text) {
                const shown = (cell) => (typeof cell === 'string' ? plainly(cell) : (cell ?? ''));
                const cells = row(entry).map((cell) => element('td', {}, shown(cell)));
                rows.set(ids[at], { text, node: element('tr', {}, ...cells) });
            }
        });
        setChildren(
            body,
            ids.map((id) => rows.get(id).node),
        );
        show(nothing, found.length === 0);
        show(wide, found.length > 0);
        show(more, hasMore && mayGrow);
    }

    onPress(more, () => {
        pages += 1;
        read();
    });
    document.addEventListener('visibilitychange', () => {
        if (document.visibilityState !== 'hidden' && isSignedIn()) {
            read();
        }
    });
    // Rows have texts of their own, which are made anew in another language.
    const again = () => {
        rows.clear();
        return read();
    };
    return { node, read, again };
}
