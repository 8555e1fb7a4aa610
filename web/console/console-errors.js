// The errors of a form, above it: how many, and for each field that is marked as wrong a link with its own text.

import { element, setText, show } from './dom.js';
import { say } from './language.js';

/** @param {HTMLElement} form */
export function errorSummary(form) {
    const count = element('p');
    const list = element('ul');
    const node = element('div', { class: 'warning errors', role: 'alert', tabindex: '-1' }, count, list);
    show(node, false);
    // A field in a group, such as an item of a sale, has the group's name before its own.
    const linkTo = (control) => {
        const group = control.closest('[role=group]')?.getAttribute('aria-label');
        const wrong = form.querySelector(`#${CSS.escape(control.id)}-wrong`)?.textContent;
        const label = control.labels?.[0]?.textContent;
        const link = element('a', { href: `#${control.id}` }, `${group ? `${group} · ` : ''}${label}${say('colon')}${wrong}`);
        link.addEventListener('click', (event) => {
            event.preventDefault();
            control.focus();
        });
        return element('li', {}, link);
    };
    return {
        node,
        // Lists several errors and focuses the list; focuses the field of a single one. Returns whether there is any.
        update() {
            const controls = /** @type {HTMLElement[]} */ ([...form.querySelectorAll('[aria-invalid="true"]')]);
            setText(count, say('severalWrong', { n: controls.length }));
            list.replaceChildren(...controls.map(linkTo));
            show(node, controls.length > 1);
            (controls.length > 1 ? node : controls.at(0))?.focus();
            return controls.length > 0;
        },
        clear: () => show(node, false),
    };
}
