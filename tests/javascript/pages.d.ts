// The types that the modules of web/ share. All are global, as in api.d.ts.

// The elements of the pages' HTML that scripts look up. An id that is not listed may be missing from the page.
interface PageElements {
    token: HTMLInputElement;
    user: HTMLInputElement;
    key: HTMLInputElement;
    operator: HTMLInputElement;
    'shop-sign-in': HTMLAnchorElement;
    'by-key': HTMLFormElement;
    'by-token': HTMLFormElement;
    'as-anybody': HTMLFormElement;
    acting: HTMLElement;
    'at-shop': HTMLElement;
    calendar: HTMLElement;
    connection: HTMLElement;
    countdown: HTMLElement;
    description: HTMLElement;
    'decline-offer': HTMLElement;
    development: HTMLElement;
    empty: HTMLElement;
    items: HTMLElement;
    'items-section': HTMLElement;
    live: HTMLElement;
    main: HTMLElement;
    message: HTMLElement;
    'message-text': HTMLElement;
    more: HTMLElement;
    name: HTMLElement;
    nav: HTMLElement;
    'no-link': HTMLElement;
    'no-orders': HTMLElement;
    notice: HTMLElement;
    offer: HTMLElement;
    'offer-who': HTMLElement;
    'operator-wrong': HTMLElement;
    orders: HTMLElement;
    picture: HTMLImageElement;
    'orders-section': HTMLElement;
    role: HTMLElement;
    sales: HTMLElement;
    'see-all': HTMLElement;
    'sign-in': HTMLElement;
    'sign-in-early': HTMLElement;
    'sign-in-why': HTMLElement;
    'sign-out': HTMLElement;
    state: HTMLElement;
    'take-offer': HTMLElement;
    'to-sign-in': HTMLElement;
    'to-pay': HTMLElement;
    'to-pay-link': HTMLAnchorElement;
    'to-pay-more': HTMLElement;
    'to-pay-now': HTMLElement;
    'to-pay-timer': HTMLElement;
    'to-pay-what': HTMLElement;
    until: HTMLElement;
    view: HTMLElement;
    when: HTMLElement;
    who: HTMLElement;
}

type ById = <Id extends string>(id: Id) => Id extends keyof PageElements ? PageElements[Id] : HTMLElement | null;

// The reply to a request of shared/api.js. `body` is the API's answer or problem; after a network failure it is {}.
interface Answer {
    isOk: boolean;
    status: number;
    body: any;
    code: Code | 'ok' | 'no_answer';
    tag?: string | null;
    date?: string | null;
    wait: number;
    sent: number;
    received: number;
    // Whether the server's time in it is older than the reply.
    isRough?: boolean;
}

interface AskOptions {
    token?: string;
    headers?: Record<string, string>;
    body?: object;
    credentials?: RequestCredentials;
    patience?: number;
    isStream?: boolean;
    isFile?: boolean;
}

// A text of ours, and the API's own English text beside it. `place`: the field that it is about.
interface Words {
    text: string;
    more?: string;
    place?: string;
}

// A language of the pages, as its file in web/languages describes it. A text may have plural forms.
interface Language {
    name: string;
    tag: string;
    form: string;
    texts: Record<string, string | Record<string, string>>;
}

// A proof of work, which the API gives inside of a challenge.
type ProofChallenge = Extract<Challenge, { kind: 'proof_of_work' }>['altcha'];
type ProofParameters = ProofChallenge['parameters'];

interface Shopper {
    user: string;
    token: string;
}

// What a shopper wants to buy. `isTrying`: the attempt waits until a unit is free.
interface Wish {
    sku: string;
    quantity: number;
    isTrying: boolean;
}

// A stored attempt to buy. Times are by the browser's clock.
interface Attempt extends Wish {
    key: string;
    isOpen: boolean;
    isParked: boolean;
    sentAt: number | null;
    askedAt: number | null;
    tab: string;
    seen: number;
    purchaseToken?: PurchaseToken | null;
    solved?: Solution | null;
    // Which guards this shopper has to pass, as far as an answer has said.
    asked?: Partial<Record<Answer['code'], boolean>>;
    wasWrong?: boolean;
    isLate?: boolean;
    isUnseen?: boolean;
}

interface Room {
    ticket?: string;
    admission?: string | null;
    until?: string;
    first?: number;
}

// Why a step failed. `early`: by the server's clock, the sale has not started yet.
type StepCode = Answer['code'] | 'early';

// A step of an attempt that must be repeated, and why.
type Repeat =
    | { kind: 'again'; why: 'unknown' | 'slow' | 'taken'; code: StepCode; seconds: number }
    | { kind: 'again'; why: 'guards'; code: StepCode };

// How an attempt ended.
interface End {
    kind: 'reserved' | 'refused' | 'slow' | 'unknown' | 'begun' | 'signed_out' | 'unsolvable' | 'stopped';
    code?: StepCode;
    state?: SaleState;
    bannedUntil?: string;
    until?: number;
    sentAt?: number;
    order?: Order;
}

type Step = Repeat | End;
type Counted = Record<Repeat['why'], number>;
type Solution = { id: string; answer: string };

// What a shopper has of an item. `has`: units that are reserved or paid for. `order`: the unpaid order whose time ends first.
// `ended`: the order that is shown when none is unpaid. `other`: the attempt at another item that comes first. `isFull`: the
// account may have no more unpaid orders. `isAdmitted`: the shopper's turn in the waiting room lasts. `isBanned`: the
// account may buy nothing.
interface Own {
    has: number;
    reserved: number;
    order?: Order;
    ended?: Order;
    other?: Phase;
    isFull: boolean;
    isAdmitted: boolean;
    isBanned: boolean;
}

// An item in the card of its group. `hasNews`: its card shows an attempt or an order. `hasAll`: the shopper has as
// many as one may have.
interface Variant {
    item: PublicItem;
    card: HTMLElement;
    hasNews: boolean;
    hasAll: boolean;
}

// The phase of an attempt that the shopper sees. `unpaid`: the most unpaid orders that the page has seen since its end.
interface Phase extends Omit<End, 'kind'> {
    kind: End['kind'] | 'sending' | 'checking' | 'proving' | 'letters' | 'queued' | 'trying' | 'elsewhere';
    sku?: string;
    quantity?: number;
    isEnd?: boolean;
    at?: number;
    unpaid?: number;
    isSoldOut?: boolean;
    isAgain?: boolean;
    isEarly?: boolean;
    turnUntil?: number;
    position?: number;
    first?: number;
    wait?: number;
    heardAt?: number;
}

// The shopper's reply to a captcha; shop/captcha.js explains it.
interface Letters {
    letters: string;
    isUnseen?: boolean;
}

// An attempt's access to its page; shop/attempt.js explains it.
interface World {
    id: string;
    user: string;
    token: string;
    sale(): PublicSale;
    now(): number;
    isFree(sku: string): Promise<boolean>;
    keep(): void;
    isStopped(): boolean;
    signal: AbortSignal;
    hasSlept(): boolean;
    show(phase: Phase): void;
    pause(ms: number): Promise<boolean>;
    letters(image: string, how: { why: string; mayNotSee: boolean; turnUntil?: number }): Promise<Letters | null>;
}

// A view of the console. `read` reads its data after a sign-in, `again` after a change of language.
interface View {
    read(): unknown;
    again(): unknown;
    tick?(): void;
}

// The time that a plot shows, and the most that two joined points are apart. All in milliseconds.
interface PlotSpan {
    from: number;
    to: number;
    gap: number;
}

// A form field of the console, and how it is defined.
interface Field {
    node: HTMLElement;
    control: HTMLElement & { value: string };
    text(): string;
    set(text: string): void;
    read(): any;
    complain(words: string | Words): void;
}

interface FieldDefinition {
    id: string;
    label: string;
    kind: string;
    hint?: string;
    min?: number;
    max?: number;
    mayLack?: boolean;
    isExact?: boolean;
    pattern?: RegExp;
    must?: string;
    isWide?: boolean;
    currency?(): string;
    unit?: number;
    prefix?: string;
    options?: string[];
}

// The options of `searchOf`; console/console-search.js explains them.
interface Search {
    page: string;
    list: string;
    file: string;
    fields: {
        read(): Record<string, string> | null;
        takeUp(asked: (name: string) => string): void;
        offerSales(): Promise<void>;
    };
    rows: HTMLElement[];
    main?: Field;
    query(values: Record<string, string>): Record<string, string> | string;
    takeUp(asked: (name: string) => string): boolean;
    isTable?(query: URLSearchParams): boolean;
    restart(): unknown;
    result: any;
}

// The options of `listTable`; console/console-table.js explains them.
interface Listing<Entry> {
    caption: string;
    columns: string[];
    path(): string | null;
    row(entry: Entry): (Node | string | null)[];
    idOf(entry: Entry): string | number;
    nameOf?(entry: Entry): string;
    inOrder?(a: Entry, b: Entry): number;
    groupOf?(entry: Entry): string;
    pageOf?(body: any): Page<Entry>;
    empty: string | (() => string);
    every: number;
    mayGrow?: boolean;
}
