// What the API says of what it refuses, in the language of the page. What it says itself is in English, so where the page is
// not, its code is told in words, and its own words beside that where they say more: marked, so that they are read out right.

import { element } from './dom.js';
import { locale, plainly, say } from './language.js';

// Codes of which the API's own words say more than what they mean.
const PARTICULAR_CODES = [
    'invalid_request',
    'invalid_transition',
    'insufficient_stock',
    'not_found',
    'idempotency_key_reused',
    'console_token_required',
];

// What a code means; nothing of one that the API has learned since.
export function meaning(code) {
    const words = say(`problem_${code}`);
    return words.startsWith('problem_') ? '' : words;
}

// The words of a refusal, and those of the API beside them, if there are any.
export function explained(answer) {
    const { code, body } = answer;
    const own = typeof body.detail === 'string' ? plainly(body.detail) : '';
    const words = meaning(code);
    if (own === '' || (words !== '' && locale() !== 'en')) {
        return { text: words, more: PARTICULAR_CODES.includes(code) ? own : '' };
    }
    return locale() === 'en' ? { text: own } : { text: '', more: own };
}

// What the API says in English, also where the page is not.
export const english = (text) => element('span', { lang: 'en' }, plainly(text));

// Writes words, each a text or what `explained` returns, into an element, if they are not there yet. Returns them as text.
export function write(node, ...words) {
    const parts = words
        .map((one) => (typeof one === 'string' ? { text: one } : one))
        .filter(({ text, more }) => text || more)
        .flatMap(({ text, more }, at) => [at > 0 ? ' · ' : '', text, text && more ? ' ' : '', more ? english(more) : '']);
    const whole = parts.map((part) => part.textContent ?? part).join('');
    if (node.textContent !== whole) {
        node.replaceChildren(...parts.filter((part) => part !== ''));
    }
    return whole;
}
