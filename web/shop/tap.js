// Taps on buttons that buy or pay. A shopper may tap once more after an outcome, where another button has slid under the
// finger meanwhile. Such a tap does nothing.

import { onPress } from './dom.js';

// How near to the tap that had the outcome, and how soon after it.
const NEAR_PX = 30;
const SOON_MS = 1500;

let last = { x: 0, y: 0, until: 0 };

// Called when a tap has had its outcome.
/** @type {(tap: MouseEvent) => void} */
export function noteOutcome({ clientX, clientY }) {
    last = { x: clientX, y: clientY, until: performance.now() + SOON_MS };
}

// A press of a key has no place.
/** @type {(tap: MouseEvent) => boolean} */
const isSecond = ({ detail, clientX, clientY }) =>
    detail > 0 && performance.now() < last.until && Math.hypot(clientX - last.x, clientY - last.y) < NEAR_PX;

/** @type {(button: HTMLElement, act: (tap: MouseEvent) => unknown) => void} */
export function onTap(button, act) {
    onPress(button, (tap) => {
        if (!isSecond(tap)) {
            act(tap);
        }
    });
}
