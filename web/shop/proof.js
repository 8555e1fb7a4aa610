// Solves a proof of work in worker threads, so that the page stays responsive.

const WORKERS_MAX = 4;
const WORKER = new URL('./proof-worker.js', import.meta.url).href;

// The pages' Trusted Types policy forbids turning text into code. This policy may name one script URL only.
const named = /** @type {any} */ (window).trustedTypes?.createPolicy('proof', { createScriptURL: () => WORKER });
const script = named ? named.createScriptURL(WORKER) : WORKER;

// Returns the payload that ALTCHA's widget would submit. Returns null in these cases:
// - the page's origin is insecure, so it cannot compute digests;
// - the algorithm is unknown, or no solution was found;
// - `signal` stopped it.
/** @type {(challenge: ProofChallenge, signal: AbortSignal) => Promise<string | null>} */
export async function solve(challenge, signal) {
    const { parameters } = challenge;
    if (signal.aborted || !window.isSecureContext || parameters.algorithm !== 'SHA-256') {
        return null;
    }
    const began = performance.now();
    const count = Math.min(WORKERS_MAX, navigator.hardwareConcurrency || 1);
    const workers = Array.from({ length: count }, () => new Worker(script));
    const found = workers.map(
        (worker, from) =>
            new Promise((resolve, reject) => {
                worker.addEventListener('message', ({ data }) => (data ? resolve(data) : reject(new Error('none'))));
                worker.addEventListener('error', () => reject(new Error('the worker failed')));
                worker.postMessage({ parameters, from, step: count });
            }),
    );
    const stopped = new Promise((resolve) => signal.addEventListener('abort', () => resolve(null)));
    try {
        const solution = await Promise.race([Promise.any(found), stopped]);
        if (solution === null) {
            return null;
        }
        const time = Math.round(performance.now() - began);
        return btoa(JSON.stringify({ challenge, solution: { ...solution, time } }));
    } catch {
        return null;
    } finally {
        workers.forEach((worker) => worker.terminate());
    }
}
