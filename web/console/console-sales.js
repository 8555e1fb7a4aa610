// The console's list of sales, drafts included.

import { listTable, word } from './console-table.js';
import { element } from './dom.js';
import { momentExact } from './format.js';
import { plainly, say } from './language.js';

const EVERY_MS = 5000;

export const statePill = (state) => element('span', { class: `pill is-${state}` }, say(`sale_${state}`));

export function salesView(view) {
    const table = listTable({
        caption: 'sales',
        columns: ['name', 'state', 'starts', 'ends', 'stock', 'shards'],
        path: () => '/v1/admin/sales?limit=50',
        idOf: (sale) => sale.id,
        /** @param {AdminSale} sale */
        row: (sale) => [
            element('a', { href: `/console/sales/${sale.id}` }, element('bdi', {}, plainly(sale.name))),
            statePill(sale.state),
            momentExact(sale.starts_at),
            momentExact(sale.ends_at),
            String(sale.items.reduce((sum, item) => sum + item.stock, 0)),
            String(sale.shards),
        ],
        empty: 'noSalesYet',
        every: EVERY_MS,
    });
    const create = word('a', 'newSale', { class: 'button strong', href: '/console/sales/new' });
    view.append(element('div', { class: 'head' }, word('h1', 'sales'), create), table.node);
    table.read();
    return table;
}
