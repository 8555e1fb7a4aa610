// Making and changing elements. Text from outside becomes textContent and nothing else.

export function element(name, attributes = {}, ...children) {
    const made = document.createElement(name);
    for (const [attribute, value] of Object.entries(attributes)) {
        made.setAttribute(attribute, value);
    }
    made.append(...children);
    return made;
}

const SVG = 'http://www.w3.org/2000/svg';

// Elements of pictures.
export function drawn(name, attributes = {}, ...children) {
    const made = document.createElementNS(SVG, name);
    for (const [attribute, value] of Object.entries(attributes)) {
        made.setAttribute(attribute, value);
    }
    made.append(...children);
    return made;
}

// Only what changes is touched, so that neither focus nor a screen reader is disturbed.
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

// These in this order. What is there already stays where it is, with the focus that may be in it.
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

// A button that cannot be pressed now keeps the focus, which `disabled` would take away.
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

// Says that something is under way at a part of the page.
export function setBusy(node, isBusy) {
    setAttribute(node, 'aria-busy', isBusy ? 'true' : 'false');
}

const AGAIN_MS = 100;
let telling = null;

// Tells a screen reader what has changed, once. The same text twice is no change, so it is taken away before.
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
