//! Histories made by hand: each step is a request, its answer, and its effect on the ledger. An order's id is its
//! shopper and key, like `ada/k1`.

use crate::torture::history::{
    Buyer, Final, Grant, History, Injection, ItemTerms, LedgerOrder, LedgerPayment, LedgerRestock, Micros, Millis, Op,
    Order, Reply, Request, Shard, Terms,
};
use flashsale::domain::operator::report::Counters;
use std::collections::BTreeMap;

pub const WINDOW: Millis = 2_000;
const MS: Micros = 1_000;
const BEGIN: Micros = 1_700_000_000_000_000;

/// The shopper and the key.
fn parts(name: &str) -> (String, String) {
    let (user, key) = name.split_once('/').unwrap();
    (user.to_owned(), key.to_owned())
}

pub fn buy(name: &str, sku: &str, quantity: i64) -> Request {
    let (user, key) = parts(name);
    Request::Buy {
        user,
        key,
        sku: sku.to_owned(),
        quantity,
    }
}

pub fn read(name: &str) -> Request {
    Request::Read {
        user: parts(name).0,
        order: name.to_owned(),
    }
}

pub fn cancel(name: &str) -> Request {
    Request::Cancel {
        user: parts(name).0,
        order: name.to_owned(),
    }
}

pub fn pay(payment: &str, order: &str, amount: i64) -> Request {
    Request::Pay {
        payment: payment.to_owned(),
        webhook: format!("msg-{payment}"),
        order: order.to_owned(),
        amount,
    }
}

pub fn restock(key: &str, sku: &str, quantity: i64) -> Request {
    Request::Restock {
        key: key.to_owned(),
        sku: sku.to_owned(),
        quantity,
    }
}

pub fn no(status: u16, code: &str) -> Reply {
    Reply::Problem {
        status,
        code: code.to_owned(),
    }
}

pub fn done(outcome: &str) -> Reply {
    Reply::Done {
        status: 200,
        outcome: outcome.to_owned(),
    }
}

pub fn sold_out() -> Reply {
    no(409, "sold_out")
}

/// The outcome is not known.
pub fn unavailable() -> Reply {
    no(503, "unavailable")
}

pub struct Story {
    pub history: History,
    pub now: Micros,
    pub epoch: i64,
}

impl Story {
    /// Nothing has happened: ten units of A, at most three for one shopper, and five of B; three requests a second.
    pub fn new() -> Self {
        let item = |sku: &str, stock, limit, price| ItemTerms {
            sku: sku.to_owned(),
            stock,
            limit,
            price,
        };
        let terms = Terms {
            items: vec![item("A", 10, 3, 500), item("B", 5, 5, 20)],
            shards: 2,
            window_seconds: 2,
            rate: 3,
            rate_window: 1_000,
            durability: "redis",
        };
        let history = History {
            terms,
            ops: Vec::new(),
            injections: Vec::new(),
            end: Final::default(),
            healed: BEGIN,
            sold_again: None,
        };
        Self {
            history,
            now: BEGIN,
            epoch: 1,
        }
    }

    /// A little of everything.
    pub fn good() -> Self {
        let mut it = Self::new();
        it.buys("ada/k1", "A", 1);
        it.again("ada/k1");
        it.asks(buy("ada/k1", "A", 2), no(422, "idempotency_key_reused"));
        it.reads("ada/k1");
        it.buys("bob/k1", "A", 2);
        it.asks(buy("bob/k2", "A", 2), no(409, "purchase_limit_reached"));
        it.cancels("bob/k1");
        it.cancels("bob/k1");
        it.pays("ada/k1");
        it.asks(pay("pay-ada/k1", "ada/k1", 500), done("duplicate"));
        it.asks(cancel("ada/k1"), no(409, "order_not_cancellable"));
        it.buys("cyd/k1", "B", 5);
        it.asks(buy("dan/k1", "B", 1), sold_out());
        it.asks(buy("eve/k1", "A", 1), Reply::None);
        it.accepts("eve/k1", "A", 1);
        it.wait(10);
        it.again("eve/k1");
        it.restocks("r1", "A", 2);
        it.restocks("w1", "A", -1);
        it.withdrawal_is_refused("w2", "B", -1);
        it.webhook("pay-lost", "nobody/k1", 500, "unmatched");
        it.expires("cyd/k1");
        it.webhook("pay-late", "cyd/k1", 100, "refund_due");
        it.reads("cyd/k1");
        it
    }

    pub fn millis(&self) -> Millis {
        self.now.div_euclid(MS)
    }

    pub fn wait(&mut self, millis: Millis) {
        self.now += millis * MS;
    }

    /// A request of four milliseconds, with its effect after two.
    pub fn asks(&mut self, request: Request, reply: Reply) {
        self.history.ops.push(Op {
            invoked: self.now,
            returned: self.now + 4 * MS,
            request,
            reply,
        });
        self.wait(10);
    }

    /// An order of the ledger, accepted now.
    pub fn accepts(&mut self, name: &str, sku: &str, quantity: i64) {
        let (user, key) = parts(name);
        let shard = u16::from(user.as_bytes()[0] % 2);
        let orders = &mut self.history.end.orders;
        let before = orders.iter().filter(|it| (it.shard, it.epoch) == (shard, self.epoch));
        let seq = before.map(|it| it.seq).max().unwrap_or(0) + 1;
        let price = self.history.terms.items.iter().find(|it| it.sku == sku).unwrap().price;
        let created_at = self.now.div_euclid(MS) + 2;
        orders.push(LedgerOrder {
            id: name.to_owned(),
            shard,
            epoch: self.epoch,
            seq,
            user,
            key,
            sku: sku.to_owned(),
            quantity,
            amount: price * quantity,
            state: "reserved".to_owned(),
            created_at,
            expires_at: created_at + WINDOW,
            resolved_at: None,
        });
    }

    pub fn buys(&mut self, name: &str, sku: &str, quantity: i64) {
        self.accepts(name, sku, quantity);
        let reply = self.shows(201, name, false);
        self.asks(buy(name, sku, quantity), reply);
    }

    /// The same purchase again.
    pub fn again(&mut self, name: &str) {
        let order = self.order(name).clone();
        let reply = self.shows(200, name, false);
        self.asks(buy(name, &order.sku, order.quantity), reply);
    }

    pub fn reads(&mut self, name: &str) {
        let reply = self.shows(200, name, true);
        self.asks(read(name), reply);
    }

    pub fn cancels(&mut self, name: &str) {
        let now = self.millis();
        if self.order(name).state == "reserved" {
            self.decides(name, "cancelled", now + 2);
        }
        let reply = self.shows(200, name, true);
        self.asks(cancel(name), reply);
    }

    pub fn pays(&mut self, name: &str) {
        let now = self.millis();
        let amount = self.order(name).amount;
        self.decides(name, "paid", now + 2);
        self.webhook(&format!("pay-{name}"), name, amount, "applied");
    }

    /// A webhook that is recorded as it is answered.
    pub fn webhook(&mut self, payment: &str, order: &str, amount: i64, outcome: &str) {
        let matched = matches!(outcome, "applied" | "refund_due").then(|| order.to_owned());
        self.history.end.payments.push(LedgerPayment {
            payment: payment.to_owned(),
            webhook: format!("msg-{payment}"),
            order: order.to_owned(),
            amount,
            outcome: outcome.to_owned(),
            matched,
        });
        self.asks(pay(payment, order, amount), done(outcome));
    }

    /// Waits for the deadline of an order, which then expires.
    pub fn expires(&mut self, name: &str) {
        let deadline = self.order(name).expires_at;
        self.now = self.now.max((deadline + 1) * MS);
        let now = self.millis();
        self.decides(name, "expired", now);
        self.wait(10);
    }

    pub fn decides(&mut self, name: &str, state: &str, at: Millis) {
        let order = self.order(name);
        order.state = state.to_owned();
        order.resolved_at = Some(at);
    }

    pub fn restocks(&mut self, key: &str, sku: &str, quantity: i64) {
        self.writes_down(key, sku, quantity, "applied");
        self.asks(restock(key, sku, quantity), done(""));
    }

    pub fn withdrawal_is_refused(&mut self, key: &str, sku: &str, quantity: i64) {
        self.writes_down(key, sku, quantity, "refused");
        self.asks(restock(key, sku, quantity), no(409, "insufficient_stock"));
    }

    pub fn writes_down(&mut self, key: &str, sku: &str, quantity: i64, state: &str) {
        self.history.end.restocks.push(LedgerRestock {
            key: key.to_owned(),
            sku: sku.to_owned(),
            quantity,
            state: state.to_owned(),
            created_at: self.millis() + 1,
            decided_at: Some(self.millis() + 2),
        });
    }

    /// A fault of this long, from now; afterwards it is later.
    pub fn fault(&mut self, millis: Millis, may_lose: bool) {
        let until = self.now + millis * MS;
        self.history.injections.push(Injection {
            what: "kill redis".to_owned(),
            from: self.now,
            until,
            may_lose,
        });
        self.now = until;
        self.history.healed = until;
    }

    pub fn order(&mut self, name: &str) -> &mut LedgerOrder {
        let mut orders = self.history.end.orders.iter_mut();
        orders.find(|it| it.id == name).unwrap()
    }

    /// An answer that shows an order as the ledger has it now.
    pub fn shows(&mut self, status: u16, name: &str, confirmed: bool) -> Reply {
        let order = self.order(name);
        let order = Order {
            id: order.id.clone(),
            sku: order.sku.clone(),
            quantity: order.quantity,
            amount: order.amount,
            state: order.state.clone(),
            confirmed,
            created_at: order.created_at,
            expires_at: order.expires_at,
        };
        Reply::Order {
            status,
            replayed: status == 200 && !confirmed,
            order,
        }
    }

    /// The order of the last answer.
    pub fn last(&mut self) -> &mut Order {
        match &mut self.history.ops.last_mut().unwrap().reply {
            Reply::Order { order, .. } => order,
            other => panic!("{other:?}"),
        }
    }

    /// Every order is decided, and everything comes to rest.
    pub fn ends(mut self) -> History {
        let all = self.history.end.orders.iter();
        let mut open: Vec<_> = all.filter(|it| it.state == "reserved").cloned().collect();
        open.sort_by_key(|order| order.expires_at);
        for order in open {
            self.expires(&order.id);
        }
        self.rests()
    }

    /// Redis and Postgres with the results of the orders and restocks.
    pub fn rests(mut self) -> History {
        let terms = &self.history.terms;
        let end = &mut self.history.end;
        let (mut rows, mut shards) = (BTreeMap::<String, Option<Buyer>>::new(), Vec::new());
        for order in &end.orders {
            let row = rows.entry(order.user.clone()).or_default().get_or_insert_default();
            row.orders.insert(order.id.clone(), order.state.clone());
            // An item of which the shopper has nothing any more stays in the row.
            *row.units.entry(order.sku.clone()).or_default() += match order.state.as_str() {
                "reserved" | "paid" => order.quantity,
                _ => 0,
            };
        }
        end.buyers = rows;
        for item in &terms.items {
            let applied = || {
                end.restocks
                    .iter()
                    .filter(|it| it.state == "applied" && it.sku == item.sku)
            };
            let owned = item.stock + applied().map(|it| it.quantity).sum::<i64>();
            let withdrawn: i64 = applied().map(|it| -it.quantity.min(0)).sum();
            end.stock.insert(item.sku.clone(), owned);
            let of = |state: &str, shard: Option<u16>| -> i64 {
                let orders = end.orders.iter().filter(|it| it.state == state && it.sku == item.sku);
                let here = orders.filter(|it| shard.is_none_or(|shard| shard == it.shard));
                here.map(|it| it.quantity).sum()
            };
            let free = owned - of("reserved", None) - of("paid", None);
            end.sold_afterwards.insert(item.sku.clone(), owned - of("paid", None));
            for shard in 0..terms.shards {
                let (held, sold) = (of("reserved", Some(shard)), of("paid", Some(shard)));
                // One unit was lent by the first shard, which also gave the withdrawn ones.
                let first = shard == 0;
                let available = if first { free } else { 0 };
                let out = if first { withdrawn + 1 } else { 0 };
                let r#in = i64::from(shard == 1);
                let counters = Counters {
                    available,
                    held,
                    sold,
                    revoked: 0,
                    out,
                    r#in,
                    granted: available + held + sold + out - r#in,
                    withdrawn: out - i64::from(first),
                    version: 7,
                };
                shards.push((shard, item.sku.parse().unwrap(), counters));
                end.grants.push(Grant {
                    sku: item.sku.clone(),
                    shard,
                    granted: available + held + sold,
                    held,
                    sold,
                });
            }
        }
        end.shards = (0..terms.shards)
            .map(|shard| Shard {
                shard,
                epoch: self.epoch,
                items: shards
                    .iter()
                    .filter(|(of, ..)| *of == shard)
                    .map(|(_, sku, counters)| (Clone::clone(sku), *counters))
                    .collect(),
                in_transit: 0,
                undrained: 0,
            })
            .collect();
        self.history.ops.sort_by_key(|op| op.returned);
        self.history
    }
}
