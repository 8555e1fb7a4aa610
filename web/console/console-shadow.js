// Whom guards in shadow would have refused lately, in one sale or in all.

import { saleLink } from './console-names.js';
import { code, listTable, word } from './console-table.js';
import { timeCell } from './console-time.js';
import { element } from './dom.js';
import { say } from './language.js';

const EVERY_MS = 10_000;

export const SHADOW = '/console/shadow';

// The link to the requests of a sale.
export const shadowLink = (sale) => word('a', 'toShadow', { id: 'to-shadow', href: `${SHADOW}?${new URLSearchParams({ sale_id: sale })}` });

export function shadowView(view) {
    const sale = new URLSearchParams(location.search).get('sale_id');
    const query = sale === null ? '' : `?${new URLSearchParams({ sale_id: sale })}`;
    const table = listTable({
        caption: 'shadow',
        columns: ['when', 'tryWhich', 'account', 'clientAddress', ...(sale === null ? ['ofSale'] : [])],
        path: () => `/v1/admin/guards/shadow${query}`,
        idOf: ({ layer, user, address, sale_id: saleId }) => JSON.stringify([layer, user, address, saleId]),
        /** @param {ListedShadowRefusal} entry */
        row: ({ last_at: at, layer, user, address, sale_id: saleId }) => [
            timeCell(at),
            say(`layer_${layer}`),
            user ? element('a', { href: `/console/orders?${new URLSearchParams({ user })}` }, code(user)) : '',
            address ?? '',
            ...(sale === null ? [saleId ? saleLink(saleId) : ''] : []),
        ],
        empty: 'noShadow',
        every: EVERY_MS,
        mayGrow: false,
    });
    const which = sale === null ? [] : [element('p', {}, saleLink(sale), ' · ', word('a', 'shadowOfAll', { href: SHADOW }))];
    view.append(word('h1', 'shadow'), word('p', 'shadowHint', { class: 'muted' }), ...which, table.node);
    table.read();
    return table;
}
