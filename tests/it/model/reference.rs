//! The reference: the promises of the scripts, with maps and without Redis. Answers are written out as
//! [`crate::support::raw::Raw::script`] writes them.

use flashsale::domain::ids::OrderId;
use flashsale::domain::operator::report::Counters;
use flashsale::domain::order::OrderState;
use flashsale::domain::time::Millis;
use std::collections::{BTreeMap, BTreeSet};
use uuid::Uuid;

pub const EPOCH: i64 = 3;
pub const RATE_LIMIT: usize = 3;
pub const WINDOW_MS: Millis = 1000;
pub const UNIT_LIMITS: [u32; 2] = [5, 3];
/// The longest row of a shopper that keeps a decided order; so short that orders are left to the ledger.
pub const ROW_MAX: usize = 120;

/// An order and the event that announced it.
#[derive(Debug, Clone, Copy)]
pub struct Order {
    pub state: OrderState,
    pub item: usize,
    pub quantity: u32,
    pub created_at: Millis,
    pub resolved_at: Millis,
    pub seq: i64,
}

impl Order {
    /// As [`crate::support::raw::written`].
    fn written(&self) -> String {
        format!(
            "[{} item {} x{} at {} resolved {} event {EPOCH}-{}]",
            self.state, self.item, self.quantity, self.created_at, self.resolved_at, self.seq
        )
    }

    const fn counts(&self) -> bool {
        matches!(self.state, OrderState::Reserved | OrderState::Paid)
    }
}

#[derive(Debug, Clone, Default)]
pub struct Shopper {
    /// Requests that were let through, oldest first; those that have left the window may still be there.
    pub window: Vec<(Millis, OrderId)>,
    /// Every order so far.
    pub orders: BTreeMap<OrderId, Order>,
    /// Items that there were orders for, by the first of them.
    pub items: Vec<usize>,
    /// Orders that the ledger alone has.
    pub left: BTreeSet<OrderId>,
}

impl Shopper {
    /// The orders that are here, oldest first.
    pub fn here(&self) -> Vec<(OrderId, Order)> {
        let orders = self.orders.iter().filter(|(id, _)| !self.left.contains(id));
        let mut orders: Vec<_> = orders.map(|(id, order)| (*id, *order)).collect();
        orders.sort_by_key(|(_, order)| order.seq);
        orders
    }

    /// Counts the orders left to the ledger, from 1 to 255 and round again; 0 for none. A replay probe must name it.
    pub fn number(&self) -> u8 {
        let left = self.left.len();
        u8::try_from(if left == 0 { 0 } else { (left - 1) % 255 + 1 }).unwrap()
    }

    /// How long the row is, as `src/stock/record.rs` writes it down.
    fn row(&self) -> usize {
        let order = |order: &Order| 36 + format!("{EPOCH}-{}", order.seq).len();
        let orders: usize = self.here().iter().map(|(_, it)| order(it)).sum();
        12 + 6 * self.items.len() + 12 * self.window.len() + orders
    }

    /// Units of an item that the shopper has.
    pub fn units(&self, item: usize) -> u32 {
        let of_item = self.orders.values().filter(|order| order.item == item);
        of_item.filter(|order| order.counts()).map(|order| order.quantity).sum()
    }
}

/// Units on their way: to a shard or the ledger.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sent {
    pub to: Option<u16>,
    pub item: usize,
    pub units: i64,
    pub at: Millis,
}

/// The arguments of a permit: epoch, how long, up to which share of memory events may wait and for how long, on which
/// server, and whether it only renews a valid one.
#[derive(Debug, Clone, Copy)]
pub struct Asked {
    pub epoch: i64,
    pub for_ms: Millis,
    pub memory_max: i64,
    pub age_max: Millis,
    pub is_here: bool,
    pub renewal: bool,
}

#[derive(Debug, Clone)]
pub struct Shard {
    pub items: [Counters; 2],
    /// State, start, end.
    pub state: (u8, Millis, Millis),
    pub version: i64,
    pub brake: bool,
    pub permit_until: Millis,
    pub halted: bool,
    pub seq: i64,
    pub drained: i64,
    pub shoppers: BTreeMap<usize, Shopper>,
    pub transfers: BTreeMap<Uuid, Sent>,
    pub applied: BTreeSet<Uuid>,
    /// The lowest accepted epoch, by lender.
    pub fences: BTreeMap<u16, i64>,
    /// The order of every event, from the first.
    pub events: Vec<(usize, OrderId)>,
}

impl Shard {
    pub fn new(units: [i64; 2], starts_at: Millis, ends_at: Millis) -> Self {
        let item = |units| Counters {
            available: units,
            granted: units,
            ..Counters::default()
        };
        Self {
            items: units.map(item),
            state: (0, starts_at, ends_at),
            version: 0,
            brake: false,
            permit_until: 0,
            halted: false,
            seq: 0,
            drained: 0,
            shoppers: BTreeMap::new(),
            transfers: BTreeMap::new(),
            applied: BTreeSet::new(),
            fences: BTreeMap::new(),
            events: Vec::new(),
        }
    }

    /// Whether the ledger alone has an order of this shopper.
    pub fn is_left(&self, user: usize, order: OrderId) -> bool {
        self.shoppers
            .get(&user)
            .is_some_and(|shopper| shopper.left.contains(&order))
    }

    pub fn purchase(
        &mut self,
        user: usize,
        order: OrderId,
        (item, quantity): (usize, u32),
        probed: Option<u8>,
        now: Millis,
    ) -> String {
        let mut shopper = self.shoppers.get(&user).cloned().unwrap_or_default();
        let known = shopper.orders.get(&order).filter(|_| !shopper.left.contains(&order));
        if let Some(known) = known {
            return if (known.item, known.quantity) == (item, quantity) {
                let drained = u8::from(known.seq <= self.drained);
                format!("REPLAYED {} {drained}", known.written())
            } else {
                "KEY_REUSED".to_owned()
            };
        }
        let number = shopper.number();
        if number != 0 && probed != Some(number) {
            return format!("ASK_LEDGER {number}");
        }
        if now >= self.permit_until {
            return "HALTED".to_owned();
        } else if self.brake {
            return "OVERLOADED".to_owned();
        }
        shopper.window.retain(|(at, _)| *at > now - WINDOW_MS);
        let counted = shopper.window.iter().any(|(_, counted)| *counted == order);
        if !counted {
            if shopper.window.len() >= RATE_LIMIT {
                return format!("RATE_LIMITED {}", shopper.window[0].0 + WINDOW_MS - now);
            }
            shopper.window.push((now, order));
        }
        if let Some(refusal) = self.refusal(&shopper, item, quantity, now) {
            if !counted {
                self.shoppers.insert(user, shopper);
            }
            return refusal;
        }
        self.seq += 1;
        let new = Order {
            state: OrderState::Reserved,
            item,
            quantity,
            created_at: now,
            resolved_at: 0,
            seq: self.seq,
        };
        if !shopper.items.contains(&item) {
            shopper.items.push(item);
        }
        shopper.orders.insert(order, new);
        self.shoppers.insert(user, shopper);
        self.events.push((user, order));
        self.items[item].available -= i64::from(quantity);
        self.items[item].held += i64::from(quantity);
        format!("RESERVED {}", new.written())
    }

    fn refusal(&self, shopper: &Shopper, item: usize, quantity: u32, now: Millis) -> Option<String> {
        let (state, starts_at, ends_at) = self.state;
        let available = self.items[item].available;
        Some(match state {
            0 => "NOT_OPEN draft".to_owned(),
            3 => "NOT_OPEN closed".to_owned(),
            _ if now >= ends_at => "NOT_OPEN closed".to_owned(),
            2 => "NOT_OPEN paused".to_owned(),
            _ if now < starts_at => "NOT_OPEN scheduled".to_owned(),
            _ if shopper.units(item) + quantity > UNIT_LIMITS[item] => "LIMIT_REACHED".to_owned(),
            _ if available < i64::from(quantity) => format!("SHORT {available}"),
            _ => return None,
        })
    }

    pub fn resolve(&mut self, user: usize, id: OrderId, state: OrderState, now: Millis) -> String {
        let Some(shopper) = self.shoppers.get_mut(&user) else {
            return "UNKNOWN".to_owned();
        };
        let is_long = shopper.row() > ROW_MAX;
        let order = shopper.orders.get_mut(&id).filter(|_| !shopper.left.contains(&id));
        let Some(order) = order else {
            return if shopper.left.is_empty() { "UNKNOWN" } else { "ALREADY" }.to_owned();
        };
        if order.state == state {
            return "ALREADY".to_owned();
        } else if order.state != OrderState::Reserved {
            return format!("CONFLICT {}", order.state.code());
        }
        (order.state, order.resolved_at) = (state, now);
        let (units, item) = (i64::from(order.quantity), &mut self.items[order.item]);
        item.held -= units;
        match state {
            OrderState::Paid => item.sold += units,
            OrderState::Revoked => item.revoked += units,
            _ => item.available += units,
        }
        item.version += i64::from(state != OrderState::Paid);
        if is_long {
            shopper.left.insert(id);
        }
        "RESOLVED".to_owned()
    }

    pub fn transfer_out(&mut self, id: Uuid, to: Option<u16>, item: usize, wanted: i64, now: Millis) -> String {
        if self.applied.contains(&id) {
            return "DONE".to_owned();
        }
        if let Some(sent) = self.transfers.get(&id) {
            return format!("OUT {} {EPOCH}", sent.units);
        }
        if now >= self.permit_until {
            return "HALTED".to_owned();
        }
        let counters = &mut self.items[item];
        let units = wanted.min(counters.available);
        if units == 0 {
            return "NONE".to_owned();
        }
        counters.available -= units;
        counters.out += units;
        counters.version += 1;
        let at = now;
        self.transfers.insert(id, Sent { to, item, units, at });
        format!("OUT {units} {EPOCH}")
    }

    pub fn transfer_in(
        &mut self,
        id: Uuid,
        (item, units): (usize, i64),
        (lender, epoch): (u16, i64),
        now: Millis,
    ) -> String {
        if self.applied.contains(&id) {
            return "ALREADY".to_owned();
        } else if self.fences.get(&lender).is_some_and(|fence| epoch < *fence) {
            return "FENCED".to_owned();
        } else if now >= self.permit_until {
            return "HALTED".to_owned();
        }
        self.applied.insert(id);
        let counters = &mut self.items[item];
        counters.available += units;
        counters.r#in += units;
        counters.version += 1;
        "IN".to_owned()
    }

    pub fn transfer_done(&mut self, id: Uuid) -> String {
        if self.transfers.remove(&id).is_some() {
            self.applied.insert(id);
        }
        "DONE".to_owned()
    }

    pub fn withdraw_done(&mut self, id: Uuid, item: usize) -> String {
        match self.transfers.get(&id) {
            Some(sent) if !self.applied.contains(&id) => {
                if sent.to.is_some() || sent.item != item {
                    return "ERR INVARIANT withdraw_done".to_owned();
                }
                let counters = &mut self.items[sent.item];
                counters.withdrawn += sent.units;
                self.transfers.remove(&id);
                self.applied.insert(id);
            }
            _ => {}
        }
        "DONE".to_owned()
    }

    pub fn restock(&mut self, id: Uuid, item: usize, units: i64) -> String {
        if !self.applied.insert(id) {
            return "ALREADY".to_owned();
        }
        let counters = &mut self.items[item];
        counters.available += units;
        counters.granted += units;
        counters.version += 1;
        "ADDED".to_owned()
    }

    pub fn set_state(&mut self, version: i64, state: (u8, Millis, Millis)) -> String {
        if version <= self.version {
            return "STALE".to_owned();
        }
        (self.version, self.state) = (version, state);
        "SET".to_owned()
    }

    pub fn permit(&mut self, asked: Asked, now: Millis) -> String {
        if asked.epoch != EPOCH {
            return format!("STALE {EPOCH}");
        } else if !asked.is_here {
            return "MOVED".to_owned();
        } else if self.halted {
            return "HALTED".to_owned();
        } else if asked.renewal && now >= self.permit_until {
            return "LAPSED".to_owned();
        }
        let waiting = self.seq - self.drained;
        let oldest = self.events.get(usize::try_from(self.drained).unwrap());
        let brake = oldest.is_some_and(|(user, order)| {
            let created_at = self.shoppers[user].orders[order].created_at;
            // Redis uses some of its memory, and never all.
            let tightness = if asked.memory_max == 0 { 300 } else { 1 };
            (now - created_at) * tightness > asked.age_max
        });
        let left = self.permit_until - now;
        if brake != self.brake || left * 5 < asked.for_ms * 4 {
            (self.brake, self.permit_until) = (brake, now + asked.for_ms);
        }
        format!("PERMITTED {waiting} {EPOCH}-{} {}", self.seq, u8::from(brake))
    }

    pub fn stop(&mut self, halt: bool) -> String {
        self.permit_until = 0;
        self.halted |= halt;
        "HALTED".to_owned()
    }

    pub fn fence(&mut self, lenders: &[(u16, i64)]) -> String {
        for (lender, epoch) in lenders {
            let fence = self.fences.entry(*lender).or_insert(*epoch);
            *fence = (*fence).max(*epoch);
        }
        "FENCED".to_owned()
    }

    /// The invariants of a shard, by the model's own books.
    pub fn check(&self) -> Result<(), String> {
        let orders = || self.shoppers.values().flat_map(|shopper| shopper.orders.values());
        for (n, counters) in self.items.iter().enumerate() {
            let units = |state: OrderState| -> i64 {
                let of_state = orders().filter(|order| order.item == n && order.state == state);
                of_state.map(|order| i64::from(order.quantity)).sum()
            };
            let (held, sold, revoked) = (
                units(OrderState::Reserved),
                units(OrderState::Paid),
                units(OrderState::Revoked),
            );
            if !counters.balance() || (counters.held, counters.sold, counters.revoked) != (held, sold, revoked) {
                return Err(format!(
                    "item {n}: {counters:?}, but orders for {held}, {sold}, {revoked}"
                ));
            }
        }
        for (user, shopper) in &self.shoppers {
            for (item, limit) in UNIT_LIMITS.iter().enumerate() {
                let has = shopper.units(item);
                if has > *limit {
                    return Err(format!("shopper {user} has {has} of item {item}"));
                }
            }
        }
        Ok(())
    }
}
