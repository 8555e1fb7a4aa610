// A list from the API as a table: paginated, refreshed from time to time, with texts for an empty list and for a failure.

import { call, isSignedIn } from './console-api.js';
import { wordsOf } from './console-dialog.js';
import { byId, element, onPress, setAttribute, setBusy, setChildren, setText, show } from './dom.js';
import { plainly, say, worded } from './language.js';
import { write } from './problem.js';

// A name or number from outside, for a cell. It is isolated, so that its text direction affects nothing around it.
export const code = (text) => element('code', {}, element('bdi', {}, plainly(text)));

/**
 * A cell or heading that follows the language of the page.
 * @template {keyof HTMLElementTagNameMap} Name
 * @param {Name} name
 * @param {string} key
 * @param {Record<string, string>} attributes
 */
export const word = (name, key, attributes = {}) => worded(element(name, attributes), key);

/**
 * Marks a control with the least role that it needs. The stylesheet hides it from a lesser one.
 * @template {HTMLElement} Control
 * @param {'run' | 'all'} role
 * @param {Control} control
 */
export function needs(role, control) {
    control.dataset.needs = role;
    return control;
}

// A button with a text key.
/** @type {(key: string, attributes: Record<string, string>, act: () => unknown) => HTMLButtonElement} */
export function button(key, attributes, act) {
    const made = word('button', key, { type: 'button', ...attributes });
    onPress(made, act);
    return made;
}

// The button of a row. `label` names the row for screen readers. `act` gets the button.
/** @type {(key: string, label: string, act: (button: HTMLButtonElement) => unknown, id?: string) => HTMLButtonElement} */
export function rowButton(key, label, act, id) {
    const made = element('button', { type: 'button', 'aria-label': label, ...(id ? { id } : {}) }, say(key));
    onPress(made, () => act(made));
    return made;
}

// Whether a cell shows anything to the operator. The stylesheet hides the control that needs another role.
/** @type {(cell: Element) => boolean} */
function isSeen(cell) {
    const control = cell.querySelector(':scope > [data-needs]');
    return cell.textContent !== '' && (control === null || getComputedStyle(control).display !== 'none');
}

// A table with headings, and its body.
export function tableOf(columns, ...before) {
    const body = element('tbody');
    const head = element('tr', {}, ...columns.map((column) => word('th', column, { scope: 'col' })));
    return { body, head, table: element('table', {}, ...before, element('thead', {}, head), body) };
}

// A table that scrolls if it is too wide. `caption` is the text key of its name.
export function wideTableOf(caption, columns) {
    const title = `table-${caption}`;
    const { table, body, head } = tableOf(columns, word('caption', caption, { class: 'for-readers', id: title }));
    const wide = element('div', { class: 'wide', tabindex: '0', role: 'region', 'aria-labelledby': title }, table);
    return { body, head, wide };
}

// Numbers under titles. `update` shows one, and adds it at first.
export function tilesOf() {
    const list = element('dl', { class: 'tiles' });
    const all = new Map();
    function update(name, value, tone = '', link = '') {
        if (!all.has(name)) {
            const text = element(link ? 'a' : 'span', link ? { href: link } : {});
            const node = element('div', {}, word('dt', `tile_${name}`), element('dd', {}, text));
            all.set(name, { node, text });
            list.append(node);
        }
        setText(all.get(name).text, value);
        setAttribute(all.get(name).node, 'class', `tile ${tone}`);
    }
    function remove(name) {
        all.get(name)?.node.remove();
        all.delete(name);
    }
    return { node: list, update, remove };
}

/** A share of a whole. A part is never shown as nothing, nor as the whole. @type {(part: number, whole: number) => string} */
export function percent(part, whole) {
    const tenths = Math.round((1000 * part) / whole);
    const shown = part > 0 && part < whole ? Math.min(Math.max(tenths, 1), 999) : tenths;
    return whole > 0 ? `${shown / 10} %` : '–';
}

// Lists that a view reads together.
export const listsOf = (...lists) => ({
    read: () => Promise.all(lists.map((list) => list.read())),
    again: () => Promise.all(lists.map((list) => list.again())),
});

// The options:
// - `columns`: text keys of the headings;
// - `path()`: address of the first result page, or null to request nothing;
// - `row(entry)`: the cells of a row;
// - `idOf(entry)`: the identity of a row, after which the API continues;
// - `every`: the refresh interval in milliseconds;
// - `mayGrow`: false for a single result page;
// - `pageOf(body)`: the result page in a reply;
// - `nameOf(entry)`: the id of the row's element;
// - `inOrder(a, b)`: the order of the rows, if it is not the API's;
// - `groupOf(entry)`: the text key of the heading above the rows of a group, which follow each other;
// - `empty`: the text key for an empty list, or a function that returns it.
// A refresh reads the first result page only. The later rows stay as read, unless the first page no longer reaches them;
// then all are read.
// `read` resolves to whether the API replied. `hideEmpty` is for a view that changes cells between two reads.
/** @template Entry @param {Listing<Entry>} options */
export function listTable({ caption, columns, path, row, idOf, empty, every, mayGrow = true, pageOf = (body) => body, nameOf, inOrder, groupOf }) {
    const { body, head, wide } = wideTableOf(caption, columns);
    const emptyWord = typeof empty === 'function' ? empty : () => empty;
    const nothing = word('p', emptyWord(), { class: 'muted' });
    const trouble = element('p', { class: 'warning', role: 'status' });
    const more = button('more', { class: 'quiet' }, () => {
        pages += 1;
        read();
    });
    const node = element('div', { class: 'list cards' }, trouble, nothing, wide, more);
    const hide = () => [nothing, wide, more].forEach((part) => show(part, false));
    hide();
    let pages = 1;
    let timer;
    /** @type {Promise<boolean> | null} */
    let reading = null;
    let isStale = false;
    let isWhole = false;
    let isAnswered = false;
    // The rows last read, and whether more follow.
    /** @type {Entry[]} */
    let listed = [];
    let goesOn = false;
    const rows = new Map();
    const headings = new Map();
    // Numbers the searches: a reply to an earlier search is dropped.
    let question = 0;

    // A call during a refresh waits for another read that starts after the call.
    function read() {
        isWhole = true;
        return readFirst();
    }

    // The same for the first result page only.
    function readFirst() {
        isStale = true;
        reading ??= readWhileStale();
        return reading;
    }

    async function readWhileStale() {
        clearTimeout(timer);
        try {
            while (isStale) {
                isStale = false;
                await readOnce();
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

    async function readOnce() {
        const [wanted, asked] = [isWhole ? pages : 1, question];
        isWhole = false;
        if (path() === null) {
            return;
        }
        /** @type {Entry[]} */
        const found = [];
        let hasMore = true;
        /** @type {any} */
        let answer = { isOk: true };
        for (let page = 0; page < wanted && hasMore && answer.isOk; page += 1) {
            const last = found.at(-1);
            answer = await call('GET', path() + (last ? `&starting_after=${encodeURIComponent(idOf(last))}` : ''));
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
            const seam = found.map(idOf).at(-1);
            const end = listed.findIndex((entry) => idOf(entry) === seam);
            if (end === -1) {
                // Rows were added or removed at the seam, so the rows between are unknown.
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

    function fill(all, hasMore) {
        const found = inOrder ? [...all].sort(inOrder) : all;
        const ids = found.map(idOf);
        // A focused button passes its focus to the button that replaces it.
        const focused = body.contains(document.activeElement) ? (document.activeElement?.id ?? '') : '';
        for (const id of rows.keys()) {
            if (!ids.includes(id)) {
                rows.delete(id);
            }
        }
        found.forEach((entry, at) => {
            // The server's time differs in every reply, so it is no change.
            const text = JSON.stringify({ ...entry, server_time: null });
            // An unchanged row keeps its buttons, and with them the focus.
            if (rows.get(ids[at])?.text !== text) {
                const shown = (cell) => (typeof cell === 'string' ? plainly(cell) : (cell ?? ''));
                const cells = row(entry).map((cell, column) => element('td', { 'data-label': say(columns[column]) }, shown(cell)));
                rows.set(ids[at], { text, node: element('tr', nameOf ? { id: nameOf(entry) } : {}, ...cells) });
            }
        });
        setChildren(body, withHeadings(found));
        hideEmpty();
        if (focused !== '' && document.activeElement === document.body) {
            byId(focused)?.focus();
        }
        worded(nothing, emptyWord());
        show(nothing, found.length === 0);
        show(wide, found.length > 0);
        show(more, hasMore && mayGrow);
    }

    // The rows, with a heading above each group.
    function withHeadings(found) {
        let before = '';
        return found.flatMap((entry) => {
            const { node } = rows.get(idOf(entry));
            const group = groupOf?.(entry) ?? '';
            const isFirst = group !== before;
            before = group;
            return isFirst ? [headingOf(group), node] : [node];
        });
    }

    function headingOf(group) {
        if (!headings.has(group)) {
            const cell = word('th', group, { colspan: String(columns.length), scope: 'rowgroup' });
            headings.set(group, element('tr', { class: 'group' }, cell));
        }
        return headings.get(group);
    }

    // Hides the columns in which no row shows anything.
    function hideEmpty() {
        const all = [...rows.values()].map((row) => row.node);
        const shown = columns.filter((_column, at) => {
            const isUsed = all.some((line) => isSeen(line.children[at]));
            [head, ...all].forEach((line) => show(line.children[at], isUsed));
            return isUsed;
        });
        headings.forEach((heading) => setAttribute(heading.firstElementChild, 'colspan', String(shown.length)));
    }

    document.addEventListener('visibilitychange', () => {
        if (document.visibilityState !== 'hidden' && isSignedIn()) {
            readFirst();
        }
    });
    // Rows contain translated texts, so a change of language builds them again.
    const again = () => {
        rows.clear();
        return read();
    };
    // A new search: no row of the earlier search stays.
    const restart = () => {
        question += 1;
        rows.clear();
        body.replaceChildren();
        [listed, goesOn, pages] = [[], false, 1];
        hide();
        write(trouble, '');
        setBusy(node, true);
        return read();
    };
    return { node, read, again, restart, hideEmpty };
}
