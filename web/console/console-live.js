// Follows a sale by server-sent events. It reopens the stream after any end, and reports that it is disconnected.

import { findSession, isSignedIn, whyRefused } from './console-api.js';

const AGAIN_MS = 1000;
const AGAIN_MAX_MS = 8000;
// Longer than the longest pause between two samples: a stream silent for this long is dead.
const SILENCE_MAX_MS = 30_000;
const CHECK_MS = 1000;
// After this many failed attempts, ask the API for the reason.
const MISSES_MAX = 2;

// `heard(sample)` takes each sample. `course(points)` takes the points before the first sample. `changed(isConnected, why)`
// takes the connection state, and the reason if the API gives one. Returns a function that reconnects at once, and one that
// ends it for good.
export function followSale(id, { heard, course, changed }) {
    const path = `/v1/admin/sales/${id}/live`;
    /** @type {EventSource | null} */
    let source = null;
    let timer;
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

    // A refused stream gives no reason. Without a session it stops here, and the sign-in starts it again.
    async function again() {
        const answer = await findSession();
        if (answer.isOk && !isSignedIn()) {
            stop();
        } else if (answer.isOk) {
            await findReason();
            open();
        } else {
            why = '';
            lose();
        }
    }

    // An `EventSource` hides the body of a refusal, such as the limit on viewers.
    async function findReason() {
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
        const opened = new EventSource(path);
        source = opened;
        const on = (name, act) =>
            opened.addEventListener(name, (event) => {
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
        opened.addEventListener('error', lose);
    }

    setInterval(() => {
        if (source && performance.now() - lastHeard > SILENCE_MAX_MS) {
            lose();
        }
    }, CHECK_MS);
    // The browser may freeze a page you leave, to restore it on return. Its stream would hold one of the few connections
    // that all pages share.
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
