// Asks the shopper for the letters of a picture.

import { element, setText } from './dom.js';
import { say } from './language.js';

// Shows the picture in `place`; the promise is what was typed, '' where another picture is wanted, null when it ended.
export function readLetters(place, image, wasWrong, signal) {
    return new Promise((resolve) => {
        const input = element('input', {
            id: 'letters',
            autocomplete: 'off',
            autocapitalize: 'characters',
            spellcheck: 'false',
            maxlength: '8',
            required: '',
        });
        const picture = element('img', { alt: say('lettersPicture'), width: '260', height: '110' });
        // Ours alone, and only as a picture.
        picture.src = image.startsWith('data:image/png;base64,') ? image : '';
        const words = {
            hint: element('p', wasWrong ? { class: 'warning', role: 'alert' } : {}),
            label: element('label', { for: 'letters' }),
            send: element('button', { class: 'strong', type: 'submit' }),
            other: element('button', { class: 'quiet', type: 'button' }),
        };
        setText(words.hint, say(wasWrong ? 'lettersWrong' : 'lettersWhy'));
        setText(words.label, say('letters'));
        setText(words.send, say('lettersSend'));
        setText(words.other, say('lettersOther'));
        const field = element('div', { class: 'field' }, input, words.send);
        const form = element('form', { class: 'captcha row' }, words.hint, picture, words.label, field, words.other);
        const end = (letters) => {
            form.remove();
            resolve(letters);
        };
        form.addEventListener('submit', (event) => {
            event.preventDefault();
            if (input.value.trim() !== '') {
                end(input.value.trim());
            }
        });
        words.other.addEventListener('click', () => end(''));
        signal.addEventListener('abort', () => end(null));
        if (signal.aborted) {
            resolve(null);
            return;
        }
        place.append(form);
        input.focus();
    });
}
