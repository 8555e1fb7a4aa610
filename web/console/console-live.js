// Follows a sale: samples come as server-sent events. Whatever ends the stream, it is asked for again, and it is said that
// this is so.

import { findSession, isSignedIn, whyRefused } from './console-api.js';

const AGAIN_MS = 1000;
const AGAIN_MAX_MS = 8000;
// Longer than the longest pause between two samples: a stream that is silent for so long is dead.
const SILENCE_MAX_MS = 30_000;
const LOOK_MS = 1000;
// After so many tries without a stream it is asked why.
const MISSES_MAX = 2;

// `heard(sample)` is told each sample, `course(points)` what was before the first, `changed(isConnected, why)` how it stands
// and why there is no stream, if the API says so. Returns what asks at once, and what ends it for good.
export function followSale(id, { heard, course, changed }) {
    const path = `/v1/admin/sales/${id}/live`;
    let source = null;
    let timer = null;
    let misses = 0;
    let why = '';
    let isEnded = false;
    let lastHeard = performance.now();

    function stop() {
        clearTimeout(timer);
        source?.close();
        source = null;
    }

    function lose() {
        stop();
        if (isEnded) {
            return;
        }
        changed(false, why);
        timer = setTimeout(again, Math.min(AGAIN_MS * 2 ** misses, AGAIN_MAX_MS));
        misses += 1;
    }

    // A stream that is refused does not say why: if there is no session any more, whoever signs in goes on here.
    async function again() {
        const answer = await findSession();
        if (answer.isOk && !isSignedIn()) {
            stop();
        } else if (answer.isOk) {
            await look();
            open();
        } else {
            why = '';
            lose();
        }
    }

    // An `EventSource` is not told what an answer says that is no stream: there may be no place for one more viewer.
    async function look() {
        if (misses >= MISSES_MAX) {
            why = await whyRefused(path);
            changed(false, why);
        }
    }

    function open() {
        stop();
        if (isEnded) {
            return;
        }
        lastHeard = performance.now();
        source = new EventSource(path);
        const on = (name, act) =>
            source.addEventListener(name, (event) => {
                lastHeard = performance.now();
                act(JSON.parse(event.data));
            });
        on('course', (points) => {
            misses = 0;
            why = '';
            changed(true);
            course(points);
        });
        on('sample', heard);
        on('signed_out', again);
        source.addEventListener('error', lose);
    }

    setInterval(() => {
        if (source && performance.now() - lastHeard > SILENCE_MAX_MS) {
            lose();
        }
    }, LOOK_MS);
    // The browser keeps a page that is left, to show it at once to whoever comes back. Its stream would keep one of the few
    // connections that all pages have together.
    window.addEventListener('pagehide', stop);
    window.addEventListener('pageshow', (event) => {
        if (event.persisted) {
            open();
        }
    });
    open();
    return {
        again: open,
        end() {
            isEnded = true;
            stop();
        },
    };
}
