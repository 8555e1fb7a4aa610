//! The possible steps of a sale, as random values.

use proptest::collection::vec;
use proptest::prelude::*;
use std::ops::RangeInclusive;

pub const SHARDS: u16 = 3;
/// Shoppers by number; `n % SHARDS` is the home shard. Their names try to be something else.
pub const USERS: [&str; 6] = [
    "ada",
    "}:shard{",
    "a:b\nc",
    "{0}:buyer:ada",
    "\u{1f980} é\r\n",
    "u w b :shard",
];
/// Idempotency keys of each shopper.
pub const KEYS: usize = 12;
/// Transfers, each with its own lender, borrower (or the ledger) and item.
pub const TRANSFERS: usize = 10;
/// Restocks, each with its own shard and item.
pub const RESTOCKS: usize = 6;

/// One step. Numbers that stand for a choice are reduced to the choices.
#[derive(Debug, Clone)]
pub enum Step {
    /// The clock goes on by so many milliseconds.
    Wait(i64),
    /// A shopper asks.
    Purchase {
        user: usize,
        key: usize,
        item: usize,
        quantity: u32,
    },
    /// A shopper repeats, word for word, the request of the order of this number among all.
    Repeat {
        nth: usize,
    },
    /// The ledger decides about the order of this number among all, if there is one.
    Resolve {
        nth: usize,
        state: u8,
    },
    /// The ledger decides about an order that does not exist.
    ResolveUnknown {
        user: usize,
        key: usize,
    },
    Out {
        transfer: usize,
        wanted: i64,
    },
    /// The borrower takes the sent units, if there are any.
    In {
        transfer: usize,
    },
    Done {
        transfer: usize,
    },
    /// The lender itself takes back units that were meant for the ledger.
    GiveBack {
        transfer: usize,
    },
    /// Of the sent item, or in error of the other one.
    WithdrawDone {
        transfer: usize,
        astray: bool,
    },
    Restock {
        restock: usize,
        units: i64,
    },
    /// Version relative to the shard's, times relative to the clock.
    SetState {
        shard: u16,
        version: i64,
        state: u8,
        starts_in: i64,
        ends_in: i64,
    },
    /// The epoch relative to the shard's; on this server or in the name of another.
    Permit {
        shard: u16,
        epoch: i64,
        for_ms: i64,
        memory_max: i64,
        age_max: i64,
        is_here: bool,
        renewal: bool,
    },
    /// A shard loses its permit, is halted, or its halt ends.
    Stop {
        shard: u16,
        halt: bool,
        ends: bool,
    },
    /// Lenders with their epochs, relative to that of the model.
    Fence {
        shard: u16,
        lenders: Vec<(u16, i64)>,
    },
    Preload {
        shard: u16,
    },
    /// The same while one of the keys is lost.
    PreloadPart {
        shard: u16,
        lost: usize,
    },
    /// The drain takes up to so many events.
    Drain {
        shard: u16,
        events: i64,
    },
}

fn step() -> impl Strategy<Value = Step> {
    let waits = prop_oneof![Just(0), Just(1), Just(999), Just(1000), Just(1001), 1..3000_i64];
    // A window is 1000 ms long: mostly short waits fill it, and the exact ones meet its edge.
    let quantity = prop_oneof![6 => 1..4_u32, 1 => 4..8_u32];
    let nth = || any::<usize>();
    prop_oneof![
        4 => waits.prop_map(Step::Wait),
        16 => (0..USERS.len(), 0..KEYS, 0..2_usize, quantity)
            .prop_map(|(user, key, item, quantity)| Step::Purchase { user, key, item, quantity }),
        3 => nth().prop_map(|nth| Step::Repeat { nth }),
        8 => (nth(), 1..=4_u8).prop_map(|(nth, state)| Step::Resolve { nth, state }),
        1 => (0..USERS.len(), 0..KEYS).prop_map(|(user, key)| Step::ResolveUnknown { user, key }),
        4 => (0..TRANSFERS, 1..6_i64).prop_map(|(transfer, wanted)| Step::Out { transfer, wanted }),
        6 => (0..TRANSFERS).prop_map(|transfer| Step::In { transfer }),
        2 => (0..TRANSFERS).prop_map(|transfer| Step::Done { transfer }),
        4 => (0..TRANSFERS).prop_map(|transfer| Step::GiveBack { transfer }),
        4 => (0..TRANSFERS, prop_oneof![4 => Just(false), 1 => Just(true)])
            .prop_map(|(transfer, astray)| Step::WithdrawDone { transfer, astray }),
        2 => (0..RESTOCKS, 1..8_i64).prop_map(|(restock, units)| Step::Restock { restock, units }),
        4 => (0..SHARDS, -1..3_i64, prop_oneof![5 => Just(1_u8), 1 => Just(2), 1 => Just(3)], edge(-3000), edge(20_000))
            .prop_map(|(shard, version, state, starts_in, ends_in)| {
                Step::SetState { shard, version, state, starts_in, ends_in }
            }),
        9 => permit(),
        2 => (0..SHARDS, prop_oneof![3 => Just((false, false)), 1 => Just((true, false)), 3 => Just((false, true))])
            .prop_map(|(shard, (halt, ends))| Step::Stop { shard, halt, ends }),
        2 => (0..SHARDS, vec((0..SHARDS, prop_oneof![2 => -2..=0_i64, 3 => Just(0), 3 => Just(1)]), 1..3))
            .prop_map(|(shard, lenders)| Step::Fence { shard, lenders }),
        1 => (0..SHARDS).prop_map(|shard| Step::Preload { shard }),
        1 => (0..SHARDS, any::<usize>()).prop_map(|(shard, lost)| Step::PreloadPart { shard, lost }),
        2 => (0..SHARDS, 0..6_i64).prop_map(|(shard, events)| Step::Drain { shard, events }),
    ]
}

/// Mostly one that lets a shard sell for the rest of a case.
fn permit() -> impl Strategy<Value = Step> {
    let epoch = prop_oneof![8 => Just(0_i64), 1 => -1..=1_i64];
    let for_ms = prop_oneof![6 => Just(60_000_i64), 1 => Just(1), 2 => Just(1000), 2 => Just(2000), 1 => 2..2000_i64];
    let memory_max = prop_oneof![6 => Just(1000_i64), 1 => Just(0)];
    let age_max = prop_oneof![6 => Just(60_000_i64), 1 => Just(0), 1 => Just(999), 1 => 0..3000_i64];
    let is_here = prop_oneof![8 => Just(true), 1 => Just(false)];
    let renewal = prop_oneof![2 => Just(false), 1 => Just(true)];
    (0..SHARDS, epoch, for_ms, memory_max, age_max, is_here, renewal).prop_map(
        |(shard, epoch, for_ms, memory_max, age_max, is_here, renewal)| Step::Permit {
            shard,
            epoch,
            for_ms,
            memory_max,
            age_max,
            is_here,
            renewal,
        },
    )
}

/// A moment around now, mostly a usual one.
fn edge(usual: i64) -> impl Strategy<Value = i64> {
    prop_oneof![4 => Just(usual), 2 => -1..=1_i64, 1 => Just(1000)]
}

pub fn steps(length: RangeInclusive<usize>) -> impl Strategy<Value = Vec<Step>> {
    vec(step(), length)
}
