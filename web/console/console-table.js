// A list from the API as a table: page by page, looked up again now and then, with what is to be said where it is empty or
// cannot be read.

import { call, isSignedIn } from './console-api.js';
import { wordsOf } from './console-dialog.js';
import { byId, element, onPress, setBusy, setChildren, show } from './dom.js';
import { plainly, worded } from './language.js';
import { write } from './problem.js';

// A name or number from outside, as a cell or a part of one: whatever is in it, it turns nothing around it.
export const code = (text) => element('code', {}, element('bdi', {}, plainly(text)));

// A cell or a heading whose text follows the language.
export const word = (name, key, attributes = {}) => worded(element(name, attributes), key);

// `columns` are the words of the headings, `path(after)` where the page after a row is, `row(entry)` its cells, `idOf(entry)`
// what makes it another row, `every` how often to look again, in milliseconds; where not `mayGrow`, there is one page. Where `path`
// is null, nothing is asked for. `pageOf(body)` is the page in an answer, `nameOf(entry)` the id of a row's element, and `empty` may
// be what tells the word for an empty list. What is looked up by itself is the first page: those behind it stay as they were read,
// unless the first no longer reaches to where they begin. Whoever calls `read` hears whether there was an answer.
export function listTable({ caption, columns, path, row, idOf, empty, every, mayGrow = true, pageOf = (body) => body, nameOf }) {
    const body = element('tbody');
    const head = element('tr', {}, ...columns.map((column) => word('th', column, { scope: 'col' })));
    const table = element(
        'table',
        {},
        word('caption', caption, { class: 'for-readers' }),
        element('thead', {}, head),
        body,
    );
    const emptyWord = typeof empty === 'function' ? empty : () => empty;
    const nothing = word('p', emptyWord(), { class: 'muted' });
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
    let isWhole = false;
    let isAnswered = false;
    // What was read last, and whether more follows it.
    let listed = [];
    let goesOn = false;
    const rows = new Map();
    // Counts what was asked: an answer to something else is dropped.
    let question = 0;

    // Whoever asks while it is looked up waits for a look that began after that.
    function read() {
        isWhole = true;
        return readFirst();
    }

    // The same of the first page alone.
    function readFirst() {
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
            setBusy(node, false);
        }
        if (every && isSignedIn()) {
            timer = setTimeout(() => (document.visibilityState === 'hidden' ? null : readFirst()), every);
        }
        return isAnswered;
    }

    async function lookOnce() {
        const [wanted, asked] = [isWhole ? pages : 1, question];
        isWhole = false;
        if (path() === null) {
            return;
        }
        const found = [];
        let hasMore = true;
        let answer = { isOk: true };
        for (let page = 0; page < wanted && hasMore && answer.isOk; page += 1) {
            answer = await call('GET', path(found.at(-1)));
            if (asked !== question) {
                return;
            }
            if (answer.isOk) {
                const { data, has_more: more } = pageOf(answer.body);
                found.push(...data);
                hasMore = more;
            }
        }
        write(trouble, answer.isOk ? '' : wordsOf(answer, 'lostConsole'));
        isAnswered = answer.isOk;
        if (!answer.isOk) {
            return;
        }
        if (wanted < pages && hasMore) {
            const end = listed.findIndex((entry) => idOf(entry) === idOf(found.at(-1)));
            if (end === -1) {
                // Something has come or gone just there: nobody knows what lies between.
                isWhole = true;
                isStale = true;
                return;
            }
            const ids = new Set(found.map(idOf));
            found.push(...listed.slice(end + 1).filter((entry) => !ids.has(idOf(entry))));
            hasMore = goesOn;
        }
        [listed, goesOn] = [found, hasMore];
        fill(found, hasMore);
    }

    function fill(found, hasMore) {
        const ids = found.map(idOf);
        // Who has the focus on a button keeps it on the one that stands there then.
        const focused = body.contains(document.activeElement) ? document.activeElement.id : '';
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
                rows.set(ids[at], { text, node: element('tr', nameOf ? { id: nameOf(entry) } : {}, ...cells) });
            }
        });
        setChildren(
            body,
            ids.map((id) => rows.get(id).node),
        );
        if (focused !== '' && document.activeElement === document.body) {
            byId(focused)?.focus();
        }
        worded(nothing, emptyWord());
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
            readFirst();
        }
    });
    // Rows have texts of their own, which are made anew in another language.
    const again = () => {
        rows.clear();
        return read();
    };
    // Something else is looked for: nothing of what was found before stays beside it.
    const anew = () => {
        question += 1;
        rows.clear();
        body.replaceChildren();
        [listed, goesOn, pages] = [[], false, 1];
        [nothing, wide, more].forEach((part) => show(part, false));
        write(trouble, '');
        setBusy(node, true);
        return read();
    };
    return { node, read, again, anew };
}
