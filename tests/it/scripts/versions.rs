//! Every script and decoder meets each of its records in a newer version: it answers so, and writes nothing.

use super::{END, NOW, PERMITTED, Shop, generous, on_its_way, sku, user};
use crate::support::raw::Dump;
use crate::support::{lua, trim};
use flashsale::domain::fault::Fault;
use flashsale::domain::order::OrderState;
use flashsale::domain::shopper::ban::{Ban, BannedBy};
use flashsale::domain::shopper::waiting_room::Member;
use flashsale::domain::time::from_millis;
use flashsale::stock::door::room::Waiting;
use flashsale::stock::record::BuyerRecord;
use flashsale::stock::sell::transfer::Destination;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::fs;
use uuid::Uuid;

const SENT: Uuid = Uuid::from_u128(0x0001);
const LEFT: Uuid = Uuid::from_u128(0x0002);
const MEMBER: &[u8; 12] = b"twelve bytes";

/// A record: where its version stands, and a byte there that the next version may write.
#[derive(Clone, Copy, Debug)]
enum Record {
    Shard,
    Lender,
    Item,
    Lent,
    Shopper,
    Door,
    Transfer(Uuid),
    Event,
}
use Record::{Door, Event, Item, Lender, Lent, Shard, Shopper, Transfer};

/// Two shards that sell; one holds ada's order, and two transfers have left it.
async fn selling() -> Shop {
    let shop = Shop::open(|sale| sale.shards = 2).await;
    shop.reserve("ada", "k", 1).await;
    for (id, to) in [(SENT, Destination::Shard(1)), (LEFT, Destination::Ledger)] {
        shop.stock
            .transfer_out(shop.key, id, &sku("A"), to, 1, NOW)
            .await
            .unwrap();
    }
    shop
}

/// The same, whose first shard is being rebuilt.
async fn loading() -> Shop {
    let shop = selling().await;
    let position = shop.stock.last_event(shop.key).await.unwrap();
    trim(&shop.stock, shop.key, position.seq).await;
    shop.stock.begin_restore(&shop.sale, 0, (1, 2), 1, &[]).await.unwrap();
    shop
}

fn make_newer(shop: &Shop, record: Record) {
    let item = |shard| shop.shard(shard).item(&sku("A"));
    match record {
        Shard => {
            let state = shop.bytes(&shop.shard(1).shard())[0];
            shop.damage(&shop.shard(1).shard(), 0, &[4 + state]);
        }
        Lender => {
            let state = shop.bytes(&shop.key.shard())[0];
            shop.damage(&shop.key.shard(), 0, &[4 + state]);
        }
        Item => shop.damage(&item(1), 0, &[1]),
        Lent => shop.damage(&item(0), 0, &[1]),
        Shopper => shop.damage(&shop.key.buyer(&user("ada")), 7, &[16]),
        Door => {
            // An admitted shopper stays admitted.
            let mut admit = redis::cmd("ZADD");
            let _new: i64 = shop.raw.call(admit.arg(shop.key.admitted()).arg(END).arg(MEMBER));
            shop.put(&shop.key.door(), b"\x10of another shape");
        }
        Transfer(id) => {
            let mut set = redis::cmd("HSET");
            set.arg(shop.key.transfers())
                .arg(id.to_string())
                .arg("\u{1}of another shape");
            let _new: i64 = shop.raw.call(&mut set);
        }
        Event => {
            let mut add = redis::cmd("XADD");
            add.arg(shop.key.events())
                .arg("*")
                .arg("reserved")
                .arg([&[1_u8], &[0; 60][..]].concat());
            let _id: String = shop.raw.call(&mut add);
        }
    }
}

/// Makes the call meet each of the records in a newer version.
macro_rules! refuses {
    ($name:literal, $make:ident, [$($record:expr),+], |$shop:ident| $call:expr) => {$({
        let $shop = $make().await;
        make_newer(&$shop, $record);
        let before = $shop.dump();
        let answer = $call;
        is_refused($name, $record, &answer, &before, &$shop.dump());
    })+};
}

fn is_refused<T: Debug>(name: &str, record: Record, answer: &Result<T, Fault>, before: &Dump, after: &Dump) {
    assert!(matches!(answer, Err(Fault::Newer(_))), "{name}, {record:?}: {answer:?}");
    assert_eq!(before, after, "{name}, {record:?}");
}

#[tokio::test]
async fn a_script_that_meets_a_newer_record_says_so_and_writes_nothing() {
    let ban = Ban {
        user: user("ada"),
        reason: "a reason".to_owned(),
        banned_by: BannedBy::Operator,
        operator: None,
        banned_at: from_millis(NOW),
        banned_until: None,
        lifted_at: None,
        sessions_from: None,
        revision: 1,
        change: 1,
    };
    let waiting = Waiting {
        member: Member { id: *MEMBER, lot: 1 },
        rate: 1.0,
        stay_ms: 1000,
        free: 1.0,
        room_max: 10,
        place: None,
        now: Some(NOW),
    };
    refuses!("purchase", selling, [Lender, Lent, Shopper], |shop| shop
        .try_buy("ada", "k2", 1, NOW)
        .await);
    refuses!("a repeated purchase", selling, [Lender, Lent, Shopper], |shop| shop
        .try_buy("ada", "k", 1, NOW)
        .await);
    refuses!("resolve", selling, [Lent, Shopper], |shop| {
        shop.try_resolve("ada", "k", OrderState::Cancelled).await
    });
    refuses!("ban", selling, [Lender, Shopper], |shop| shop
        .stock
        .ban(shop.key, &ban, None)
        .await);
    refuses!("waiting_room", selling, [Lender, Shopper, Door], |shop| {
        shop.stock.wait(shop.key, &user("ada"), &waiting).await
    });
    refuses!("leave_room", selling, [Door], |shop| shop
        .stock
        .leave_room(shop.key, &waiting.member)
        .await);
    refuses!("set_state", selling, [Lender], |shop| shop
        .stock
        .set_state(&shop.sale, 0)
        .await);
    refuses!("stop", selling, [Lender], |shop| shop.stock.halt(shop.key).await);
    refuses!("permit", selling, [Lender], |shop| {
        let server = shop.stock.server(shop.key).await.unwrap();
        shop.stock
            .permit(&shop.sale, 0, &generous(1, &server), Some(PERMITTED))
            .await
    });
    refuses!("restock", selling, [Lender, Lent], |shop| {
        shop.stock.restock(shop.key, Uuid::now_v7(), &sku("A"), 1, 1).await
    });
    refuses!("transfer_out", selling, [Lender, Lent], |shop| {
        let to = Destination::Shard(1);
        shop.stock
            .transfer_out(shop.key, Uuid::now_v7(), &sku("A"), to, 1, NOW)
            .await
    });
    refuses!("a repeated transfer_out", selling, [Transfer(SENT)], |shop| {
        let to = Destination::Shard(1);
        shop.stock.transfer_out(shop.key, SENT, &sku("A"), to, 1, NOW).await
    });
    refuses!("transfer_in", selling, [Shard, Item], |shop| {
        shop.stock.transfer_in(shop.shard(1), 0, &on_its_way(SENT, 1)).await
    });
    refuses!("withdraw_done", selling, [Transfer(LEFT), Lent], |shop| {
        shop.stock.withdraw_done(shop.key, LEFT).await
    });
    refuses!("begin_restore", selling, [Lender], |shop| {
        shop.stock.begin_restore(&shop.sale, 0, (0, 2), 1, &[]).await
    });
    refuses!("restore_buyers", loading, [Lender, Shopper], |shop| {
        shop.stock
            .restore_buyers(shop.key, 2, &[(user("ada"), BuyerRecord::default())])
            .await
    });
    refuses!("end_restore", loading, [Lender, Lent], |shop| {
        shop.stock.end_restore(&shop.sale, 0, 2, &BTreeMap::new(), &[]).await
    });
    refuses!("forget_buyers", loading, [Lender, Shopper], |shop| shop
        .stock
        .forget_buyers(&[(shop.key, Some(2))])
        .await);
}

#[tokio::test]
async fn a_reader_that_meets_a_newer_record_says_so() {
    refuses!("read_shard", selling, [Lender, Lent, Transfer(SENT), Event], |shop| {
        shop.stock.read_shard(&shop.sale, 0, 10).await
    });
    refuses!("epoch", selling, [Lender], |shop| shop.stock.epoch(shop.key).await);
    refuses!("read_buyer", selling, [Shopper], |shop| shop
        .stock
        .read_buyer(shop.key, &user("ada"))
        .await);
    refuses!("buyers", selling, [Shopper], |shop| {
        let mut cursor = 0;
        loop {
            match shop.stock.buyers(&[shop.key], cursor).await {
                Ok((next, _)) if next != 0 => cursor = next,
                last => break last,
            }
        }
    });
    refuses!("transfers", selling, [Lender, Transfer(LEFT)], |shop| {
        shop.stock.transfers(shop.sale.id, shop.sale.shards).await
    });
    refuses!("survey", selling, [Lender, Lent], |shop| {
        shop.stock
            .survey(shop.sale.id, shop.sale.shards, &sku("A"))
            .await
            .remove(0)
    });
}

#[test]
fn every_version_that_a_script_checks_is_met_by_a_test_above() {
    let tests = include_str!("versions.rs").split("refuses!(\"").skip(1);
    let tests: Vec<&str> = tests
        .map(|test| test.strip_prefix("a repeated ").unwrap_or(test))
        .collect();
    for (name, path) in lua::files("lua") {
        let script = fs::read_to_string(path).unwrap();
        let checked = script.split("'NEWER ").skip(1);
        let mut checked: BTreeSet<&str> = checked.map(|rest| rest.split('\'').next().unwrap()).collect();
        // The records of limits belong to no sale.
        checked.retain(|record| !["counter", "bucket"].contains(record));
        let start = format!("{name}\", ");
        let records = tests.iter().filter_map(|test| {
            let (_, records) = test.strip_prefix(start.as_str())?.split_once('[')?;
            Some(records.split_once(']')?.0.split([',', ' ', '(', ')']))
        });
        let met = records.flatten().filter_map(|record| match record {
            "Shard" | "Lender" => Some("shard"),
            "Item" | "Lent" => Some("item"),
            "Shopper" => Some("shopper"),
            "Door" => Some("door"),
            "Transfer" => Some("transfer"),
            _ => None,
        });
        assert!(
            checked.is_subset(&met.collect()),
            "{name}.lua checks {checked:?}; say refuses!(\"{name}\", …) for each"
        );
    }
}
