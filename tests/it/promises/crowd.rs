//! A crowd: hundreds of shoppers who repeat, abandon, pay and cancel, through several instances at once.

use crate::support::crowd::{Answer, Client, SKU, Terms, World, payment};
use crate::support::doubled::doubled_crowd;
use crate::support::poll::{PATIENCE, Patience};
use flashsale::domain::ids::OrderId;
use flashsale::domain::sale::Sale;
use futures_util::future::{join, join_all, join3};
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, RwLock};
use std::time::Duration;

/// Sends each request of a shopper to one of the running instances, at random.
#[derive(Default)]
pub struct LoadBalancer {
    clients: RwLock<Vec<Client>>,
    /// Counts answers, for tests that act in the middle of a crowd.
    pub answers: AtomicUsize,
}

impl LoadBalancer {
    pub fn set(&self, clients: Vec<Client>) {
        *self.clients.write().unwrap() = clients;
    }

    fn any(&self, random: &mut StdRng) -> Client {
        let clients = self.clients.read().unwrap();
        clients[random.random_range(0..clients.len())].clone()
    }

    /// Records the order of each success under the shopper and the key.
    fn note(&self, seen: &OrdersByKey, user: &str, key: &str, answer: Option<&Answer>) {
        self.answers.fetch_add(usize::from(answer.is_some()), Ordering::Relaxed);
        if let Some(answer) = answer.filter(|answer| matches!(answer.status, 200 | 201)) {
            let name = format!("{user} {key}");
            seen.lock().unwrap().entry(name).or_default().insert(answer.order());
        }
    }
}

type OrdersByKey = Mutex<BTreeMap<String, BTreeSet<OrderId>>>;

/// Sends a crowd to a sale and returns how many shoppers were served. Each request has an outcome in the end,
/// and every success of a key names the same order.
pub async fn rush(balancer: &Arc<LoadBalancer>, sale: &Arc<Sale>, name: &str, shoppers: usize, seed: u64) -> usize {
    println!("{name}: seed {seed}");
    let seen = Arc::new(OrdersByKey::default());
    let crowd = (0..shoppers).map(|n| {
        let (balancer, sale, seen) = (Arc::clone(balancer), Arc::clone(sale), Arc::clone(&seen));
        let user = format!("{name}-{n}");
        let random = StdRng::seed_from_u64(seed.wrapping_add(n as u64));
        tokio::spawn(async move { shop(&balancer, &sale, &seen, &user, random).await })
    });
    let mut served = 0;
    for shopper in join_all(crowd).await {
        served += usize::from(shopper.unwrap());
    }
    for (request, orders) in seen.lock().unwrap().iter() {
        assert_eq!(orders.len(), 1, "{request}: {orders:?}");
    }
    assert!(seen.lock().unwrap().len() >= served);
    served
}

/// One shopper: asks, several times at once, and then pays, cancels, both or neither. Returns whether it was served.
async fn shop(balancer: &LoadBalancer, sale: &Sale, seen: &OrdersByKey, user: &str, mut random: StdRng) -> bool {
    let quantity = random.random_range(1..=2);
    if random.random_bool(0.2) {
        // Gives up in the middle, and asks again all the same.
        let patience = Duration::from_millis(random.random_range(0..4));
        let client = balancer.any(&mut random);
        let answer = tokio::time::timeout(patience, client.buy(sale.id, user, "k", quantity)).await;
        balancer.note(seen, user, "k", answer.ok().flatten().as_ref());
    }
    // Some also try to get more than they may, under another key at the same time.
    let greedy = random.random_bool(0.2).then(|| balancer.any(&mut random));
    let more = async {
        match greedy {
            Some(client) => client.buy(sale.id, user, "more", 2).await,
            None => None,
        }
    };
    let (one, other) = (balancer.any(&mut random), balancer.any(&mut random));
    let (one, other, more) = join3(
        one.buy(sale.id, user, "k", quantity),
        other.buy(sale.id, user, "k", quantity),
        more,
    )
    .await;
    balancer.note(seen, user, "k", one.as_ref());
    balancer.note(seen, user, "k", other.as_ref());
    balancer.note(seen, user, "more", more.as_ref());
    let answer = buy_until_decided(balancer, seen, sale, user, quantity, &mut random).await;
    // Two requests of a key may differ here: one came before a unit was given back, one after.
    if matches!(answer.code(), "sold_out" | "purchase_limit_reached") {
        return false;
    }
    assert!(matches!(answer.status, 200 | 201), "{answer:?}");
    let order = answer.order();
    match random.random_range(0..10) {
        0..=4 => pay(balancer, user, order, quantity, &mut random).await,
        5..=6 => cancel(balancer, user, order, &mut random).await,
        7 => {
            let mut other = StdRng::seed_from_u64(random.random());
            join(
                pay(balancer, user, order, quantity, &mut random),
                cancel(balancer, user, order, &mut other),
            )
            .await;
        }
        _ => {}
    }
    true
}

/// Repeats a request until it has an outcome.
async fn buy_until_decided(
    balancer: &LoadBalancer,
    seen: &OrdersByKey,
    sale: &Sale,
    user: &str,
    quantity: u32,
    random: &mut StdRng,
) -> Answer {
    let patience = Patience::of(PATIENCE);
    loop {
        let answer = balancer.any(random).buy(sale.id, user, "k", quantity).await;
        balancer.note(seen, user, "k", answer.as_ref());
        if let Some(answer) = answer.filter(|answer| answer.status != 503) {
            return answer;
        }
        patience.pause("a purchase has an outcome").await;
    }
}

/// The provider sends the webhook twice at once, and repeats it until one is accepted.
async fn pay(balancer: &LoadBalancer, user: &str, order: OrderId, quantity: u32, random: &mut StdRng) {
    let payment = payment(user, order, quantity);
    let patience = Patience::of(PATIENCE);
    let outcomes: Vec<Value> = loop {
        let (one, other) = (balancer.any(random), balancer.any(random));
        let (one, other) = join(one.pay(&payment), other.pay(&payment)).await;
        let answers = [one, other].into_iter().flatten().filter(|it| it.status == 200);
        let outcomes: Vec<Value> = answers.map(|it| it.body["outcome"].clone()).collect();
        if !outcomes.is_empty() {
            break outcomes;
        }
        patience.pause("a payment is recorded").await;
    };
    let first = outcomes.iter().filter(|outcome| **outcome != "duplicate").count();
    // None at all when the answer to the first was lost.
    assert!(first <= 1, "{outcomes:?}");
    assert!(!outcomes.contains(&"unmatched".into()), "{outcomes:?}");
}

async fn cancel(balancer: &LoadBalancer, user: &str, order: OrderId, random: &mut StdRng) {
    let patience = Patience::of(PATIENCE);
    loop {
        let (one, other) = (balancer.any(random), balancer.any(random));
        let (one, other) = join(one.cancel(user, order), other.cancel(user, order)).await;
        let answers = [one, other].into_iter().flatten().filter(|it| it.status != 503);
        for answer in answers.clone() {
            match answer.status {
                200 => assert_eq!(answer.body["state"], "cancelled"),
                409 => assert_eq!(answer.code(), "order_not_cancellable"),
                _ => panic!("{answer:?}"),
            }
        }
        if answers.count() > 0 {
            return;
        }
        patience.pause("a cancellation has an outcome").await;
    }
}

/// After a crowd every unit is accounted for, each key has one order, every order was named to its shopper by its key,
/// and released units sell again to the last one.
pub async fn all_is_well(world: &World, sale: &Sale) {
    let item = world.rested(sale).await;
    let twice = "select count(*) - count(distinct (user_id, idempotency_key)) from orders where sale_id = $1";
    assert_eq!(world.number(twice, sale.id).await, 0);
    assert_eq!(item.sku.as_str(), SKU);
    world.sells_out(sale).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_crowd_through_three_instances_gets_every_unit_once() {
    let world = World::new().await;
    let terms = Terms {
        limit: 2,
        ..Terms::of(150, 8)
    };
    let sale = world.sale(&terms).await;
    let instances = [
        world.start("all").await,
        world.start("all").await,
        world.start("api").await,
    ];
    let balancer = Arc::new(LoadBalancer::default());
    balancer.set(instances.iter().map(|it| it.client()).collect());
    let served = rush(&balancer, &sale, "crowd", 300, rand::random()).await;
    // Those whose units came under another key do not count, and chance decides how many they are.
    assert!(served >= 50, "{served} were served");
    all_is_well(&world, &sale).await;
    for instance in &instances {
        assert_eq!(instance.errors(), Vec::<String>::new());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_copies_of_a_request_never_get_an_order_and_sold_out() {
    let world = World::new().await;
    for _ in 0..5 {
        let doubled = doubled_crowd(&world, 400, 8, 2040).await;
        // On a slow machine, some requests have no answer in time.
        assert!(doubled.orders > 300 && doubled.both == 0, "{doubled:?}");
    }
}
