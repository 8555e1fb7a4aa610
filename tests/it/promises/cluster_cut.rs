//! A network cut through a cluster, with clients on both sides. The smaller side has a primary that sells, until its
//! replica on the larger side is promoted.

use crate::support::app::{Answer, Instance, environment};
use crate::support::crowd::{SKU, Terms, World};
use crate::support::network::{Member, Network};
use crate::support::poll::{PATIENCE, within};
use crate::support::servers::Cluster;
use flashsale::domain::ids::UserId;
use flashsale::domain::sale::shard::home_shard;
use flashsale::domain::sale::{Durability, Sale};
use futures_util::future::join_all;
use std::collections::BTreeSet;

/// The primary that is cut off. The first node, which shows the cluster's view, is on the larger side.
const CUT_OFF: u8 = 1;
/// An instance on each side.
const BESIDE: Member = Member::number(20);
const ACROSS: Member = Member::number(21);

/// A shopper and what became of the purchase.
type Purchase = (String, Answer);

/// Shoppers with one purchase each, whose home is one of some shards.
struct Shoppers<'a> {
    sale: &'a Sale,
    shards: &'a BTreeSet<u16>,
    name: &'static str,
    next: usize,
}

impl Shoppers<'_> {
    /// The next few buy one unit each, at once.
    async fn buy(&mut self, count: usize, instance: &Instance) -> Vec<Purchase> {
        let mut users = Vec::new();
        while users.len() < count {
            self.next += 1;
            let user = format!("{}-{}", self.name, self.next);
            let id: UserId = user.parse().unwrap();
            let home = home_shard(&self.sale.secret.0, &id, self.sale.shards);
            if self.shards.contains(&home) {
                users.push(user);
            }
        }
        let sale = self.sale.id.to_string();
        let purchases = users.into_iter().map(|user| {
            let sale = &sale;
            async move {
                let answer = instance.buy_sku(&user, sale, "k", SKU, 1).await;
                (user, answer)
            }
        });
        join_all(purchases).await
    }
}

/// Shoppers with a success.
fn acknowledged(purchases: Vec<Purchase>) -> Vec<Purchase> {
    for (user, answer) in &purchases {
        assert!([201, 503].contains(&answer.status), "{user}: {answer:?}");
    }
    purchases
        .into_iter()
        .filter(|(_, answer)| answer.status == 201)
        .collect()
}

/// Both sides of the cut, with their shoppers' answers.
struct Sides<'a> {
    /// Of the shards whose primary is cut off, on the smaller side and on the larger one.
    alone: Shoppers<'a>,
    taken_over: Shoppers<'a>,
    /// Of the other shards.
    elsewhere: Shoppers<'a>,
    beside: &'a Instance,
    across: &'a Instance,
    kept: Vec<Purchase>,
    on_the_smaller_side: Vec<Purchase>,
}

impl Sides<'_> {
    /// Buys on both sides. Returns how many units of the shards in question the larger side sold.
    async fn buy(&mut self) -> usize {
        let (smaller, larger, elsewhere) = tokio::join!(
            self.alone.buy(2, self.beside),
            self.taken_over.buy(2, self.across),
            self.elsewhere.buy(2, self.across)
        );
        self.on_the_smaller_side.extend(acknowledged(smaller));
        let larger = acknowledged(larger);
        let sold = larger.len();
        self.kept.extend(larger.into_iter().chain(acknowledged(elsewhere)));
        sold
    }
}

/// Whether a node says of itself that it is a primary with slots.
fn is_primary(cluster: &Cluster, number: u8) -> bool {
    let nodes: String = cluster.node(number).call(redis::cmd("CLUSTER").arg("NODES"));
    let is_primary = |line: &str| line.contains("myself,master") && line.split(' ').count() > 8;
    nodes.lines().any(is_primary)
}

async fn comes_apart(durability: Durability) {
    let network = Network::new();
    let mut cluster = Cluster::on_network(&network).await;
    let world = World::on(cluster.url()).await;
    let terms = Terms {
        durability,
        ..Terms::of(600, 12)
    };
    let sale = world.sale(&terms).await;
    let slot_of = |shard: u16| cluster.slot(&format!("{{{}:{shard}}}:shard", sale.id));
    let (cut_off, others): (BTreeSet<u16>, BTreeSet<u16>) =
        (0..sale.shards).partition(|shard| cluster.number_of_primary(slot_of(*shard)) == Some(CUT_OFF));
    let slot = slot_of(*cut_off.first().expect("a shard on each primary"));
    let start = |member: Member| {
        let mut environment = environment(&cluster.url(), &world.database);
        environment.extend(member.environment());
        Instance::start(&environment, "all").may_log_errors()
    };
    let (beside, across) = (start(BESIDE), start(ACROSS));
    let shoppers = |name, shards| Shoppers {
        sale: &sale,
        shards,
        name,
        next: 0,
    };
    let mut sides = Sides {
        alone: shoppers("alone", &cut_off),
        taken_over: shoppers("taken-over", &cut_off),
        elsewhere: shoppers("elsewhere", &others),
        beside: &beside,
        across: &across,
        kept: Vec::new(),
        on_the_smaller_side: Vec::new(),
    };

    let mut early = shoppers("early", &cut_off);
    for (instance, enough) in [(&beside, 5), (&across, 10)] {
        within(PATIENCE, "five more are kept", async || {
            sides.kept.extend(acknowledged(early.buy(5, instance).await));
            sides.kept.len() >= enough
        })
        .await;
    }
    for (user, order) in &sides.kept {
        across.wait_for_order(user, &order.id(), "reserved").await;
    }

    network.cut_off([Member::number(CUT_OFF), BESIDE]);
    cluster.ignore_node(CUT_OFF);
    let at_once = acknowledged(sides.alone.buy(8, &beside).await);
    assert!(
        durability == Durability::Replica || !at_once.is_empty(),
        "the smaller side sells until it notices the cut"
    );
    sides.on_the_smaller_side.extend(at_once);
    let is_promoted = || cluster.number_of_primary(slot).is_some_and(|number| number != CUT_OFF);
    within(PATIENCE, "the replica is promoted", async || {
        sides.buy().await;
        is_promoted()
    })
    .await;
    // Without one, it acknowledges nothing at `replica`.
    cluster.add_replica_after_failover(slot);
    within(PATIENCE, "the promoted replica sells", async || sides.buy().await > 0).await;
    let heir = cluster.number_of_primary(slot).unwrap();
    assert!(
        is_primary(&cluster, heir) && is_primary(&cluster, CUT_OFF),
        "two primaries have the slots"
    );
    for (user, answer) in sides.alone.buy(4, &beside).await {
        assert_eq!(answer.status, 503, "{user}: {answer:?}");
    }

    network.heal();
    within(PATIENCE, "the smaller side sells every shard again", async || {
        let (alone, elsewhere) = tokio::join!(sides.alone.buy(4, &beside), sides.elsewhere.buy(4, &beside));
        let sold: Vec<Purchase> = acknowledged(alone).into_iter().chain(acknowledged(elsewhere)).collect();
        let is_whole = sold.len() == 8;
        sides.kept.extend(sold);
        is_whole
    })
    .await;
    within(PATIENCE, "it follows the promoted one", async || {
        !is_primary(&cluster, CUT_OFF)
    })
    .await;
    for (user, order) in &sides.kept {
        across.wait_for_order(user, &order.id(), "reserved").await;
    }
    for (user, order) in &sides.on_the_smaller_side {
        assert_eq!(
            durability,
            Durability::Redis,
            "{user}: {order:?} was acknowledged without the replica"
        );
        // It was drained before the promotion, or it is lost.
        let found = across.order(user, &order.id()).await;
        assert!([200, 404].contains(&found.status), "{found:?}");
    }
    // Their jobs move units between shards.
    drop((beside, across));
    world.settled(&sale).await;
    world.sells_out(&sale).await;
    let revoked = "select count(*) from orders where sale_id = $1 and state = 'revoked'";
    assert_eq!(world.number(revoked, sale.id).await, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn both_sides_of_a_cut_cluster_together_sell_no_unit_twice() {
    comes_apart(Durability::Redis).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_primary_that_is_cut_off_from_its_replica_acknowledges_nothing_that_the_replica_lacks() {
    comes_apart(Durability::Replica).await;
}
