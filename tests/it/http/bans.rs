//! Accounts that may not buy: banned by an operator, or for too many page views.

use crate::support::app::{Answer, Client, JWT_SECRET, TestApp, Who, rfc3339, sale, sale_with, token_of};
use crate::support::poll;
use chrono::{TimeDelta, Utc};
use futures_util::future::join_all;
use jsonwebtoken::{Algorithm, Header};
use reqwest::Method;
use serde_json::{Value, json};
use std::time::Duration;
use uuid::Uuid;

async fn ban(client: &Client, body: &Value) -> Answer {
    let request = client.request(Method::POST, Who::Operator, "/v1/admin/bans");
    client.send(request.json(body)).await
}

async fn lift(client: &Client, user: &str) -> Answer {
    let request = client.request(Method::POST, Who::Operator, "/v1/admin/bans/lift");
    client.send(request.json(&json!({"user": user}))).await
}

/// A token that was issued so many seconds from now.
fn issued(user: &str, seconds: i64) -> String {
    let now = Utc::now().timestamp();
    let claims = json!({"sub": user, "iat": now + seconds, "exp": now + 3600});
    token_of(&Header::new(Algorithm::HS256), JWT_SECRET, &claims)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_banned_account_may_not_buy_in_any_sale_through_any_instance_and_keeps_what_it_has() {
    let app = TestApp::start().await;
    let other = app.another("api");
    let [one, two] = [app.load_sale(&sale()).await, app.load_sale(&sale()).await];
    let order = app.buy("bot", &one, "k", 1).await.ok(201);
    let draft = app.create_sale(&sale()).await;
    let banned = ban(&app, &json!({"user": "bot", "reason": "a test"})).await.ok(201);
    assert_eq!(banned.body["banned_until"], Value::Null);
    assert_eq!(banned.body["banned_by"], "operator");
    app.operate(&draft, "preload").await.ok(200);
    for client in [&*app, &*other] {
        for sale in [&one, &two, &draft] {
            let refused = client.buy("bot", sale, "more", 1).await.no(403, "banned");
            assert_eq!(refused.body["banned_until"], Value::Null, "{refused:?}");
            client.buy("ada", sale, "k", 1).await;
        }
        // The key comes before the ban.
        let again = client.buy("bot", &one, "k", 1).await.ok(200);
        assert_eq!(again.id(), order.id());
    }
    assert_eq!(app.pay("p", &order.body).await, "applied");
    // The ledger keeps a ban that Redis forgets.
    app.post(Who::Operator, &format!("/v1/admin/sales/{two}/rebuild"))
        .await
        .ok(200);
    poll::answer("the sale is rebuilt", || async {
        let answer = app.buy("bot", &two, "rebuilt", 1).await;
        (answer.status != 503).then(|| answer.no(403, "banned"))
    })
    .await;
    let lifted = lift(&other, "bot").await.ok(200);
    assert!(lifted.body["lifted_at"].is_string());
    for sale in [&one, &two, &draft] {
        poll::answer("the ban is lifted", || async {
            let answer = app.buy("bot", sale, "after", 1).await;
            (answer.status != 403).then(|| answer.ok(201))
        })
        .await;
    }
    for sale in [&one, &two, &draft] {
        app.assert_balanced(sale).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bans_are_listed_end_by_themselves_and_are_lifted_once() {
    let app = TestApp::start().await;
    let id = app.load_sale(&sale_with(&json!({"stock": 100}))).await;
    let later = "2099-01-01T00:00:00.000Z";
    ban(&app, &json!({"user": "b", "reason": "for long", "until": later}))
        .await
        .ok(201);
    ban(&app, &json!({"user": "a", "reason": "for ever"})).await.ok(201);
    let list = async |query: &str| {
        app.get(Who::Operator, &format!("/v1/admin/bans{query}"))
            .await
            .ok(200)
            .body
    };
    let listed = list("").await;
    let users: Vec<&str> = listed["data"]
        .as_array()
        .unwrap()
        .iter()
        .map(|ban| ban["user"].as_str().unwrap())
        .collect();
    assert_eq!((users, &listed["has_more"]), (vec!["a", "b"], &json!(false)));
    assert_eq!(list("?limit=1").await["has_more"], true);
    assert_eq!(list("?limit=1&starting_after=a").await["data"][0]["user"], "b");
    let one = list("?user=b").await;
    assert_eq!(
        (&one["data"][0]["user"], &one["has_more"]),
        (&json!("b"), &json!(false))
    );
    assert_eq!(one["data"].as_array().unwrap().len(), 1);
    assert_eq!(list("?user=c").await["data"], json!([]));
    app.get(Who::Operator, "/v1/admin/bans?user=")
        .await
        .no(400, "invalid_request");
    let refused = app.buy("b", &id, "k", 1).await.no(403, "banned");
    assert_eq!(refused.body["banned_until"], later, "{refused:?}");
    assert!(refused.text("detail").ends_with(later), "{refused:?}");
    let until = Utc::now() + TimeDelta::seconds(3);
    ban(
        &app,
        &json!({"user": "c", "reason": "soon over", "until": rfc3339(until)}),
    )
    .await
    .ok(201);
    poll::answer("it is over", || async {
        let answer = app.buy("c", &id, "k", 1).await;
        (answer.status != 403).then(|| answer.ok(201))
    })
    .await;
    assert!(Utc::now() >= until);
    assert_eq!(list("").await["data"].as_array().unwrap().len(), 2);
    lift(&app, "c").await.no(404, "not_found");
    for user in ["a", "b"] {
        lift(&app, user).await.ok(200);
        lift(&app, user).await.no(404, "not_found");
    }
    lift(&app, "nobody").await.no(404, "not_found");
    assert_eq!(list("").await["data"], json!([]));
    for over in ["?user=a", "?user=b", "?user=c"] {
        assert_eq!(list(over).await["data"], json!([]), "{over}");
    }
    // Again, and shorter than before: the newest decision counts.
    ban(&app, &json!({"user": "a", "reason": "again"})).await.ok(201);
    app.buy("a", &id, "k", 1).await.no(403, "banned");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_newest_bans_are_listed_first_where_that_is_asked_for() {
    let app = TestApp::start().await;
    for user in ["b", "d", "a", "c", "b"] {
        ban(&app, &json!({"user": user, "reason": "a test"})).await.ok(201);
    }
    let list = async |query: &str| {
        let listed = app
            .get(Who::Operator, &format!("/v1/admin/bans?{query}"))
            .await
            .ok(200)
            .body;
        let users = listed["data"]
            .as_array()
            .unwrap()
            .iter()
            .map(|ban| ban["user"].as_str().unwrap());
        (users.collect::<String>(), listed["has_more"].as_bool().unwrap())
    };
    let is = |users: &str, has_more: bool| (users.to_owned(), has_more);
    assert_eq!(list("newest_first=true").await, is("bcad", false));
    assert_eq!(list("newest_first=true&limit=2").await, is("bc", true));
    assert_eq!(
        list("newest_first=true&limit=2&starting_after=c").await,
        is("ad", false)
    );
    assert_eq!(list("newest_first=true&starting_after=nobody").await, is("", false));
    assert_eq!(list("newest_first=false").await, is("abcd", false));
    lift(&app, "c").await.ok(200);
    assert_eq!(list("newest_first=true").await, is("bad", false));
    app.get(Who::Operator, "/v1/admin/bans?newest_first=2")
        .await
        .no(400, "invalid_request");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_ban_names_its_operator_as_the_audit_log_does() {
    let key = "c4ca4238a0b923820dcc509a6f75849b";
    let keys = format!("bob:run:{key}");
    let app = TestApp::with("api", &[("FLASHSALE_OPERATOR_KEYS", &keys)]).await;
    for (user, who, given, operator) in [
        ("a", Who::Operator, Some("Ada"), json!("Ada")),
        ("b", Who::Operator, None, Value::Null),
        // A named key has its own name.
        ("c", Who::Bearer(key), Some("Eve"), json!("bob")),
        // The newest decision counts.
        ("a", Who::Operator, Some("Zoë"), json!("Zoë")),
    ] {
        let request = app.request(Method::POST, who, "/v1/admin/bans");
        let request = request.json(&json!({"user": user, "reason": "a test"}));
        let request = match given {
            Some(name) => request.header("X-Operator", name.as_bytes()),
            None => request,
        };
        assert_eq!(app.send(request).await.ok(201).body["operator"], operator);
        let logged = app.get(Who::Operator, "/v1/admin/actions?limit=1").await.ok(200);
        assert_eq!(logged.body["data"][0]["operator"], operator, "{logged:?}");
    }
    let listed = app.get(Who::Operator, "/v1/admin/bans").await.ok(200).body;
    let operators = listed["data"].as_array().unwrap().iter().map(|ban| &ban["operator"]);
    assert_eq!(json!(operators.collect::<Vec<_>>()), json!(["Zoë", null, "bob"]));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_ban_that_cannot_be_is_refused() {
    let app = TestApp::start_api_only().await;
    for (body, named) in [
        (json!({"user": "", "reason": "r"}), "user"),
        (json!({"user": "u".repeat(129), "reason": "r"}), "user"),
        (json!({"user": "u", "reason": " "}), "reason"),
        (json!({"user": "u", "reason": "r".repeat(501)}), "reason"),
        (json!({"user": "u"}), "reason"),
        (
            json!({"user": "u", "reason": "r", "until": "2020-01-01T00:00:00Z"}),
            "until",
        ),
        (
            json!({"user": "u", "reason": "r", "until": "+10000-01-01T00:00:00Z"}),
            "until",
        ),
        (json!({"user": "u", "reason": "r", "until": "tomorrow"}), "until"),
        (json!({"user": "u", "reason": "r", "ends": 1}), "ends"),
    ] {
        let answer = ban(&app, &body).await.no(400, "invalid_request");
        assert!(answer.text("detail").contains(named), "{answer:?}");
    }
    for (method, path) in [(Method::GET, ""), (Method::POST, ""), (Method::POST, "/lift")] {
        let request = app.request(method, Who::Shopper("ada"), &format!("/v1/admin/bans{path}"));
        app.send(request.json(&json!({}))).await.no(401, "unauthenticated");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ended_sessions_are_over_everywhere_within_a_second_and_a_new_one_may_begin() {
    let app = TestApp::start().await;
    let other = app.another("api");
    let id = app.load_sale(&sale()).await;
    let old = issued("ada", -10);
    let order = {
        let request = app.request(Method::POST, Who::Bearer(&old), &format!("/v1/sales/{id}/orders"));
        let request = request
            .header("Idempotency-Key", "k")
            .json(&json!({"sku": "phone", "quantity": 1}));
        app.send(request).await.ok(201)
    };
    let path = format!("/v1/orders/{}", order.id());
    ban(&app, &json!({"user": "ada", "reason": "r", "end_sessions": true}))
        .await
        .ok(201);
    // Both at once: the second counts from the answer.
    poll::within(Duration::from_secs(1), "the session has ended", async || {
        let asked = [&*app, &*other].map(|client| client.get(Who::Bearer(&old), &path));
        let answers = join_all(asked).await;
        answers.iter().all(|answer| answer.status == 401)
    })
    .await;
    for client in [&*app, &*other] {
        let refused = client.get(Who::Bearer(&old), &path).await.no(401, "unauthenticated");
        assert!(refused.text("detail").contains("session that was ended"), "{refused:?}");
        // A token without an issue time counts as older than any.
        client.get(Who::Shopper("ada"), &path).await.no(401, "unauthenticated");
        client
            .get(Who::Bearer(&issued("bob", -10)), &path)
            .await
            .no(404, "not_found");
        client.get(Who::Bearer(&issued("ada", 5)), &path).await.ok(200);
    }
    // Lifting a ban restores no session; a token without an issue time was only kept out by the ban.
    lift(&app, "ada").await.ok(200);
    poll::answer("the account may sign in again", || async {
        let answer = app.get(Who::Shopper("ada"), &path).await;
        (answer.status == 200).then_some(())
    })
    .await;
    app.get(Who::Bearer(&old), &path).await.no(401, "unauthenticated");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_account_with_too_many_page_views_raises_a_warning_and_is_then_banned() {
    let variables = [
        ("FLASHSALE_BROWSING_ALERT_ABOVE", "10"),
        ("FLASHSALE_BROWSING_BAN_ABOVE", "20"),
    ];
    let app = TestApp::with("all", &variables).await;
    let id = app.load_sale(&sale()).await;
    let path = format!("/v1/sales/{id}");
    let (bot, quiet) = (&format!("bot-{}", Uuid::new_v4()), &format!("quiet-{}", Uuid::new_v4()));
    let token = issued(bot, 0);
    let order = app.buy(quiet, &id, "k", 1).await.ok(201).id();
    let alerts = async || {
        let listed = app.get(Who::Operator, "/v1/admin/alerts").await.ok(200).body;
        listed["data"].as_array().unwrap().clone()
    };
    let views = async |who: Who<'_>, times: usize| {
        for _ in 0..times {
            app.get(who, &path).await.ok(200);
        }
    };
    views(Who::Bearer(&token), 10).await;
    // Reading one's own orders is no page view, and neither is a view without a token.
    for _ in 0..30 {
        app.get(Who::Shopper(quiet), &format!("/v1/orders/{order}"))
            .await
            .ok(200);
        app.orders(quiet, &id).await.ok(200);
    }
    views(Who::Nobody, 30).await;
    views(Who::Shopper(quiet), 10).await;
    assert_eq!(alerts().await, Vec::<Value>::new());
    views(Who::Bearer(&token), 1).await;
    poll::answer("the operators are warned", || async {
        let alerts = alerts().await;
        (alerts.len() == 1 && alerts[0]["kind"] == "browsing" && alerts[0]["user"] == bot.as_str()).then_some(())
    })
    .await;
    views(Who::Bearer(&token), 9).await;
    app.buy(bot, &id, "twenty", 1).await.ok(201);
    views(Who::Bearer(&token), 1).await;
    poll::answer("the account is banned", || async {
        let answer = app.buy(bot, &id, "more", 1).await;
        match answer.status {
            // A token without an issue time ends with the others.
            401 => Some(()),
            403 => None,
            _ => None,
        }
    })
    .await;
    app.get(Who::Bearer(&token), "/v1/orders?sale_id=x")
        .await
        .no(401, "unauthenticated");
    poll::answer("the operators are notified of the ban", || async {
        let alerts = alerts().await;
        (alerts[0]["kind"] == "browsing_ban" && alerts[0]["user"] == bot.as_str() && alerts.len() == 2).then_some(())
    })
    .await;
    let listed = app.get(Who::Operator, "/v1/admin/bans").await.ok(200).body;
    assert_eq!(listed["data"][0]["banned_by"], "browsing");
    assert_eq!(listed["data"][0]["operator"], Value::Null);
    assert!(listed["data"][0]["banned_until"].is_string());
    // The account may sign in again, and may not buy.
    let again = issued(bot, 5);
    let request = app.request(Method::POST, Who::Bearer(&again), &format!("/v1/sales/{id}/orders"));
    let request = request
        .header("Idempotency-Key", "n")
        .json(&json!({"sku": "phone", "quantity": 1}));
    app.send(request).await.no(403, "banned");
    app.buy(quiet, &id, "still", 1).await.ok(201);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_command_bans_lists_and_lifts() {
    let app = TestApp::start().await;
    let id = app.load_sale(&sale()).await;
    let added = app
        .run(&["ban", "add", "b&t=1", "--reason", "a test", "--for", "1h", "--json"])
        .ended(0)
        .json();
    assert_eq!(added["user"], "b&t=1");
    app.run(&["ban", "add", "ada", "--reason", "another", "--as", "Zoe"])
        .ended(0);
    app.buy("b&t=1", &id, "k", 1).await.no(403, "banned");
    let listed = app.run(&["ban", "list", "--json"]).ended(0).json();
    assert_eq!(listed.as_array().unwrap().len(), 2);
    let shown = app.run(&["ban", "list"]).ended(0).stdout;
    for text in ["for ever", "a test", "Zoe"] {
        assert!(shown.contains(text), "{shown}");
    }
    app.run(&["ban", "lift", "ada"]).ended(0);
    let again = app.run(&["ban", "lift", "ada"]).ended(1);
    assert!(again.stderr.contains("not_found"), "{again:?}");
    app.run(&["ban", "add", "ada", "--reason", "r", "--for", "soon"])
        .ended(2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_guard_changes_what_an_operator_has_decided() {
    let app = TestApp::with("all", &[("FLASHSALE_BROWSING_BAN_ABOVE", "3")]).await;
    let id = app.load_sale(&sale()).await;
    let path = format!("/v1/sales/{id}");
    let bans = async || app.get(Who::Operator, "/v1/admin/bans").await.ok(200).body["data"].clone();
    let (bot, eager) = (&format!("bot-{}", Uuid::new_v4()), &format!("eager-{}", Uuid::new_v4()));
    ban(&app, &json!({"user": bot, "reason": "for ever"})).await.ok(201);
    let before = bans().await;
    let token = issued(bot, 5);
    for _ in 0..30 {
        app.get(Who::Bearer(&token), &path).await.ok(200);
    }
    // A second account with as many views is banned, once; the first one's ban would have come by then.
    let other = issued(eager, 5);
    for _ in 0..30 {
        app.get(Who::Bearer(&other), &path).await.ok(200);
    }
    poll::answer("the other is banned", || async {
        let bans = bans().await;
        (bans.as_array()?.len() == 2).then_some(())
    })
    .await;
    assert_eq!(bans().await[0], before[0]);
    // The alert is raised when the ban has been delivered.
    let alerts = poll::answer("the alert is raised", || async {
        let alerts = app.get(Who::Operator, "/v1/admin/alerts").await.ok(200).body["data"].clone();
        (!alerts.as_array()?.is_empty()).then_some(alerts)
    })
    .await;
    let of = |user: &str| {
        alerts
            .as_array()
            .unwrap()
            .iter()
            .filter(|alert| alert["user"] == user)
            .count()
    };
    assert_eq!((of(bot), of(eager)), (0, 1), "{alerts}");
    // A lifted ban stays lifted, after any number of views.
    lift(&app, bot).await.ok(200);
    for _ in 0..10 {
        app.get(Who::Bearer(&token), &path).await.ok(200);
    }
    lift(&app, bot).await.no(404, "not_found");
}
