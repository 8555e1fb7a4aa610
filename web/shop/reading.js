// The first reading: the server has written it into the page, so that the page begins without a request.

// Returns it once, as the reply to a request. Returns null if there is none, or if the browser took the page from its own
// cache: then it may be old.
/** @type {() => Answer | null} */
export function takeReading() {
    const node = document.getElementById('reading');
    const [visit] = /** @type {PerformanceNavigationTiming[]} */ (performance.getEntriesByType('navigation'));
    node?.remove();
    if (!node || !(visit?.transferSize > 0)) {
        return null;
    }
    return {
        isOk: true,
        status: 200,
        body: JSON.parse(node.textContent ?? ''),
        code: 'ok',
        wait: 1,
        sent: visit.requestStart,
        received: visit.responseStart,
        isRough: true,
    };
}
