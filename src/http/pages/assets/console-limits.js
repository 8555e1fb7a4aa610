// The limits in front of what shoppers ask: what is configured, what operators have changed of it, and what counts.

import { call } from './console-api.js';
import { resultLine, sure, wordsOf } from './console-dialog.js';
import { fieldOf } from './console-fields.js';
import { word } from './console-table.js';
import { byId, element, onPress, setAttribute, setPressable, setText } from './dom.js';
import { say } from './language.js';
import { write } from './problem.js';

const GUARDS = '/v1/admin/guards';
const SETTINGS = [
    'address_rate', 'instance_rate', 'shared_rate', 'adaptive_min_rate', 'adaptive_max_rate', 'adaptive_latency_ms',
    'adaptive_in_flight', 'browsing_alert_above', 'browsing_ban_above', 'browsing_ban_seconds',
];
const NUMBER_MAX = 4_294_967_295;

export function limitsView(view) {
    const result = resultLine();
    const trouble = element('p', { class: 'warning', role: 'status' });
    const now = element('p', { class: 'muted', id: 'limits-now' });
    const body = element('tbody');
    const columns = ['setting', 'configured', 'changed', 'effective', 'action'];
    const table = element(
        'table',
        {},
        word('caption', 'limits', { class: 'for-readers', id: 'table-limits' }),
        element('thead', {}, element('tr', {}, ...columns.map((column) => word('th', column, { scope: 'col' })))),
        body,
    );
    const wide = element('div', { class: 'wide', tabindex: '0', role: 'region', 'aria-labelledby': 'table-limits' }, table);
    let last = null;

    async function read() {
        const answer = await call('GET', GUARDS);
        write(trouble, answer.isOk ? '' : wordsOf(answer, 'lostConsole'));
        if (answer.isOk) {
            fill(answer.body);
        }
    }

    function fill(guards) {
        last = guards;
        const { rate, in_flight: n } = guards;
        setText(now, rate === 0 ? say('limitsNowAll', { n }) : say('limitsNow', { rate, n }));
        // Who has the focus on a button keeps it on the one that stands there then.
        const focus = document.activeElement?.id ?? '';
        body.replaceChildren(...SETTINGS.map((name) => rowOf(name, guards)));
        if (focus !== '' && document.activeElement === document.body) {
            byId(focus)?.focus();
        }
    }

    function buttonOf(name, key, what, act) {
        const button = element('button', { type: 'button', id: `${key}-${name}` }, say(key));
        setAttribute(button, 'aria-label', say(what, { name: say(`set_${name}`) }));
        onPress(button, () => act(name, button));
        return button;
    }

    function rowOf(name, { configured, changed, effective }) {
        const isChanged = changed[name] !== undefined && changed[name] !== null;
        const buttons = [buttonOf(name, 'changeIt', 'changeLimit', change)];
        if (isChanged) {
            buttons.push(buttonOf(name, 'takeBack', 'takeBackLimit', takeBack));
        }
        const cells = [
            element('span', {}, say(`set_${name}`), ' ', element('code', {}, name)),
            String(configured[name]),
            isChanged ? String(changed[name]) : '',
            String(effective[name]),
            element('div', { class: 'actions' }, ...buttons),
        ];
        return element('tr', { id: `limit-${name}` }, ...cells.map((cell) => element('td', {}, cell)));
    }

    async function change(name, button) {
        const field = fieldOf({ id: 'limit-value', label: 'newValue', kind: 'whole', min: 0, max: NUMBER_MAX });
        field.set(String(last.effective[name]));
        const words = { name: say(`set_${name}`), value: last.effective[name] };
        const value = await sure(say('sureLimit', words), say('aboutLimit', words), say('doChange'), field);
        if (value !== false) {
            await patch(button, { [name]: value }, say('didLimit', { name: words.name, value }));
        }
    }

    async function takeBack(name, button) {
        const words = { name: say(`set_${name}`), value: last.configured[name] };
        if (await sure(say('sureTakeBack', words), say('aboutTakeBack', words), say('takeBack'))) {
            await patch(button, { [name]: null }, say('didLimit', words));
        }
    }

    async function patch(button, changes, done) {
        result.busy();
        setPressable(button, false);
        const answer = await call('PATCH', GUARDS, { body: changes });
        setPressable(button, true);
        if (answer.isOk) {
            result.good(done);
            fill(answer.body);
        } else {
            result.bad(answer);
            await read();
        }
        if (document.activeElement === document.body) {
            byId('main').focus();
        }
    }

    view.append(word('h1', 'limits'), word('p', 'limitsHint', { class: 'muted' }), result.node, trouble, now, wide);
    read();
    return { resume: read, translate: () => last && fill(last) };
}
