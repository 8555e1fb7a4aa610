//! The waiting room: shoppers of such a sale wait for their turn, and buy with an admission.

use crate::support::app::{Answer, Client, JWT_SECRET, TestApp, Who, rfc3339, sale_with, token, token_of};
use crate::support::poll::{self, PATIENCE, within};
use crate::support::raw::Raw;
use chrono::{DateTime, TimeDelta, Utc};
use flashsale::domain::ids::SaleId;
use flashsale::stock::keys::ShardKey;
use futures_util::future::join_all;
use jsonwebtoken::{Algorithm, Header};
use reqwest::{Method, Response};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// A sale with a waiting room, and some changes.
fn roomy(changes: &Value) -> Value {
    let mut sale = sale_with(&json!({"guards": {"waiting_room": true, "admission_seconds": 60}}));
    for (name, value) in changes.as_object().unwrap() {
        sale[name] = value.clone();
    }
    sale
}

fn starting_in(time: TimeDelta) -> Value {
    json!({"starts_at": rfc3339(Utc::now() + time)})
}

async fn ask(client: &Client, user: &str, sale: &str, ticket: Option<&str>) -> Answer {
    let request = client.request(
        Method::POST,
        Who::Shopper(user),
        &format!("/v1/sales/{sale}/waiting-room"),
    );
    let body = ticket.map_or_else(|| json!({}), |ticket| json!({"ticket": ticket}));
    client.send(request.json(&body)).await
}

async fn buy(client: &Client, user: &str, sale: &str, key: &str, admission: &str) -> Answer {
    let body = json!({"sku": "phone", "quantity": 1});
    let request = client.buying(user, sale, key).json(&body);
    client.send(request.header("X-Admission", admission)).await
}

/// Starts a sale, and pauses it before anybody is admitted: each shopper's position shows, and stays.
async fn start_paused(app: &TestApp, id: &str) {
    app.operate(id, "open").await.ok(200);
    app.operate(id, "pause").await.ok(200);
}

/// A shopper's position, once the lines are counted, with the ticket that has it.
async fn position(client: &Client, user: &str, sale: &str, ticket: Option<&str>) -> (i64, String) {
    poll::answer("the position is counted", || async {
        let answer = ask(client, user, sale, ticket).await.ok(200);
        let position = answer.body["position"].as_i64();
        position.map(|position| (position, answer.text("ticket").to_owned()))
    })
    .await
}

async fn admission(client: &Client, user: &str, sale: &str) -> String {
    poll::answer("it is the shopper's turn", || async {
        let answer = ask(client, user, sale, None).await.ok(200);
        (answer.text("state") == "admitted").then(|| answer.text("admission").to_owned())
    })
    .await
}

/// A stream of events, read as they come.
struct Events {
    response: Response,
    read: String,
}

impl Events {
    async fn open(client: &Client, user: &str, sale: &str) -> Self {
        Self::open_with(client, &token(user), sale).await
    }

    async fn open_with(client: &Client, token: &str, sale: &str) -> Self {
        let path = format!("/v1/sales/{sale}/waiting-room/events");
        let request = client.request(Method::GET, Who::Nobody, &path).bearer_auth(token);
        let response = request.send().await.unwrap();
        assert_eq!(response.status(), 200);
        assert_eq!(response.headers()["content-type"], "text/event-stream");
        Self {
            response,
            read: String::new(),
        }
    }

    /// Waits until the stream ends.
    async fn end(mut self) {
        let all = async { while self.response.chunk().await.unwrap().is_some() {} };
        tokio::time::timeout(Duration::from_secs(60), all)
            .await
            .expect("the stream ends");
    }

    /// The next event, its name and its data; `None` at the end of the stream.
    async fn next(&mut self) -> Option<(String, Value)> {
        loop {
            if let Some((event, rest)) = self.read.split_once("\n\n") {
                let (event, rest) = (event.to_owned(), rest.to_owned());
                self.read = rest;
                let Some(name) = event.strip_prefix("event: ") else {
                    continue;
                };
                let (name, data) = name.split_once("\ndata: ").unwrap();
                return Some((name.to_owned(), serde_json::from_str(data).unwrap()));
            }
            let chunk = tokio::time::timeout(Duration::from_secs(20), self.response.chunk());
            let chunk = chunk.await.expect("an event within 20 s").unwrap()?;
            self.read.push_str(std::str::from_utf8(&chunk).unwrap());
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_an_admitted_shopper_may_buy() {
    let app = TestApp::start().await;
    let other = app.another("api");
    let (id, next) = (
        app.load_sale(&roomy(&json!({}))).await,
        app.load_sale(&roomy(&json!({}))).await,
    );
    app.buy("ada", &id, "k", 1).await.no(403, "admission_required");
    let answer = ask(&app, "ada", &id, None).await.ok(200);
    assert_eq!(answer.text("state"), "admitted");
    let expires_at: DateTime<Utc> = answer.text("expires_at").parse().unwrap();
    assert!(
        (50..=60).contains(&(expires_at - Utc::now()).num_seconds()),
        "{expires_at}"
    );
    assert_eq!(answer.header("cache-control"), Some("no-store"));
    let good = admission(&other, "ada", &id).await;
    let of_bob = admission(&app, "bob", &id).await;
    let of_next = admission(&app, "ada", &next).await;
    for wrong in [
        "",
        "nonsense",
        &of_bob,
        &of_next,
        &good[..good.len() - 1],
        &format!("{good}0"),
    ] {
        buy(&app, "ada", &id, "k", wrong).await.no(403, "admission_required");
    }
    let order = buy(&other, "ada", &id, "k", &good).await.ok(201);
    // The key comes first: its order needs no admission.
    let again = app.buy("ada", &id, "k", 1).await.ok(200);
    assert_eq!(again.id(), order.id());
    buy(&app, "ada", &id, "more", &good).await.ok(201);
    let stopped = async || app.stats(&id).await["stopped"]["waiting_room"].as_i64();
    within(PATIENCE, "the refusals are counted", async || {
        stopped().await == Some(7)
    })
    .await;
    ask(&app, "ada", &app.load_sale(&sale_with(&json!({}))).await, None)
        .await
        .no(404, "not_found");
    ask(&app, "ada", &uuid::Uuid::new_v4().to_string(), None)
        .await
        .no(404, "not_found");
    let draft = app.create_sale(&roomy(&json!({}))).await;
    ask(&app, "ada", &draft, None).await.no(409, "sale_not_open");
    app.operate(&id, "close").await.ok(200);
    within(PATIENCE, "the room closes", async || {
        ask(&app, "eve", &id, None).await.ok(200).text("state") == "closed"
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_early_shopper_waits_for_the_start_and_is_notified_of_the_turn() {
    let app = TestApp::shared().await;
    let id = app.load_sale(&roomy(&starting_in(TimeDelta::seconds(10)))).await;
    let before = ask(&app, "ada", &id, None).await.ok(200);
    assert_eq!(before.text("state"), "waiting");
    assert_eq!(before.body["position"], Value::Null, "others may draw a better lot");
    assert!(
        (1..=11).contains(&before.body["estimated_wait_seconds"].as_i64().unwrap()),
        "{}",
        before.body
    );
    assert_eq!(before.body["ask_again_seconds"], 2);
    buy(&app, "ada", &id, "k", before.text("ticket"))
        .await
        .no(403, "admission_required");
    let mut events = Events::open(&app, "ada", &id).await;
    let (first, data) = events.next().await.unwrap();
    assert_eq!(first, "waiting");
    assert_eq!(data["ticket"], before.body["ticket"], "the same place");
    let last = loop {
        let (name, data) = events.next().await.unwrap();
        if name != "waiting" {
            assert_eq!(name, "admitted", "{data}");
            break data;
        }
    };
    assert_eq!(events.next().await, None, "the stream ends with the turn");
    buy(&app, "ada", &id, "k", last["admission"].as_str().unwrap())
        .await
        .ok(201);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sold_out_is_sent_at_once_and_released_units_go_to_the_first_in_line() {
    let app = TestApp::shared().await;
    let mut sale = roomy(&json!({"shards": 1}));
    (sale["items"][0]["stock"], sale["guards"]["admissions_per_second"]) = (json!(1), json!(1000));
    let id = app.load_sale(&sale).await;
    let first = admission(&app, "first", &id).await;
    let second = ask(&app, "second", &id, None).await.ok(200);
    assert_eq!(
        (second.text("state"), &second.body["position"]),
        ("waiting", &json!(1)),
        "one unit, one who may buy it"
    );
    ask(&app, "third", &id, None).await.ok(200);
    for number in 0..20 {
        ask(&app, &format!("late-{number}"), &id, None).await.ok(200);
    }
    // So far behind, a stream asks by itself every 15 seconds only. The news of the last unit is sooner.
    let mut events = Events::open(&app, "late-19", &id).await;
    let (name, data) = events.next().await.unwrap();
    assert_eq!((name.as_str(), &data["ask_again_seconds"]), ("waiting", &json!(15)));
    let order = buy(&app, "first", &id, "k", &first).await.ok(201);
    let data = tokio::time::timeout(Duration::from_secs(4), events.next()).await;
    let (name, data) = data.expect("within four seconds").unwrap();
    assert_eq!(
        (name.as_str(), &data["estimated_wait_seconds"]),
        ("sold_out", &Value::Null)
    );
    app.cancel("first", &order.id()).await.ok(200);
    let data = tokio::time::timeout(Duration::from_secs(4), events.next()).await;
    let (name, _) = data.expect("within four seconds").unwrap();
    assert!(["waiting", "admitted"].contains(&name.as_str()), "{name}");
    let admitted = admission(&app, "second", &id).await;
    assert_eq!(ask(&app, "third", &id, None).await.ok(200).text("state"), "waiting");
    buy(&app, "second", &id, "k", &admitted).await.ok(201);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_is_admitted_from_the_moment_at_which_the_last_unit_is_sold() {
    let app = TestApp::shared().await;
    let mut sale = roomy(&json!({"shards": 4}));
    (sale["items"][0]["stock"], sale["guards"]["admissions_per_second"]) = (json!(3), json!(1000));
    let id = app.load_sale(&sale).await;
    // Each shard admits one at least; of so many shoppers, some belong to each.
    let mut admitted = Vec::new();
    within(Duration::from_secs(20), "four are admitted", async || {
        for number in 0..64 {
            let user = format!("early-{number}");
            let answer = ask(&app, &user, &id, None).await.ok(200);
            let is_new = admitted.iter().all(|(other, _)| *other != user);
            if is_new && answer.text("state") == "admitted" {
                admitted.push((user, answer.text("admission").to_owned()));
            }
        }
        admitted.len() >= 4
    })
    .await;
    let (holder, _) = admitted.pop().unwrap();
    let mut sold = Vec::new();
    for (user, admission) in admitted.iter().take(3) {
        // The instance has just read that a unit is free.
        assert_eq!(ask(&app, &holder, &id, None).await.ok(200).text("state"), "admitted");
        let order = buy(&app, user, &id, "k", admission).await.ok(201);
        sold.push((user, order.id()));
    }
    let newcomers = join_all((0..48).map(|number| {
        let (app, id) = (&app, &id);
        async move {
            let answer = ask(app, &format!("late-{number}"), id, None).await.ok(200);
            answer.text("state").to_owned()
        }
    }));
    let states = newcomers.await;
    assert!(states.iter().all(|state| state == "sold_out"), "{states:?}");
    let holds = ask(&app, &holder, &id, None).await.ok(200);
    assert_eq!((holds.text("state"), holds.body.get("admission")), ("sold_out", None));
    // A unit comes back, and it goes on.
    let (user, order) = &sold[0];
    app.cancel(user, order).await.ok(200);
    let admission = admission(&app, &holder, &id).await;
    buy(&app, &holder, &id, "k", &admission).await.ok(201);
    app.assert_balanced(&id).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_ticket_restores_a_shoppers_place_when_the_line_is_lost() {
    let app = TestApp::start().await;
    let mut sale = roomy(&starting_in(TimeDelta::hours(1)));
    (sale["shards"], sale["ends_at"]) = (json!(1), json!(rfc3339(Utc::now() + TimeDelta::hours(2))));
    let id = app.load_sale(&sale).await;
    let mut tickets = Vec::new();
    for number in 0..20 {
        let user = format!("shopper-{number}");
        let answer = ask(&app, &user, &id, None).await.ok(200);
        tickets.push((user, answer.text("ticket").to_owned()));
    }
    let positions = async |with_ticket: bool| {
        let mut positions = Vec::new();
        for (user, ticket) in &tickets {
            let ticket = with_ticket.then_some(ticket.as_str());
            positions.push(position(&app, user, &id, ticket).await.0);
        }
        positions
    };
    start_paused(&app, &id).await;
    let before = positions(false).await;
    assert_eq!(
        app.stats(&id).await["waiting_room"],
        json!({"waiting": 20, "admitted": 0})
    );
    let guards = &app.get(Who::Nobody, &format!("/v1/sales/{id}")).await.ok(200).body["guards"];
    assert_eq!(
        *guards,
        json!({"waiting_room": true, "purchase_token": false, "challenge": "none", "captcha_proof": false})
    );
    let mut sorted = before.clone();
    sorted.sort_unstable();
    assert_eq!(sorted, (1..=20).collect::<Vec<i64>>());
    assert_ne!(before, sorted, "the order of coming says nothing");
    let shard = ShardKey {
        sale: id.parse::<SaleId>().unwrap(),
        shard: 0,
    };
    let raw = Raw::connect(&app.environment["FLASHSALE_REDIS_URL"]);
    let lost: i64 = raw.call(redis::cmd("DEL").arg(&[shard.room(), shard.door(), shard.admitted()]));
    assert_eq!(lost, 2);
    // A shopper without a ticket comes first now; those with tickets are all in their order again.
    let (stranger, _) = position(&app, "stranger", &id, None).await;
    assert_eq!(stranger, 1);
    let _first_time = positions(true).await;
    let after = positions(true).await;
    let mut by_before: Vec<usize> = (0..20).collect();
    by_before.sort_by_key(|at| before[*at]);
    let mut by_after: Vec<usize> = (0..20).collect();
    by_after.sort_by_key(|at| after[*at]);
    assert_eq!(by_after, by_before);
    // A ticket of another shopper is not valid.
    let (_, foreign) = &tickets[0];
    let eve = ask(&app, "eve", &id, Some(foreign)).await.ok(200);
    assert_ne!(eve.body["ticket"], json!(foreign));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_ends_with_the_token_with_the_session_and_with_a_ban() {
    let app = TestApp::start().await;
    let id = app.load_sale(&roomy(&starting_in(TimeDelta::minutes(30)))).await;
    let brief = |user: &str| {
        let claims = json!({"sub": user, "iat": Utc::now().timestamp() - 10, "exp": Utc::now().timestamp() + 5});
        token_of(&Header::new(Algorithm::HS256), JWT_SECRET, &claims)
    };
    let mut stays = Events::open(&app, "stays", &id).await;
    let expires = Events::open_with(&app, &brief("expires"), &id).await;
    let (ends, banned) = (
        Events::open(&app, "ends", &id).await,
        Events::open(&app, "banned", &id).await,
    );
    expires.end().await;
    let until = "2099-01-01T00:00:00.000Z";
    for (user, end_sessions) in [("ends", true), ("banned", false)] {
        let body = json!({"user": user, "reason": "resells", "until": until, "end_sessions": end_sessions});
        let request = app.request(Method::POST, Who::Operator, "/v1/admin/bans");
        app.send(request.json(&body)).await.ok(201);
    }
    ends.end().await;
    banned.end().await;
    let refused = ask(&app, "banned", &id, None).await.no(403, "banned");
    assert_eq!(refused.body["banned_until"], until, "{refused:?}");
    // Nobody else's has ended: it still has its first event, or the next one.
    assert_eq!(stays.next().await.unwrap().0, "waiting");
    let more = tokio::time::timeout(Duration::from_secs(20), stays.response.chunk()).await;
    assert!(matches!(more, Ok(Ok(Some(_)))), "{more:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_that_is_open_does_not_hold_up_the_end() {
    let app = TestApp::start().await;
    let mut other = app.another("api");
    let id = app.load_sale(&roomy(&starting_in(TimeDelta::minutes(30)))).await;
    let mut events = Events::open(&other, "ada", &id).await;
    assert_eq!(events.next().await.unwrap().0, "waiting");
    let took = other.terminate();
    // Less than the ten seconds that open requests get.
    assert!(took < Duration::from_secs(8), "{took:?}");
    assert!(
        tokio::time::timeout(Duration::from_secs(5), events.next())
            .await
            .is_ok()
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_crowd_of_early_shoppers_is_admitted_in_the_order_of_its_lots() {
    let app = TestApp::start().await;
    let mut sale = roomy(&starting_in(TimeDelta::minutes(30)));
    // One shard has one line; whole positions then.
    (sale["shards"], sale["guards"]["admissions_per_second"]) = (json!(1), json!(1000));
    let id = app.load_sale(&sale).await;
    let early: Vec<String> = (0..60).map(|number| format!("early-{number}")).collect();
    for user in &early {
        assert_eq!(ask(&app, user, &id, None).await.ok(200).text("state"), "waiting");
    }
    start_paused(&app, &id).await;
    let mut by_lot = Vec::new();
    for user in &early {
        by_lot.push((position(&app, user, &id, None).await.0, user.clone()));
    }
    by_lot.sort();
    let positions: Vec<i64> = by_lot.iter().map(|(position, _)| *position).collect();
    assert_eq!(positions, (1..=60).collect::<Vec<_>>());
    // A shopper who comes after the start stands behind all of them.
    assert_eq!(position(&app, "late", &id, None).await.0, 61);
    app.operate(&id, "resume").await.ok(200);

    // Ten units: ten are admitted while none of them buys.
    let mut admitted = BTreeMap::new();
    within(Duration::from_secs(20), "ten of sixty are admitted", async || {
        for user in early.iter().chain([&"late".to_owned()]) {
            let answer = ask(&app, user, &id, None).await.ok(200);
            if answer.text("state") == "admitted" {
                admitted.insert(user.clone(), answer.text("admission").to_owned());
            }
        }
        admitted.len() >= 10
    })
    .await;
    let first: BTreeSet<&String> = by_lot.iter().take(10).map(|(_, user)| user).collect();
    assert_eq!(admitted.keys().collect::<BTreeSet<_>>(), first);
    for (user, admission) in &admitted {
        buy(&app, user, &id, "k", admission).await.ok(201);
    }
    within(PATIENCE, "it is sold out for the others", async || {
        let mut hear = Vec::new();
        for (_, user) in &by_lot[10..] {
            hear.push(ask(&app, user, &id, None).await.ok(200).text("state").to_owned());
        }
        hear.iter().all(|state| state == "sold_out")
    })
    .await;
    app.assert_balanced(&id).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn positions_count_all_shards_in_the_order_of_coming_and_never_grow_on_any_instance() {
    const WAIT: usize = 30;
    let app = TestApp::start().await;
    let other = app.another("api");
    let mut sale = roomy(&json!({"shards": 4}));
    (sale["items"][0]["stock"], sale["guards"]["admissions_per_second"]) = (json!(8), json!(1000));
    let id = app.load_sale(&sale).await;
    app.operate(&id, "pause").await.ok(200);
    let raw = Raw::connect(&app.environment["FLASHSALE_REDIS_URL"]);
    let millis = || {
        let (seconds, micros): (i64, i64) = raw.call(&mut redis::cmd("TIME"));
        seconds * 1000 + micros / 1000
    };
    let come = async |user: &str| {
        let now = millis();
        // Shoppers of the same millisecond are equal.
        poll::within(PATIENCE, "a millisecond passes", async || millis() > now).await;
        let state = ask(&app, user, &id, None).await.ok(200);
        assert_eq!(state.text("state"), "waiting");
    };
    // The first one, alone, is not "1 of 4".
    come("shopper-0").await;
    let alone = ask(&other, "shopper-0", &id, None).await.ok(200);
    assert_eq!(
        (&alone.body["position"], &alone.body["waiting"]),
        (&json!(1), &json!(1))
    );
    for number in 1..WAIT {
        come(&format!("shopper-{number}")).await;
    }
    let mut held = Vec::new();
    for number in 0..WAIT {
        let user = format!("shopper-{number}");
        let (place, ticket) = position(&app, &user, &id, None).await;
        assert_eq!(place, i64::try_from(number).unwrap() + 1, "{user}");
        assert_eq!(position(&other, &user, &id, None).await.0, place, "on every instance");
        held.push((user, place, Some(ticket)));
    }

    app.operate(&id, "resume").await.ok(200);
    let mut round = 0;
    within(Duration::from_secs(30), "positions follow the admissions", async || {
        round += 1;
        // Newcomers stand behind all of them.
        ask(&app, &format!("newcomer-{round}"), &id, None).await.ok(200);
        let mut still = Vec::new();
        for (user, last, ticket) in &mut held {
            let Some(shown) = ticket.as_deref() else { continue };
            let client: &Client = if round % 2 == 0 { &app } else { &other };
            let answer = ask(client, user, &id, Some(shown)).await.ok(200);
            if answer.text("state") == "admitted" {
                *ticket = None;
                continue;
            }
            let place = answer.body["position"].as_i64().unwrap();
            assert!(place <= *last, "{user} fell back from {last} to {place}");
            (*last, *ticket) = (place, Some(answer.text("ticket").to_owned()));
            still.push(place);
        }
        // Without those who were admitted, the others are the first again.
        let ranks: Vec<i64> = (1..).take(still.len()).collect();
        still.len() < WAIT - 4 && still == ranks
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_ends_once_its_shopper_needs_no_admission() {
    let app = TestApp::shared().await;
    let id = app.load_sale(&roomy(&starting_in(TimeDelta::minutes(30)))).await;
    let mut events = Events::open(&app, "ada", &id).await;
    assert_eq!(events.next().await.unwrap().0, "waiting");
    let request = app.request(Method::PATCH, Who::Operator, &format!("/v1/admin/sales/{id}"));
    let lifted = json!({"guards": {"waiting_room": {"value": false, "percent": 100}}});
    app.send(request.json(&lifted)).await.ok(200);
    events.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_higher_rate_of_admissions_admits_those_who_wait_already() {
    const COME: usize = 100;
    let app = TestApp::shared().await;
    let mut sale = roomy(&json!({"shards": 1}));
    (sale["items"][0]["stock"], sale["guards"]["admissions_per_second"]) = (json!(1000), json!(1));
    let id = app.load_sale(&sale).await;
    let users: Vec<String> = (0..COME).map(|number| format!("shopper-{number}")).collect();
    let waiting = async |users: &[String]| -> Vec<String> {
        let asked = users.iter().map(|user| {
            let (app, id) = (&app, &id);
            async move {
                let answer = ask(app, user, id, None).await.ok(200);
                (answer.text("state") == "waiting").then(|| user.clone())
            }
        });
        join_all(asked).await.into_iter().flatten().collect()
    };
    let mut wait = waiting(&users).await;
    // One a second would take longer than the wait below.
    assert!(
        wait.len() > 2 * usize::try_from(PATIENCE.as_secs()).unwrap(),
        "{wait:?}"
    );
    let request = app.request(Method::PATCH, Who::Operator, &format!("/v1/admin/sales/{id}"));
    app.send(request.json(&json!({"admissions_per_second": 1000})))
        .await
        .ok(200);
    within(PATIENCE, "all are admitted", async || {
        wait = waiting(&wait).await;
        wait.is_empty()
    })
    .await;
}
