// Asks again and again, and says when there is no answer and when there is one again.

import { byId, setText } from './dom.js';
import { say } from './language.js';

const LOST_MAX_MS = 8000;
const RECOVERED_MS = 4000;

let isLost = false;
let recovered = null;

// What the shopper is told of the connection.
export function showConnection() {
    const text = isLost ? say('lost') : recovered === null ? '' : say('recovered');
    setText(byId('connection'), text);
    byId('connection').classList.toggle('is-lost', isLost);
}

function heard(isThere) {
    if (isThere && isLost) {
        clearTimeout(recovered);
        recovered = setTimeout(() => {
            recovered = null;
            showConnection();
        }, RECOVERED_MS);
    }
    isLost = !isThere;
    showConnection();
}

const lostPause = (misses) => Math.min(500 * 2 ** misses, LOST_MAX_MS);

// Whether somebody answered, whatever he said; and how long he does not want to be asked again, in milliseconds.
const isAnswer = (answer) => answer.status !== 0 && answer.status < 500;
const askedPause = (answer) => (answer?.status === 429 ? answer.wait * 1000 : 0);

// Calls `ask`, which returns what was answered or null where there was nothing to ask, and again after `pause()`
// milliseconds; sooner, but less and less so, while there is no answer. Nobody is asked for a page that nobody sees.
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
        const isThere = answer === null || isAnswer(answer);
        if (tells) {
            heard(isThere);
        }
        misses = isThere ? 0 : misses + 1;
        // A quarter more or less, so that not all ask in the same moment.
        const spread = 0.75 + Math.random() / 2;
        const wait = isThere ? Math.max(pause() * spread, askedPause(answer)) : lostPause(misses) * spread;
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
