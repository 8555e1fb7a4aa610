// The look of a sale and its items: their pictures and descriptions, and the shop's name.

import { element, setAttribute, setText, show } from './dom.js';

const { shopName = '' } = document.documentElement.dataset;

// The title of a page, with the shop's name.
export const titled = (text) => `${text} · ${shopName}`;

// The addresses of pictures that did not load.
const failed = new Set();

// Hides a picture when it does not load.
/** @param {HTMLImageElement} image */
export function watch(image) {
    const fail = (address) => {
        failed.add(address);
        show(image, false);
    };
    image.addEventListener('error', () => fail(image.getAttribute('src')));
    // It may have failed before this script ran.
    const early = image.getAttribute('src');
    if (early !== null) {
        image.decode().catch(() => fail(early));
    }
    return image;
}

// A picture that loads when it comes into view. It has an empty `alt`: the name stands beside it.
export const picture = () => watch(element('img', { class: 'picture', alt: '', loading: 'lazy', decoding: 'async' }));

/** @type {(image: HTMLImageElement, address?: string) => void} */
export function showPicture(image, address) {
    if (address !== undefined) {
        setAttribute(image, 'src', address);
    }
    show(image, address !== undefined && !failed.has(address));
}

/** @type {(node: HTMLElement, text?: string) => void} */
export function showDescription(node, text = '') {
    setText(node, text);
    show(node, text !== '');
}

/** @type {HTMLImageElement | null} */
const logo = document.querySelector('.logo');
if (logo) {
    watch(logo);
}
