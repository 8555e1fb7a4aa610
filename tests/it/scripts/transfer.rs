use super::{
    ITEM_CUT, NOW, PERMITTED, SHARD_CUT, Shop, assert_refused, each_cut_off_key_is_noticed,
    each_foreign_key_is_refused, each_missing_key_is_noticed, on_its_way, sent, sku,
};
use crate::support::raw::arg;
use flashsale::domain::fault::Fault;
use flashsale::domain::operator::report::Counters;
use flashsale::stock::script::{TRANSFER_DONE, TRANSFER_IN, TRANSFER_OUT};
use flashsale::stock::sell::transfer::{Destination, Sent, Transfer};
use uuid::Uuid;

const ID: Uuid = Uuid::from_u128(0x0190_0000_0000_7000_8000_0000_0000_0001);

async fn two_shards() -> Shop {
    Shop::open(|sale| sale.shards = 2).await
}

async fn out(shop: &Shop, id: Uuid, wanted: i64) -> Result<Sent, Fault> {
    let to = Destination::Shard(1);
    shop.stock.transfer_out(shop.key, id, &sku("A"), to, wanted, NOW).await
}

async fn come_in(shop: &Shop, id: Uuid, units: i64) -> Result<(), Fault> {
    shop.stock.transfer_in(shop.shard(1), 0, &on_its_way(id, units)).await
}

async fn done(shop: &Shop, id: Uuid) -> Result<(), Fault> {
    shop.stock.transfer_done(shop.key, id).await
}

async fn both(shop: &Shop) -> [Counters; 2] {
    let readings = shop.stock.read_shards(&shop.sale).await.unwrap();
    let counters = [readings[0].counters(&sku("A")), readings[1].counters(&sku("A"))];
    assert!(counters.iter().all(Counters::balance), "{counters:?}");
    counters
}

#[tokio::test]
async fn units_go_from_one_shard_to_the_other_in_three_steps() {
    let shop = two_shards().await;
    assert_eq!(out(&shop, ID, 2).await.unwrap(), sent(2));
    let on_its_way = on_its_way(ID, 2);
    let unseen = Transfer {
        to_epoch: 0,
        ..on_its_way.clone()
    };
    assert_eq!(shop.read().await.transfers, std::slice::from_ref(&unseen));
    let server = shop.stock.server_of_both(shop.shard(0), shop.shard(1)).await.unwrap();
    assert!(server.is_some());
    let seen = Transfer { server, ..on_its_way };
    assert_eq!(shop.stock.transfers(shop.sale.id, 2).await.unwrap(), [(0, seen)]);
    let lent = Counters {
        available: 3,
        out: 2,
        granted: 5,
        version: 1,
        ..Counters::default()
    };
    let untouched = Counters {
        available: 5,
        granted: 5,
        ..Counters::default()
    };
    assert_eq!(both(&shop).await, [lent, untouched]);

    come_in(&shop, ID, 2).await.unwrap();
    let borrowed = Counters {
        available: 7,
        r#in: 2,
        granted: 5,
        version: 1,
        ..Counters::default()
    };
    assert_eq!(both(&shop).await, [lent, borrowed]);
    assert_eq!(shop.read().await.transfers, [unseen]);

    done(&shop, ID).await.unwrap();
    assert_eq!(both(&shop).await, [lent, borrowed]);
    assert!(shop.read().await.transfers.is_empty());
}

#[tokio::test]
async fn a_lender_gives_what_is_wanted_or_what_it_has() {
    for (wanted, given, left) in [(1, 1, 4), (4, 4, 1), (5, 5, 0), (6, 5, 0), (1_000_000_000, 5, 0)] {
        let shop = two_shards().await;
        assert_eq!(out(&shop, ID, wanted).await.unwrap(), sent(given), "{wanted}");
        assert_eq!(both(&shop).await[0].available, left, "{wanted}");
    }
}

#[tokio::test]
async fn a_lender_without_free_units_gives_none_and_remembers_nothing() {
    let shop = two_shards().await;
    shop.reserve("ada", "k", 5).await;
    let before = shop.dump();
    assert_eq!(out(&shop, ID, 1).await.unwrap(), Sent::None);
    assert_eq!(shop.dump(), before);
    shop.resolve("ada", "k", flashsale::domain::order::OrderState::Cancelled)
        .await;
    assert_eq!(out(&shop, ID, 1).await.unwrap(), sent(1), "none is no promise");
}

#[tokio::test]
async fn a_transfer_takes_units_once_and_never_again_after_it_is_done() {
    let shop = two_shards().await;
    assert_eq!(out(&shop, ID, 2).await.unwrap(), sent(2));
    let before = shop.dump();
    assert_eq!(out(&shop, ID, 2).await.unwrap(), sent(2));
    assert_eq!(out(&shop, ID, 4).await.unwrap(), sent(2), "the first answer again");
    assert_eq!(shop.dump(), before);
    come_in(&shop, ID, 2).await.unwrap();
    done(&shop, ID).await.unwrap();
    let before = shop.dump();
    assert_eq!(out(&shop, ID, 2).await.unwrap(), Sent::Done);
    done(&shop, ID).await.unwrap();
    assert_eq!(out(&shop, ID, 2).await.unwrap(), Sent::Done);
    assert_eq!(shop.dump(), before);
}

#[tokio::test]
async fn units_arrive_once() {
    let shop = two_shards().await;
    out(&shop, ID, 2).await.unwrap();
    come_in(&shop, ID, 2).await.unwrap();
    let before = shop.dump();
    come_in(&shop, ID, 2).await.unwrap();
    assert_eq!(shop.dump(), before);
    done(&shop, ID).await.unwrap();
    come_in(&shop, ID, 2).await.unwrap();
    assert_eq!(both(&shop).await[1].available, 7);
}

#[tokio::test]
async fn units_marked_delivered_too_early_can_still_arrive() {
    let shop = two_shards().await;
    out(&shop, ID, 2).await.unwrap();
    done(&shop, ID).await.unwrap();
    assert_eq!(both(&shop).await[0].in_transit() + both(&shop).await[1].in_transit(), 2);
    come_in(&shop, ID, 2).await.unwrap();
    let [lender, borrower] = both(&shop).await;
    assert_eq!((lender.available, borrower.available), (3, 7));
    assert_eq!(lender.plus(&borrower).in_transit(), 0);
}

#[tokio::test]
async fn marking_an_unknown_transfer_delivered_leaves_no_trace_and_does_not_forbid_it() {
    let shop = two_shards().await;
    let before = shop.dump();
    done(&shop, ID).await.unwrap();
    assert_eq!(shop.dump(), before);
    assert_eq!(out(&shop, ID, 1).await.unwrap(), sent(1));
}

#[tokio::test]
async fn transfers_do_not_meet_each_other() {
    let shop = two_shards().await;
    let other = Uuid::now_v7();
    assert_eq!(out(&shop, ID, 2).await.unwrap(), sent(2));
    let of_b = shop
        .stock
        .transfer_out(shop.key, other, &sku("B"), Destination::Shard(1), 9, NOW)
        .await;
    assert_eq!(of_b.unwrap(), sent(2));
    done(&shop, ID).await.unwrap();
    let left = shop.read().await.transfers;
    assert_eq!((left.len(), left[0].id, left[0].sku.as_str()), (1, other, "B"));
}

#[tokio::test]
async fn units_come_in_only_where_the_lender_has_recorded_them() {
    let shop = two_shards().await;
    let server = shop.stock.server_of_both(shop.shard(0), shop.shard(1)).await.unwrap();
    let server = server.unwrap();
    let here = server.as_str();
    let id = Uuid::now_v7();
    let sent = |server: &str| Transfer {
        server: Some(server.into()),
        ..on_its_way(id, 2)
    };
    let before = shop.dump();
    for elsewhere in ["0", &here[1..], &format!("{here}0"), &here.to_uppercase()] {
        let answer = shop.stock.transfer_in(shop.shard(1), 0, &sent(elsewhere)).await;
        assert!(matches!(answer, Err(Fault::Unavailable(_))), "{elsewhere}: {answer:?}");
    }
    assert_eq!(shop.dump(), before);
    shop.stock.transfer_in(shop.shard(1), 0, &sent(here)).await.unwrap();
    assert_ne!(shop.dump(), before);
    let after = shop.dump();
    // Arrived units stay arrived, for any server.
    shop.stock.transfer_in(shop.shard(1), 0, &sent("0")).await.unwrap();
    assert_eq!(shop.dump(), after);
    let listed = shop.stock.transfers(shop.sale.id, shop.sale.shards).await.unwrap();
    assert!(
        listed.iter().all(|(_, it)| it.server.as_ref() == Some(&server)),
        "{listed:?}"
    );
}

#[tokio::test]
async fn the_answers_distinguish_the_first_call_from_repeats() {
    let shop = two_shards().await;
    let (from, to, id) = (shop.shard(0), shop.shard(1), arg(ID.to_string()));
    let out_keys = [from.item(&sku("A")), from.shard(), from.transfers(), from.applied()];
    let out_args = [id.clone(), arg("A"), arg("1"), arg("3"), arg(NOW)];
    let in_keys = [to.item(&sku("A")), to.shard(), to.fences(), to.applied()];
    let in_args = [id.clone(), arg("3"), arg("0"), arg("1"), arg("1"), arg("")];
    let stale_args = [id.clone(), arg("3"), arg("0"), arg("1"), arg("2"), arg("")];
    let (done_keys, done_args) = ([from.transfers(), from.applied()], [id]);
    let answers = [
        shop.raw.script(&TRANSFER_OUT, &out_keys, &out_args),
        shop.raw.script(&TRANSFER_OUT, &out_keys, &out_args),
        shop.raw.script(&TRANSFER_IN, &in_keys, &stale_args),
        shop.raw.script(&TRANSFER_IN, &in_keys, &in_args),
        shop.raw.script(&TRANSFER_IN, &in_keys, &in_args),
        shop.raw.script(&TRANSFER_IN, &in_keys, &stale_args),
        shop.raw.script(&TRANSFER_DONE, &done_keys, &done_args),
        shop.raw.script(&TRANSFER_DONE, &done_keys, &done_args),
        shop.raw.script(&TRANSFER_OUT, &out_keys, &out_args),
    ];
    assert_eq!(
        answers,
        [
            "OUT 3 1", "OUT 3 1", "STALE", "IN", "ALREADY", "ALREADY", "DONE", "DONE", "DONE"
        ]
    );
}

#[tokio::test]
async fn a_billion_units_travel_as_a_whole_number() {
    let shop = Shop::open(|sale| sale.items[0].stock = 1_000_000_000).await;
    assert_eq!(out(&shop, ID, 1_000_000_000).await.unwrap(), sent(1_000_000_000));
    assert_eq!(out(&shop, ID, 1_000_000_000).await.unwrap(), sent(1_000_000_000));
    assert_eq!(shop.read().await.transfers[0].units, 1_000_000_000);
}

#[tokio::test]
async fn arguments_out_of_bounds_are_refused() {
    let shop = two_shards().await;
    let (id, key) = (ID.to_string(), shop.key);
    let (short, long) = (&id[1..], format!("{id}0"));
    assert_refused(
        &shop,
        &TRANSFER_OUT,
        &[key.item(&sku("A")), key.shard(), key.transfers(), key.applied()],
        &[
            &[&id, "A", "1", "0", "5"],
            &[&id, "A", "1", "-1", "5"],
            &[&id, "A", "1", "1.5", "5"],
            &[&id, "A", "1", "nan", "5"],
            &[&id, "A", "1", "all", "5"],
            &[&id, "A", "1", "1000000001", "5"],
            &[&id, "A", "1", "1", "now"],
            &[&id, "A", "1", "1"],
            &[short, "A", "1", "1", "5"],
            &[&long, "A", "1", "1", "5"],
        ],
    );
    assert_refused(
        &shop,
        &TRANSFER_IN,
        &[key.item(&sku("A")), key.shard(), key.fences(), key.applied()],
        &[
            &[&id, "0", "0", "1"],
            &[&id, "-1", "0", "1"],
            &[&id, "1.5", "0", "1"],
            &[&id, "nan", "0", "1"],
            &[&id, "all", "0", "1"],
            &[&id, "1000000001", "0", "1"],
            &[&id, "1", "0", "first"],
            &[&id, "1", "0"],
            &[short, "1", "0", "1"],
            &[&long, "1", "0", "1"],
        ],
    );
    assert_refused(
        &shop,
        &TRANSFER_DONE,
        &[key.transfers(), key.applied()],
        &[&[short], &[&long], &[""]],
    );
}

#[tokio::test]
async fn a_foreign_type_in_any_key_is_a_defect_and_changes_nothing() {
    each_foreign_key_is_refused!(
        two_shards().await,
        |shop| [
            shop.key.item(&sku("A")),
            shop.key.shard(),
            shop.key.transfers(),
            shop.key.applied()
        ],
        out(&shop, ID, 1).await
    );
    each_foreign_key_is_refused!(
        two_shards().await,
        |shop| [
            shop.shard(1).item(&sku("A")),
            shop.shard(1).shard(),
            shop.shard(1).fences(),
            shop.shard(1).applied()
        ],
        come_in(&shop, ID, 1).await
    );
    let sent = || async {
        let shop = two_shards().await;
        out(&shop, ID, 1).await.unwrap();
        shop
    };
    each_foreign_key_is_refused!(
        sent().await,
        |shop| [shop.key.transfers(), shop.key.applied()],
        done(&shop, ID).await
    );
}

#[tokio::test]
async fn a_missing_or_cut_off_item_is_noticed_and_not_created() {
    each_missing_key_is_noticed!(
        two_shards().await,
        |shop| [shop.key.item(&sku("A")), shop.key.shard()],
        out(&shop, ID, 1).await
    );
    each_missing_key_is_noticed!(
        two_shards().await,
        |shop| [shop.shard(1).item(&sku("A")), shop.shard(1).shard()],
        come_in(&shop, ID, 1).await
    );
    each_cut_off_key_is_noticed!(
        two_shards().await,
        |shop| [(shop.key.item(&sku("A")), ITEM_CUT), (shop.key.shard(), SHARD_CUT)],
        out(&shop, ID, 1).await
    );
    each_cut_off_key_is_noticed!(
        two_shards().await,
        |shop| [
            (shop.shard(1).item(&sku("A")), ITEM_CUT),
            (shop.shard(1).shard(), SHARD_CUT)
        ],
        come_in(&shop, ID, 1).await
    );
    let shop = two_shards().await;
    let before = shop.dump();
    let taken = shop
        .stock
        .transfer_out(shop.key, ID, &sku("C"), Destination::Ledger, 1, NOW)
        .await;
    assert!(matches!(taken, Err(Fault::Incomplete(_))), "{taken:?}");
    let unknown = Transfer {
        sku: sku("C"),
        ..on_its_way(ID, 1)
    };
    let added = shop.stock.transfer_in(shop.key, 1, &unknown).await;
    assert!(matches!(added, Err(Fault::Incomplete(_))), "{added:?}");
    assert_eq!(shop.dump(), before);
}

#[tokio::test]
async fn a_shard_lends_and_borrows_until_the_last_millisecond_of_its_permit() {
    let until = PERMITTED + 60_000;
    let shop = two_shards().await;
    let (id, other) = (ID.to_string(), Uuid::now_v7().to_string());
    let out_keys = |of| {
        let key = shop.shard(of);
        [key.item(&sku("A")), key.shard(), key.transfers(), key.applied()]
    };
    let in_keys = |of| {
        let key = shop.shard(of);
        [key.item(&sku("A")), key.shard(), key.fences(), key.applied()]
    };
    let out = |id: &str, now| {
        let args = [arg(id), arg("A"), arg("1"), arg("1"), arg(NOW), arg(now)];
        shop.raw.script(&TRANSFER_OUT, &out_keys(0), &args)
    };
    let come_in = |id: &str, now| {
        let args = [arg(id), arg("1"), arg("0"), arg("1"), arg("1"), arg(""), arg(now)];
        shop.raw.script(&TRANSFER_IN, &in_keys(1), &args)
    };
    let before = shop.dump();
    for late in [until, until + 1] {
        assert_eq!((out(&id, late), come_in(&id, late)), ("HALTED".into(), "HALTED".into()));
    }
    assert_eq!(shop.dump(), before);
    assert_eq!(
        (out(&id, until - 1), come_in(&id, until - 1)),
        ("OUT 1 1".into(), "IN".into())
    );
    // A halted shard also lists and finishes a begun transfer.
    shop.stock.stop(shop.key).await.unwrap();
    shop.stock.stop(shop.shard(1)).await.unwrap();
    assert_eq!((out(&id, NOW), come_in(&id, NOW)), ("OUT 1 1".into(), "ALREADY".into()));
    assert_eq!(
        (out(&other, NOW), come_in(&other, NOW)),
        ("HALTED".into(), "HALTED".into())
    );
    done(&shop, ID).await.unwrap();
    assert_eq!(out(&id, NOW), "DONE");
    let stopped = shop
        .stock
        .transfer_in(shop.shard(1), 0, &on_its_way(Uuid::now_v7(), 1))
        .await;
    assert!(matches!(stopped, Err(Fault::Incomplete(_))), "{stopped:?}");
}

#[tokio::test]
async fn a_braked_shard_still_lends_and_borrows() {
    let shop = two_shards().await;
    for shard in 0..2 {
        shop.damage(&shop.shard(shard).shard(), 1, &[1]);
    }
    assert_eq!(out(&shop, ID, 2).await.unwrap(), sent(2));
    come_in(&shop, ID, 2).await.unwrap();
    done(&shop, ID).await.unwrap();
    assert_eq!(both(&shop).await[1].available, 7);
}
