// Copies text to the clipboard. Browsers give it only to pages from a secure origin.

import { announce } from './dom.js';
import { say } from './language.js';

export const mayCopy = () => 'clipboard' in navigator;

// Announces the outcome, and resolves to whether it worked.
/** @type {(text: string) => Promise<boolean>} */
export async function copy(text) {
    const isCopied = await navigator.clipboard.writeText(text).then(() => true, () => false);
    announce(say(isCopied ? 'copied' : 'notCopied'));
    return isCopied;
}
