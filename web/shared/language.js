// The language of the page: the stored choice, or else the browser's preference.

import { byId, setAttribute, setText } from './dom.js';
import { lasting } from './storage.js';
import { WORDS } from './words.js';

const KEPT = 'flashsale.language';
const listeners = [];

// The codes of the languages, English first.
export const LANGUAGES = Object.keys(WORDS);

const codeOf = (tag) => tag.toLowerCase().split('-')[0];

/** @type {string} */
let language = [lasting.get(KEPT), codeOf(navigator.language)].find((code) => LANGUAGES.includes(code ?? '')) ?? 'en';

export const locale = () => WORDS[language].tag;

// The form of numbers and times: the reader's own, if the page is in the reader's language. Otherwise one with 24 hours
// and the day before the month, which few readers mistake.
export function form() {
    const own = navigator.languages.at(0) ?? navigator.language;
    return codeOf(own) === language ? own : WORDS[language].form;
}

// Adds the texts of another part of the pages.
export function learn(more) {
    for (const code of LANGUAGES) {
        Object.assign(WORDS[code].texts, more[code]);
    }
}

// HIDDEN: characters that are invisible or change the text direction. FROM_RIGHT: right-to-left scripts.
const HIDDEN = /[\u00ad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]/g;
const FROM_RIGHT = /[\u0590-\u08ff\ufb1d-\ufdff\ufe70-\ufefc\u{10800}-\u{10fff}\u{1e800}-\u{1efff}]/u;

// Shows text from outside with invisible and direction-changing characters as their code points. Otherwise one account
// could pass for another on the screen.
export const plainly = (text) =>
    String(text).replace(HIDDEN, (hidden) => `⟨U+${hidden.codePointAt(0)?.toString(16).toUpperCase().padStart(4, '0')}⟩`);

// The same inside a sentence: right-to-left text is isolated (U+2068, U+2069).
export function apart(text) {
    const plain = plainly(text);
    return FROM_RIGHT.test(plain) ? `\u2068${plain}\u2069` : plain;
}

// A text that the language lacks is English. A text with plural forms has the one of the number.
function textOf(word, number) {
    const text = WORDS[language].texts[word] ?? WORDS.en.texts[word] ?? word;
    return typeof text === 'string' ? text : (text[new Intl.PluralRules(locale()).select(Number(number))] ?? text.other);
}

// The text of a key, with {names} filled in. A key that this page does not know stands for itself: the API may be newer.
/** @type {(word: string, values?: Record<string, unknown>) => string} */
export function say(word, values = {}) {
    return textOf(word, values.n).replace(/\{(\w+)\}/g, (_all, name) => apart(values[name]));
}

// The text of a key in each language.
/** @type {(word: string) => unknown[]} */
export const inEach = (word) => LANGUAGES.map((code) => WORDS[code].texts[word]);

// A message in the language of the page, or else in the first that it has, with its `lang`.
/** @type {(message: SaleMessage) => { text: string, lang: string }} */
export function inOwn(message) {
    const code = [language, ...LANGUAGES].find((it) => message[it]) ?? language;
    return { text: message[code] ?? '', lang: WORDS[code].tag };
}

// Writes the element's text; for a picture, its `alt` text.
function speak(node) {
    const text = say(node.dataset.word);
    if (node.localName === 'img') {
        setAttribute(node, 'alt', text);
    } else {
        setText(node, text);
    }
}

/**
 * Binds an element to a text key. A change of language translates it again.
 * @template {HTMLElement} Bound
 * @param {Bound} node
 * @param {string} word
 */
export function worded(node, word) {
    node.dataset.word = word;
    speak(node);
    return node;
}

// Of two languages, the one that the page is not in.
const other = () => LANGUAGES.find((code) => code !== language) ?? language;

function translate() {
    setAttribute(document.documentElement, 'lang', locale());
    for (const node of document.querySelectorAll('[data-word]')) {
        speak(node);
    }
    const control = byId('language');
    if (control instanceof HTMLSelectElement) {
        control.value = language;
    } else if (control) {
        setText(control, WORDS[other()].name);
        setAttribute(control, 'lang', WORDS[other()].tag);
    }
}

function change(code) {
    language = code;
    lasting.set(KEPT, code);
    translate();
    listeners.forEach((listener) => listener());
}

// Translates the page now and on each change of language. After a change it also calls `changed`. The server's HTML has a
// menu, a button to the other one of two languages, or neither.
export function startLanguage(changed) {
    listeners.push(changed);
    const control = byId('language');
    if (control instanceof HTMLSelectElement) {
        control.addEventListener('change', () => change(control.value));
    } else {
        control?.addEventListener('click', () => change(other()));
    }
    translate();
}
