//! The crowd of a round: shoppers who buy, repeat, change their mind, pay and cancel, and an operator who restocks.
//! Each request is recorded with its reply.

use super::history::{Micros, Op, Order, Reply, Request, Terms};
use crate::support::crowd::{ADMIN_KEY, WEBHOOK_SECRET, token};
use crate::support::poll::{Patience, pass};
use chrono::{DateTime, Utc};
use flashsale::domain::order::webhook;
use futures_util::future::join_all;
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};
use reqwest::{RequestBuilder, StatusCode};
use serde_json::{Value, json};
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// How long a shopper waits for an answer.
const ANSWER_WITHIN: Duration = Duration::from_secs(6);
/// Newcomers who buy at once.
const NEWCOMERS: u64 = 8;

/// The shared state of a round's crowd.
pub struct Scene {
    pub http: reqwest::Client,
    pub ports: Vec<u16>,
    pub sale: String,
    pub terms: Terms,
    /// Longest pause between two requests of a shopper, in milliseconds.
    pub think: u64,
    /// How long an unknown outcome may take to be known, once everything is whole.
    pub known_within: Duration,
    /// The crowd ends.
    pub over: AtomicBool,
    /// When everything was healed, and when the sale answered again after that; 0 before.
    pub healed: AtomicI64,
    pub sold_again: AtomicI64,
    /// Requests that have been answered, for observers.
    pub answered: AtomicU64,
    pub ops: Mutex<Vec<Op>>,
}

pub fn now() -> Micros {
    Utc::now().timestamp_micros()
}

/// A client that sends requests and records them.
struct Client {
    scene: Arc<Scene>,
    random: StdRng,
    ops: Vec<Op>,
    token: String,
    user: String,
}

/// A purchase request.
#[derive(Clone)]
struct Asked {
    key: String,
    sku: String,
    quantity: i64,
    order: Option<Order>,
    is_known: bool,
}

/// A message of the payment provider.
#[derive(Clone)]
struct Payment {
    payment: String,
    webhook: String,
    order: String,
    amount: i64,
}

impl Client {
    fn new(scene: &Arc<Scene>, user: String, seed: u64) -> Self {
        Self {
            scene: Arc::clone(scene),
            random: StdRng::seed_from_u64(seed),
            ops: Vec::new(),
            token: token(&user),
            user,
        }
    }

    fn url(&mut self, path: &str) -> String {
        let port = self.scene.ports[self.random.random_range(0..self.scene.ports.len())];
        format!("http://127.0.0.1:{port}{path}")
    }

    /// Sends one request and records it.
    async fn send(&mut self, request: Request, built: RequestBuilder) -> Reply {
        let op = exchange(&self.scene, request, built).await;
        let reply = op.reply.clone();
        self.ops.push(op);
        reply
    }

    fn buying(&mut self, asked: &Asked) -> (Request, RequestBuilder) {
        let url = self.url(&format!("/v1/sales/{}/orders", self.scene.sale));
        let built = self
            .scene
            .http
            .post(url)
            .bearer_auth(&self.token)
            .header("Idempotency-Key", &asked.key)
            .json(&json!({"sku": asked.sku, "quantity": asked.quantity}));
        let request = Request::Buy {
            user: self.user.clone(),
            key: asked.key.clone(),
            sku: asked.sku.clone(),
            quantity: asked.quantity,
        };
        (request, built)
    }

    async fn buy(&mut self, asked: &mut Asked) {
        let (request, built) = self.buying(asked);
        let reply = self.send(request, built).await;
        note(asked, reply);
    }

    /// The same request twice at the same moment, through any instances.
    async fn buy_twice(&mut self, asked: &mut Asked) {
        let (one, other) = (self.buying(asked), self.buying(asked));
        let scene = Arc::clone(&self.scene);
        let (one, other) = tokio::join!(exchange(&scene, one.0, one.1), exchange(&scene, other.0, other.1));
        note(asked, one.reply.clone());
        note(asked, other.reply.clone());
        self.ops.extend([one, other]);
    }

    async fn read(&mut self, order: &str) {
        let url = self.url(&format!("/v1/orders/{order}"));
        let built = self.scene.http.get(url).bearer_auth(&self.token);
        let request = Request::Read {
            user: self.user.clone(),
            order: order.to_owned(),
        };
        self.send(request, built).await;
    }

    async fn cancel(&mut self, order: &str) {
        let url = self.url(&format!("/v1/orders/{order}/cancel"));
        let built = self.scene.http.post(url).bearer_auth(&self.token);
        let request = Request::Cancel {
            user: self.user.clone(),
            order: order.to_owned(),
        };
        self.send(request, built).await;
    }

    /// Sends a payment. Returns whether it was recorded.
    async fn pay(&mut self, payment: &Payment) -> bool {
        let body = json!({
            "type": "payment.succeeded",
            "timestamp": Utc::now().to_rfc3339(),
            "data": {
                "payment_id": payment.payment,
                "order_id": payment.order,
                "amount_minor": payment.amount,
                "currency": "EUR",
            },
        });
        let (body, at) = (body.to_string(), Utc::now().timestamp());
        let secret = webhook::decode_secret(WEBHOOK_SECRET).unwrap();
        let url = self.url("/v1/webhooks/payments");
        let built = self
            .scene
            .http
            .post(url)
            .header("webhook-id", &payment.webhook)
            .header("webhook-timestamp", at.to_string())
            .header(
                "webhook-signature",
                webhook::sign(&secret, &payment.webhook, at, body.as_bytes()),
            )
            .body(body);
        let request = Request::Pay {
            payment: payment.payment.clone(),
            webhook: payment.webhook.clone(),
            order: payment.order.clone(),
            amount: payment.amount,
        };
        matches!(self.send(request, built).await, Reply::Done { status: 200, .. })
    }

    async fn restock(&mut self, key: &str, sku: &str, quantity: i64) -> Reply {
        let url = self.url(&format!("/v1/admin/sales/{}/restock", self.scene.sale));
        let built = self
            .scene
            .http
            .post(url)
            .bearer_auth(ADMIN_KEY)
            .header("Idempotency-Key", key)
            .json(&json!({"sku": sku, "quantity": quantity}));
        let request = Request::Restock {
            key: key.to_owned(),
            sku: sku.to_owned(),
            quantity,
        };
        self.send(request, built).await
    }

    async fn think(&mut self) {
        let millis = self.random.random_range(0..=self.scene.think);
        pass(Duration::from_millis(millis)).await;
    }

    fn chance(&mut self, percent: u32) -> bool {
        self.random.random_range(0..100) < percent
    }

    /// Hands in the recorded requests.
    fn leave(self) {
        self.scene.ops.lock().unwrap().extend(self.ops);
    }
}

fn note(asked: &mut Asked, reply: Reply) {
    match reply {
        Reply::Order { order, .. } => {
            asked.order = Some(order);
            asked.is_known = true;
        }
        Reply::Problem { status: 503, .. } | Reply::None => asked.is_known = asked.order.is_some(),
        // A key that was refused may succeed later, and a copy of the request may have succeeded at this moment.
        Reply::Problem { .. } | Reply::Done { .. } => asked.is_known = true,
    }
}

async fn exchange(scene: &Scene, request: Request, built: RequestBuilder) -> Op {
    let invoked = now();
    let reply = match built.timeout(ANSWER_WITHIN).send().await {
        Ok(response) => read_reply(response).await,
        Err(_) => Reply::None,
    };
    let returned = now();
    if reply != Reply::None {
        scene.answered.fetch_add(1, Ordering::Relaxed);
    }
    let sells = match &reply {
        Reply::Order { .. } => true,
        Reply::Problem { status, .. } => *status < 500,
        _ => false,
    };
    let healed = scene.healed.load(Ordering::Relaxed);
    if sells && healed != 0 && invoked > healed && matches!(request, Request::Buy { .. }) {
        let _first = scene
            .sold_again
            .compare_exchange(0, returned, Ordering::Relaxed, Ordering::Relaxed);
    }
    Op {
        invoked,
        returned,
        request,
        reply,
    }
}

async fn read_reply(response: reqwest::Response) -> Reply {
    let (status, headers) = (response.status(), response.headers().clone());
    let Ok(body) = response.json::<Value>().await else {
        return Reply::None;
    };
    let code = status.as_u16();
    if let Some(problem) = body["code"].as_str() {
        let needs_hint = matches!(status, StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE);
        let has_hint = headers.contains_key("retry-after");
        let problem = if needs_hint == has_hint {
            problem
        } else {
            "wrong Retry-After"
        };
        return Reply::Problem {
            status: code,
            code: problem.to_owned(),
        };
    }
    let text = |name: &str| body[name].as_str().unwrap_or_default().to_owned();
    if body["sku"].is_string() {
        let millis = |name: &str| DateTime::parse_from_rfc3339(&text(name)).map_or(0, |at| at.timestamp_millis());
        let order = Order {
            id: text("id"),
            sku: text("sku"),
            quantity: body["quantity"].as_i64().unwrap_or_default(),
            amount: body["amount_minor"].as_i64().unwrap_or_default(),
            state: text("state"),
            confirmed: body["confirmed"].as_bool().unwrap_or_default(),
            created_at: millis("created_at"),
            expires_at: millis("expires_at"),
        };
        return Reply::Order {
            status: code,
            replayed: headers.contains_key("idempotency-replayed"),
            order,
        };
    }
    Reply::Done {
        status: code,
        outcome: text("outcome"),
    }
}

/// One shopper, until the crowd ends, and then until every outcome is known.
pub async fn shop(scene: Arc<Scene>, number: usize, seed: u64) {
    let mut client = Client::new(&scene, format!("shopper-{number}"), seed);
    let mut asked: Vec<Asked> = Vec::new();
    let mut owed: Vec<Payment> = Vec::new();
    let mut keys = 0;
    while !scene.over.load(Ordering::Relaxed) {
        step(&mut client, &mut asked, &mut owed, &mut keys).await;
        client.think().await;
    }
    let patience = Patience::of(scene.known_within);
    for asked in asked.iter_mut().filter(|asked| !asked.is_known) {
        client.buy(asked).await;
        while !asked.is_known {
            patience.pause("the outcome of a purchase is known").await;
            client.buy(asked).await;
        }
    }
    for payment in &owed {
        while !client.pay(payment).await {
            patience.pause("a payment is taken note of").await;
        }
    }
    client.leave();
}

async fn step(client: &mut Client, asked: &mut Vec<Asked>, owed: &mut Vec<Payment>, keys: &mut u64) {
    let roll = client.random.random_range(0..100);
    let old = (!asked.is_empty()).then(|| client.random.random_range(0..asked.len()));
    match (roll, old) {
        (0..12, Some(old)) => client.buy(&mut asked[old]).await,
        (12..15, Some(old)) => {
            // Another body under a key that may be used.
            let mut changed = asked[old].clone();
            changed.quantity += 1;
            client.buy(&mut changed).await;
        }
        (15..23, Some(old)) => {
            if let Some(order) = asked[old].order.clone() {
                client.read(&order.id).await;
            }
        }
        (23..31, Some(old)) => {
            if let Some(order) = asked[old].order.clone() {
                client.cancel(&order.id).await;
            }
        }
        (31..40, Some(old)) => {
            if let Some(order) = asked[old].order.clone() {
                pay(client, owed, &order).await;
            }
        }
        (40..41, _) => {
            let nobodys = uuid::Uuid::from_u128(client.random.random()).to_string();
            let payment = client.random.random::<u64>();
            pay_once(client, owed, &nobodys, 100, payment).await;
        }
        _ => {
            *keys += 1;
            let mut fresh = new_purchase(client, *keys);
            if client.chance(8) {
                client.buy_twice(&mut fresh).await;
            } else {
                client.buy(&mut fresh).await;
            }
            for _ in 0..3 {
                if fresh.is_known || client.chance(30) {
                    break;
                }
                client.think().await;
                client.buy(&mut fresh).await;
            }
            asked.push(fresh);
        }
    }
}

fn new_purchase(client: &mut Client, number: u64) -> Asked {
    let item = client.random.random_range(0..client.scene.terms.items.len());
    let item = client.scene.terms.items[item].clone();
    let most = item.limit.min(3);
    Asked {
        key: format!("k{number}"),
        sku: item.sku,
        quantity: if client.chance(2) {
            item.limit + 1
        } else {
            client.random.random_range(1..=most)
        },
        order: None,
        is_known: false,
    }
}

/// Pays an order: rightly, twice, too little, or by two payments.
async fn pay(client: &mut Client, owed: &mut Vec<Payment>, order: &Order) {
    let amount = if client.chance(6) {
        order.amount + 1
    } else {
        order.amount
    };
    let payment = client.random.random::<u64>();
    pay_once(client, owed, &order.id, amount, payment).await;
    if client.chance(10) {
        // The provider repeats it.
        pay_once(client, owed, &order.id, amount, payment).await;
    }
    if client.chance(5) {
        let another = client.random.random::<u64>();
        pay_once(client, owed, &order.id, order.amount, another).await;
    }
}

async fn pay_once(client: &mut Client, owed: &mut Vec<Payment>, order: &str, amount: i64, number: u64) {
    let payment = Payment {
        payment: format!("pay-{number:x}"),
        webhook: format!("msg-{number:x}"),
        order: order.to_owned(),
        amount,
    };
    if !client.pay(&payment).await {
        owed.push(payment);
    }
}

/// The operator: brings units, and takes some back.
pub async fn operate(scene: Arc<Scene>, seed: u64) {
    let mut client = Client::new(&scene, "operator".to_owned(), seed);
    let mut number = 0;
    while !scene.over.load(Ordering::Relaxed) {
        let pause = client.random.random_range(100..900);
        pass(Duration::from_millis(pause)).await;
        number += 1;
        let item = client.random.random_range(0..scene.terms.items.len());
        let quantity = match client.random.random_range(-20..=20) {
            0 => 1,
            other => other,
        };
        let (key, sku) = (format!("restock-{number}"), scene.terms.items[item].sku.clone());
        let patience = Patience::of(scene.known_within * 2);
        loop {
            let reply = client.restock(&key, &sku, quantity).await;
            if !matches!(reply, Reply::None | Reply::Problem { status: 503, .. }) {
                break;
            }
            patience.pause("the outcome of a restock is known").await;
        }
        if client.chance(10) {
            client.restock(&key, &sku, quantity).await;
        }
    }
    client.leave();
}

/// Newcomers buy and pay the rest of an item, in pieces as large as allowed, then one by one, until several parallel ones
/// are refused as sold out, or they have more than there can be. Returns how many units they got.
pub async fn sell_out(scene: &Arc<Scene>, sku: &str, seed: u64, most: i64) -> i64 {
    let lanes = (0..NEWCOMERS).map(|lane| newcomers(scene, sku, lane, seed, most));
    join_all(lanes).await.into_iter().sum()
}

async fn newcomers(scene: &Arc<Scene>, sku: &str, lane: u64, seed: u64, most: i64) -> i64 {
    let mut client = Client::new(scene, String::new(), seed ^ lane);
    let item = scene.terms.items.iter().find(|item| item.sku == sku).unwrap();
    let patience = Instant::now() + scene.known_within;
    let (mut sold, mut piece) = (0, item.limit);
    for number in 0.. {
        if sold > most {
            break;
        }
        client.user = format!("newcomer-{sku}-{lane}-{number}");
        client.token = token(&client.user);
        let mut asked = Asked {
            key: "k".to_owned(),
            sku: sku.to_owned(),
            quantity: piece,
            order: None,
            is_known: false,
        };
        client.buy(&mut asked).await;
        while !asked.is_known && Instant::now() < patience {
            client.buy(&mut asked).await;
        }
        match asked.order {
            Some(order) => {
                sold += piece;
                // Otherwise it would come back after a second, and nothing would ever be sold out.
                let payment = Payment {
                    payment: format!("pay-{}", order.id),
                    webhook: format!("msg-{}", order.id),
                    order: order.id,
                    amount: order.amount,
                };
                while !client.pay(&payment).await && Instant::now() < patience {}
            }
            None if piece == 1 || !asked.is_known => break,
            None => piece = 1,
        }
    }
    sold
}
