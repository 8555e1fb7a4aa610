// Explains API refusals in the language of the page. The API's own text is English. On other pages the code's text comes
// first, and the API's text follows where it is more precise. English parts carry `lang="en"`, so that screen readers
// pronounce them right.

import { element } from './dom.js';
import { locale, plainly, say } from './language.js';

// Codes whose API text is more precise than the code's meaning.
const PARTICULAR_CODES = [
    'invalid_request',
    'invalid_transition',
    'insufficient_stock',
    'not_found',
    'idempotency_key_reused',
    'console_token_required',
];

// The meaning of a code; empty for a code that this page does not know.
export function meaning(code) {
    const words = say(`problem_${code}`);
    return words.startsWith('problem_') ? '' : words;
}

// The text of a refusal, and the API's own text beside it if it adds anything.
/** @type {(answer: Answer) => Words} */
export function explained(answer) {
    const { code, body } = answer;
    const own = typeof body.detail === 'string' ? plainly(body.detail) : '';
    const words = meaning(code);
    if (own === '' || (words !== '' && locale() !== 'en')) {
        return { text: words, more: PARTICULAR_CODES.includes(code) ? own : '' };
    }
    return locale() === 'en' ? { text: own } : { text: '', more: own };
}

// The API's English text, marked as English.
export const english = (text) => element('span', { lang: 'en' }, plainly(text));

// Writes parts into an element unless they are there already. A part is a string or a result of `explained`. Returns the
// whole text.
/** @type {(node: Element, ...words: (string | Words)[]) => string} */
export function write(node, ...words) {
    const parts = words
        .map((one) => (typeof one === 'string' ? { text: one } : one))
        .filter(({ text, more }) => text || more)
        .flatMap(({ text, more }, at) => [at > 0 ? ' · ' : '', text, text && more ? ' ' : '', more ? english(more) : '']);
    const whole = parts.map((part) => (typeof part === 'string' ? part : part.textContent)).join('');
    if (node.textContent !== whole) {
        node.replaceChildren(...parts.filter((part) => part !== ''));
    }
    return whole;
}
