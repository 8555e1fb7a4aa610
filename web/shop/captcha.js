// Asks the shopper for the captcha text.

import { element, show } from './dom.js';
import { worded } from './language.js';

// Shows the picture in `place`, and `why` it is shown. Resolves to one of these:
// - `{ letters }`: the text that the shopper typed;
// - no letters: the shopper wants another picture;
// - no letters and `isUnseen`: the shopper wants the other way (`mayNotSee`);
// - null: the attempt was stopped.
/** @type {(place: HTMLElement, image: string, how: { why: string, mayNotSee: boolean }, signal: AbortSignal) => Promise<Letters | null>} */
export function readLetters(place, image, { why, mayNotSee }, signal) {
    return new Promise((resolve) => {
        const input = element('input', {
            id: 'letters',
            autocomplete: 'off',
            autocapitalize: 'characters',
            spellcheck: 'false',
            maxlength: '8',
            required: '',
        });
        const picture = worded(element('img', { width: '260', height: '110' }), 'lettersPicture');
        // Only an inline PNG: no other source may load.
        picture.src = image.startsWith('data:image/png;base64,') ? image : '';
        const words = {
            hint: worded(element('p', why === 'lettersWhy' ? {} : { class: 'warning', role: 'alert' }), why),
            label: worded(element('label', { for: 'letters' }), 'letters'),
            send: worded(element('button', { class: 'strong', type: 'submit' }), 'lettersSend'),
            other: worded(element('button', { class: 'quiet', type: 'button' }), 'lettersOther'),
            unseen: worded(element('button', { class: 'quiet', type: 'button' }), 'lettersUnseen'),
        };
        show(words.unseen, mayNotSee);
        const field = element('div', { class: 'field' }, input, words.send);
        const others = element('div', { class: 'actions' }, words.other, words.unseen);
        const form = element('form', { class: 'captcha row' }, words.hint, picture, words.label, field, others);
        const end = (read) => {
            // Removing the form would lose the focus.
            if (form.contains(document.activeElement)) {
                /** @type {HTMLElement | null} */ (place.closest('.item'))?.focus();
            }
            form.remove();
            resolve(read);
        };
        form.addEventListener('submit', (event) => {
            event.preventDefault();
            if (input.value.trim() !== '') {
                end({ letters: input.value.trim() });
            }
        });
        words.other.addEventListener('click', () => end({ letters: '' }));
        words.unseen.addEventListener('click', () => end({ letters: '', isUnseen: true }));
        signal.addEventListener('abort', () => end(null));
        if (signal.aborted) {
            resolve(null);
            return;
        }
        place.append(form);
        input.focus();
    });
}
