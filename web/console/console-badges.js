// The badges in the navigation: payments that an operator has to refund, and recent guard warnings.

import { call, isSignedIn } from './console-api.js';
import { byId } from './dom.js';
import { say } from './language.js';

const EVERY_MS = 30_000;
// The API counts no more warnings, either.
const MAX = 100;
const OUTCOMES = ['refund_due', 'unmatched'];

// The payments to refund; null if the API does not answer.
async function refundsDue() {
    let count = 0;
    for (const outcome of OUTCOMES) {
        const answer = await call('GET', `/v1/admin/payments?outcome=${outcome}&settled=false&limit=${MAX}`);
        if (!answer.isOk) {
            return null;
        }
        count += answer.body.data.length;
    }
    return count;
}

// The guard warnings of the last minutes; null if they are not known. Their list would be a read of shoppers' data, which
// the audit log records.
async function recentWarnings() {
    const answer = await call('GET', '/v1/admin/health');
    return answer.isOk ? (answer.body.recent_warnings ?? null) : null;
}

// Shows a number at a page's link. `label` is the key of the words for what it counts.
/** @type {(page: string, label: string, count: number | null) => void} */
function mark(page, label, count) {
    /** @type {HTMLElement | null} */
    const link = byId('nav').querySelector(`a[href="/console/${page}"]`);
    if (!link || count === null) {
        return;
    }
    if (count > 0) {
        link.dataset.badge = count < MAX ? String(count) : `${MAX - 1}+`;
        link.title = say(label);
    } else {
        delete link.dataset.badge;
        link.removeAttribute('title');
    }
}

export async function readBadges() {
    if (!isSignedIn() || document.visibilityState === 'hidden') {
        return;
    }
    mark('money', 'refundsDue', await refundsDue());
    mark('accounts', 'recentWarnings', await recentWarnings());
}

export const startBadges = () => setInterval(readBadges, EVERY_MS);
