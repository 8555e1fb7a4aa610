// Operators sign in with their key and a name of their choice, which this browser stores. The page and any typed text stay
// during a sign-in.

import { findSession, isSignedIn, operatorName, operatorRole, signIn, signOut } from './console-api.js';
import { onSubmit, wordsOf } from './console-dialog.js';
import { byId, onPress, setAttribute, setText, show } from './dom.js';
import { say, worded } from './language.js';
import { write } from './problem.js';
import { lasting } from './storage.js';

const AGAIN_MS = 3000;
const KEPT = 'flashsale.operator';

/** @type {string | Words} */
let why = '';
// Whether it is about the key.
let isKeyWrong = false;
let isKnown = false;

export function showSignIn() {
    show(byId('sign-in'), isKnown && !isSignedIn());
    for (const id of /** @type {const} */ (['view', 'nav', 'sign-out'])) {
        show(byId(id), isSignedIn());
    }
    setText(byId('acting'), operatorName());
    show(byId('acting'), operatorName() !== '');
    // The stylesheet hides the controls that need a greater role.
    const role = operatorRole();
    document.documentElement.dataset.role = role;
    const isLess = role === 'view' || role === 'run';
    show(byId('role'), isLess);
    if (isLess) {
        worded(byId('role'), `role_${role}`);
    }
    write(byId('sign-in-why'), why);
    setAttribute(byId('key'), 'aria-invalid', isKeyWrong ? 'true' : 'false');
}

// Reports that the session has ended, if there was one.
export function wantSignIn() {
    why = say('sessionEnded');
    isKeyWrong = false;
    showSignIn();
    byId('key').focus();
}

async function findSessionAgain() {
    const answer = await findSession();
    if (!answer.isOk) {
        setText(byId('connection'), say('lostConsole'));
        setTimeout(findSessionAgain, AGAIN_MS);
        return;
    }
    setText(byId('connection'), '');
    isKnown = true;
    showSignIn();
    if (!isSignedIn()) {
        byId('key').focus();
    }
}

export function startSignIn() {
    byId('operator').value = lasting.get(KEPT) ?? '';
    onSubmit(byId('by-key'), async (send) => {
        const key = byId('key').value;
        if (key === '') {
            why = say('keyMissing');
            isKeyWrong = true;
            showSignIn();
            byId('key').focus();
            return;
        }
        const name = byId('operator').value.trim();
        const answer = await send(() => signIn(key, name));
        const isNameWrong = answer.code === 'invalid_request';
        isKeyWrong = answer.code === 'unauthenticated';
        setText(byId('operator-wrong'), isNameWrong ? say('nameWrong') : '');
        setAttribute(byId('operator'), 'aria-invalid', isNameWrong ? 'true' : 'false');
        if (answer.isOk) {
            why = '';
            byId('key').value = '';
            lasting.set(KEPT, name);
            byId('main').focus();
        } else {
            why = isNameWrong ? '' : reasons(answer, 'noAnswerConsole');
            byId(isNameWrong ? 'operator' : 'key').focus();
        }
        showSignIn();
    });
    onPress(byId('sign-out'), async () => {
        const answer = await signOut();
        why = isSignedIn() ? '' : say('signedOut');
        // An operator who leaves must not believe that the sign-out worked.
        write(byId('connection'), isSignedIn() ? whyStill(answer) : '');
        showSignIn();
    });
    findSessionAgain();
}

// Why the operator is still signed in after a failed sign-out.
function whyStill(answer) {
    return answer.body.nothing_done === true ? say('stillSignedIn') : reasons(answer, 'signOutUnknown');
}

// Why a request failed; `lost` is the text key for no reply.
function reasons(answer, lost) {
    switch (answer.code) {
        case 'unauthenticated':
            return say('keyWrong');
        case 'rate_limited':
            return say('keyTooOften', { n: answer.wait });
        default:
            return wordsOf(answer, lost);
    }
}
