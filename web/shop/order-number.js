// An order's number in short, with a button that copies all of it. A page that cannot copy it shows all of it.

import { copy, mayCopy } from './copy.js';
import { element, onPress, setAttribute, setText, show } from './dom.js';
import { shortNumber } from './format.js';
import { say } from './language.js';

// How long the button says that it has copied.
const COPIED_MS = 3000;

/** @param {string} id */
export function orderNumber(id) {
    const text = element('span', { class: 'number', title: id });
    const whole = element('code', {}, id);
    const copyIt = element('button', { class: 'quiet', type: 'button' });
    const node = element('p', { class: 'order-number muted small' }, text, whole, ...(mayCopy() ? [copyIt] : []));
    let isCopied = false;
    let isWhole = !mayCopy();
    onPress(copyIt, async () => {
        isCopied = await copy(id);
        isWhole = !isCopied;
        update();
        if (isCopied) {
            setTimeout(() => {
                isCopied = false;
            }, COPIED_MS);
        } else {
            getSelection()?.selectAllChildren(whole);
        }
    });

    function update() {
        setText(text, say('orderNumber', { id: isWhole ? '' : shortNumber(id) }));
        show(whole, isWhole);
        setText(copyIt, say(isCopied ? 'copied' : 'copy'));
        setAttribute(copyIt, 'aria-label', say(isCopied ? 'copied' : 'copyNumber'));
    }

    return { node, update };
}
