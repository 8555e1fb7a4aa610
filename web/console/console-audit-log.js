// The audit log: who did what, when, from which address, and the outcome. It is searched by sale and time, and saved as a
// file. Below it, who is signed in.

import { requestText } from './console-asked.js';
import { resultLine } from './console-dialog.js';
import { isId, nameOfOperator, saleLink } from './console-names.js';
import { searchFields, searchOf } from './console-search.js';
import { sessionsPart } from './console-sessions.js';
import { listsOf, listTable, word } from './console-table.js';
import { timeCell } from './console-time.js';
import { element } from './dom.js';
import { say } from './language.js';
import { meaning } from './problem.js';

const EVERY_MS = 10_000;
const ACTIONS = '/v1/admin/actions';

// An action of a newer instance has no words here.
function actionName(action) {
    const key = `action_${action.replaceAll(/[.-]/g, '_')}`;
    const words = say(key);
    return words === key ? action : words;
}

// An export shows more than a page of the same list, so it is an action of its own.
const EXPORTS = { 'orders.read': 'orders.export', 'payments.read': 'payments.export', 'actions.read': 'actions.export' };
/** @param {Action} entry */
const isExport = ({ action, detail }) => Object.hasOwn(EXPORTS, action) && detail.accept === 'text/csv';

// The sale of an action: that of its path, or the one whose orders or payments were read.
/** @param {Action} entry */
const saleOf = ({ sale_id: sale, detail }) => sale ?? (isId(detail.sale_id) ? String(detail.sale_id) : null);

// What was asked for, without what other columns say.
/** @param {Action} entry */
function askedOf(entry) {
    const elsewhere = [isExport(entry) ? 'accept' : '', saleOf(entry) ? 'sale_id' : ''];
    return Object.fromEntries(Object.entries(entry.detail).filter(([member]) => !elsewhere.includes(member)));
}

// The actor: the name that the operator gave, then the kind of actor and the session that the server recorded.
/** @param {Action} entry */
function whoDid(entry) {
    const session = entry.session_id ? ` ${entry.session_id.slice(0, 8)}` : '';
    const known = say(`actor_${entry.actor}`) + session;
    return entry.operator ? element('span', {}, nameOfOperator(entry.operator), ` · ${known}`) : known;
}

// `sale` limits the log to one sale; without it, the log covers all. `heard` takes the entries as they are read. `wanted`
// returns a search, as parameters of the API.
/** @type {(sale: string | null, heard?: (entries: Action[]) => void, wanted?: () => string) => any} */
export function auditLogTable(sale, heard = () => {}, wanted = () => '') {
    return listTable({
        caption: 'audit-log',
        columns: ['when', 'who', 'fromWhere', 'what', ...(sale ? [] : ['sale']), 'asked', 'cameOut'],
        path: () => `${ACTIONS}?limit=${sale ? `20&sale_id=${sale}` : 100}${wanted() && `&${wanted()}`}`,
        pageOf(body) {
            heard(body.data);
            return body;
        },
        idOf: (entry) => entry.id,
        /** @param {Action} entry */
        row(entry) {
            const outcome = entry.outcome ?? 'unknown';
            const ofSale = saleOf(entry);
            const tone = { done: 'is-available', unknown: 'is-low' }[outcome] ?? '';
            const isKnown = ['done', 'unknown'].includes(outcome);
            const isWrongKey = entry.action === 'session.create' && outcome === 'unauthenticated';
            const why = isWrongKey ? say('wrongKey') : meaning(outcome) || outcome;
            const said = isKnown ? say(`outcome_${outcome}`) : say('outcome_refused', { why });
            return [
                timeCell(entry.begun_at),
                whoDid(entry),
                entry.address ? element('span', { class: 'address' }, entry.address) : '',
                actionName(isExport(entry) ? EXPORTS[entry.action] : entry.action),
                ...(sale ? [] : [ofSale ? saleLink(ofSale) : '']),
                element('span', { class: 'small' }, requestText(entry.action, askedOf(entry))),
                element('span', { class: `pill ${isKnown ? tone : 'is-long'}`, title: outcome }, said),
            ];
        },
        empty: () => (wanted() === '' ? 'noActions' : 'noneFound'),
        every: EVERY_MS,
    });
}

export function auditLogView(view) {
    const fields = searchFields();
    const { rows } = fields;
    const result = resultLine();
    const search = searchOf({
        page: '/console/audit-log',
        list: ACTIONS,
        file: 'audit-log.csv',
        fields,
        rows: [rows.sale, rows.from, rows.to],
        query: ({ sale_id, from, to }) => ({ sale_id, from, to }),
        // Without a search in the address, the list covers all.
        takeUp: () => true,
        restart: () => table.restart(),
        result,
    });
    const table = auditLogTable(null, undefined, () => String(search.wanted() ?? ''));
    const sessions = sessionsPart();
    const hint = word('p', 'auditLogHint', { class: 'muted' });
    view.append(word('h1', 'audit-log'), hint, search.form, result.node, table.node, sessions.node);
    const lists = listsOf(table, sessions.table);
    sessions.table.read();
    return search.begin(lists);
}
