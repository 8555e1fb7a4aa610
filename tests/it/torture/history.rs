//! A round's requests and answers, the final state of Redis and Postgres, and the faults meanwhile: all that the checker
//! sees.

use flashsale::domain::ids::Sku;
use flashsale::domain::operator::report::Counters;
use std::collections::BTreeMap;

/// Microseconds of this machine's clock, which is also that of its servers.
pub type Micros = i64;
/// Milliseconds of the same clock, as Redis sets them.
pub type Millis = i64;

/// The terms of the sale that a round sells.
#[derive(Debug, Clone)]
pub struct Terms {
    pub items: Vec<ItemTerms>,
    pub shards: u16,
    pub window_seconds: u32,
    /// Requests in a window, and its length.
    pub rate: usize,
    pub rate_window: Millis,
    pub durability: &'static str,
}

#[derive(Debug, Clone)]
pub struct ItemTerms {
    pub sku: String,
    /// Units at the start.
    pub stock: i64,
    pub limit: i64,
    pub price: i64,
}

/// One request, and its reply.
#[derive(Debug, Clone)]
pub struct Op {
    pub invoked: Micros,
    pub returned: Micros,
    pub request: Request,
    pub reply: Reply,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Request {
    Buy {
        user: String,
        key: String,
        sku: String,
        quantity: i64,
    },
    /// Reads one order of the shopper's.
    Read {
        user: String,
        order: String,
    },
    Cancel {
        user: String,
        order: String,
    },
    Pay {
        payment: String,
        webhook: String,
        order: String,
        amount: i64,
    },
    /// A restock, or a withdrawal of units.
    Restock {
        key: String,
        sku: String,
        quantity: i64,
    },
}

/// The reply to a request. A 503 is a reply whose outcome is unknown, too.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reply {
    /// No answer: the connection broke, or it took too long.
    None,
    /// The answer is about an order.
    Order { status: u16, replayed: bool, order: Order },
    /// A webhook's outcome, or an answer without a body of interest (then the text is empty).
    Done { status: u16, outcome: String },
    /// A problem with its code.
    Problem { status: u16, code: String },
}

/// An order as the API shows it; times in milliseconds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Order {
    pub id: String,
    pub sku: String,
    pub quantity: i64,
    pub amount: i64,
    pub state: String,
    pub confirmed: bool,
    pub created_at: Millis,
    pub expires_at: Millis,
}

/// A fault, from its beginning until it was healed.
#[derive(Debug, Clone)]
pub struct Injection {
    pub what: String,
    pub from: Micros,
    pub until: Micros,
    /// It may take acknowledged orders from Redis, as far as the sale's durability does not forbid that.
    pub may_lose: bool,
}

/// The final state of the sale in Postgres and Redis, at rest.
#[derive(Debug, Clone, Default)]
pub struct Final {
    pub orders: Vec<LedgerOrder>,
    pub payments: Vec<LedgerPayment>,
    pub restocks: Vec<LedgerRestock>,
    /// Stock of each item by the ledger, with all restocks.
    pub stock: BTreeMap<String, i64>,
    pub grants: Vec<Grant>,
    pub dead_letters: i64,
    /// Undelivered messages, and payments and restocks that are not decided.
    pub waiting: i64,
    pub shards: Vec<Shard>,
    /// Each shopper's row in Redis, decoded; `None` if there is none.
    pub buyers: BTreeMap<String, Option<Buyer>>,
    /// The differences of the program's own audit; empty if it agrees.
    pub audit: Vec<String>,
    /// Units sold to newcomers at rest, until the first one was refused as sold out; empty if none came.
    pub sold_afterwards: BTreeMap<String, i64>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LedgerOrder {
    pub id: String,
    pub shard: u16,
    pub epoch: i64,
    pub seq: i64,
    pub user: String,
    pub key: String,
    pub sku: String,
    pub quantity: i64,
    pub amount: i64,
    pub state: String,
    pub created_at: Millis,
    pub expires_at: Millis,
    pub resolved_at: Option<Millis>,
}

#[derive(Debug, Clone)]
pub struct LedgerPayment {
    pub payment: String,
    pub webhook: String,
    /// As the provider named it.
    pub order: String,
    pub amount: i64,
    pub outcome: String,
    pub matched: Option<String>,
}

#[derive(Debug, Clone)]
pub struct LedgerRestock {
    pub key: String,
    pub sku: String,
    pub quantity: i64,
    pub state: String,
    pub created_at: Millis,
    pub decided_at: Option<Millis>,
}

#[derive(Debug, Clone)]
pub struct Grant {
    pub sku: String,
    pub shard: u16,
    pub granted: i64,
    pub held: i64,
    pub sold: i64,
}

/// One shard in Redis, read in one step.
#[derive(Debug, Clone)]
pub struct Shard {
    pub shard: u16,
    pub epoch: i64,
    pub items: BTreeMap<Sku, Counters>,
    pub in_transit: i64,
    pub undrained: i64,
}

#[derive(Debug, Clone, Default)]
pub struct Buyer {
    /// Units of each SKU that count against the limit.
    pub units: BTreeMap<String, i64>,
    /// States of the orders that the row knows, by id.
    pub orders: BTreeMap<String, String>,
}

/// One round, whole.
#[derive(Debug, Clone)]
pub struct History {
    pub terms: Terms,
    /// In the order in which they returned.
    pub ops: Vec<Op>,
    pub injections: Vec<Injection>,
    pub end: Final,
    /// When everything was healed, and when the first purchase was accepted after that; `None` if none was.
    pub healed: Micros,
    pub sold_again: Option<Micros>,
}

/// A rule that a round broke, and how.
#[derive(Debug, Clone)]
pub struct Violation {
    pub rule: &'static str,
    pub what: String,
}
