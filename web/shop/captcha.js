// Asks the shopper for the letters of a picture.

import { element, show } from './dom.js';
import { worded } from './language.js';

// Shows the picture in `place`. The promise is `{ letters }`; without any where another picture is wanted, with `isUnseen`
// where none is, because there is another way (`mayNotSee`); null when it ended.
export function readLetters(place, image, { wasWrong, mayNotSee }, signal) {
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
        // Ours alone, and only as a picture.
        picture.src = image.startsWith('data:image/png;base64,') ? image : '';
        const words = {
            hint: worded(
                element('p', wasWrong ? { class: 'warning', role: 'alert' } : {}),
                wasWrong ? 'lettersWrong' : 'lettersWhy',
            ),
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
            // The focus would be gone with it.
            if (form.contains(document.activeElement)) {
                place.closest('.item').focus();
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
