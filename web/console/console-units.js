// The units of each item, and its money: one bar for all shards, and apart from that one column per shard.
// A column's height is the shard's own units, with its units in transit on top, so an uneven distribution stands out.
// A mark above a column shows that the shard has borrowed units.

import { button, percent, tableOf, word } from './console-table.js';
import { drawn, element, setAttribute, setChildren, setText, show } from './dom.js';
import { money } from './format.js';
import { plainly, say } from './language.js';

const PAGE = 20;
const WIDTH = 600;
const BAR = 20;
const COLUMNS = 60;
const MARK = 6;
// The parts of a bar from the bottom up, with their index in a shard's numbers.
const PARTS = [
    ['sold', 2],
    ['held', 1],
    ['available', 0],
    ['transit', 5],
];
// The most sending shards that are named.
const NAMED_MAX = 5;

/** @typedef {{ shard: number, waiting: number, units: LiveShard['units'] }} ShardUnits the units of an item, or of all, on a shard */

const number = (value) => String(value);

/** Names the shards with units in transit. @param {ShardUnits[]} shards */
function onTheirWay(shards) {
    const sending = shards.filter(({ units }) => units[5] > 0);
    if (sending.length === 0) {
        return '';
    }
    const named = sending.slice(0, NAMED_MAX).map(({ shard, units }) => say('transitFrom', { n: units[5], shard }));
    const list = [...named, ...(sending.length > NAMED_MAX ? ['…'] : [])].join(say('comma'));
    return say('onTheirWay', { list });
}

// One item: its numbers, its money and its bar.
function itemRow(sku) {
    const name = element('h3');
    const large = element('dl', { class: 'large' });
    const values = new Map();
    for (const part of ['sold', 'held', 'available', 'taken']) {
        const value = element('dd');
        const share = element('dd', { class: 'muted small' });
        values.set(part, { value, share });
        large.append(element('div', {}, word('dt', part, { class: 'muted small' }), value, share));
    }
    const numbers = element('p', { class: 'numbers muted small' });
    const bar = drawn('svg', { viewBox: `0 0 ${WIDTH} ${BAR}`, preserveAspectRatio: 'none', class: 'bar', 'aria-hidden': 'true' });
    /** @type {[string, SVGRectElement][]} */
    const segments = ['sold', 'held', 'available', 'transit'].map((part) => {
        const rect = drawn('rect', { y: 0, height: BAR, class: `part-${part}` });
        bar.append(rect);
        return [part, rect];
    });
    const node = element('li', { class: 'panel unit' }, name, large, bar, numbers);

    /** @type {(stats: ItemStats, item: Item | undefined) => void} */
    function update(stats, item) {
        setText(name, item ? `${plainly(item.name)} · ${sku}` : sku);
        setText(numbers, unitsText(stats));
        for (const part of ['sold', 'held', 'available']) {
            setText(values.get(part).value, number(stats[part]));
            setText(values.get(part).share, percent(stats[part], stats.total));
        }
        if (item) {
            const { price_minor: price, currency } = item;
            setText(values.get('taken').value, money(stats.sold * price, currency));
            setText(values.get('taken').share, say('moneyHeld', { amount: money(stats.held * price, currency) }));
        }
        const counts = { sold: stats.sold, held: stats.held, available: stats.available, transit: stats.in_transit };
        const total = Math.max(1, stats.total);
        let from = 0;
        for (const [part, rect] of segments) {
            const width = (WIDTH * Math.max(0, counts[part])) / total;
            setAttribute(rect, 'x', from.toFixed(2));
            setAttribute(rect, 'width', width.toFixed(2));
            from += width;
        }
    }
    return { node, update };
}

const unitsText = (stats) =>
    say('unitNumbers', {
        available: stats.available,
        held: stats.held,
        sold: stats.sold,
        transit: stats.in_transit,
        total: stats.total,
    });

// The shards of one item, or of all.
function shardRow(name) {
    const numbers = element('p', { class: 'numbers' });
    const columns = drawn('svg', { preserveAspectRatio: 'none', class: 'columns', 'aria-hidden': 'true' });
    const frame = element('div', {}, columns);
    const summary = element('p', { class: 'muted small' });
    const details = element('details', {}, word('summary', 'byShard'));
    const { table, body } = tableOf(['shard', 'available', 'held', 'sold', 'sent', 'received', 'transit', 'waitingEvents']);
    details.append(element('div', { class: 'wide', tabindex: '0' }, table));
    const node = element('li', { class: 'panel' }, name, numbers, frame, summary, details);
    let drawnFor = -1;
    let shapes = [];

    /** @param {ShardUnits[]} shards */
    function prepare(shards) {
        if (drawnFor === shards.length) {
            return;
        }
        drawnFor = shards.length;
        const width = WIDTH / shards.length;
        const gap = Math.min(3, width / 4);
        setAttribute(columns, 'viewBox', `0 0 ${WIDTH} ${COLUMNS + MARK}`);
        shapes = shards.map((_shard, at) => {
            const place = { x: at * width + gap / 2, width: width - gap };
            const parts = PARTS.map(([part]) => drawn('rect', { ...place, class: `part-${part}` }));
            const mark = drawn('rect', { ...place, y: 0, height: MARK - 2, class: 'mark' });
            return { parts, mark };
        });
        columns.replaceChildren(...shapes.flatMap(({ parts, mark }) => [...parts, mark]));
        body.replaceChildren();
    }

    /**
     * @param {Omit<ItemStats, 'sku'>} stats
     * @param {ShardUnits[] | null} shards is null if the item has no numbers per shard
     * @param {string} lack is the text key for a sale without shards
     */
    function update(stats, shards, lack) {
        setText(numbers, unitsText(stats));
        show(frame, shards !== null && shards.length > 0);
        show(details, shards !== null && shards.length > 0);
        setText(summary, shards === null ? say('tooManyCells') : shards.length === 0 ? say(lack) : '');
        if (shards !== null && shards.length > 0) {
            prepare(shards);
            updateShards(shards);
        }
    }

    /** @param {ShardUnits[]} shards */
    function updateShards(shards) {
        const heightOf = ({ units }) => PARTS.reduce((sum, [, place]) => sum + Math.max(0, units[place]), 0);
        const highest = Math.max(1, ...shards.map(heightOf));
        shards.forEach(({ units }, at) => {
            let top = COLUMNS + MARK;
            PARTS.forEach(([, place], part) => {
                const height = (COLUMNS * Math.max(0, units[place])) / highest;
                top -= height;
                setAttribute(shapes[at].parts[part], 'y', top.toFixed(2));
                setAttribute(shapes[at].parts[part], 'height', height.toFixed(2));
            });
            // The CSS hides the mark of a shard that has borrowed nothing.
            setAttribute(shapes[at].mark, 'class', units[4] > 0 ? 'mark' : 'mark is-none');
        });
        const free = shards.map(({ units }) => units[0]);
        const borrowing = shards.filter(({ units }) => units[4] > 0).length;
        const sums = say('shardSummary', { low: Math.min(...free), high: Math.max(...free), n: borrowing });
        setText(summary, [sums, onTheirWay(shards)].filter(Boolean).join(' '));
        if (details.open) {
            const rows = shards.map(({ shard, units, waiting }, at) => {
                const cells = [shard, ...units, waiting].map(number);
                const row = body.children[at] ?? element('tr', {}, ...cells.map(() => element('td')));
                cells.forEach((text, place) => setText(row.children[place], text));
                return row;
            });
            setChildren(body, rows);
        }
    }

    return { node, update };
}

/** Sums all items. @param {ItemStats[]} items */
function sumOf(items) {
    const sum = { available: 0, held: 0, sold: 0, in_transit: 0, total: 0 };
    for (const item of items) {
        Object.keys(sum).forEach((part) => {
            sum[part] += item[part];
        });
    }
    return sum;
}

// `node` has the items, and `shards` the shards. `learn` takes the sale's terms.
export function unitsOf() {
    const list = element('ul', { class: 'units' });
    const taken = element('p', { class: 'numbers', id: 'taken' });
    const shardList = element('ul', { class: 'units' });
    const more = button('more', { class: 'quiet' }, () => {
        shown += PAGE;
        update(last);
    });
    show(more, false);
    const key = element('ul', { class: 'legend' });
    for (const part of ['sold', 'held', 'available', 'transit']) {
        key.append(element('li', { class: `key-${part}` }, word('span', part)));
    }
    const mark = element('ul', { class: 'legend' }, element('li', { class: 'key-mark' }, word('span', 'borrowed')));
    const noNumbers = word('p', 'noNumbers', { class: 'muted' });
    const node = element('section', { class: 'list' }, word('h2', 'units'), noNumbers, taken, key, list, more);
    const shardsNode = element('section', { class: 'list' }, word('h3', 'byShards'), mark, shardList);
    showNumbers(false);
    const rows = new Map();
    const together = shardRow(word('h4', 'allItems'));
    /** @type {Map<string, Item>} */
    let terms = new Map();
    let shown = PAGE;
    let last;

    // Without numbers, a sentence stands in place of legends of nothing.
    function showNumbers(areThere) {
        show(noNumbers, !areThere);
        show(key, areThere);
        show(shardsNode, areThere);
    }

    /** @param {LiveStock & { state?: SaleState }} sale */
    function update(sale) {
        last = sale;
        showNumbers(true);
        const items = sale.items.slice(0, shown);
        const isWhole = sale.shards.every(({ items: cells }) => cells !== null);
        // A sale has no shards before its preload, and none after its stock is put away.
        const lack = sale.state === 'draft' ? 'notLoaded' : 'putAway';
        const shards = (unitsIn) =>
            sale.shards.map((shard) => ({ shard: shard.shard, waiting: shard.undrained_events, units: unitsIn(shard) }));
        for (const item of items) {
            if (!rows.has(item.sku)) {
                rows.set(item.sku, { item: itemRow(item.sku), shards: shardRow(element('h4', {}, item.sku)) });
            }
            const own = isWhole ? shards(({ items: cells }) => cells[item.sku] ?? [0, 0, 0, 0, 0, 0]) : null;
            rows.get(item.sku).item.update(item, terms.get(item.sku));
            rows.get(item.sku).shards.update(item, own, lack);
        }
        if (!isWhole) {
            together.update(sumOf(sale.items), shards(({ units }) => units), lack);
        }
        setText(taken, takenText(sale.items));
        setChildren(
            list,
            items.map((item) => rows.get(item.sku).item.node),
        );
        setChildren(shardList, isWhole ? items.map((item) => rows.get(item.sku).shards.node) : [together.node]);
        show(more, sale.items.length > shown);
    }

    // The money of all items, by currency.
    function takenText(items) {
        const sums = new Map();
        for (const { sku, sold, held } of items) {
            const item = terms.get(sku);
            if (item) {
                const sum = sums.get(item.currency) ?? { sold: 0, held: 0 };
                const { price_minor: price } = item;
                sums.set(item.currency, { sold: sum.sold + sold * price, held: sum.held + held * price });
            }
        }
        return [...sums]
            .map(([currency, { sold, held }]) =>
                say('moneyTaken', { amount: money(sold, currency), held: money(held, currency) }),
            )
            .join(' ');
    }

    /** @param {Item[]} items */
    function learnTerms(items) {
        terms = new Map(items.map((item) => [item.sku, item]));
        if (last) {
            update(last);
        }
    }
    return { node, shards: shardsNode, update, learn: learnTerms };
}
