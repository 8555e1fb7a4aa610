// Confirms an action before it runs, and shows the outcome afterwards.

import { isUnknown } from './api.js';
import { errorSummary } from './console-errors.js';
import { announce, byId, element, isPressable, onPress, setAttribute, setBusy, setChildren, setPressable, setText, show } from './dom.js';
import { say } from './language.js';
import { explained, write } from './problem.js';

// Runs a request. Until its reply, `button` cannot be pressed, and `part` is busy.
/** @type {<Reply>(button: Element, part: Element, request: () => Reply) => Promise<Awaited<Reply>>} */
export async function busyWhile(button, part, request) {
    setPressable(button, false);
    setBusy(part, true);
    const reply = await request();
    setPressable(button, true);
    setBusy(part, false);
    return reply;
}

// Calls `act` when the form is submitted and its button can be pressed. `act` gets a function that runs its request by
// `busyWhile`.
/** @type {(form: Element, act: (send: <Reply>(request: () => Reply) => Promise<Awaited<Reply>>) => unknown) => void} */
export function onSubmit(form, act) {
    const button = /** @type {Element} */ (form.querySelector('[type=submit]'));
    form.addEventListener('submit', (event) => {
        event.preventDefault();
        if (isPressable(button)) {
            act((request) => busyWhile(button, form, request));
        }
    });
}

// Focuses an element if the focus was lost with its element.
export function restoreFocus(id = 'main') {
    if (document.activeElement === document.body) {
        (byId(id) ?? byId('main')).focus();
    }
}

// Asks the operator to confirm, or to fill in a `field`; `isDanger` marks the button of an action that takes something away. With a `field`, or a
// `groupOf` fields, resolves to the typed value. The dialog holds the focus, and Escape cancels.
// With `act`, the dialog stays open until `act(value)` succeeds. If `act` returns text, that text is the error, and the
// operator can correct the value.
/**
 * @param {string} question
 * @param {string | HTMLElement} text
 * @param {string} yes
 * @param {object} options
 * @param {Pick<Field, 'node' | 'control' | 'read'> & Partial<Field> | null} [options.field]
 * @param {((value: any) => Promise<string | Words | null>) | null} [options.act]
 * @param {boolean} [options.isDanger]
 */
export function sure(question, text, yes, { field = null, act = null, isDanger = false } = {}) {
    return new Promise((resolve) => {
        let value = true;
        const ok = element('button', { class: isDanger ? 'strong danger' : 'strong', type: 'button' }, yes);
        const no = element('button', { type: 'button' }, say(field ? 'cancelForm' : 'no'));
        const errors = field && errorSummary(field.node);
        const dialog = element(
            'dialog',
            { 'aria-labelledby': 'sure-title', 'aria-describedby': 'sure-text' },
            element('h2', { id: 'sure-title' }, question),
            element(typeof text === 'string' ? 'p' : 'div', { id: 'sure-text' }, text),
            ...(field && errors ? [errors.node, field.node] : []),
            element('div', { class: 'actions' }, ok, no),
        );
        onPress(ok, async () => {
            value = field ? field.read() : true;
            const wrong = act && value !== undefined ? await busyWhile(ok, dialog, () => act(value)) : null;
            if (wrong) {
                field?.complain?.(wrong);
            }
            if (wrong || value === undefined) {
                if (!errors?.update()) {
                    field?.control.focus();
                }
            } else {
                dialog.close('yes');
            }
        });
        field?.node.addEventListener('keydown', (event) => {
            // The Enter that ends the input of Chinese characters is no answer, nor is one that begins a line.
            if (event.key === 'Enter' && !event.isComposing && !(event.target instanceof HTMLTextAreaElement)) {
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

// What hides the notices of actions that have ended. They go when another action begins: they may be wrong by then.
/** @type {Set<() => unknown>} */
const ended = new Set();

// A line with the outcome of an action. Screen readers miss a line that appears and disappears, so the text is also
// announced. `readState` reads the state again, and resolves to whether it is known. After an unknown outcome, a button
// calls it, and then the line goes away.
/** @param {() => Promise<boolean>} [readState] */
export function resultLine(readState) {
    const text = element('p', { class: 'result-text' });
    const again = element('button', { class: 'look', type: 'button' });
    const away = element('button', { class: 'quiet', type: 'button' });
    const node = element('div', { class: 'result' }, text, away);
    show(node, false);
    /** @type {any} */
    let from = null;
    // The answer on the line, if its outcome is unknown.
    /** @type {Answer | null} */
    let open = null;
    /** @type {(tone: string, words: string | Words, answer?: Answer) => string} */
    const print = (tone, words, answer) => {
        const whole = write(text, words);
        open = answer && isUnknown(answer) ? answer : null;
        setText(again, say('lookAtState'));
        setText(away, say('away'));
        setChildren(node, [text, ...(readState && open ? [again] : []), away]);
        setAttribute(node, 'class', `result ${tone}`);
        show(node, whole !== '');
        return whole;
    };
    const hide = () => print('', '');
    /** @type {(tone: string, words: string | Words, answer?: Answer) => void} */
    const report = (tone, words, answer) => {
        from = node.contains(document.activeElement) ? from : document.activeElement;
        announce(print(tone, words, answer));
    };
    /** @type {(tone: string, words: string | Words, answer?: Answer) => void} */
    const end = (tone, words, answer) => {
        report(tone, words, answer);
        ended.add(hide);
    };
    // Hiding the line would lose the focus. It returns to the element that had it before.
    const leave = () => {
        hide();
        const isThere = from !== document.body && from?.checkVisibility();
        (isThere ? from : byId('main')).focus({ preventScroll: true });
    };
    onPress(away, leave);
    onPress(again, async () => {
        const asked = open;
        if (await busyWhile(again, node, async () => readState?.())) {
            line.settle(asked);
        }
    });
    const line = {
        node,
        busy() {
            ended.forEach((hideIt) => hideIt());
            ended.clear();
            report('', say('working'));
        },
        good: (words) => end('is-good', words),
        bad: (answer) => end('is-bad', wordsOf(answer), answer),
        wrong: (words) => end('is-bad', words),
        clear: hide,
        // Shows a refusal beside its field instead, also until another action begins.
        beside(field, words) {
            hide();
            field.complain(words);
            ended.add(() => field.complain(''));
        },
        // The outcome of this answer has become known.
        settle(answer) {
            if (answer === open && node.contains(document.activeElement)) {
                leave();
            } else if (answer === open) {
                line.clear();
            }
        },
        // Runs the request of a button and shows its outcome. `done` makes the text of a success from the reply. `after` runs
        // before the focus is restored.
        /** @type {(button: HTMLElement, request: () => Promise<Answer>, done: (answer: Answer) => string, after?: (answer: Answer) => unknown) => Promise<Answer>} */
        async run(button, request, done, after) {
            line.busy();
            const answer = await busyWhile(button, button, request);
            if (answer.isOk) {
                line.good(done(answer));
            } else {
                line.bad(answer);
            }
            await after?.(answer);
            restoreFocus();
            return answer;
        },
    };
    return line;
}
