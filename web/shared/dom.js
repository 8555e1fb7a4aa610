// Creates and changes elements. Text from outside only ever becomes textContent.

/**
 * @template {keyof HTMLElementTagNameMap} Name
 * @param {Name} name
 * @param {Record<string, string>} attributes
 * @param {(Node | string)[]} children
 */
export function element(name, attributes = {}, ...children) {
    return filled(document.createElement(name), attributes, children);
}

const SVG = 'http://www.w3.org/2000/svg';

/**
 * An SVG element.
 * @template {keyof SVGElementTagNameMap} Name
 * @param {Name} name
 * @param {Record<string, any>} attributes
 * @param {(Node | string)[]} children
 */
export function drawn(name, attributes = {}, ...children) {
    return filled(document.createElementNS(SVG, name), attributes, children);
}

/**
 * @template {Element} Made
 * @param {Made} made
 * @param {Record<string, any>} attributes
 * @param {(Node | string)[]} children
 */
function filled(made, attributes, children) {
    for (const [attribute, value] of Object.entries(attributes)) {
        made.setAttribute(attribute, value);
    }
    made.append(...children);
    return made;
}

// Writes only on a change, so that focus and screen readers are not disturbed.
/** @type {(node: Element, text: string) => void} */
export function setText(node, text) {
    if (node.textContent !== text) {
        node.textContent = text;
    }
}

/** @type {(node: Element, name: string, value: string) => void} */
export function setAttribute(node, name, value) {
    if (node.getAttribute(name) !== value) {
        node.setAttribute(name, value);
    }
}

/** @type {(node: HTMLElement, isShown: boolean) => void} */
export function show(node, isShown) {
    if (node.hidden === isShown) {
        node.hidden = !isShown;
    }
}

export function setTitle(text) {
    if (document.title !== text) {
        document.title = text;
    }
}

// Sets the children in this order. Existing nodes stay in place, so focus inside them survives.
/** @type {(parent: Element, wanted: Element[]) => void} */
export function setChildren(parent, wanted) {
    wanted.forEach((child, at) => {
        if (parent.children[at] !== child) {
            parent.insertBefore(child, parent.children[at] ?? null);
        }
    });
    while (parent.children.length > wanted.length) {
        parent.lastElementChild?.remove();
    }
}

// Uses `aria-disabled`, because `disabled` would take the focus away.
/** @type {(button: Element, isPressable: boolean) => void} */
export function setPressable(button, isPressable) {
    setAttribute(button, 'aria-disabled', isPressable ? 'false' : 'true');
}

/** @type {(button: Element) => boolean} */
export const isPressable = (button) => button.getAttribute('aria-disabled') !== 'true';

/** @type {(button: HTMLElement, act: (press: MouseEvent) => unknown) => void} */
export function onPress(button, act) {
    button.addEventListener('click', (press) => {
        if (isPressable(button)) {
            act(press);
        }
    });
}

/** @type {ById} */
export const byId = (id) => /** @type {any} */ (document.getElementById(id));

/** @type {(node: Element, isBusy: boolean) => void} */
export function setBusy(node, isBusy) {
    setAttribute(node, 'aria-busy', isBusy ? 'true' : 'false');
}

const AGAIN_MS = 100;
/** @type {number | undefined} */
let repeating;

// Announces a change to screen readers, once. They ignore an unchanged text, so a repeated text is cleared first.
export function announce(text) {
    const live = byId('live');
    clearTimeout(repeating);
    if (live.textContent === text) {
        live.textContent = '';
        repeating = setTimeout(() => setText(live, text), AGAIN_MS);
    } else {
        setText(live, text);
    }
}
