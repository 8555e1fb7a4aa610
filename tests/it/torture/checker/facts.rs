//! The data that the rules read, put in order once.

use super::{AFTER_FAULT, Micros, Millis};
use crate::torture::history::{History, ItemTerms, LedgerOrder, Op, Order, Reply, Request};
use std::collections::{BTreeMap, HashMap};

/// A request for units, and its answer.
#[derive(Clone, Copy)]
pub struct Buy<'a> {
    pub op: &'a Op,
    pub user: &'a str,
    pub key: &'a str,
    pub sku: &'a str,
    pub quantity: i64,
}

impl<'a> Buy<'a> {
    /// The order, if the answer was one.
    pub fn order(&self) -> Option<&'a Order> {
        shown(self.op)
    }

    pub fn asks_for(&self, sku: &str, quantity: i64) -> bool {
        (self.sku, self.quantity) == (sku, quantity)
    }
}

/// An answer that shows an order.
#[derive(Clone, Copy)]
pub struct ShownOrder<'a> {
    pub op: &'a Op,
    pub order: &'a Order,
    pub user: &'a str,
    /// Its key, if it was bought with this answer or an earlier one to the same request.
    pub key: Option<&'a str>,
}

impl ShownOrder<'_> {
    /// Whether the ledger itself was asked: a read from Redis answers that nothing is confirmed.
    pub const fn is_from_ledger(&self) -> bool {
        self.key.is_none() && self.order.confirmed
    }
}

pub struct Facts<'a> {
    pub history: &'a History,
    pub items: BTreeMap<&'a str, &'a ItemTerms>,
    pub orders: HashMap<&'a str, &'a LedgerOrder>,
    pub by_key: HashMap<(&'a str, &'a str), &'a LedgerOrder>,
    /// Every request for units, by shopper and key, in the order in which they were asked.
    pub buys: BTreeMap<(&'a str, &'a str), Vec<Buy<'a>>>,
    /// Every answer that shows an order, by its id.
    pub shown: BTreeMap<&'a str, Vec<ShownOrder<'a>>>,
    /// When a fault may have taken something from Redis.
    pub losses: Vec<(Millis, Millis)>,
    /// When faults or their consequences may be felt; apart from each other, in order.
    disturbed: Vec<(Micros, Micros)>,
}

impl<'a> Facts<'a> {
    pub fn of(history: &'a History) -> Self {
        let end = &history.end;
        let mut buys: BTreeMap<_, Vec<Buy>> = BTreeMap::new();
        let mut all_shown: BTreeMap<_, Vec<ShownOrder>> = BTreeMap::new();
        for op in &history.ops {
            let (user, bought) = match &op.request {
                Request::Buy {
                    user,
                    key,
                    sku,
                    quantity,
                } => {
                    let buy = Buy {
                        op,
                        user,
                        key,
                        sku,
                        quantity: *quantity,
                    };
                    buys.entry((user.as_str(), key.as_str())).or_default().push(buy);
                    (user, Some(key.as_str()))
                }
                Request::Read { user, .. } | Request::Cancel { user, .. } => (user, None),
                Request::Pay { .. } | Request::Restock { .. } => continue,
            };
            if let Some(order) = shown(op) {
                let shown = ShownOrder {
                    op,
                    order,
                    user,
                    key: bought,
                };
                all_shown.entry(order.id.as_str()).or_default().push(shown);
            }
        }
        for buys in buys.values_mut() {
            buys.sort_by_key(|buy| buy.op.invoked);
        }
        let may_lose = history.injections.iter().filter(|it| it.may_lose);
        Self {
            history,
            items: history.terms.items.iter().map(|it| (it.sku.as_str(), it)).collect(),
            orders: end.orders.iter().map(|it| (it.id.as_str(), it)).collect(),
            by_key: end
                .orders
                .iter()
                .map(|it| ((it.user.as_str(), it.key.as_str()), it))
                .collect(),
            buys,
            shown: all_shown,
            losses: may_lose.map(|it| (millis(it.from), millis(it.until))).collect(),
            disturbed: disturbed(history),
        }
    }

    /// Whether a fault or its consequences may have touched this time.
    pub fn is_disturbed(&self, from: Micros, until: Micros) -> bool {
        self.disturbed_until(from, until).is_some()
    }

    /// When that is over.
    pub fn disturbed_until(&self, from: Micros, until: Micros) -> Option<Micros> {
        let next = self.disturbed.partition_point(|(_, end)| *end < from);
        let next = self.disturbed.get(next).filter(|(begin, _)| *begin <= until);
        next.map(|(_, end)| *end)
    }

    /// Whether two primaries sell at this moment, because the permits of the old one have not ended.
    pub fn has_two_primaries(&self, at: Micros) -> bool {
        let split = self.history.injections.iter().filter(|it| it.what == "TwoPrimaries");
        split.into_iter().any(|it| (it.from..it.until).contains(&at))
    }

    /// Whether Redis may have lost events that were not drained.
    pub fn is_lossy(&self) -> bool {
        !self.losses.is_empty()
    }

    /// Whether orders that were acknowledged may have been forgotten.
    pub fn forgets(&self) -> bool {
        self.is_lossy() && self.history.terms.durability == "redis"
    }

    /// Whether Redis may have lost an order that was shown like this. Orders in Postgres are never lost; an order in the
    /// answer to a purchase, only if the sale's durability leaves it to Redis alone.
    pub fn may_be_lost(&self, shown: &ShownOrder) -> bool {
        let promised = shown.key.is_some() && self.history.terms.durability != "redis";
        let order = shown.order;
        !order.confirmed && !promised && self.losses.iter().any(|(_, until)| order.created_at <= *until)
    }

    /// When the first fault began that may have lost something.
    pub fn first_loss(&self) -> Option<Millis> {
        self.losses.iter().map(|(from, _)| *from).min()
    }

    /// When every loss has been found.
    pub fn last_loss_noticed(&self) -> Option<Millis> {
        self.losses.iter().map(|(_, until)| *until + millis(AFTER_FAULT)).max()
    }
}

/// The times of faults, each with its consequences, joined where they touch.
fn disturbed(history: &History) -> Vec<(Micros, Micros)> {
    let mut times: Vec<_> = history
        .injections
        .iter()
        .map(|it| (it.from, it.until + AFTER_FAULT))
        .collect();
    times.sort_unstable();
    let mut joined: Vec<(Micros, Micros)> = Vec::new();
    for (from, until) in times {
        match joined.last_mut() {
            Some((_, end)) if from <= *end => *end = until.max(*end),
            _ => joined.push((from, until)),
        }
    }
    joined
}

/// The order that an answer shows.
pub fn shown(op: &Op) -> Option<&Order> {
    match &op.reply {
        Reply::Order { order, .. } => Some(order),
        _ => None,
    }
}

/// Whether an answer leaves the outcome open.
pub const fn is_unknown(reply: &Reply) -> bool {
    match reply {
        Reply::None => true,
        Reply::Order { status, .. } | Reply::Done { status, .. } | Reply::Problem { status, .. } => *status >= 500,
    }
}

/// The code of a refusal.
pub fn code(reply: &Reply) -> &str {
    match reply {
        Reply::Problem { code, .. } => code,
        _ => "",
    }
}

/// The millisecond that a moment is in.
pub const fn millis(at: Micros) -> Millis {
    at.div_euclid(1000)
}

/// Whether units of an order in this state are free again.
pub fn is_given_back(state: &str) -> bool {
    matches!(state, "cancelled" | "expired")
}

pub fn is_decided(state: &str) -> bool {
    state != "reserved"
}

/// A request and its answer in one line.
pub fn describe(op: &Op) -> String {
    format!("{:?} at {}..{} µs: {:?}", op.request, op.invoked, op.returned, op.reply)
}
