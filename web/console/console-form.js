// Creates a sale, or changes a draft. The tab stores the typed values until the API accepts them: an error, a reload or the
// end of the session loses nothing. The form overwrites only the version that it was based on. If another operator was
// faster, it asks first.

import { call, onceOnly } from './console-api.js';
import { onSubmit, sure, wordsOf } from './console-dialog.js';
import { durationOf, durationText } from './console-duration.js';
import { errorSummary } from './console-errors.js';
import { CONFIGURED, fieldOf, localTime, setTexts, textsIn } from './console-fields.js';
import { GUARDS as GUARDS_OF_SALE, valueText } from './console-guards.js';
import { minorOf, priceText } from './console-price.js';
import { button, word } from './console-table.js';
import { ITEM_TERMS, ruleOf, TERMS, termOf } from './console-terms.js';
import { announce, element, setAttribute, setChildren, setPressable, setText, show } from './dom.js';
import { money } from './format.js';
import { say } from './language.js';
import { write } from './problem.js';
import { ofTab, readOfTab } from './storage.js';

const HOUR_MS = 3_600_000;
// The most items that the API takes. They fit into one request, however long their names are.
const ITEMS_MAX = 1000;
// Delay before reading a draft again after a failure.
const AGAIN_MS = 3000;

const DEFAULTS = '/v1/admin/guards';

const GUARDS = GUARDS_OF_SALE.map((guard) => ({ ...guard, name: `guards.${guard.name}` }));
const NEW_ITEM = { sku: '', name: '', price_minor: '', currency: 'EUR', stock: '', per_user_limit: '1' };

function newSale() {
    const hour = Math.ceil(Date.now() / HOUR_MS) * HOUR_MS;
    return {
        ...Object.fromEntries(TERMS.map(({ name, kind, initial = '' }) => [name, kind === 'duration' ? durationText(durationOf(initial) ?? 0) : initial])),
        starts_at: localTime(hour),
        ends_at: localTime(hour + 2 * HOUR_MS),
        ...Object.fromEntries(GUARDS.map(({ name, mayLack }) => [name, mayLack ? '' : CONFIGURED])),
        items: [NEW_ITEM],
    };
}

/** @typedef {{ items: Record<string, string>[], [name: string]: any }} Texts the texts of all fields, by name */

const asText = (value) => (typeof value === 'boolean' ? (value ? 'yes' : 'no') : String(value ?? ''));

// The texts of kinds that are typed in another form than the API's.
const TEXTS = { time: localTime, duration: (value, { unit }) => durationText(value * unit) };

/** Turns a sale from the API into field texts. @type {(sale: AdminSale) => Texts} */
function textsOf(sale) {
    /** @type {any} */
    const texts = {};
    for (const term of [...TERMS, ...GUARDS]) {
        const value = termOf(term, sale);
        texts[term.name] = (TEXTS[term.kind] ?? asText)(value, term);
    }
    // Last, as `read` does it, so that equal texts give equal JSON.
    const itemText = (item, { name, kind }) => (kind === 'price' ? priceText(item[name], item.currency) : asText(item[name]));
    texts.items = sale.items.map((item) => Object.fromEntries(ITEM_TERMS.map((term) => [term.name, itemText(item, term)])));
    return texts;
}

// A field of the form, marked if it must be filled in.
/** @type {(definition: FieldDefinition) => Field} */
function formField(definition) {
    const field = fieldOf(definition);
    if (!definition.mayLack && !['choice', 'switch'].includes(definition.kind)) {
        setAttribute(field.control, 'aria-required', 'true');
    }
    return field;
}

// The field that an API error names, with the item's number before it.
function placeOf(detail) {
    const item = /^items\[(\d+)\]\.(\w+)/.exec(detail);
    if (item) {
        return `${item[1]}.${item[2]}`;
    }
    const guard = /^guards: (\w+)/.exec(detail);
    if (guard) {
        return `guards.${guard[1]}`;
    }
    return /^[\w.]+/.exec(detail)?.[0] ?? '';
}

export function formView(view, id) {
    const kept = `flashsale.form.${id ?? 'new'}`;
    /** @type {Map<string, Field>} */
    const fields = new Map();
    /** @type {{ own: Map<string, Field>, node: HTMLElement, remove: HTMLElement, show: () => void }[]} */
    const items = [];
    const title = word('h1', id ? 'editSale' : 'newSale');
    const restored = element('p', { class: 'note', role: 'status' });
    const askToStartOver = (question, key) => async () => (await sure(say(question), say('aboutLoad'), say(key))) && startOver();
    const startOverButton = button('startOver', { class: 'quiet' }, askToStartOver('sureStartOver', 'startOver'));
    const list = element('div', { class: 'items' });
    const add = button('addItem', {}, addNew);
    const wrong = element('p', { class: 'warning', role: 'alert', tabindex: '-1' });
    const other = element('p', { class: 'warning', role: 'alert', tabindex: '-1' });
    const loadOther = button('loadPresent', { id: 'load-present' }, askToStartOver('sureLoad', 'loadPresent'));
    const storeOver = button('storeOver', { id: 'store-over' }, overwrite);
    const clash = element('div', { class: 'list' }, other, element('div', { class: 'field' }, loadOther, storeOver));
    const store = word('button', id ? 'storeChanges' : 'createSale', { class: 'strong', type: 'submit' });
    const back = word('a', 'cancelForm', { class: 'button', href: id ? `/console/sales/${id}` : '/console' });
    const group = (legend, ...children) => element('fieldset', {}, word('legend', legend), ...children);
    const made = (definitions) =>
        definitions.map((definition) => {
            const field = formField({ ...definition, id: definition.name.replace('.', '-') });
            fields.set(definition.name, field);
            return field.node;
        });
    const grid = (...nodes) => element('div', { class: 'grid' }, ...nodes);
    const form = element(
        'form',
        { class: 'form', novalidate: '', 'data-needs': 'all' },
        word('p', 'requiredHint', { class: 'muted small' }),
        group('theSale', grid(...made(TERMS))),
        group('theItems', list, add),
        group('theGuards', word('p', 'guardsHint', { class: 'muted small' }), grid(...made(GUARDS))),
        wrong,
        clash,
        element('div', { class: 'actions' }, store, back),
    );
    show(clash, false);
    const errors = errorSummary(form);
    form.prepend(errors.node);
    const begun = element('div', { class: 'actions', 'data-needs': 'all' }, restored, startOverButton);
    view.append(title, word('p', 'problem_forbidden', { class: 'warning denied' }), begun, form);
    const once = onceOnly('flashsale.create');
    /** @type {Texts} */
    let stored = newSale();
    // The draft's times to the millisecond. The fields show seconds only, and are ambiguous when the clocks are set back.
    /** @type {Record<string, string>} */
    let instants = {};
    // `latest`: the draft as last read. `version`: the version that the typed values are based on.
    /** @type {Answer | null} */
    let latest = null;
    /** @type {string | null | undefined} */
    let version = null;
    let isLoaded = false;
    let isLoading = false;
    // The guards of the instance that answers, for those that are left as configured. Another instance may differ.
    /** @type {Record<string, any> | null} */
    let configured = null;
    let loadingAgain;
    let nextItem = 0;

    function addItem(texts) {
        const number = nextItem;
        nextItem += 1;
        const textOf = (name) => own.get(name)?.text() ?? '';
        const currency = () => textOf('currency');
        /** @type {Map<string, Field>} */
        const own = new Map(
            ITEM_TERMS.map((term) => [term.name, formField({ ...term, currency, id: `item-${number}-${term.name}` })]),
        );
        const price = element('p', { class: 'muted small', 'aria-live': 'off' });
        own.get('price_minor')?.node.append(price);
        const remove = button('removeItem', { class: 'quiet' }, () => {
            items.splice(items.indexOf(item), 1);
            arrange();
            keep();
            add.focus();
        });
        const fieldsOfItem = [...own.values()].map((field) => field.node);
        const node = element('div', { class: 'panel item', role: 'group' }, grid(...fieldsOfItem), remove);
        const item = { own, node, remove, show: showPrice };
        function showPrice() {
            const minor = minorOf(textOf('price_minor'), currency());
            const isPrice = minor !== null && /^[A-Z]{3}$/.test(currency());
            setText(price, isPrice ? say('priceIs', { price: money(minor, currency()), minor }) : '');
        }
        // 499 becomes 499.00, as the draft has it.
        own.get('price_minor')?.control.addEventListener('change', () => {
            const minor = minorOf(textOf('price_minor'), currency());
            if (minor !== null) {
                own.get('price_minor')?.set(priceText(minor, currency()));
                keep();
            }
        });
        setTexts(own, texts);
        items.push(item);
        showPrice();
        return item;
    }

    function arrange() {
        setChildren(
            list,
            items.map((item) => item.node),
        );
        nameItems();
        for (const item of items) {
            show(item.remove, items.length > 1);
        }
        setPressable(add, items.length < ITEMS_MAX);
    }

    const nameItems = () => items.forEach((item, at) => setAttribute(item.node, 'aria-label', say('itemNumber', { n: at + 1 })));

    function fill(texts) {
        setTexts(fields, texts);
        fields.forEach((field) => field.complain(''));
        items.length = 0;
        nextItem = 0;
        texts.items.forEach(addItem);
        setText(wrong, '');
        errors.clear();
        arrange();
    }

    function texts() {
        return { ...textsIn(fields), items: items.map(({ own }) => textsIn(own)) };
    }

    const keep = () => ofTab.set(kept, JSON.stringify({ version, texts: texts() }));
    const isTyped = (other) => JSON.stringify(other) === JSON.stringify(texts());

    // Restores the values that this tab stored, if they differ from the draft, with the version that they are based on.
    function takeUp() {
        fill(stored);
        const typed = readOfTab(kept);
        const isOther = Boolean(typed?.texts?.items) && !isTyped(typed.texts);
        if (isOther) {
            fill(typed.texts);
            version = typed.version ?? version;
        }
        setText(restored, isOther ? say('takenUp') : '');
        show(startOverButton, isOther);
    }

    // Bases the form on the draft as last read.
    function take(draft) {
        stored = textsOf(draft.body);
        const { starts_at, ends_at } = draft.body;
        instants = { starts_at, ends_at };
        version = draft.tag;
        sayClash();
    }

    // Shows whether another operator has changed the draft, and the ways out.
    function sayClash() {
        const isClash = latest !== null && latest.body.state === 'draft' && latest.tag !== version;
        setText(other, isClash ? say('draftChanged') : '');
        show(clash, isClash);
        return isClash;
    }

    function startOver() {
        ofTab.remove(kept);
        if (latest) {
            take(latest);
        }
        takeUp();
        fields.get('name')?.control.focus();
    }

    // Reads the draft after a failed store: another operator may have changed it, or it is no draft any more.
    async function findCause(answer) {
        const now = await call('GET', `/v1/admin/sales/${id}`);
        if (now.isOk) {
            latest = now;
        }
        if (now.isOk && now.tag !== version && isTyped(textsOf(now.body))) {
            // An earlier attempt stored it, and its reply was lost.
            done();
        } else if (now.isOk && sayClash()) {
            setText(wrong, '');
            other.focus();
        } else {
            complain(wordsOf(answer));
        }
    }

    function done() {
        ofTab.remove(kept);
        location.assign(`/console/sales/${id}`);
    }

    // The request body; null if a field is wrong, which is then shown beside it.
    function read() {
        /** @type {Record<string, any>} */
        const body = { items: [] };
        let isRight = true;
        const into = (target, name, field) => {
            const typed = field.read();
            const isAsStored = Object.hasOwn(instants, name) && localTime(typed) === localTime(instants[name]);
            const value = isAsStored ? instants[name] : typed;
            isRight = isRight && value !== undefined;
            if (value === null) {
                return;
            }
            const parts = name.split('.');
            const last = parts.pop() ?? '';
            const place = parts.reduce((inner, part) => (inner[part] ??= {}), target);
            place[last] = value;
        };
        fields.forEach((field, name) => into(body, name, field));
        for (const { own } of items) {
            const item = {};
            own.forEach((field, name) => into(item, name, field));
            body.items.push(item);
        }
        const guard = (name) => body.guards?.[name] ?? configured?.[name];
        if (['captcha', 'proof_of_work'].includes(guard('challenge')) && guard('purchase_token') === false) {
            fields.get('guards.challenge')?.complain(say('must_challenge'));
            isRight = false;
        }
        return isRight ? body : null;
    }

    // `detail` is the API's own text; it names the field.
    function complain(words, detail = '') {
        const place = placeOf(detail);
        const [number, name = ''] = place.split('.');
        const field = fields.get(place) ?? items[Number(number)]?.own.get(name);
        field?.complain(ruleOf(place.split('.').at(-1)) || words);
        write(wrong, field ? '' : words);
        if (!errors.update()) {
            wrong.focus();
        }
    }

    function addNew() {
        const item = addItem({ ...NEW_ITEM, currency: items.at(-1)?.own.get('currency')?.text() ?? 'EUR' });
        arrange();
        keep();
        item.own.get('sku')?.control.focus();
    }

    function overwrite() {
        // Overwrites only the version that the operator was warned about, not a newer one.
        version = latest?.tag;
        sayClash();
        keep();
        form.requestSubmit(store);
    }

    form.addEventListener('input', () => {
        // Until the draft is loaded, the stored values must stay.
        if (!id || isLoaded) {
            keep();
        }
        items.forEach((item) => item.show());
    });
    onSubmit(form, async (send) => {
        const body = read();
        if (!body) {
            setText(wrong, '');
            errors.update();
            return;
        }
        errors.clear();
        announce(say('working'));
        /** @type {Record<string, string>} */
        const headers = version ? { 'If-Match': version } : {};
        // One key for this form: it creates one sale, even if the values change between attempts.
        const answer = await send(() =>
            id ? call('PUT', `/v1/admin/sales/${id}`, { body, headers }) : once.post('/v1/admin/sales', 'new', body),
        );
        if (answer.isOk) {
            ofTab.remove(kept);
            location.assign(`/console/sales/${answer.body.id}`);
        } else if (answer.status === 401) {
            setText(wrong, '');
        } else if (answer.code === 'idempotency_key_reused') {
            complain(say('createdBefore'));
        } else if (id && answer.code === 'invalid_transition') {
            await findCause(answer);
        } else {
            complain(wordsOf(answer, id ? 'unknownAction' : 'unknownCreate'), answer.body.detail);
        }
    });

    function sayConfigured() {
        for (const guard of configured ? GUARDS_OF_SALE : []) {
            const control = fields.get(`guards.${guard.name}`)?.control;
            const text = say('configuredAs', { value: valueText(guard, configured?.[guard.name]) });
            const option = control?.querySelector(`[value=${CONFIGURED}]`);
            if (option) {
                setText(option, text);
            } else {
                control?.setAttribute('placeholder', text);
            }
        }
    }

    async function learnConfigured() {
        const answer = await call('GET', DEFAULTS);
        if (answer.isOk) {
            configured = answer.body.new_sales ?? null;
            sayConfigured();
        }
    }

    // Retries until the draft is loaded. It never overwrites what is typed after that.
    async function load() {
        clearTimeout(loadingAgain);
        if (isLoaded || isLoading) {
            return;
        }
        isLoading = true;
        const answer = await call('GET', `/v1/admin/sales/${id}`);
        isLoading = false;
        if (!answer.isOk) {
            write(wrong, wordsOf(answer, 'lostConsole'));
            setPressable(store, false);
            // After a 401 the sign-in continues the load. After a 404 the draft will not appear.
            if (![401, 404].includes(answer.status)) {
                loadingAgain = setTimeout(load, AGAIN_MS);
            }
            return;
        }
        isLoaded = true;
        latest = answer;
        take(answer);
        setPressable(store, answer.body.state === 'draft');
        takeUp();
        sayClash();
        if (answer.body.state !== 'draft') {
            setText(wrong, say('noDraft'));
        }
    }
    learnConfigured();
    if (id) {
        load();
    } else {
        takeUp();
        fields.get('name')?.control.focus();
    }
    function again() {
        nameItems();
        items.forEach((item) => item.show());
        sayClash();
        sayConfigured();
    }
    return { read: () => (id ? load() : null), again };
}
