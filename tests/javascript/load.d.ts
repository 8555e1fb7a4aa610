// The types that the modules of loadtest/ share, and k6's console. All are global.

declare const console: { log(...texts: unknown[]): void; error(...texts: unknown[]): void };

type LoadAnswer = import('k6/http').RefinedResponse<'text'>;

// A request as `http.batch` takes it.
interface LoadRequest {
    method: string;
    url: string;
    body: string | null;
    params: any;
}

interface RequestOptions {
    bearer?: string;
    body?: string;
    headers?: Record<string, string>;
    instance?: number;
    expected?: number[];
}

interface PurchaseOptions {
    name?: string;
    quantity?: number;
    sku?: string;
    instance?: number;
    expected?: number[];
}

interface SaleTerms {
    stock?: number;
    items?: { sku: string; stock?: number }[];
    shards: number;
    perUserLimit: number;
    purchaseRate: { limit: number; window_ms: number };
    paymentWindowSeconds?: number;
    openSeconds?: number;
}

// A sale of a run, as `setup` hands it to the shoppers.
interface RunSale {
    id: string;
    run: string;
    scenario: string;
    items: { sku: string; stock?: number }[];
    shards: number;
    durability: string;
}

// The judged answer to a purchase. It has an order if the outcome is `reserved` or `replayed`.
interface Judged {
    outcome: string;
    order?: Order;
}

// A key that a shopper may have bought under: for one unit of the item SKU, or of `sku`.
type UsedKey = string | { key: string; sku: string };

interface SaleCheck {
    shoppers: number;
    user(n: number): string;
    keys(n: number): UsedKey[];
    soldOut?: string[];
}

type ServerReading = Record<'memory' | 'redisMemory' | 'redisServers' | 'purchases' | 'purchaseSeconds', number>;

// Further lines of a summary: [label, metric], and [label, metric, value].
interface SummaryLines {
    latencies?: [string, string][];
    figures?: [string, string, string][];
}
