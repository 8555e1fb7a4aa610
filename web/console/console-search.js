// Searches a list of the API by account, sale and time, and by what a page has besides. The address of the page keeps the
// search, and a button saves all that it finds as a file.

import { call } from './console-api.js';
import { onSubmit } from './console-dialog.js';
import { saveFile } from './console-download.js';
import { errorSummary } from './console-errors.js';
import { choiceOf, fieldOf, localTime } from './console-fields.js';
import { button, word } from './console-table.js';
import { element, setAttribute, show } from './dom.js';
import { plainly } from './language.js';
import { write } from './problem.js';

// The fields that the lists have in common.
export function searchFields() {
    // An account id is taken literally, so a trailing blank counts.
    const user = fieldOf({ id: 'find-user', label: 'account', kind: 'text', isExact: true });
    const sale = choiceOf({ id: 'find-sale', label: 'ofSale', prefix: 'ostate', options: [''] });
    const from = fieldOf({ id: 'find-from', label: 'fromTime', kind: 'time', mayLack: true, hint: 'zoneHint' });
    const to = fieldOf({ id: 'find-to', label: 'toTime', kind: 'time', mayLack: true });

    const optionOf = (id) => [...sale.select.options].find((it) => it.value === id);

    function offer(id, name) {
        const known = optionOf(id);
        if (known) {
            known.textContent = plainly(name);
        } else {
            sale.select.append(element('option', { value: id }, plainly(name)));
        }
    }

    return {
        rows: { user: user.node, sale: sale.row, from: from.node, to: to.node },
        /** The parameters of the API, or null after an error is shown. @returns {Record<string, string> | null} */
        read() {
            const times = { from: from.read(), to: to.read() };
            const isWrong = Object.values(times).includes(undefined);
            return isWrong ? null : { user: user.text(), sale_id: sale.select.value, ...times };
        },
        // `asked` has the parameters of the address. The sale that it names is offered at any age.
        takeUp(asked) {
            user.set(asked('user'));
            const id = asked('sale_id');
            if (id && !optionOf(id)) {
                offer(id, id);
            }
            sale.select.value = id;
            from.set(asked('from') && localTime(asked('from')));
            to.set(asked('to') && localTime(asked('to')));
        },
        // Offers the newest sales.
        async offerSales() {
            const answer = await call('GET', '/v1/admin/sales?limit=100');
            if (answer.isOk) {
                answer.body.data.forEach(({ id, name }) => offer(id, name));
            }
        },
    };
}

const asked = (name) => new URLSearchParams(location.search).get(name) ?? '';

// The options:
// - `page`: the path of the page; `list`: that of the list; `file`: the name of its file;
// - `fields`: the common fields; `rows`: the rows of the form, theirs among them;
// - `query(values)`: the parameters of a search by these values of the common fields, where an empty one does not count; or
//   an error text, with `main`, the field to put right;
// - `takeUp(asked)`: fills in what the page has besides, from the address. Returns whether the address has a search;
// - `isTable(query)`: whether the answer to this search may be saved;
// - `restart()`: reads the list of another search.
/** @param {Search} options */
export function searchOf({ page, list, file, fields, rows, main, query, takeUp, isTable = () => true, restart, result }) {
    const wrong = element('p', { class: 'warning', role: 'alert', id: 'find-wrong' });
    const download = button('exportTable', { id: 'download' }, () => saveFile(download, result, `${list}?${wanted}`, file, 'text/csv'));
    show(download, false);
    const form = element(
        'form',
        { class: 'panel', novalidate: '' },
        element('div', { class: 'grid' }, ...rows),
        wrong,
        element('div', { class: 'actions' }, word('button', 'findOrders', { class: 'strong', type: 'submit' }), download),
    );
    const errors = errorSummary(form);
    form.prepend(errors.node);

    // The search; null before the first one.
    /** @type {URLSearchParams | null} */
    let wanted = null;

    // The search as the address has it.
    const inAddress = () => (String(wanted ?? '') === '' ? '' : `?${wanted}`);

    function complain(words) {
        write(wrong, words);
        if (main) {
            const isMain = words !== '' && main.text().trim() !== '';
            setAttribute(main.control, 'aria-invalid', isMain ? 'true' : 'false');
        }
    }

    // Searches by the values in the form. The address keeps the search: in a new entry of the browser's history, or in the
    // present one.
    /** @param {'pushState' | 'replaceState'} keep */
    function search(keep) {
        const values = fields.read();
        if (values === null) {
            complain('');
            errors.update();
            return;
        }
        const parts = query(values);
        if (typeof parts === 'string') {
            complain(parts);
            main?.control.focus();
            return;
        }
        complain('');
        errors.clear();
        wanted = new URLSearchParams(Object.entries(parts).filter(([, value]) => value));
        show(download, isTable(wanted));
        const address = page + inAddress();
        if (address !== location.pathname + location.search) {
            history[keep](null, '', address);
        }
        restart();
    }

    // Searches by the address.
    function readAddress() {
        fields.takeUp(asked);
        if (takeUp(asked)) {
            search('replaceState');
        } else if (wanted !== null) {
            wanted = null;
            complain('');
            show(download, false);
            restart();
        }
    }

    onSubmit(form, () => search('pushState'));
    // A link within the page also gets here.
    window.addEventListener('popstate', () => location.search !== inAddress() && readAddress());
    return {
        form,
        wanted: () => wanted,
        // Searches at once, without an entry in the history: for a choice.
        apply: () => search('replaceState'),
        // Begins with the search of the address. Returns what reads the view again: its table, and the sales to choose from.
        begin(table) {
            readAddress();
            fields.offerSales();
            return {
                read() {
                    fields.offerSales();
                    table.read();
                },
                again: table.again,
            };
        },
    };
}
