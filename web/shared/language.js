// The language of the page: as chosen before, else as the browser asks for.

import { setAttribute, setText } from './dom.js';
import { lasting } from './storage.js';
import { WORDS } from './words.js';

const KEPT = 'flashsale.language';
const listeners = [];

const wished = () => (navigator.language.toLowerCase().startsWith('zh') ? 'zh' : 'en');

let language = Object.hasOwn(WORDS, lasting.get(KEPT) ?? '') ? lasting.get(KEPT) : wished();

export const locale = () => (language === 'zh' ? 'zh-CN' : 'en');

// Learns words of another part of the pages, in the same languages.
export function learn(more) {
    for (const name of Object.keys(WORDS)) {
        Object.assign(WORDS[name], more[name]);
    }
}

// Characters that turn the order of those behind them or show nothing, and those that are written from right to left.
const HIDDEN = /[\u00ad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]/g;
const FROM_RIGHT = /[\u0590-\u08ff\ufb1d-\ufdff\ufe70-\ufefc\u{10800}-\u{10fff}\u{1e800}-\u{1efff}]/u;

// Text from outside, with the characters that would turn what stands around them, or that nobody sees, as their numbers: so
// nobody is shown another account than the one that is meant.
export const plainly = (text) =>
    String(text).replace(HIDDEN, (hidden) => `⟨U+${hidden.codePointAt(0).toString(16).toUpperCase().padStart(4, '0')}⟩`);

// The same among other words: what is written from right to left keeps to itself (U+2068, U+2069).
export function apart(text) {
    const plain = plainly(text);
    return FROM_RIGHT.test(plain) ? `\u2068${plain}\u2069` : plain;
}

// A text, with {names} in it replaced. What the API has learned to say since stands for itself.
export function say(word, values = {}) {
    return (WORDS[language][word] ?? word).replace(/\{(\w+)\}/g, (_all, name) => apart(values[name]));
}

// Says the word of an element; of a picture, to those who do not see it.
function speak(node) {
    const text = say(node.dataset.word);
    if (node.localName === 'img') {
        setAttribute(node, 'alt', text);
    } else {
        setText(node, text);
    }
}

// Gives an element a word, which it says in the language of the page, also in the other one later.
export function worded(node, word) {
    node.dataset.word = word;
    speak(node);
    return node;
}

function translate() {
    setAttribute(document.documentElement, 'lang', locale());
    for (const node of document.querySelectorAll('[data-word]')) {
        speak(node);
    }
    const button = document.getElementById('language');
    setText(button, say('otherLanguage'));
    setAttribute(button, 'lang', language === 'zh' ? 'en' : 'zh-CN');
}

// Translates the page, and again whenever the other language is asked for; then also calls `changed`.
export function startLanguage(changed) {
    listeners.push(changed);
    document.getElementById('language').addEventListener('click', () => {
        language = language === 'zh' ? 'en' : 'zh';
        lasting.set(KEPT, language);
        translate();
        listeners.forEach((listener) => listener());
    });
    translate();
}
