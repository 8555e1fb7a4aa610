// The API's answers, as far as the scripts read them. The sources are the types in src that derive `Serialize`.
// All types are global, so a script names a type without an import. Times are RFC 3339 texts.

type SaleState = 'draft' | 'scheduled' | 'open' | 'paused' | 'closed';
type OrderState = 'reserved' | 'paid' | 'cancelled' | 'expired' | 'revoked';
type Challenge = 'none' | 'captcha' | 'proof_of_work';
type PerSku = Record<string, number>;

interface Page<Entry> {
    data: Entry[];
    has_more: boolean;
}

interface Problem {
    status: number;
    code: string;
    detail: string;
    sale_state?: SaleState;
    key_has_order?: boolean;
    nothing_done?: boolean;
}

interface PublicItem {
    sku: string;
    name: string;
    price_minor: number;
    currency: string;
    per_user_limit: number;
    availability: 'available' | 'low' | 'sold_out';
}

interface PublicSale {
    id: string;
    name: string;
    state: SaleState;
    starts_at: string;
    ends_at: string;
    server_time: string;
    guards: { waiting_room: boolean; purchase_token: boolean; challenge: Challenge; captcha_proof: boolean };
    items: PublicItem[];
}

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

interface RoomStanding {
    state: 'waiting' | 'sold_out' | 'admitted' | 'closed';
    position?: number;
    waiting?: number;
    estimated_wait_seconds?: number;
    ticket?: string;
    admission?: string;
    expires_at?: string;
    ask_again_seconds?: number;
}

interface PurchaseToken {
    token: string;
    expires_at: string;
}

type PosedChallenge =
    | { kind: 'captcha'; id: string; image: string; expires_at: string }
    | { kind: 'proof_of_work'; id: string; altcha: ProofChallenge; expires_at: string };

interface ProofChallenge {
    parameters: ProofParameters;
}

interface ProofParameters {
    algorithm: string;
    nonce: string;
    salt: string;
    cost: number;
    keyLength: number;
    keyPrefix: string;
}

// For operators

interface SaleGuards {
    purchase_token: boolean;
    challenge: Challenge;
    proof_cost: number;
    captcha_proof_cost: number;
    holds_max: number;
    unpaid_cooldown_seconds: number;
    waiting_room: boolean;
    admissions_per_second: number;
    admission_seconds: number;
}

interface Item {
    sku: string;
    name: string;
    price_minor: number;
    currency: string;
    stock: number;
    per_user_limit: number;
}

interface AdminSale {
    id: string;
    name: string;
    state: SaleState;
    starts_at: string;
    ends_at: string;
    server_time: string;
    created_at: string;
    shards: number;
    payment_window_seconds: number;
    purchase_rate: { limit: number; window_ms: number };
    durability: 'redis' | 'replica' | 'postgres';
    guards: SaleGuards;
    items: Item[];
}

interface ShardStats {
    shard: number;
    epoch: number;
    available: PerSku;
    held: PerSku;
    sold: PerSku;
    sent: PerSku;
    received: PerSku;
    in_transit: PerSku;
    undrained_events: number;
}

interface ItemStats {
    sku: string;
    total: number;
    available: number;
    held: number;
    sold: number;
    in_transit: number;
}

interface Stats {
    sale_id: string;
    state: SaleState;
    server_time: string;
    items: ItemStats[];
    shards: ShardStats[];
    undrained_events: number;
    orders: Record<OrderState, number>;
    waiting_room?: { waiting: number; admitted: number };
    alerts: SaleAlerts;
    stopped: Record<string, number>;
}

interface SaleAlerts {
    dead_letters: number;
    failed_releases: number;
    refunds_due: number;
    unmatched_payments: number;
    lost_orders: number;
}

interface Audit {
    balanced: boolean;
    ledger_only: boolean;
    items: { sku: string; total: number }[];
    differences: string[];
    differences_total: number;
    has_more: boolean;
}

// The units of a shard: available, held, sold, sent, received, in transit.
type Units = [number, number, number, number, number, number];

interface LiveShard {
    shard: number;
    epoch: number;
    undrained_events: number;
    units: Units;
    items: Record<string, Units> | null;
}

interface LiveStock {
    items: ItemStats[];
    shards: LiveShard[];
    undrained_events: number;
}

interface LiveSale extends LiveStock {
    state: SaleState;
    starts_at: string;
    ends_at: string;
    server_time: string;
    orders: Record<OrderState, number>;
    waiting_room?: { waiting: number; admitted: number };
    alerts: SaleAlerts;
    stopped: Record<string, number>;
    expiry_lag_seconds: number;
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

interface ServerHealth {
    milliseconds: number | null;
    fault: string | null;
}

interface LiveSample {
    point: LivePoint;
    instances: { name: string; silent_seconds: number | null }[];
    others_fault: string | null;
    health: { redis: ServerHealth; postgres: ServerHealth };
    sale: LiveSale | null;
    stock: LiveStock | null;
    fault: string | null;
}

interface Payment {
    payment_id: string;
    order_id: string;
    amount_minor: number;
    currency: string;
    outcome: 'applied' | 'refund_due' | 'unmatched' | 'pending';
    reason: string | null;
    received_at: string;
    settled_at: string | null;
    settled_reference: string | null;
}

interface OwnedOrder extends Order {
    user: string;
    payments: Payment[];
}

interface GuardWarning {
    id: number;
    raised_at: string;
    kind: 'browsing' | 'browsing_ban';
    user: string;
    detail: string;
}

interface Ban {
    user: string;
    reason: string;
    banned_by: 'operator' | 'browsing';
    banned_at: string;
    banned_until: string | null;
}

interface DeadLetter {
    position: string;
    shard: number;
    reason: string;
    order_id: string | null;
    event: { user: string; sku: string | null; quantity: number } | null;
    bytes: string | null;
    created_at: string;
    settled_at: string | null;
    note: string | null;
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

interface AuditEntry {
    id: number;
    begun_at: string;
    actor: string;
    session_id: string | null;
    operator: string | null;
    address: string | null;
    action: string;
    sale_id: string | null;
    detail: Record<string, unknown>;
    outcome: string | null;
}

// The limits on requests, by the name of a setting.
interface Limits {
    configured: Record<string, number>;
    changed: Record<string, number | null>;
    effective: Record<string, number>;
    rate: number;
    in_flight: number;
}
