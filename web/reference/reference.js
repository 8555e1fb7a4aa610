// The pages of the API reference: search, the mark of the place in view, copy buttons, one language for all examples.

/** @type {(selector: string) => any} */
const one = (selector) => document.querySelector(selector);
/** @type {(selector: string) => any[]} */
const all = (selector) => [...document.querySelectorAll(selector)];

/** @returns {HTMLElement} */
function element(name, attributes = {}, ...children) {
    const made = document.createElement(name);
    for (const [attribute, value] of Object.entries(attributes)) {
        made.setAttribute(attribute, value);
    }
    made.append(...children);
    return made;
}

// Search.

const PLACES = 'section[id], article[id], tr[id]';
const FOUND_MAX = 30;
// The letters of a text before and after the word that was found.
const BEFORE = 30;
const AFTER = 70;

// Each place with its title and its text. The text of a section is without those of the places in it.
function readPlaces() {
    /** @type {Map<any, string[]>} */
    const texts = new Map();
    all(PLACES).forEach((place) => texts.set(place, []));
    const walker = document.createTreeWalker(one('main'), NodeFilter.SHOW_TEXT);
    while (walker.nextNode()) {
        const node = walker.currentNode;
        texts.get(node.parentElement?.closest(PLACES))?.push(node.nodeValue ?? '');
    }
    return [...texts].map(([place, parts]) => {
        const title = place.querySelector('h2, h3, code').textContent;
        const route = place.querySelector(':scope > .route')?.textContent ?? '';
        const text = parts.join(' ').replace(/\s+/g, ' ');
        const head = `${title} ${route} ${place.id}`.toLowerCase();
        return { id: place.id, title, route, text, head };
    });
}

/** @type {ReturnType<typeof readPlaces> | undefined} */
let places;

// The places with all words, first those that have them in title, route or id.
function find(words) {
    places ??= readPlaces();
    const isIn = (text) => words.every((word) => text.includes(word));
    const inHead = places.filter(({ head }) => isIn(head));
    const inText = places.filter(({ head, text }) => !isIn(head) && isIn(`${head} ${text.toLowerCase()}`));
    return [...inHead, ...inText];
}

function around(text, word) {
    const at = text.toLowerCase().indexOf(word);
    return at < 0 ? '' : `… ${text.slice(Math.max(at - BEFORE, 0), at + AFTER)} …`;
}

function showResults() {
    const words = one('#query').value.toLowerCase().split(/\s+/).filter(Boolean);
    const isAsked = words.length > 0;
    const found = isAsked ? find(words) : [];
    const results = found.slice(0, FOUND_MAX).map(({ id, title, route, text }) => {
        const more = element('span', { class: 'bounds' }, route || around(text, words[0]));
        return element('li', {}, element('a', { href: `#${id}` }, title), more);
    });
    one('#results').replaceChildren(...results);
    one('#results').hidden = !isAsked;
    one('#contents').hidden = isAsked;
    one('#found').textContent = isAsked ? said(found.length) : '';
}

function said(count) {
    if (count === 0) {
        return 'Nothing found';
    }
    return count > FOUND_MAX ? `${count} found, the first ${FOUND_MAX} shown` : `${count} found`;
}

one('#search').hidden = false;
one('#query').addEventListener('input', showResults);
one('#query').addEventListener('keydown', ({ key }) => {
    const first = one('#results a');
    if (key === 'Enter' && first) {
        location.hash = first.hash;
    }
});

// The place in view. Only links to this page have one.

const marks = all('#contents a')
    .filter((link) => link.pathname === location.pathname)
    .map((link) => ({ link, place: /** @type {any} */ (document.getElementById(link.hash.slice(1))) }));

const topOf = (node) => node.getBoundingClientRect().top;

function placeInView() {
    const isAtEnd = scrollY + innerHeight >= document.documentElement.scrollHeight - 1;
    if (!isAtEnd) {
        return marks.findLast(({ place }) => topOf(place) <= innerHeight / 4) ?? marks[0];
    }
    // The last places cannot scroll to the top of the page.
    const asked = marks.find(({ place }) => `#${place.id}` === location.hash);
    return asked && topOf(asked.place) >= 0 ? asked : marks[marks.length - 1];
}

function mark() {
    const { link } = placeInView();
    if (link.hasAttribute('aria-current')) {
        return;
    }
    one('#contents [aria-current]')?.removeAttribute('aria-current');
    link.setAttribute('aria-current', 'location');
    // scrollIntoView would scroll the page, too.
    const list = one('#contents');
    const seen = list.getBoundingClientRect();
    const { top, bottom } = link.getBoundingClientRect();
    if (top < seen.top || bottom > seen.bottom) {
        list.scrollTop += top - seen.top - seen.height / 2;
    }
}

let isMarkDue = false;

function markSoon() {
    if (!isMarkDue) {
        isMarkDue = true;
        requestAnimationFrame(() => {
            isMarkDue = false;
            mark();
        });
    }
}

if (marks.length > 0) {
    for (const event of ['scroll', 'resize', 'hashchange']) {
        addEventListener(event, markSoon, { passive: true });
    }
    mark();
}

// Copy buttons.

const COPIED_MS = 3000;

async function copy(node) {
    try {
        await navigator.clipboard.writeText(node.textContent);
        return true;
    } catch {
        // Over plain HTTP, a browser gives pages no clipboard. The selection can still be copied.
        getSelection()?.selectAllChildren(node);
        return document.execCommand('copy');
    }
}

for (const box of all('.copyable')) {
    const button = element('button', { type: 'button', class: 'copy', 'aria-live': 'polite' }, 'Copy');
    /** @type {number | undefined} */
    let timer;
    button.addEventListener('click', async () => {
        const shown = [...box.querySelectorAll('pre')].find((pre) => pre.offsetParent);
        button.textContent = (await copy(shown)) ? 'Copied' : 'Press Ctrl+C';
        clearTimeout(timer);
        timer = setTimeout(() => (button.textContent = 'Copy'), COPIED_MS);
    });
    box.append(button);
}

// The language of the examples: a choice in one example is a choice for all, and is kept.

const LANGUAGE = 'flashsale.reference.language';

function choose(language) {
    for (const input of all('.example input')) {
        input.checked ||= input.value === language;
    }
}

// Browsers can refuse storage.
function kept(act) {
    try {
        return act(localStorage);
    } catch {
        return null;
    }
}

one('main').addEventListener('change', ({ target }) => {
    const before = topOf(target);
    choose(target.value);
    // The examples above have changed their height.
    scrollBy(0, topOf(target) - before);
    kept((storage) => storage.setItem(LANGUAGE, target.value));
});
choose(kept((storage) => storage.getItem(LANGUAGE)));
