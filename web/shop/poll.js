// Asks again and again, and says when there is no answer and when there is one again.

import { byId, setText } from './dom.js';
import { say } from './language.js';

const LOST_MAX_MS = 8000;
const RECOVERED_MS = 4000;

// How the shop answered last: `there`, `busy` or `lost`.
let state = 'there';
let recovered = null;

// What the shopper is told of the connection.
export function showConnection() {
    const isTroubled = state !== 'there';
    const text = isTroubled ? say(state) : recovered === null ? '' : say('recovered');
    setText(byId('connection'), text);
    byId('connection').classList.toggle('is-lost', isTroubled);
}

function heard(next) {
    if (next === 'there' && state !== 'there') {
        clearTimeout(recovered);
        recovered = setTimeout(() => {
            recovered = null;
            showConnection();
        }, RECOVERED_MS);
    }
    state = next;
    showConnection();
}

const lostPause = (misses) => Math.min(500 * 2 ** misses, LOST_MAX_MS);

// Of what was answered, or null: `busy` is who has too much to do, `lost` who does not answer or cannot.
function stateOf(answer) {
    if (answer?.code === 'overloaded') {
        return 'busy';
    }
    return answer !== null && (answer.status === 0 || answer.status >= 500) ? 'lost' : 'there';
}

// How long whoever answered does not want to be asked again, in milliseconds.
const askedPause = (answer) => (answer?.status === 429 || answer?.status === 503 ? answer.wait * 1000 : 0);

// Calls `ask`, which returns what was answered or null where there was nothing to ask, and again after `pause()`
// milliseconds; sooner, but less and less so, while there is no answer, and never sooner than the answer says. Nobody is
// asked for a page that nobody sees.
// `tells` is whether the shopper hears of it when there is no answer. Returns what asks at once.
export function poll(ask, pause, tells) {
    let timer = null;
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
        let answer = null;
        try {
            answer = await ask();
        } catch (error) {
            // A mistake of ours, or an answer like none before: it must not be the last question.
            reportError(error);
        }
        isAsking = false;
        const next = stateOf(answer);
        if (tells) {
            heard(next);
        }
        misses = next === 'lost' ? misses + 1 : 0;
        // A quarter more or less, so that not all ask in the same moment; what was asked for is the least.
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
