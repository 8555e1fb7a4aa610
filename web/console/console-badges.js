// The badge in the navigation: payments that an operator has to refund.

import { call, isSignedIn } from './console-api.js';
import { byId } from './dom.js';
import { say } from './language.js';

const EVERY_MS = 30_000;
const MAX = 100;
const OUTCOMES = ['refund_due', 'unmatched'];

export async function readBadges() {
    if (!isSignedIn() || document.visibilityState === 'hidden') {
        return;
    }
    let count = 0;
    for (const outcome of OUTCOMES) {
        const answer = await call('GET', `/v1/admin/payments?outcome=${outcome}&settled=false&limit=${MAX}`);
        if (!answer.isOk) {
            return;
        }
        count += answer.body.data.length;
    }
    /** @type {HTMLElement | null} */
    const link = byId('nav').querySelector('a[href="/console/money"]');
    if (link && count > 0) {
        link.dataset.badge = count < MAX ? String(count) : `${MAX - 1}+`;
        // What the number counts.
        link.title = say('refundsDue');
    } else {
        delete link?.dataset.badge;
        link?.removeAttribute('title');
    }
}

export const startBadges = () => setInterval(readBadges, EVERY_MS);
