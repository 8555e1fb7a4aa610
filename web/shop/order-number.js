// An order's number in short, with a button that copies all of it. A page that may not copy shows all of it.

import { copy, mayCopy } from './copy.js';
import { element, onPress, setAttribute, setText } from './dom.js';
import { shortNumber } from './format.js';
import { say } from './language.js';

/** @param {string} id */
export function orderNumber(id) {
    const text = element('span', { class: 'number', title: id });
    const copyIt = element('button', { class: 'quiet', type: 'button' });
    const node = element('p', { class: 'order-number muted small' }, text, ...(mayCopy() ? [copyIt] : []));
    let isCopied = false;
    onPress(copyIt, async () => {
        isCopied = await copy(id);
    });

    function update() {
        setText(text, say('orderNumber', { id: mayCopy() ? shortNumber(id) : id }));
        setText(copyIt, say(isCopied ? 'copied' : 'copy'));
        setAttribute(copyIt, 'aria-label', say(isCopied ? 'copied' : 'copyNumber'));
    }

    return { node, update };
}
