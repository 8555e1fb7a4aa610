// The bodies and answers of the API, made from its document: ./dev docs. All types are global, so a script names a type
// without an import. Times are RFC 3339 texts. A member that may be missing is never null.

interface Page<Entry> {
    data: Entry[];
    has_more: boolean;
}

interface PurchaseBody {
    sku: string;
    quantity: number;
}

interface Asking {
    ticket?: string;
}

interface ChallengeBody {
    sale_id: string;
    without_picture?: boolean;
}

interface TokenBody {
    idempotency_key: string;
    challenge?: AnswerBody;
}

interface AnswerBody {
    id: string;
    answer: string;
}

interface SaleRequest {
    name: string;
    description?: string;
    image_url?: string;
    starts_at: string;
    ends_at: string;
    shards?: number;
    payment_window_seconds?: number;
    purchase_rate?: RateRequest;
    durability?: Durability;
    guards?: {
        purchase_token?: boolean;
        challenge?: ChallengeKind;
        proof_cost?: number;
        captcha_proof_cost?: number;
        holds_max?: number;
        unpaid_cooldown_seconds?: number;
        waiting_room?: boolean;
        admissions_per_second?: number;
        admission_seconds?: number;
    };
    items: ItemRequest[];
}

interface RateRequest {
    limit: number;
    window_ms: number;
}

type Durability = 'redis' | 'replica' | 'postgres';

type ChallengeKind = 'none' | 'proof_of_work' | 'captcha';

interface ItemRequest {
    sku: string;
    name: string;
    price_minor: number;
    currency: string;
    stock: number;
    per_user_limit: number;
    description?: string;
    image_url?: string;
    group?: string;
    option?: string;
}

interface Amendment {
    name?: string;
    description?: string;
    image_url?: string;
    items?: ItemAmendment[];
    starts_at?: string;
    ends_at?: string;
    admissions_per_second?: number;
    guards?: {
        waiting_room?: {
            value?: boolean;
            percent?: number;
            shadow?: boolean;
        };
        purchase_token?: {
            value?: boolean;
            percent?: number;
            shadow?: boolean;
        };
        challenge?: {
            value?: ChallengeKind;
            percent?: number;
            shadow?: boolean;
        };
        holds_max?: {
            value?: number;
            percent?: number;
            shadow?: boolean;
        };
        unpaid_cooldown_seconds?: {
            value?: number;
            percent?: number;
            shadow?: boolean;
        };
    };
}

interface ItemAmendment {
    sku: string;
    description?: string;
    image_url?: string;
}

interface SaleMessage {
    en?: string;
    zh?: string;
}

interface RestockBody {
    sku: string;
    quantity: number;
}

interface SettleLetterBody {
    position: string;
    note: string;
}

interface SettleBody {
    payment_id: string;
    reference: string;
}

interface BanBody {
    user: string;
    reason: string;
    until?: string;
    end_sessions?: boolean;
}

interface LiftBody {
    user: string;
}

interface GuardPatch {
    address_rate?: {
        value?: number;
        percent?: number;
        shadow?: boolean;
    } | number;
    account_rate?: {
        value?: number;
        percent?: number;
        shadow?: boolean;
    } | number;
    instance_rate?: {
        value?: number;
        percent?: number;
        shadow?: boolean;
    } | number;
    shared_rate?: {
        value?: number;
        percent?: number;
        shadow?: boolean;
    } | number;
    adaptive_min_rate?: number;
    adaptive_max_rate?: number;
    adaptive_latency_ms?: number;
    adaptive_in_flight?: number;
    browsing_alert_above?: {
        value?: number;
        percent?: number;
        shadow?: boolean;
    } | number;
    browsing_ban_above?: {
        value?: number;
        percent?: number;
        shadow?: boolean;
    } | number;
    browsing_ban_seconds?: number;
}

interface EndBody {
    session_id: string;
}

interface SignInBody {
    key: string;
    name?: string;
}

interface PaymentEvent {
    type: 'payment.succeeded';
    timestamp: string;
    data: PaymentMade;
}

interface PaymentMade {
    payment_id: string;
    order_id: string;
    amount_minor: number;
    currency: string;
}

interface PublicSale {
    id: string;
    name: string;
    description?: string;
    image_url?: string;
    state: SaleState;
    starts_at: string;
    ends_at: string;
    server_time: string;
    payment_window_seconds: number;
    purchase_rate: PurchaseRate;
    guards: PublicGuards;
    message?: SaleMessage;
    items: PublicItem[];
}

type SaleState = 'draft' | 'scheduled' | 'open' | 'paused' | 'closed';

interface PurchaseRate {
    limit: number;
    window_ms: number;
}

interface PublicGuards {
    waiting_room: boolean;
    purchase_token: boolean;
    challenge: ChallengeKind;
    captcha_proof: boolean;
    holds_max?: number;
    staged?: StagedGuards;
}

interface StagedGuards {
    waiting_room: boolean;
    purchase_token: boolean;
    challenge: ChallengeKind;
}

interface PublicItem {
    sku: string;
    name: string;
    price_minor: number;
    currency: string;
    per_user_limit: number;
    availability: Availability;
    on_hold?: boolean;
    next_release_at?: string;
    description?: string;
    image_url?: string;
    group?: string;
    option?: string;
}

type Availability = 'available' | 'low' | 'sold_out';

interface Order {
    id: string;
    sale_id: string;
    sku: string;
    quantity: number;
    amount_minor: number;
    currency: string;
    state: OrderState;
    confirmed: boolean;
    created_at: string;
    expires_at: string;
    paid_at: string | null;
}

type OrderState = 'reserved' | 'paid' | 'cancelled' | 'expired' | 'revoked';

interface Standing {
    state: State;
    position?: number;
    waiting?: number;
    estimated_wait_seconds?: number;
    ticket?: string;
    admission?: string;
    expires_at?: string;
    ask_again_seconds?: number;
}

type State = 'waiting' | 'sold_out' | 'admitted' | 'closed';

type Challenge = {
    kind: 'captcha';
    id: string;
    image: string;
    expires_at: string;
}
    | {
    kind: 'proof_of_work';
    id: string;
    altcha: {
        parameters: {
            algorithm: string;
            cost: number;
            expiresAt?: number;
            keyLength: number;
            keyPrefix: string;
            nonce: string;
            salt: string;
        };
    };
    expires_at: string;
};

interface PurchaseToken {
    token: string;
    expires_at: string;
}

interface AdminSale {
    id: string;
    name: string;
    description?: string;
    image_url?: string;
    starts_at: string;
    ends_at: string;
    closed_at?: string;
    shards: number;
    payment_window_seconds: number;
    purchase_rate: PurchaseRate;
    durability: Durability;
    guards: {
        purchase_token: boolean;
        challenge: ChallengeKind;
        proof_cost: number;
        captcha_proof_cost: number;
        holds_max: number;
        unpaid_cooldown_seconds: number;
        waiting_room: boolean;
        admissions_per_second: number;
        admission_seconds: number;
    };
    staged_guards?: {
        waiting_room?: {
            value: boolean;
            percent: number;
            shadow: boolean;
        };
        purchase_token?: {
            value: boolean;
            percent: number;
            shadow: boolean;
        };
        challenge?: {
            value: ChallengeKind;
            percent: number;
            shadow: boolean;
        };
        holds_max?: {
            value: number;
            percent: number;
            shadow: boolean;
        };
        unpaid_cooldown_seconds?: {
            value: number;
            percent: number;
            shadow: boolean;
        };
    };
    items: Item[];
    created_at: string;
    message: SaleMessage;
    state: SaleState;
    server_time: string;
}

interface Item {
    sku: string;
    name: string;
    price_minor: number;
    currency: string;
    stock: number;
    per_user_limit: number;
    description?: string;
    image_url?: string;
    group?: string;
    option?: string;
}

interface DeletedSale {
    id: string;
    deleted: true;
}

interface PreloadedSale {
    id: string;
    name: string;
    description?: string;
    image_url?: string;
    starts_at: string;
    ends_at: string;
    closed_at?: string;
    shards: ShardStats[];
    payment_window_seconds: number;
    purchase_rate: PurchaseRate;
    durability: Durability;
    guards: {
        purchase_token: boolean;
        challenge: ChallengeKind;
        proof_cost: number;
        captcha_proof_cost: number;
        holds_max: number;
        unpaid_cooldown_seconds: number;
        waiting_room: boolean;
        admissions_per_second: number;
        admission_seconds: number;
    };
    staged_guards?: {
        waiting_room?: {
            value: boolean;
            percent: number;
            shadow: boolean;
        };
        purchase_token?: {
            value: boolean;
            percent: number;
            shadow: boolean;
        };
        challenge?: {
            value: ChallengeKind;
            percent: number;
            shadow: boolean;
        };
        holds_max?: {
            value: number;
            percent: number;
            shadow: boolean;
        };
        unpaid_cooldown_seconds?: {
            value: number;
            percent: number;
            shadow: boolean;
        };
    };
    items: Item[];
    created_at: string;
    message: SaleMessage;
    state: SaleState;
    server_time: string;
    sale_id: string;
}

interface ShardStats {
    shard: number;
    epoch: number;
    available: Record<string, number>;
    held: Record<string, number>;
    sold: Record<string, number>;
    sent: Record<string, number>;
    received: Record<string, number>;
    in_transit: Record<string, number>;
    undrained_events: number;
}

type RebuildAnswer = Rebuilt | RebuildPreview;

interface Rebuilt {
    sale_id: string;
    shards: number;
    orders: number;
    lost_orders: number;
}

interface RebuildPreview {
    sale_id: string;
    dry_run: boolean;
    shards: ShardPreview[];
}

interface ShardPreview {
    shard: number;
    undrained_events: number;
    items: ItemPreview[];
}

interface ItemPreview {
    sku: string;
    before: Units | null;
    after: Units;
}

interface Units {
    available: number;
    held: number;
    sold: number;
}

interface Stats {
    sale_id: string;
    state: SaleState;
    server_time: string;
    items: ItemStats[];
    shards: ShardStats[];
    undrained_events: number;
    orders: OrderCounts;
    waiting_room?: RoomCount;
    alerts: Alerts;
    stopped: Record<string, number>;
    would_stop: Record<string, number>;
}

interface ItemStats {
    sku: string;
    total: number;
    available: number;
    held: number;
    sold: number;
    in_transit: number;
}

interface OrderCounts {
    reserved: number;
    paid: number;
    cancelled: number;
    expired: number;
    revoked: number;
}

interface RoomCount {
    waiting: number;
    admitted: number;
}

interface Alerts {
    dead_letters: number;
    failed_releases: number;
    refunds_due: number;
    unmatched_payments: number;
    lost_orders: number;
}

interface SaleReport {
    sale_id: string;
    name: string;
    state: SaleState;
    server_time: string;
    starts_at: string;
    ends_at: string;
    closed_at?: string;
    items: ItemReport[];
    orders: OrderCounts;
    unpaid_share: number | null;
    answers: Record<string, number>;
    stopped: Record<string, number>;
    fairness: FairnessReport;
    would_stop: Record<string, number>;
    latency_ms: Latency;
    step_seconds: number;
    course: CourseStep[];
}

interface ItemReport {
    sku: string;
    name: string;
    total: number;
    sold: number;
    held: number;
    money_minor: number;
    currency: string;
    sold_out_after_seconds: number | null;
    unpaid_share: number | null;
}

interface FairnessReport {
    attempts: AttemptUnits;
    first_seen: FirstSeenUnits;
    clients: AddressShares;
    networks: AddressShares;
}

interface AttemptUnits {
    one: number;
    two: number;
    three_to_five: number;
    six_to_ten: number;
    eleven_to_fifty: number;
    more: number;
}

interface FirstSeenUnits {
    none: number;
    under_one_second: number;
    under_ten_seconds: number;
    under_one_minute: number;
    under_ten_minutes: number;
    longer: number;
}

interface AddressShares {
    units: number;
    largest: number | null;
    largest_ten: number | null;
}

interface Latency {
    p50: number | null;
    p95: number | null;
    p99: number | null;
}

interface CourseStep {
    at: string;
    answers: Record<string, number>;
    latency_ms: Latency;
}

interface LivePoint {
    at: number;
    seconds: number;
    accepted: number | null;
    answers: Record<string, number>;
    p50: number | null;
    p95: number | null;
    p99: number | null;
}

interface LiveSample {
    point: LivePoint;
    instances: LiveInstance[];
    others_fault: string | null;
    health: Health;
    sale: LiveSale | null;
    stock: LiveStock | null;
    fault: string | null;
}

interface LiveInstance {
    name: string;
    silent_seconds: number | null;
}

interface Health {
    redis: ServerHealth;
    postgres: ServerHealth;
}

interface ServerHealth {
    milliseconds: number | null;
    fault: string | null;
    answered_at: string | null;
}

interface LiveSale {
    state: SaleState;
    starts_at: string;
    ends_at: string;
    server_time: string;
    items: ItemStats[];
    shards: LiveShard[];
    undrained_events: number;
    orders: OrderCounts;
    waiting_room?: RoomCount;
    alerts: Alerts;
    stopped: Record<string, number>;
    would_stop: Record<string, number>;
    expiry_lag_seconds: number;
}

interface LiveShard {
    shard: number;
    epoch: number;
    undrained_events: number;
    units: [number, number, number, number, number, number];
    items: Record<string, [number, number, number, number, number, number]> | null;
}

interface LiveStock {
    items: ItemStats[];
    shards: LiveShard[];
    undrained_events: number;
}

interface HealthView {
    redis: ServerHealth;
    postgres: ServerHealth;
    recent_warnings: number | null;
}

interface AuditPage {
    sale_id: string;
    balanced: boolean;
    ledger_only: boolean;
    items: ItemAudit[];
    differences: string[];
    differences_total: number;
    has_more: boolean;
}

interface ItemAudit {
    sku: string;
    total: number;
    stock: StockSide;
    ledger: LedgerSide;
}

interface StockSide {
    available: number;
    held: number;
    sold: number;
    revoked: number;
    in_transit: number;
    undrained: number;
}

interface LedgerSide {
    held: number;
    sold: number;
    free: number;
    unreleased: number;
}

interface DeadLetter {
    position: string;
    shard: number;
    epoch: number;
    seq: number;
    reason: string;
    order_id: string | null;
    event: LetterEvent | null;
    bytes: string | null;
    created_at: string;
    settled_at: string | null;
    note: string | null;
}

interface LetterEvent {
    order_id: string;
    user: string;
    idempotency_key: string;
    sku: string | null;
    quantity: number;
    created_at: string;
}

interface RefusedMessage {
    id: number;
    shard: number;
    kind: string | null;
    order_id: string | null;
    order_state: string | null;
    user: string | null;
    sku: string | null;
    units: number | null;
    failure: string;
    since: string;
}

interface OwnedOrder {
    user: string;
    id: string;
    sale_id: string;
    sku: string;
    quantity: number;
    amount_minor: number;
    currency: string;
    state: OrderState;
    confirmed: boolean;
    created_at: string;
    expires_at: string;
    paid_at: string | null;
    payments: RecordedPayment[];
}

interface RecordedPayment {
    payment_id: string;
    order_id: string;
    amount_minor: number;
    currency: string;
    outcome: PaymentOutcome;
    reason: string | null;
    received_at: string;
    settled_at: string | null;
    settled_reference: string | null;
}

type PaymentOutcome = 'applied' | 'duplicate' | 'refund_due' | 'unmatched' | 'pending';

interface ListedPayment {
    payment_id: string;
    order_id: string;
    amount_minor: number;
    currency: string;
    outcome: PaymentOutcome;
    reason: string | null;
    received_at: string;
    settled_at: string | null;
    settled_reference: string | null;
    order: Order | null;
}

interface ListedAlert {
    id: number;
    raised_at: string;
    kind: AlertKind;
    user: string;
    detail: string;
    delivered_at: string | null;
    given_up_at: string | null;
}

type AlertKind = 'browsing' | 'browsing_ban';

interface Alert {
    id: number;
    raised_at: string;
    kind: AlertKind;
    user: string;
    detail: string;
}

interface Ban {
    user: string;
    reason: string;
    banned_by: BannedBy;
    operator: string | null;
    banned_at: string;
    banned_until: string | null;
    lifted_at: string | null;
    sessions_from: string | null;
}

type BannedBy = 'operator' | 'browsing';

interface Guards {
    configured: GuardSettings;
    changed: GuardChanges;
    staged: GuardStages;
    effective: GuardSettings;
    new_sales: {
        purchase_token: boolean;
        challenge: ChallengeKind;
        proof_cost: number;
        captcha_proof_cost: number;
        holds_max: number;
        unpaid_cooldown_seconds: number;
        waiting_room: boolean;
        admissions_per_second: number;
        admission_seconds: number;
    };
    rate: number;
    in_flight: number;
}

interface GuardSettings {
    address_rate: number;
    account_rate: number;
    instance_rate: number;
    shared_rate: number;
    adaptive_min_rate: number;
    adaptive_max_rate: number;
    adaptive_latency_ms: number;
    adaptive_in_flight: number;
    browsing_alert_above: number;
    browsing_ban_above: number;
    browsing_ban_seconds: number;
}

interface GuardChanges {
    address_rate?: number;
    account_rate?: number;
    instance_rate?: number;
    shared_rate?: number;
    adaptive_min_rate?: number;
    adaptive_max_rate?: number;
    adaptive_latency_ms?: number;
    adaptive_in_flight?: number;
    browsing_alert_above?: number;
    browsing_ban_above?: number;
    browsing_ban_seconds?: number;
}

interface GuardStages {
    address_rate?: {
        value: number;
        percent: number;
        shadow: boolean;
    };
    account_rate?: {
        value: number;
        percent: number;
        shadow: boolean;
    };
    instance_rate?: {
        value: number;
        percent: number;
        shadow: boolean;
    };
    shared_rate?: {
        value: number;
        percent: number;
        shadow: boolean;
    };
    browsing_alert_above?: {
        value: number;
        percent: number;
        shadow: boolean;
    };
    browsing_ban_above?: {
        value: number;
        percent: number;
        shadow: boolean;
    };
}

interface ListedShadowRefusal {
    last_at: string;
    layer: 'address' | 'account' | 'instance' | 'shared' | 'waiting_room' | 'challenge' | 'purchase_token' | 'ban' | 'window' | 'cooldown' | 'holds';
    sale_id?: string;
    user?: string;
    address?: string;
}

interface Action {
    id: number;
    begun_at: string;
    ended_at: string | null;
    actor: string;
    session_id: string | null;
    operator: string | null;
    address: string | null;
    action: string;
    sale_id: string | null;
    detail: Record<string, unknown>;
    outcome: string | null;
}

interface ListedSession {
    session_id: string;
    name: string | null;
    address: string;
    created_at: string;
    last_used_at: string;
    expires_at: string;
}

interface SessionView {
    signed_in: boolean;
    session_id?: string;
    name?: string;
    role?: OperatorRole;
    expires_at?: string;
    request_token?: string;
    request_token_header?: string;
}

type OperatorRole = 'view' | 'run' | 'all';

interface PaymentAnswer {
    outcome: PaymentOutcome;
}

interface Health2 {
    status: string;
}

interface Readiness {
    status: string;
    warnings?: string[];
}

interface Problem {
    type: string;
    title: string;
    status: number;
    detail: string;
    code: Code;
    sale_state?: SaleState;
    banned_until?: string;
    key_has_order?: boolean;
    nothing_done?: boolean;
}

type Code = 'invalid_request'
    | 'idempotency_key_missing'
    | 'unauthenticated'
    | 'banned'
    | 'forbidden'
    | 'admission_required'
    | 'challenge_required'
    | 'challenge_failed'
    | 'purchase_token_required'
    | 'console_token_required'
    | 'not_found'
    | 'method_not_allowed'
    | 'sale_not_open'
    | 'sold_out'
    | 'purchase_limit_reached'
    | 'order_not_cancellable'
    | 'invalid_transition'
    | 'insufficient_stock'
    | 'payload_too_large'
    | 'idempotency_key_reused'
    | 'too_many_holds'
    | 'cooling_down'
    | 'rate_limited'
    | 'overloaded'
    | 'unavailable';
