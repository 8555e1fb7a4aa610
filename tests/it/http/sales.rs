//! Sales: which may be created, how they are shown, and when they sell.

use crate::support::app::{TestApp, Who, rfc3339, sale, sale_with};
use crate::support::poll::{self, PATIENCE};
use chrono::{DateTime, TimeDelta, Utc};
use reqwest::Method;
use serde_json::{Value, json};

#[tokio::test]
async fn a_new_sale_is_a_draft_with_the_defaults_of_the_contract() {
    let app = TestApp::start_api_only().await;
    let mut request = sale();
    for field in ["shards", "purchase_rate"] {
        request.as_object_mut().unwrap().remove(field);
    }
    let created = app.try_create_sale(&request).await.ok(201);
    let id = created.id();
    assert_eq!(
        created.header("location"),
        Some(format!("/v1/admin/sales/{id}").as_str())
    );
    assert_eq!(created.body["state"], "draft");
    assert_eq!(created.body["shards"], 4);
    assert_eq!(created.body["payment_window_seconds"], 900);
    assert_eq!(created.body["purchase_rate"], json!({"limit": 5, "window_ms": 60_000}));
    assert_eq!(created.body["durability"], "redis");
    for field in ["name", "starts_at", "ends_at", "items"] {
        assert_eq!(created.body[field], request[field], "{field}");
    }
    assert_eq!(id, id.to_lowercase());

    let shown = app.admin(&id, "").await.ok(200);
    let listed = app.get(Who::Operator, "/v1/admin/sales").await.ok(200);
    let without_clock = |sale: &Value| {
        let mut sale = sale.clone();
        sale.as_object_mut().unwrap().remove("server_time");
        sale
    };
    assert_eq!(without_clock(&shown.body), without_clock(&created.body));
    assert_eq!(without_clock(&listed.body["data"][0]), without_clock(&created.body));
}

#[tokio::test]
async fn every_field_is_taken_at_its_bounds_and_refused_beyond_them() {
    let app = TestApp::start_api_only().await;
    let taken = [
        json!({"shards": 1}),
        json!({"shards": 256}),
        json!({"payment_window_seconds": 1}),
        json!({"payment_window_seconds": 86_400}),
        json!({"purchase_rate": {"limit": 1, "window_ms": 1}}),
        json!({"purchase_rate": {"limit": 1_000, "window_ms": 1}}),
        json!({"sku": "A-Za-z0-9._-"}),
        json!({"sku": "s".repeat(64)}),
        json!({"stock": 0}),
        json!({"price_minor": 0}),
        json!({"starts_at": "2026-01-01T01:00:00+01:00"}),
    ];
    for changes in taken {
        app.try_create_sale(&sale_with(&changes)).await.ok(201);
    }
    let refused = [
        ("shards", json!({"shards": 0})),
        ("shards", json!({"shards": 257})),
        ("payment_window_seconds", json!({"payment_window_seconds": 0})),
        ("payment_window_seconds", json!({"payment_window_seconds": 86_401})),
        (
            "purchase_rate.limit",
            json!({"purchase_rate": {"limit": 0, "window_ms": 1}}),
        ),
        (
            "purchase_rate.limit",
            json!({"purchase_rate": {"limit": 1_001, "window_ms": 1}}),
        ),
        (
            "purchase_rate.window_ms",
            json!({"purchase_rate": {"limit": 1, "window_ms": 0}}),
        ),
        ("durability", json!({"durability": "luck"})),
        ("sku", json!({"sku": ""})),
        ("sku", json!({"sku": "s".repeat(65)})),
        ("sku", json!({"sku": "a b"})),
        ("sku", json!({"sku": "é"})),
        ("stock", json!({"stock": -1})),
        ("price_minor", json!({"price_minor": -1})),
        ("per_user_limit", json!({"per_user_limit": 0})),
        ("currency", json!({"currency": "Euro"})),
        ("ends_at", json!({"ends_at": "2020-01-01T00:00:00Z"})),
        ("name", json!({"name": ""})),
        ("items", json!({"items": []})),
        ("extra", json!({"extra": 1})),
    ];
    for (field, changes) in refused {
        let answer = app
            .try_create_sale(&sale_with(&changes))
            .await
            .no(400, "invalid_request");
        assert!(answer.text("detail").contains(field), "{field}: {answer:?}");
    }
    let listed = app.get(Who::Operator, "/v1/admin/sales").await.ok(200);
    assert_eq!(listed.body["data"].as_array().unwrap().len(), 11);
}

/// The members of a sale and of an item that only pages need.
const OF_SALE: [&str; 2] = ["description", "image_url"];
const OF_ITEM: [&str; 4] = ["description", "image_url", "group", "option"];

#[tokio::test]
async fn texts_and_pictures_of_a_sale_come_back_as_given_and_are_absent_without() {
    let app = TestApp::start_api_only().await;
    let mut request = sale();
    let mut second = request["items"][0].clone();
    second["sku"] = json!("phone-2");
    request["items"].as_array_mut().unwrap().push(second.clone());
    second["sku"] = json!("case");
    request["items"].as_array_mut().unwrap().push(second);
    // The longest texts, in characters of four bytes.
    let longest = |length: usize| json!("\u{1f6d2}".repeat(length));
    request["description"] = longest(2000);
    request["image_url"] = json!("https://images.example/winter.jpg?w=600");
    for (at, option) in [(0, "M"), (1, "L")] {
        request["items"][at]["description"] = json!("Organic cotton.\n\n<b>Wash</b> at 30 °C.");
        request["items"][at]["image_url"] = json!(format!("/{}", "p".repeat(1999)));
        request["items"][at]["group"] = longest(100);
        request["items"][at]["option"] = json!(option);
    }
    let has_texts = |shown: &Value| {
        for member in OF_SALE {
            assert_eq!(shown[member], request[member], "{member}");
        }
        for at in 0..3 {
            for member in OF_ITEM {
                let (shown, given) = (&shown["items"][at], &request["items"][at]);
                assert_eq!(shown.get(member), given.get(member), "{at} {member}");
            }
        }
    };
    let has_none = |shown: &Value| {
        assert!(OF_SALE.iter().all(|member| shown.get(member).is_none()), "{shown}");
        let items = shown["items"].as_array().unwrap();
        let mut members = items.iter().flat_map(|item| OF_ITEM.map(|member| item.get(member)));
        assert!(members.all(|member| member.is_none()), "{shown}");
    };

    let created = app.try_create_sale(&request).await.ok(201);
    has_texts(&created.body);
    let id = created.id();
    // Drafts with and without texts have other versions, and lose or get the texts by a change.
    let change = async |body: &Value| {
        let put = app.request(Method::PUT, Who::Operator, &format!("/v1/admin/sales/{id}"));
        app.send(put.json(body)).await.ok(200)
    };
    let mut bare = sale();
    bare["description"] = json!("");
    bare["items"][0]["option"] = Value::Null;
    let changed = change(&bare).await;
    has_none(&changed.body);
    assert_ne!(changed.header("etag"), created.header("etag"));
    let changed = change(&request).await;
    has_texts(&changed.body);
    assert_eq!(changed.header("etag"), created.header("etag"));

    app.operate(&id, "preload").await.ok(200);
    let path = format!("/v1/sales/{id}");
    has_texts(&app.get(Who::Nobody, &path).await.ok(200).body);
    has_texts(&app.get(Who::Nobody, "/v1/sales").await.ok(200).body["data"][0]);
    let other = app.load_sale(&sale()).await;
    has_none(&app.admin(&other, "").await.ok(200).body);
    has_none(&app.get(Who::Nobody, &format!("/v1/sales/{other}")).await.ok(200).body);
}

#[tokio::test]
async fn texts_and_pictures_beyond_their_bounds_are_refused() {
    let app = TestApp::shared_api_only().await;
    let of_item = |member: &str, value: Value| {
        let mut request = sale();
        request["items"][0]["group"] = json!("Phone");
        request["items"][0][member] = value;
        request
    };
    let of_sale = |member: &str, value: &str| {
        let mut request = sale();
        request[member] = json!(value);
        request
    };
    let mut without_group = of_item("option", json!("M"));
    without_group["items"][0].as_object_mut().unwrap().remove("group");
    let mut same_option = of_item("option", json!("M"));
    let mut second = same_option["items"][0].clone();
    second["sku"] = json!("phone-2");
    same_option["items"].as_array_mut().unwrap().push(second);
    let long_url = format!("https://images.example/{}", "p".repeat(1978));
    for (start, request) in [
        ("description must", of_sale("description", &"d".repeat(2001))),
        ("description must", of_sale("description", "a\u{1b}[2J")),
        ("description must", of_sale("description", "a\u{202e}b")),
        ("description must", of_sale("description", "\n")),
        ("image_url must", of_sale("image_url", &long_url)),
        ("image_url must", of_sale("image_url", "http://images.example/a.jpg")),
        ("image_url must", of_sale("image_url", "//images.example/a.jpg")),
        ("image_url must", of_sale("image_url", "javascript:alert(1)")),
        ("image_url must", of_sale("image_url", "data:image/png;base64,AAAA")),
        (
            "image_url must",
            of_sale("image_url", "https://ada:secret@images.example/a.jpg"),
        ),
        ("group is unknown", of_sale("group", "Phone")),
        ("items[0].description must", of_item("description", json!("a\tb"))),
        (
            "items[0].description must be a string",
            of_item("description", json!(1)),
        ),
        ("items[0].image_url must", of_item("image_url", json!("a.jpg"))),
        ("items[0].group must", of_item("group", json!("g".repeat(101)))),
        ("items[0].group must", of_item("group", json!("a\nb"))),
        ("items[0].option must", of_item("option", json!("o".repeat(101)))),
        ("items[0].option needs a group", without_group),
        ("items[1].option must differ", same_option),
    ] {
        let refused = app.try_create_sale(&request).await.no(400, "invalid_request");
        assert!(refused.text("detail").starts_with(start), "{start}: {refused:?}");
    }
    app.try_create_sale(&of_sale("image_url", "http://127.0.0.1:9000/a.jpg"))
        .await
        .ok(201);
}

#[tokio::test]
async fn a_sale_of_a_thousand_items_with_the_longest_names_is_created_loaded_and_bought_from() {
    let app = TestApp::start().await;
    // Four bytes for each of two hundred characters: no sale that describes none of its items is longer.
    let name = "\u{1f6d2}".repeat(200);
    let items: Vec<_> = (0..1000)
        .map(|number| {
            let sku = format!("{number:0>64}");
            json!({"sku": sku, "name": name, "price_minor": 10_000_000_000_i64, "currency": "EUR",
                "stock": 1_000_000_000, "per_user_limit": 100_000})
        })
        .collect();
    let mut request = sale_with(&json!({"name": name, "items": items}));
    let bytes = request.to_string().len();
    assert!((900_000..=1024 * 1024).contains(&bytes), "{bytes}");
    let id = app.create_sale(&request).await;
    request["shards"] = json!(3);
    let path = format!("/v1/admin/sales/{id}");
    let change = app.request(Method::PUT, Who::Operator, &path).json(&request);
    assert_eq!(
        app.send(change).await.ok(200).body["items"].as_array().unwrap().len(),
        1000
    );
    app.operate(&id, "preload").await.ok(200);
    for number in [0, 500, 999] {
        let sku = format!("{number:0>64}");
        let order = app.buy_sku("ada", &id, &sku, &sku, 1).await.ok(201);
        app.wait_for_order("ada", &order.id(), "reserved").await;
    }
    let shown = app.get(Who::Nobody, &format!("/v1/sales/{id}")).await.ok(200);
    assert_eq!(shown.body["items"][999]["name"], name.as_str());
    app.assert_balanced(&id).await;
}

#[tokio::test]
async fn shoppers_see_sales_without_a_token_but_no_counts() {
    let app = TestApp::start_api_only().await;
    let id = app.load_sale(&sale_with(&json!({"stock": 987_654_321}))).await;
    let shown = app.get(Who::Nobody, &format!("/v1/sales/{id}")).await.ok(200);
    assert_eq!(shown.body["state"], "open");
    assert_eq!(shown.body["items"][0]["availability"], "available");
    assert!(!shown.text.contains("987654321"), "{shown:?}");
    assert_eq!(shown.header("cache-control"), Some("public, max-age=1"));
    assert_eq!(shown.header("vary"), Some("Authorization"));
    let signed_in = app.get(Who::Shopper("ada"), &format!("/v1/sales/{id}")).await.ok(200);
    assert_eq!(signed_in.header("cache-control"), Some("no-store"));
    let server_time: DateTime<Utc> = shown.text("server_time").parse().unwrap();
    assert!((Utc::now() - server_time).abs() < TimeDelta::seconds(5));
    assert_eq!(shown.text("server_time"), rfc3339(server_time));
    let listed = app.get(Who::Nobody, "/v1/sales").await.ok(200);
    assert_eq!(listed.body["data"][0]["id"], id);
}

#[tokio::test]
async fn availability_says_available_then_low_then_sold_out_and_back() {
    let app = TestApp::shared_api_only().await;
    let id = app.load_sale(&sale_with(&json!({"per_user_limit": 10}))).await;
    // A glance is shared for a moment by all page views.
    let becomes = async |expected: &str| {
        poll::answer(expected, || async {
            let shown = app.get(Who::Nobody, &format!("/v1/sales/{id}")).await.ok(200);
            (shown.body["items"][0]["availability"] == expected).then_some(())
        })
        .await;
    };
    becomes("available").await;
    app.buy("ada", &id, "k1", 9).await.ok(201);
    becomes("low").await;
    let last = app.buy("bob", &id, "k1", 1).await.ok(201).id();
    becomes("sold_out").await;
    app.cancel("bob", &last).await.ok(200);
    becomes("low").await;
    app.assert_balanced(&id).await;
}

#[tokio::test]
async fn a_sold_out_item_says_whether_and_when_a_held_unit_may_come_back() {
    let app = TestApp::start().await;
    let id = app.load_sale(&sale_with(&json!({"stock": 2}))).await;
    let path = format!("/v1/sales/{id}");
    let is = async |what: &str, is_so: &dyn Fn(&Value) -> bool| {
        poll::within(PATIENCE, what, async || {
            let (shown, listed) = (
                app.get(Who::Nobody, &path).await,
                app.get(Who::Nobody, "/v1/sales").await,
            );
            is_so(&shown.ok(200).body["items"][0]) && is_so(&listed.ok(200).body["data"][0]["items"][0])
        })
        .await;
    };
    let first = app.buy("ada", &id, "k", 1).await.ok(201).body;
    // The last unit of two is low. Nothing is said of holds while it can be bought.
    is("one is left", &|item: &Value| {
        item["availability"] == "low" && item.get("on_hold").is_none() && item.get("next_release_at").is_none()
    })
    .await;
    let second = app.buy("bob", &id, "k", 1).await.ok(201).body;
    is("the first hold ends first", &|item: &Value| {
        item["availability"] == "sold_out" && item["on_hold"] == true && item["next_release_at"] == first["expires_at"]
    })
    .await;
    assert_eq!(app.pay("pay_first", &first).await, "applied");
    is("the second is left", &|item: &Value| {
        item["next_release_at"] == second["expires_at"]
    })
    .await;
    assert_eq!(app.pay("pay_second", &second).await, "applied");
    is("both are paid", &|item: &Value| {
        item["availability"] == "sold_out" && item["on_hold"] == false && item.get("next_release_at").is_none()
    })
    .await;
}

#[tokio::test]
async fn a_sale_starts_and_ends_to_the_millisecond_with_no_job_in_between() {
    let app = TestApp::shared_api_only().await;
    let starts_at = Utc::now() + TimeDelta::milliseconds(8_000);
    let ends_at = starts_at + TimeDelta::milliseconds(6_000);
    let sale = sale_with(&json!({
        "starts_at": rfc3339(starts_at), "ends_at": rfc3339(ends_at), "stock": 10_000,
    }));
    let id = app.create_sale(&sale).await;
    let loaded = app.operate(&id, "preload").await.ok(200);
    assert_eq!(loaded.body["state"], "scheduled");
    // An order is made at the moment that Redis's clock showed, and a refusal happened before the answer came or
    // after the request was sent.
    let (starts, ends) = (starts_at.timestamp_millis(), ends_at.timestamp_millis());
    let (mut refused_before, mut sold, mut number) = (0, 0, 0);
    // One answer long before each edge, which a busy machine has time for, and then many close to it.
    poll::until_shortly_before(starts, 2_000).await;
    loop {
        number += 1;
        let sent = Utc::now().timestamp_millis();
        let answer = app.buy(&format!("ada-{number}"), &id, "k", 1).await;
        let answered = Utc::now().timestamp_millis();
        match answer.status {
            201 => {
                let at: DateTime<Utc> = answer.text("created_at").parse().unwrap();
                let at = at.timestamp_millis();
                assert!((starts..ends).contains(&at), "sold at {at}, not in {starts}..{ends}");
                sold += 1;
                match sold {
                    5 => poll::until_shortly_before(ends, 2_000).await,
                    6 => poll::until_shortly_before(ends, 300).await,
                    _ => {}
                }
            }
            503 => {}
            _ if answer.body["sale_state"] == "scheduled" => {
                assert!(sent < starts, "still scheduled at {sent}, {starts} has passed");
                refused_before += 1;
                if refused_before == 1 {
                    poll::until_shortly_before(starts, 300).await;
                }
            }
            _ => {
                assert_eq!(answer.no(409, "sale_not_open").body["sale_state"], "closed");
                assert!(answered >= ends, "closed at {answered}, before {ends}");
                break;
            }
        }
    }
    assert!(refused_before > 0 && sold > 5, "{refused_before} refused, {sold} sold");
    poll::answer("shown as closed", || async {
        let shown = app.get(Who::Nobody, &format!("/v1/sales/{id}")).await.ok(200);
        (shown.body["state"] == "closed").then_some(())
    })
    .await;
    app.assert_balanced(&id).await;
}

#[tokio::test]
async fn an_unknown_sale_is_not_found_by_anybody() {
    let app = TestApp::shared_api_only().await;
    let id = uuid::Uuid::new_v4();
    app.get(Who::Nobody, &format!("/v1/sales/{id}"))
        .await
        .no(404, "not_found");
    for part in ["", "/stats", "/audit"] {
        app.admin(&id.to_string(), part).await.no(404, "not_found");
    }
    for verb in ["preload", "open", "pause", "resume", "close"] {
        app.operate(&id.to_string(), verb).await.no(404, "not_found");
    }
    app.restock(&id.to_string(), "k", "phone", 1).await.no(404, "not_found");
    app.buy("ada", &id.to_string(), "k", 1).await.no(404, "not_found");
    app.orders("ada", &id.to_string()).await.no(404, "not_found");
}

#[tokio::test]
async fn lists_come_in_pages() {
    let app = TestApp::start_api_only().await;
    let mut ids = Vec::new();
    for _ in 0..5 {
        ids.push(app.load_sale(&sale()).await);
    }
    for (who, base) in [(Who::Operator, "/v1/admin/sales"), (Who::Nobody, "/v1/sales")] {
        let (mut seen, mut after) = (Vec::new(), String::new());
        loop {
            let page = app.get(who, &format!("{base}?limit=2{after}")).await.ok(200);
            let sales = page.body["data"].as_array().unwrap();
            seen.extend(sales.iter().map(|sale| sale["id"].as_str().unwrap().to_owned()));
            if page.body["has_more"] == false {
                break;
            }
            assert_eq!(sales.len(), 2);
            after = format!("&starting_after={}", seen.last().unwrap());
        }
        seen.sort_unstable();
        ids.sort_unstable();
        assert_eq!(seen, ids, "{base}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn operators_find_sales_by_a_part_of_a_name_item_or_sku_or_the_beginning_of_an_id() {
    let app = TestApp::start_api_only().await;
    let named = |name: &str, sku: &str| sale_with(&json!({"name": name, "sku": sku}));
    let autumn = app.load_sale(&named("Autumn launch, 100% cotton", "shirt_M")).await;
    let winter = app.create_sale(&named("Winter launch", "coat-L")).await;
    let mut scarf = named("双十一", "phone");
    scarf["items"][0]["name"] = json!("Red Scarf");
    let chinese = app.load_sale(&scarf).await;
    let ids = |body: &Value| -> Vec<String> {
        let sales = body["data"].as_array().unwrap().iter();
        sales.map(|sale| sale["id"].as_str().unwrap().to_owned()).collect()
    };
    let page = async |query: &str| {
        let path = format!("/v1/admin/sales?{query}");
        app.get(Who::Operator, &path).await.ok(200).body
    };
    let found = async |search: &str| ids(&page(&format!("search={search}")).await);
    for (search, expected) in [
        ("AUTUMN", vec![&autumn]),
        ("launch", vec![&winter, &autumn]),
        ("%20launch%20", vec![&winter, &autumn]),
        ("%E5%8D%81%E4%B8%80", vec![&chinese]),
        ("Coat", vec![&winter]),
        ("scarf", vec![&chinese]),
        (&winter, vec![&winter]),
        (&winter[..35].to_uppercase(), vec![&winter]),
        // Each character stands for itself.
        ("%25", vec![&autumn]),
        ("t_m", vec![&autumn]),
        ("l_unch", vec![]),
        // An id needs four characters: most sales have the first of them in common.
        (&autumn[..3], vec![]),
        (&autumn[1..], vec![]),
        ("spring", vec![]),
    ] {
        assert_eq!(found(search).await.iter().collect::<Vec<_>>(), expected, "{search}");
    }
    assert!(found(&autumn[..4]).await.contains(&autumn));
    // A search comes in pages, too.
    let first = page("search=launch&limit=1").await;
    assert_eq!((ids(&first), &first["has_more"]), (vec![winter.clone()], &json!(true)));
    let second = page(&format!("search=launch&limit=1&starting_after={winter}")).await;
    assert_eq!(
        (ids(&second), &second["has_more"]),
        (vec![autumn.clone()], &json!(false))
    );

    let long = "a".repeat(201);
    for wrong in ["", "%20", "%00", "a%0Ab", &long] {
        let path = format!("/v1/admin/sales?search={wrong}");
        let refused = app.get(Who::Operator, &path).await.no(400, "invalid_request");
        assert!(
            refused.text("detail").starts_with("search must have 1 to 200"),
            "{refused:?}"
        );
    }
    app.get(Who::Nobody, "/v1/sales?search=launch")
        .await
        .no(400, "invalid_request");
    // By command.
    let listed = app.run(&["sale", "list", "-q", "--search", "100% cotton"]).ended(0);
    assert_eq!(listed.stdout, format!("{autumn}\n"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_draft_is_deleted_for_good_and_what_is_loaded_is_not() {
    let app = TestApp::shared().await;
    let draft = app.create_sale(&sale()).await;
    let path = format!("/v1/admin/sales/{draft}");
    let delete = async |path: &str| app.send(app.request(Method::DELETE, Who::Operator, path)).await;
    app.send(app.request(Method::DELETE, Who::Nobody, &path))
        .await
        .no(401, "unauthenticated");
    // Shoppers ask for it as well; their refusals are counted by its sale.
    app.buy("ada", &draft, "k", 1).await;
    let deleted = delete(&path).await.ok(200);
    assert_eq!(deleted.body, json!({"id": draft, "deleted": true}));
    delete(&path).await.no(404, "not_found");
    app.get(Who::Operator, &path).await.no(404, "not_found");
    app.operate(&draft, "preload").await.no(404, "not_found");
    app.buy("ada", &draft, "k", 1).await.no(404, "not_found");
    let actions = app
        .get(Who::Operator, &format!("/v1/admin/actions?sale_id={draft}"))
        .await;
    let actions = actions.ok(200).body["data"].clone();
    let listed: Vec<(&str, &str)> = actions
        .as_array()
        .unwrap()
        .iter()
        .map(|it| (it["action"].as_str().unwrap(), it["outcome"].as_str().unwrap()))
        .collect();
    assert_eq!(
        listed,
        [
            ("sales.preload", "not_found"),
            ("sales.delete", "not_found"),
            ("sales.delete", "done"),
            ("sales.create", "done")
        ]
    );
    let loaded = app.load_sale(&sale()).await;
    let refused = delete(&format!("/v1/admin/sales/{loaded}")).await;
    refused.no(409, "invalid_transition");
    app.buy("ada", &loaded, "k", 1).await.ok(201);
    app.assert_balanced(&loaded).await;
    // By command.
    let other = app.create_sale(&sale()).await;
    let said = app.run(&["sale", "delete", &other]).ended(0).stdout;
    assert_eq!(said, format!("the draft {other}, A sale, is deleted\n"));
    app.run(&["sale", "delete", &loaded]).ended(1);
}

#[tokio::test]
async fn a_published_sale_gets_another_name_and_later_times_at_every_instance() {
    let app = TestApp::start_api_only().await;
    let other = app.another("api");
    let now = Utc::now();
    let (start, end) = (now + TimeDelta::minutes(10), now + TimeDelta::minutes(20));
    let later = TimeDelta::minutes(5);
    let times = json!({"starts_at": rfc3339(start), "ends_at": rfc3339(end)});
    let draft = app.create_sale(&sale_with(&times)).await;
    let id = app.load_sale(&sale_with(&times)).await;
    let amend = |id: &str, body: Value| {
        let request = app.request(Method::PATCH, Who::Operator, &format!("/v1/admin/sales/{id}"));
        app.send(request.json(&body))
    };
    // Both instances have read the sale before.
    for instance in [&*app, &*other] {
        instance.buy("ada", &id, "k", 1).await.no(409, "sale_not_open");
    }
    let body = json!({"name": "Winter", "starts_at": rfc3339(start + later), "ends_at": rfc3339(end + later)});
    let before = app.admin(&id, "").await.ok(200);
    let amended = amend(&id, body.clone()).await.ok(200);
    let amend_version = |version: &str| {
        let request = app.request(Method::PATCH, Who::Operator, &format!("/v1/admin/sales/{id}"));
        app.send(request.header("If-Match", version).json(&json!({"name": "Winter"})))
    };
    let stale = amend_version(before.header("etag").unwrap()).await;
    let refused = stale.no(409, "invalid_transition");
    assert!(refused.text("detail").contains("read it again"), "{refused:?}");
    amend_version(amended.header("etag").unwrap()).await.ok(200);
    let is_so = |shown: &Value| ["name", "starts_at", "ends_at"].iter().all(|it| shown[it] == body[it]);
    assert!(is_so(&amended.body), "{amended:?}");
    poll::within(poll::PATIENCE, "the other instance shows it", async || {
        is_so(&other.get(Who::Nobody, &format!("/v1/sales/{id}")).await.ok(200).body)
    })
    .await;

    for (wrong, status, code) in [
        (json!({"starts_at": rfc3339(start)}), 409, "invalid_transition"),
        (json!({"ends_at": rfc3339(end)}), 409, "invalid_transition"),
        (json!({"starts_at": rfc3339(end + later)}), 400, "invalid_request"),
        (json!({"name": ""}), 400, "invalid_request"),
        (json!({"stock": 1}), 400, "invalid_request"),
        (json!({"admissions_per_second": 0}), 400, "invalid_request"),
        (json!({"description": "a\u{1b}"}), 400, "invalid_request"),
        (
            json!({"items": [{"sku": "phone", "image_url": "a.jpg"}]}),
            400,
            "invalid_request",
        ),
        (json!({"items": [{"sku": "phone", "stock": 1}]}), 400, "invalid_request"),
        (json!({"items": [{"sku": "phone-2"}]}), 404, "not_found"),
    ] {
        amend(&id, wrong).await.no(status, code);
    }
    amend(&draft, json!({"name": "Winter"}))
        .await
        .no(409, "invalid_transition");
    app.operate(&id, "open").await.ok(200);
    other.buy("ada", &id, "k", 1).await.ok(201);
    amend(&id, json!({"starts_at": rfc3339(end)}))
        .await
        .no(409, "invalid_transition");
    app.operate(&id, "close").await.ok(200);
    amend(&id, json!({"name": "Over"})).await.no(409, "invalid_transition");
    app.assert_balanced(&id).await;
}

#[tokio::test]
async fn texts_and_pictures_change_while_the_sale_sells() {
    let app = TestApp::start_api_only().await;
    let other = app.another("api");
    let mut request = sale();
    request["image_url"] = json!("/winter.jpg");
    request["items"][0]["description"] = json!("A phone.");
    let id = app.load_sale(&request).await;
    other.buy("ada", &id, "k1", 1).await.ok(201);
    let amend = async |body: Value| {
        let patch = app.request(Method::PATCH, Who::Operator, &format!("/v1/admin/sales/{id}"));
        app.send(patch.json(&body)).await.ok(200)
    };
    let body = json!({"description": "Half price.\nToday.",
        "items": [{"sku": "phone", "image_url": "https://images.example/phone.jpg"}]});
    let first = amend(body.clone()).await;
    assert_eq!(first.body["items"][0]["description"], "A phone.", "it stays");
    let shows = async |is_right: fn(&Value) -> bool| {
        poll::within(poll::PATIENCE, "the other instance shows it", async || {
            is_right(&other.get(Who::Nobody, &format!("/v1/sales/{id}")).await.ok(200).body)
        })
        .await;
    };
    shows(|sale| {
        let item = &sale["items"][0];
        sale["description"] == "Half price.\nToday."
            && sale["image_url"] == "/winter.jpg"
            && item["image_url"] == "https://images.example/phone.jpg"
            && item["description"] == "A phone."
    })
    .await;
    let second = amend(json!({"image_url": "", "items": [{"sku": "phone", "description": ""}]})).await;
    assert_ne!(first.header("etag"), second.header("etag"));
    shows(|sale| sale.get("image_url").is_none() && sale["items"][0].get("description").is_none()).await;
    other.buy("ada", &id, "k2", 1).await.ok(201);
    app.assert_balanced(&id).await;
}

#[tokio::test]
async fn the_shards_sell_until_the_later_end() {
    let app = TestApp::shared_api_only().await;
    let end = Utc::now() + TimeDelta::seconds(15);
    let id = app.load_sale(&sale_with(&json!({"ends_at": rfc3339(end)}))).await;
    let request = app.request(Method::PATCH, Who::Operator, &format!("/v1/admin/sales/{id}"));
    let body = json!({"ends_at": rfc3339(end + TimeDelta::hours(1))});
    app.send(request.json(&body)).await.ok(200);
    poll::within(poll::PATIENCE, "the first end has passed", async || Utc::now() > end).await;
    app.buy("ada", &id, "k", 1).await.ok(201);
}
