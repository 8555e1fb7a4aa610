// Creates and changes elements. Text from outside only ever becomes textContent.

export function element(name, attributes = {}, ...children) {
    const made = document.createElement(name);
    for (const [attribute, value] of Object.entries(attributes)) {
        made.setAttribute(attribute, value);
    }
    made.append(...children);
    return made;
}

const SVG = 'http://www.w3.org/2000/svg';

// An SVG element.
export function drawn(name, attributes = {}, ...children) {
    const made = document.createElementNS(SVG, name);
    for (const [attribute, value] of Object.entries(attributes)) {
        made.setAttribute(attribute, value);
    }
    made.append(...children);
    return made;
}

// Writes only on a change, so that focus and screen readers are not disturbed.
export function setText(node, text) {
    if (node.textContent !== text) {
        node.textContent = text;
    }
}

export function setAttribute(node, name, value) {
    if (node.getAttribute(name) !== value) {
        node.setAttribute(name, value);
    }
}

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
export function setChildren(parent, wanted) {
    wanted.forEach((child, at) => {
        if (parent.children[at] !== child) {
            parent.insertBefore(child, parent.children[at] ?? null);
        }
    });
    while (parent.children.length > wanted.length) {
        parent.lastElementChild.remove();
    }
}

// Uses `aria-disabled`, because `disabled` would take the focus away.
export function setPressable(button, isPressable) {
    setAttribute(button, 'aria-disabled', isPressable ? 'false' : 'true');
}

export function onPress(button, act) {
    button.addEventListener('click', () => {
        if (button.getAttribute('aria-disabled') !== 'true') {
            act();
        }
    });
}

export const byId = (id) => document.getElementById(id);

export function setBusy(node, isBusy) {
    setAttribute(node, 'aria-busy', isBusy ? 'true' : 'false');
}

const AGAIN_MS = 100;
let telling = null;

// Announces a change to screen readers, once. They ignore an unchanged text, so a repeated text is cleared first.
export function announce(text) {
    const live = byId('live');
    clearTimeout(telling);
    if (live.textContent === text) {
        live.textContent = '';
        telling = setTimeout(() => setText(live, text), AGAIN_MS);
    } else {
        setText(live, text);
    }
}
