// The items of one group as one card: the shopper chooses one of its options, and its item's own card opens.

import { element, setAttribute, setChildren, setText, show } from './dom.js';
import { lowestPrice } from './format.js';
import { say } from './language.js';
import { picture, showDescription, showPicture } from './look.js';

// Items in their order; those of one group together, at the place of the first.
/** @param {PublicItem[]} items */
export function grouped(items) {
    /** @type {Map<string, PublicItem[]>} */
    const groups = new Map();
    /** @type {PublicItem[][]} */
    const parts = [];
    for (const item of items) {
        const group = item.group === undefined ? undefined : groups.get(item.group);
        if (group) {
            group.push(item);
            continue;
        }
        const part = [item];
        parts.push(part);
        if (item.group !== undefined) {
            groups.set(item.group, part);
        }
    }
    return parts;
}

// One option, as a radio button.
/** @type {(group: string, sku: string, choose: () => void) => { label: HTMLElement, update: (variant: Variant, isOpen: boolean, isChosen: boolean) => void }} */
function optionOf(group, sku, choose) {
    const radio = element('input', { type: 'radio', name: group, value: sku });
    const name = element('span');
    const mark = element('small');
    const label = element('label', {}, radio, name, mark);
    radio.addEventListener('change', choose);
    function update({ item, hasAll }, isOpen, isChosen) {
        const left = hasAll && item.availability === 'sold_out' ? 'available' : item.availability;
        const isMarked = isOpen && left !== 'available';
        setText(name, item.option ?? item.name);
        setText(mark, isMarked ? say(`left_${left}`) : '');
        show(mark, isMarked);
        setAttribute(label, 'class', `option is-${left}`);
        radio.checked = isChosen;
    }
    return { label, update };
}

// `changed`: called when the shopper has chosen.
/** @type {(id: string, changed: () => void) => { card: HTMLElement, update: (sale: PublicSale, variants: Variant[]) => void }} */
export function groupCard(id, changed) {
    const image = picture();
    const name = element('h3', { id });
    const price = element('p', { class: 'price' });
    const legend = element('legend', { class: 'muted small' });
    const options = element('div', { class: 'options' });
    const fields = element('fieldset', { 'aria-describedby': id }, legend, options);
    const opened = element('div', { class: 'variants' });
    const description = element('p', { class: 'description' });
    const card = element('li', { class: 'item group' }, image, name, price, fields, opened, description);
    /** @type {Map<string, ReturnType<typeof optionOf>>} */
    const choices = new Map();
    /** @type {string | undefined} */
    let chosen;

    function update(sale, variants) {
        // An attempt or an order opens its item, too.
        chosen ??= variants.find(({ hasNews }) => hasNews)?.item.sku;
        const items = variants.map(({ item }) => item);
        const first = items.find(({ sku }) => sku === chosen);
        const pictured = first?.image_url ? first : items.find(({ image_url: address }) => address);
        const described = first?.description ? first : items.find(({ description: text }) => text);
        showPicture(image, pictured?.image_url);
        setText(name, items[0].group ?? '');
        setText(legend, say('choose'));
        const labels = variants.map((variant) => {
            const { item } = variant;
            const choose = () => {
                chosen = item.sku;
                changed();
            };
            const option = choices.get(item.sku) ?? optionOf(id, item.sku, choose);
            choices.set(item.sku, option);
            option.update(variant, sale.state === 'open', item.sku === chosen);
            return option.label;
        });
        setChildren(options, labels);
        const isOpen = ({ item, card: own, hasNews }) => item.sku === chosen || hasNews || own.contains(document.activeElement);
        const open = variants.filter(isOpen).map(({ card: own }) => own);
        setChildren(opened, open);
        setText(price, lowestPrice(items));
        show(price, open.length === 0);
        showDescription(description, described?.description);
    }

    return { card, update };
}
