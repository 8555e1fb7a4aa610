// Polls the API, and reports when replies stop and when they resume.

import { byId, setText } from './dom.js';
import { say } from './language.js';

const LOST_MAX_MS = 8000;
const RECOVERED_MS = 4000;

// The last result: `there`, `busy` or `lost`.
let state = 'there';
/** @type {number | null} */
let recovered = null;

// Shows the shopper the state of the connection.
export function showConnection() {
    const isTroubled = state !== 'there';
    const word = state === 'lost' && !navigator.onLine ? 'offline' : state;
    const text = isTroubled ? say(word) : recovered === null ? '' : say('recovered');
    setText(byId('connection'), text);
    byId('connection').classList.toggle('is-lost', isTroubled);
}

function heard(next) {
    if (next === 'there' && state !== 'there') {
        clearTimeout(recovered ?? undefined);
        recovered = setTimeout(() => {
            recovered = null;
            showConnection();
        }, RECOVERED_MS);
    }
    state = next;
    showConnection();
}

const lostPause = (misses) => Math.min(500 * 2 ** misses, LOST_MAX_MS);

// Classifies a reply, or null: `busy` is overload, `lost` is no reply or a server error.
/** @param {Answer | null} answer */
function stateOf(answer) {
    if (answer?.code === 'overloaded') {
        return 'busy';
    }
    return answer !== null && (answer.status === 0 || answer.status >= 500) ? 'lost' : 'there';
}

// The wait that a 429 or 503 reply asks for, in milliseconds.
/** @param {Answer | null} answer */
const askedPause = (answer) => (answer?.status === 429 || answer?.status === 503 ? answer.wait * 1000 : 0);

// Calls `ask` now, and again after `pause()` milliseconds. `ask` returns the reply, or null if there was nothing to ask.
// After a failure the wait is about a second, and doubles up to LOST_MAX_MS. It is never shorter than the reply asks for.
// A hidden page stops polling.
// `tells`: whether the shopper sees a notice about the connection. Returns a function that polls at once.
/** @type {(ask: () => Promise<Answer | null>, pause: () => number, tells: boolean) => () => Promise<void>} */
export function poll(ask, pause, tells) {
    let timer;
    let misses = 0;
    let isAsking = false;
    let again = false;
    async function round() {
        clearTimeout(timer);
        if (isAsking) {
            again = true;
            return;
        }
        isAsking = true;
        /** @type {Answer | null} */
        let answer = null;
        try {
            answer = await ask();
        } catch (error) {
            // A defect of ours or an unexpected reply must not end the polling.
            reportError(error);
        }
        isAsking = false;
        const next = stateOf(answer);
        if (tells) {
            heard(next);
        }
        misses = next === 'lost' ? misses + 1 : 0;
        // Jitter of a quarter either way, so that clients do not poll at the same moment. The server's own wait is the
        // minimum.
        const usual = (next === 'lost' ? lostPause(misses) : pause()) * (0.75 + Math.random() / 2);
        const asked = askedPause(answer) * (1 + Math.random() / 4);
        const wait = Math.max(usual, asked);
        if (again) {
            again = false;
            round();
        } else if (document.visibilityState !== 'hidden') {
            timer = setTimeout(round, wait);
        }
    }
    document.addEventListener('visibilitychange', () => {
        if (document.visibilityState !== 'hidden') {
            round();
        }
    });
    round();
    return round;
}
