// Confirms an action before it runs, and shows the outcome afterwards.

import { isUnknown } from './api.js';
import { announce, byId, element, onPress, setAttribute, setBusy, setPressable, setText, show } from './dom.js';
import { say } from './language.js';
import { explained, write } from './problem.js';

// Asks the operator to confirm. With a `field`, resolves to the typed value. The dialog holds the focus, and Escape
// cancels.
// With `act`, the dialog stays open until `act(value)` succeeds. If `act` returns text, that text is the error, and the
// operator can correct the value.
/**
 * @param {string} question
 * @param {string} text
 * @param {string} yes
 * @param {Pick<Field, 'node' | 'control' | 'read'> & Partial<Field> | null} field
 * @param {((value: any) => Promise<string | Words | null>) | null} act
 */
export function sure(question, text, yes, field = null, act = null) {
    return new Promise((resolve) => {
        let value = true;
        const ok = element('button', { class: 'strong', type: 'button' }, yes);
        const no = element('button', { type: 'button' }, say('no'));
        const dialog = element(
            'dialog',
            { 'aria-labelledby': 'sure-title', 'aria-describedby': 'sure-text' },
            element('h2', { id: 'sure-title' }, question),
            element('p', { id: 'sure-text' }, text),
            ...(field ? [field.node] : []),
            element('div', { class: 'actions' }, ok, no),
        );
        async function actOn(typed) {
            setPressable(ok, false);
            setBusy(dialog, true);
            const wrong = await act?.(typed);
            setPressable(ok, true);
            setBusy(dialog, false);
            return wrong;
        }
        onPress(ok, async () => {
            value = field ? field.read() : true;
            const wrong = act && value !== undefined ? await actOn(value) : null;
            if (wrong) {
                field?.complain?.(wrong);
            }
            if (wrong || value === undefined) {
                field?.control.focus();
            } else {
                dialog.close('yes');
            }
        });
        field?.control.addEventListener('keydown', (event) => {
            if (event.key === 'Enter') {
                event.preventDefault();
                ok.click();
            }
        });
        onPress(no, () => dialog.close('no'));
        dialog.addEventListener('close', () => {
            dialog.remove();
            resolve(dialog.returnValue === 'yes' ? value : false);
        });
        document.body.append(dialog);
        dialog.showModal();
        (field?.control ?? no).focus();
    });
}

// The text for a failed action. If the outcome is unknown, the API's own text is for programs, and a text of ours replaces
// it.
/** @type {(answer: Answer, unknown?: string) => Words} */
export function wordsOf(answer, unknown = 'unknownAction') {
    if (answer.body?.nothing_done === true) {
        return { text: say('nothingDone') };
    }
    /** @type {Words} */
    const words = isUnknown(answer) ? { text: say(unknown) } : explained(answer);
    return words.text || words.more ? words : { text: say('refusedAction') };
}

// A line with the outcome of an action. Screen readers miss a line that appears and disappears, so the text is also
// announced.
export function resultLine() {
    const text = element('p', { class: 'result-text' });
    const away = element('button', { class: 'quiet', type: 'button' });
    const node = element('div', { class: 'result' }, text, away);
    show(node, false);
    /** @type {any} */
    let from = null;
    const tell = (tone, words) => {
        const said = write(text, words);
        setText(away, say('away'));
        setAttribute(node, 'class', `result ${tone}`);
        show(node, said !== '');
        return said;
    };
    const tellAll = (tone, words) => {
        from = node.contains(document.activeElement) ? from : document.activeElement;
        announce(tell(tone, words));
    };
    onPress(away, () => {
        tell('', '');
        // Hiding the line would lose the focus. It returns to the element that had it before.
        const isThere = from !== document.body && from?.checkVisibility();
        (isThere ? from : byId('main')).focus({ preventScroll: true });
    });
    return {
        node,
        busy: () => tellAll('', say('working')),
        good: (words) => tellAll('is-good', words),
        bad: (answer) => tellAll('is-bad', wordsOf(answer)),
        wrong: (words) => tellAll('is-bad', words),
        clear: () => tell('', ''),
    };
}
