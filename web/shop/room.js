// The waiting room: how many are ahead, about when it is the shopper's turn, and a notification for a shopper who looks at
// something else.

import { element, onPress, setAttribute, setText, show } from './dom.js';
import { about, momentNear, secondsLeft, timeExact } from './format.js';
import { say } from './language.js';

const mayAsk = () => 'Notification' in window && Notification.permission === 'default';
const isOn = () => 'Notification' in window && Notification.permission === 'granted';

// Notifies a shopper who allowed it and does not see the page.
export function notify(title, body) {
    if (!isOn() || document.visibilityState === 'visible') {
        return;
    }
    try {
        new Notification(title, { body }).addEventListener('click', () => window.focus());
    } catch {
        // Browsers of some phones notify only for pages that stay installed. The title still says it.
    }
}

// How many are ahead. The server counts the first ones exactly, and estimates from samples farther back.
/** @type {(ahead: number) => string} */
export function crowd(ahead) {
    if (ahead < 1000) {
        return String(ahead);
    }
    const step = 10 ** (Math.floor(Math.log10(ahead)) - 1);
    return say('aboutNumber', { n: Math.round(ahead / step) * step });
}

// How much of the line has gone since this browser first saw it: 0 to 1.
/** @type {(phase: Phase) => number} */
function gone({ position = 1, first = 1 }) {
    return first > 1 ? Math.max(0, (first - position) / (first - 1)) : 1;
}

// Within this time of a turn, a shopper stays. A shopper who comes back later may also trust a time without seconds.
const STAY_SECONDS = 120;

export function waitingRoom() {
    const place = element('p', { class: 'place' });
    const bar = element('progress', { max: '1' });
    const turn = element('p');
    const kept = element('p', { class: 'small' });
    const remind = element('button', { type: 'button' });
    const heard = element('p', { class: 'muted small' });
    const node = element('div', { class: 'room' }, place, bar, turn, kept, remind, heard);
    onPress(remind, () => Notification.requestPermission());

    // `startsAt`: the start of the sale before it has come, when there are no positions yet.
    /** @type {(now: number | null, phase: Phase, startsAt: number | null) => void} */
    function update(now, phase, startsAt) {
        const { position, wait, heardAt } = phase;
        const ahead = (position ?? 1) - 1;
        const counted = ahead === 0 ? say('queuedNext') : say('queuedAhead', { n: crowd(ahead) });
        setText(place, position === undefined ? say('queuedDraw') : counted);
        place.classList.toggle('is-counted', position !== undefined);
        show(place, position !== undefined || startsAt !== null);
        setAttribute(bar, 'aria-label', say('queueBar'));
        setAttribute(bar, 'value', gone(phase).toFixed(3));
        show(bar, position !== undefined);
        if (now === null || heardAt === undefined) {
            return;
        }
        // Before the lots are drawn, nobody knows a turn.
        const turnAt = startsAt ?? (wait === undefined ? null : heardAt + wait * 1000);
        const left = turnAt === null ? 0 : secondsLeft(turnAt, now);
        const time = turnAt === null ? '' : momentNear(turnAt, now);
        const mayGo = left > STAY_SECONDS;
        const words = mayGo ? 'queuedTurn' : turnAt === null ? 'queuedStill' : 'queuedSoon';
        setText(turn, say(words, { left: about(Math.max(1, left)), time }));
        // A turn is shown beside its place, which the first reply may not have yet.
        show(turn, startsAt === null && position !== undefined && !phase.isSoldOut);
        const keptWords = mayGo ? say('queuedKept', { time }) : say('queuedStay');
        // When all is sold out, the note above says to stay.
        setText(kept, `${phase.isSoldOut ? '' : keptWords} ${isOn() ? say('notified') : ''}`.trim());
        show(kept, kept.textContent !== '');
        setText(remind, say('notify'));
        show(remind, mayAsk());
        setText(heard, say('updatedAt', { time: timeExact(heardAt) }));
    }

    return { node, update };
}
