//! What operators type: terms of a sale, guards and prices, which neither a slip nor a lost answer loses.

use super::{RESTOCK, RESTOCKED, RESULT, STATE, STREAM};
use crate::support::app::{ADMIN_KEY, TestApp, Who, rfc3339, sale, sale_with};
use crate::support::poll::{self, PATIENCE};
use crate::support::window::{Appearance, Window};
use chrono::{TimeDelta, Utc};
use reqwest::Method;
use serde_json::{Value, json};
use thirtyfour::Key;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn publishing_asks_with_the_terms_as_they_are_and_marks_what_looks_like_a_slip() {
    let app = TestApp::start().await;
    app.load_sale(&sale()).await;
    let draft = app.create_sale(&sale()).await;
    let window = Window::open(&app).await;
    window.open_console(&format!("/console/sales/{draft}")).await;
    window.sees(STATE, "Draft").await;
    // Another operator has changed the draft, and has typed cents for euros, and a wrong year.
    let next_year = rfc3339(Utc::now() + TimeDelta::days(400));
    let slip = sale_with(&json!({"price_minor": 499, "per_user_limit": 10, "ends_at": next_year}));
    let request = app.request(Method::PUT, Who::Operator, &format!("/v1/admin/sales/{draft}"));
    app.send(request.json(&slip)).await.ok(200);
    window.click("#do-preload").await;
    window
        .sees("#contract", "10 × A phone (phone) at €4.99. At most 10 per person")
        .await;
    window.sees("#contract", "It sells at once, until").await;
    for mark in ["it cost €499.00 or more", "One shopper may take all units"] {
        window.sees("#contract li", mark).await;
    }
    window.sees("#contract > .warning", "The end is 399 days ahead.").await;
    window.press(Key::Escape).await;
    window.misses("dialog").await;
    assert_eq!(app.admin(&draft, "").await.ok(200).body["state"], "draft");
    // A sale to come says both times, and how many items it does not name.
    let items: Vec<Value> = (1..=21)
        .map(|n| {
            json!({"sku": format!("case-{n}"), "name": "A case", "price_minor": 1900, "currency": "EUR", "stock": 10,
                "per_user_limit": 1})
        })
        .collect();
    let times = json!({"starts_at": "2090-01-02T12:00:00Z", "ends_at": "2090-01-04T12:00:00Z", "items": items});
    let later = app.create_sale(&sale_with(&times)).await;
    window.goto(&format!("/console/sales/{later}")).await;
    window.sees(STATE, "Draft").await;
    window.click("#do-preload").await;
    for text in ["From Jan 2, 2090", "to Jan 4, 2090", "And one more item."] {
        window.sees("#contract", text).await;
    }
    window.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn prices_are_typed_as_people_write_them() {
    let app = TestApp::start().await;
    let window = Window::open(&app).await;
    window.open_console("/console/sales/new").await;
    window.types_sale("Winter", TimeDelta::minutes(30)).await;
    for wrong in ["1.499", "12,34.00", "0,500", "-1", "free", "100,000,000.01"] {
        window.types("item-0-price_minor", wrong).await;
        window.click("form .actions button").await;
        window
            .sees(
                "#item-0-price_minor-wrong",
                "such as 499.00 or 1,299.00, at most 100,000,000.00",
            )
            .await;
    }
    for (typed, shown) in [
        ("1,299.00", "€1,299.00"),
        ("1.299,00", "€1,299.00"),
        ("10,000", "€10,000.00"),
        ("12,50", "€12.50"),
        ("€499", "€499.00"),
        ("12.50 EUR", "€12.50"),
        ("1\u{2009}299,00 €", "€1,299.00"),
    ] {
        window.types("item-0-price_minor", typed).await;
        window.sees(".item", &format!("Price: {shown}")).await;
    }
    // The sign of another currency is named: the price itself is right.
    for (typed, sign) in [("$499", "$"), ("499 JPY", "JPY")] {
        window.types("item-0-price_minor", typed).await;
        window.click("form .actions button").await;
        let wrong = format!("“{sign}” is not EUR, the currency of this item.");
        window.sees("#item-0-price_minor-wrong", &wrong).await;
    }
    // Wide, and of two countries.
    window.types("item-0-price_minor", "￥88").await;
    for (currency, shown) in [("JPY", "¥88 (88 in the API)"), ("CNY", "CN¥88.00 (8800 in the API)")] {
        window.types("item-0-currency", currency).await;
        window.sees(".item", &format!("Price: {shown}")).await;
    }
    window.types("item-0-currency", "EUR").await;
    // With three digits behind the point, it may be 1.299 or 1299.
    window.types("item-0-price_minor", "1,299").await;
    window.types("item-0-currency", "KWD").await;
    window.click("form .actions button").await;
    window.sees("#item-0-price_minor-wrong", "such as 49.900").await;
    window.types("item-0-stock", "10,000").await;
    // The smallest unit follows the currency.
    window.types("item-0-price_minor", "499").await;
    window.types("item-0-currency", "JPY").await;
    window.sees(".item", "Price: ¥499 (499 in the API)").await;
    // Browsers leave out the digits of this one.
    window.types("item-0-currency", "HUF").await;
    window.sees(".item", "499.00 (49900 in the API)").await;
    window.types("item-0-currency", "EUR").await;
    window.sees(".item", "Price: €499.00 (49900 in the API)").await;
    window.click("form .actions button").await;
    window.sees(STATE, "Draft").await;
    let made = app.get(Who::Operator, "/v1/admin/sales").await.ok(200).body["data"][0].clone();
    let item = &made["items"][0];
    assert_eq!((&item["price_minor"], &item["stock"]), (&json!(49_900), &json!(10_000)));
    window.click("#actions a").await;
    window.holds("item-0-price_minor", "499.00").await;
    window.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fields_that_belong_together_share_a_row_and_required_ones_are_marked() {
    let app = TestApp::start_api_only().await;
    let window = Window::with(&app, Appearance::default()).await;
    window.open_console("/console/sales/new").await;
    window.sees("#view h1", "New sale").await;
    let apart = "const top = (id) => document.getElementById(id).closest('.row').getBoundingClientRect().top;
        return [['starts_at', 'ends_at'], ['purchase_rate-limit', 'purchase_rate-window_ms'],
            ['item-0-price_minor', 'item-0-currency'], ['item-0-group', 'item-0-option'],
            ['guards-admissions_per_second', 'guards-admission_seconds']]
            .filter(([one, other]) => top(one) !== top(other))";
    assert_eq!(window.run(apart, &[]).await, json!([]));
    let is_wide = "const box = (it) => it.getBoundingClientRect().width;
        const name = document.getElementById('name');
        return box(name) > 0.99 * box(name.closest('.grid'))";
    assert_eq!(window.run(is_wide, &[]).await, true);
    let marks =
        "return ['name', 'starts_at', 'item-0-stock', 'description', 'durability', 'guards-holds_max'].map((id) =>
        getComputedStyle(document.querySelector(`label[for='${id}']`), '::after').content.includes('*'))";
    assert_eq!(
        window.run(marks, &[]).await,
        json!([true, true, true, false, false, false])
    );
    window.sees("#view form > p.muted", "must be filled in").await;
    // The price in words stands below the typed one.
    window.types("item-0-currency", "EUR").await;
    window.types("item-0-price_minor", "499").await;
    window.sees(".row:has(> #item-0-price_minor)", "Price: €499.00").await;
    window.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_that_was_typed_is_lost_and_what_is_wrong_is_said_beside_it() {
    let app = TestApp::start().await;
    let window = Window::open(&app).await.expect(&["400", "401"]);
    window.open_console("/console/sales/new").await;
    window.types("shards", "999").await;
    window.types("item-0-stock", "many").await;
    window.types("item-0-sku", "two words").await;
    window.click("form .actions button").await;
    window.sees("#name-wrong", "Fill this in").await;
    window.sees("#shards-wrong", "from 1 to 256").await;
    window.sees("#item-0-stock-wrong", "from 0 to 1,000,000,000").await;
    window.sees("#item-0-name-wrong", "Fill this in").await;
    // Several errors are listed above the form, each with a link to its field.
    let summary = "const { activeElement: it } = document; return it.getAttribute('role') + it.className";
    assert_eq!(window.run(summary, &[]).await, "alertwarning errors");
    window.sees("form .errors", "Item 1 · ").await;
    let marked = "return document.querySelectorAll('form [aria-invalid=true]').length
        - document.querySelectorAll('form .errors a').length";
    assert_eq!(window.run(marked, &[]).await, 0);
    window.sees("form .errors a[href='#name']", "Fill this in").await;
    window.click("form .errors a[href='#name']").await;
    assert_eq!(window.run("return document.activeElement.id", &[]).await, "name");
    assert_eq!(
        window
            .run("return document.activeElement.getAttribute('aria-describedby')", &[])
            .await,
        "name-wrong"
    );
    // An error that only the server finds is shown beside the field, too.
    window.types_sale("Winter", TimeDelta::minutes(30)).await;
    window.types("shards", "4").await;
    let starts_at = window.value("starts_at").await;
    window.types("ends_at", &starts_at).await;
    window.click("form .actions button").await;
    window.sees("#ends_at-wrong", "A time after the start").await;
    window.types("ends_at", "2099-01-01T00:00:00").await;
    window.types("item-0-sku", "two words").await;
    window.click("form .actions button").await;
    window.sees("#item-0-sku-wrong", "1 to 64 letters").await;
    window.misses("#ends_at-wrong").await;
    assert_eq!(window.run("return document.activeElement.id", &[]).await, "item-0-sku");
    window.misses("form .errors").await;
    // A second item, and guards that contradict each other.
    window.types("item-0-sku", "phone").await;
    window.click("fieldset > button").await;
    window.types("item-1-sku", "case").await;
    // The session ends while it is typed.
    sqlx::query("delete from console_sessions")
        .execute(&mut app.database().await)
        .await
        .unwrap();
    for (id, text) in [
        ("item-1-name", "Case"),
        ("item-1-price_minor", "19.00"),
        ("item-1-stock", "5"),
    ] {
        window.types(id, text).await;
    }
    window.click("form .actions button").await;
    window.sees("#sign-in-why", "Your session has ended").await;
    window.fill("#key", ADMIN_KEY).await;
    window.press(Key::Enter).await;
    window.misses("#sign-in").await;
    window.holds("item-1-name", "Case").await;
    window.fill("#guards-challenge", "captcha").await;
    window.click("form .actions button").await;
    window
        .sees("#guards-challenge-wrong", "A challenge needs a purchase token")
        .await;
    // Also over a reload.
    window.driver().refresh().await.unwrap();
    window.sees(".note", "What you had typed is still here").await;
    for (id, text) in [
        ("name", "Winter"),
        ("item-1-sku", "case"),
        ("item-0-stock", "400"),
        ("guards-challenge", "captcha"),
    ] {
        window.holds(id, text).await;
    }
    window.fill("#guards-purchase_token", "yes").await;
    window.click("form .actions button").await;
    window.sees(STATE, "Draft").await;
    let made = app.get(Who::Operator, "/v1/admin/sales").await.ok(200).body["data"][0].clone();
    assert_eq!(
        (&made["name"], &made["items"][1]["sku"]),
        (&json!("Winter"), &json!("case"))
    );
    assert_eq!(made["guards"]["challenge"], "captcha");
    // A stored draft is no longer kept.
    window.goto("/console/sales/new").await;
    window.sees("#view h1", "New sale").await;
    window.holds("name", "").await;
    window.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn guards_that_nobody_has_touched_are_as_the_instance_is_configured() {
    let guards = r#"{"purchase_token": true, "holds_max": 3, "admissions_per_second": 7}"#;
    let app = TestApp::with("all", &[("FLASHSALE_SALE_GUARDS", guards)]).await;
    let window = Window::open(&app).await;
    window.open_console("/console/sales/new").await;
    window
        .sees("#view fieldset > .small", "take the defaults of the instance")
        .await;
    // What that is stands where a guard is left so, also in another language.
    let texts = "const text = (id) => { const it = document.getElementById(`guards-${id}`);
            return it.placeholder ?? it.options[it.selectedIndex].text; };
        return ['purchase_token', 'challenge', 'holds_max', 'admission_seconds'].map(text).join('; ')";
    for (language, expected) in [
        ("zh-CN", "按配置（是）; 按配置（无）; 按配置（3）; 按配置（5 分钟）"),
        (
            "en",
            "as configured (yes); as configured (none); as configured (3); as configured (5 min)",
        ),
    ] {
        window.change_language(language).await;
        poll::within(PATIENCE, expected, async || window.run(texts, &[]).await == expected).await;
    }
    window.types_sale("Winter", TimeDelta::minutes(30)).await;
    window.types("guards-admissions_per_second", "8").await;
    window.fill("#guards-waiting_room", "yes").await;
    window.click("form .actions button").await;
    window.sees(STATE, "Draft").await;
    let made = app.get(Who::Operator, "/v1/admin/sales").await.ok(200).body["data"][0].clone();
    let guards = |sale: &Value| {
        let names = ["purchase_token", "holds_max", "admissions_per_second", "waiting_room"];
        names.map(|name| sale["guards"][name].clone())
    };
    assert_eq!(guards(&made), [json!(true), json!(3), json!(8), json!(true)]);
    // The form of a draft shows its guards, and can switch them off.
    let id = made["id"].as_str().unwrap();
    window.goto(&format!("/console/sales/{id}/edit")).await;
    window.holds("guards-holds_max", "3").await;
    window.holds("guards-purchase_token", "yes").await;
    window.fill("#guards-purchase_token", "no").await;
    window.types("guards-holds_max", "0").await;
    window.click("form .actions button").await;
    window.sees(STATE, "Draft").await;
    let changed = app.get(Who::Operator, "/v1/admin/sales").await.ok(200).body["data"][0].clone();
    assert_eq!(guards(&changed), [json!(false), json!(0), json!(8), json!(true)]);
    window.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn starting_over_asks_before_it_discards_typed_text() {
    let app = TestApp::shared().await;
    let draft = app.create_sale(&sale()).await;
    let window = Window::open(&app).await;
    window.open_console("/console").await;
    let start_over = "#view > .actions button";
    for (path, stored) in [("new".to_owned(), ""), (format!("{draft}/edit"), "A sale")] {
        let typed = format!("Typed over {stored}");
        window.goto(&format!("/console/sales/{path}")).await;
        window.holds("name", stored).await;
        window.misses(start_over).await;
        window.types("name", &typed).await;
        window.driver().refresh().await.unwrap();
        window.sees(start_over, "Start over").await;
        for no in [Key::Escape, Key::Enter] {
            window.click(start_over).await;
            window.sees("dialog #sure-text", "is thrown away").await;
            window.press(no).await;
            window.misses("dialog").await;
            window.holds("name", &typed).await;
        }
        // Nor is it gone after a reload.
        window.driver().refresh().await.unwrap();
        window.sees(start_over, "Start over").await;
        window.holds("name", &typed).await;
        window.does(start_over).await;
        window.misses(start_over).await;
        window.holds("name", stored).await;
    }
    window.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn typed_text_of_a_ban_or_a_restock_survives_a_reload() {
    let app = TestApp::start().await;
    let id = app
        .load_sale(&sale_with(&json!({"items": [
            {"sku": "phone", "name": "A", "price_minor": 1, "currency": "EUR", "stock": 10, "per_user_limit": 1},
            {"sku": "tablet", "name": "B", "price_minor": 1, "currency": "EUR", "stock": 10, "per_user_limit": 1},
        ]})))
        .await;
    let window = Window::open(&app).await;
    window.open_console("/console/accounts").await;
    window.sees("#view h1", "Accounts").await;
    window.fill("#ban-user", "bot-1").await;
    window.fill("#ban-reason", "half a reas").await;
    window.fill("#ban-span", "A week").await;
    window.click("#ban-sessions").await;
    window.driver().refresh().await.unwrap();
    window.sees("#view h1", "Accounts").await;
    let kept = ["ban-user", "ban-reason", "ban-span"];
    for (field, value) in kept.iter().zip(["bot-1", "half a reas", "week"]) {
        window.holds(field, value).await;
    }
    let is_checked = "return document.getElementById('ban-sessions').checked";
    assert_eq!(window.run(is_checked, &[]).await, true);
    window.fill("#ban-reason", "a whole reason").await;
    window.does("form.panel button").await;
    window.sees(RESULT, "bot-1 is banned").await;
    window.driver().refresh().await.unwrap();
    window.sees("section:nth-of-type(2) tbody", "bot-1").await;
    window.holds("ban-user", "").await;

    let page = format!("/console/sales/{id}");
    window.goto(&page).await;
    window.sees(STATE, "").await;
    window.fill("#restock-sku", "tablet").await;
    window.fill("#restock-quantity", "30").await;
    window.driver().refresh().await.unwrap();
    window.holds("restock-sku", "tablet").await;
    let shown = "return document.getElementById('restock-sku').selectedOptions[0].text";
    assert_eq!(window.run(shown, &[]).await, "tablet · B");
    window.holds("restock-quantity", "30").await;
    window.does(RESTOCK).await;
    window.sees(RESTOCKED, "30 units of tablet were added").await;
    window.driver().refresh().await.unwrap();
    window.sees(STATE, "Open").await;
    window.holds("restock-quantity", "").await;
    window.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restock_offers_the_items_that_a_draft_has_by_now() {
    let app = TestApp::shared().await;
    let id = app.create_sale(&sale()).await;
    let window = Window::open(&app).await;
    window.open_console(&format!("/console/sales/{id}")).await;
    window.sees(STATE, "Draft").await;
    let mut other = sale();
    other["items"][0]["sku"] = json!("tablet");
    let request = app.request(Method::PUT, Who::Operator, &format!("/v1/admin/sales/{id}"));
    app.send(request.json(&other)).await.ok(200);
    app.operate(&id, "preload").await.ok(200);
    window.sees(STATE, "Open").await;
    window.holds("restock-sku", "tablet").await;
    window.types("restock-quantity", "5").await;
    window.does(RESTOCK).await;
    window.sees(RESTOCKED, "5 units of tablet were added").await;
    window.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sale_of_many_items_with_long_names_is_created() {
    let app = TestApp::start().await;
    let window = Window::open(&app).await;
    window.open_console("/console/sales/new").await;
    window.sees("#view h1", "New sale").await;
    window.fill("#name", "Many items").await;
    // As if they had been typed: more than the 16 KiB that other requests have room for.
    let many = "const kept = JSON.parse(sessionStorage.getItem('flashsale.form.new'));
        kept.texts.items = Array.from({ length: 150 }, (_, at) => ({ sku: `S-${at}`, name: arguments[0],
            price_minor: '1', currency: 'EUR', stock: '1', per_user_limit: '1' }));
        sessionStorage.setItem('flashsale.form.new', JSON.stringify(kept))";
    window
        .run(many, &["A name that needs all of its room ".repeat(5).trim()])
        .await;
    window.driver().refresh().await.unwrap();
    window.sees("#view h1", "New sale").await;
    window.click("form.form .strong").await;
    window.sees("#sale-name", "Many items").await;
    let all = app.get(Who::Operator, "/v1/admin/sales").await.ok(200).body;
    assert_eq!(all["data"][0]["items"].as_array().unwrap().len(), 150);
    window.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_two_tabs_that_change_one_draft_the_slower_one_is_asked() {
    let app = TestApp::shared().await;
    let id = app.create_sale(&sale()).await;
    let form = format!("/console/sales/{id}/edit");
    let stored = async || app.admin(&id, "").await.ok(200).body;
    let (store, clash) = ("form .actions button[type=submit]", "form .list .warning");
    let window = Window::open(&app).await.expect(&["409"]);
    window.open_console(&form).await;
    window.sees(".item", "Price: €499.00").await;
    let first = window.driver().window().await.unwrap();
    let second = window.driver().new_tab().await.unwrap();
    let switch_to = async |tab: &thirtyfour::WindowHandle| {
        window.driver().switch_to_window(tab.clone()).await.unwrap();
    };
    let store_in_second = async |name: &str, stock: &str| {
        switch_to(&second).await;
        window.goto(&form).await;
        window.sees(".item", "Price: €499.00").await;
        window.types("name", name).await;
        window.types("item-0-stock", stock).await;
        window.click(store).await;
        window.sees("#sale-name", name).await;
    };
    store_in_second("Second", "20").await;

    // No stored change of another operator is overwritten, and no typed text is lost.
    switch_to(&first).await;
    window.types("name", "First").await;
    window.click(store).await;
    window.sees(clash, "Somebody else has changed this draft").await;
    window.holds("name", "First").await;
    assert_eq!(stored().await["name"], "Second");
    // Also over a reload, with the message at once.
    window.driver().refresh().await.unwrap();
    window.sees(clash, "Somebody else has changed this draft").await;
    window.holds("name", "First").await;
    window.click(store).await;
    // The message is there already; it gets the focus with the answer.
    window.sees("form .list .warning:focus", "Somebody else").await;
    assert_eq!(stored().await["name"], "Second");
    // An operator who takes the other version gets all of it.
    window.click("#load-present").await;
    window.sees("dialog #sure-text", "is thrown away").await;
    window.press(Key::Escape).await;
    window.misses("dialog").await;
    window.holds("name", "First").await;
    window.does("#load-present").await;
    window.misses(clash).await;
    assert_eq!(
        [window.value("name").await, window.value("item-0-stock").await],
        ["Second", "20"]
    );
    window.types("item-0-stock", "21").await;
    window.click(store).await;
    window.sees("#sale-name", "Second").await;
    assert_eq!(stored().await["items"][0]["stock"], 21);

    // Storing over it replaces exactly the version that was shown, and no newer one.
    window.goto(&form).await;
    window.sees(".item", "Price: €499.00").await;
    window.types("name", "Mine").await;
    store_in_second("Third", "30").await;
    switch_to(&first).await;
    window.click(store).await;
    window.sees(clash, "Somebody else").await;
    store_in_second("Fourth", "40").await;
    switch_to(&first).await;
    window.click("#store-over").await;
    window.sees(clash, "Somebody else").await;
    assert_eq!(stored().await["name"], "Fourth");
    window.click("#store-over").await;
    window.sees("#sale-name", "Mine").await;
    let now = stored().await;
    assert_eq!((&now["name"], &now["items"][0]["stock"]), (&json!("Mine"), &json!(21)));

    // Our own earlier attempt, whose answer was lost, does not count as another operator's change.
    window.goto(&form).await;
    window.sees(".item", "Price: €499.00").await;
    window.types("name", "Lost").await;
    let lose = "const real = window.fetch; let lost = 0;
        window.fetch = (path, options) => options.method === 'PUT' && lost++ === 0
            ? real(path, options).then(() => Promise.reject(new TypeError('lost')))
            : real(path, options)";
    window.run(lose, &[]).await;
    window.click(store).await;
    window
        .sees("form > .warning:not(.errors)", "It is not known whether that worked")
        .await;
    assert_eq!(stored().await["name"], "Lost");
    window.click(store).await;
    window.sees("#sale-name", "Lost").await;

    // A draft that is loaded by now raises no question.
    window.goto(&form).await;
    window.sees(".item", "Price: €499.00").await;
    window.types("name", "Late").await;
    app.operate(&id, "preload").await.ok(200);
    window.click(store).await;
    window
        .sees("form > .warning:not(.errors)", "only a draft can be changed")
        .await;
    window.misses(clash).await;
    window.holds("name", "Late").await;
    window.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sale_whose_creation_was_lost_is_asked_for_with_the_same_key() {
    let app = TestApp::shared().await;
    let window = Window::open(&app).await.expect(&["ERR"]);
    window.open_console("/console/sales/new").await;
    window.types_sale("Winter", TimeDelta::minutes(30)).await;
    window.block(&["*/v1/admin/sales"]).await;
    let kept = "return sessionStorage.getItem('flashsale.create')";
    let mut keys = Vec::new();
    for _ in 0..2 {
        window.click("form .actions button").await;
        window.sees("form > .warning:not(.errors)", "Look at the list").await;
        keys.push(window.run(kept, &[]).await);
        window.types("name", "Spring").await;
    }
    assert!(
        keys[0].as_str().unwrap().contains("new") && keys[0] == keys[1],
        "{keys:?}"
    );
    window.block(&[]).await;
    window.click("form .actions button").await;
    window.sees("#sale-name", "Spring").await;
    assert_eq!(window.run(kept, &[]).await, "[]");
    window.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restock_whose_answer_was_lost_stays_the_same_until_its_outcome_is_known() {
    let app = TestApp::shared().await;
    let id = app.load_sale(&sale()).await;
    let window = Window::open(&app).await.expect(&["ERR"]);
    window.open_console(&format!("/console/sales/{id}")).await;
    window.sees(STREAM, "up to date").await;
    let kept = format!("return sessionStorage.getItem('flashsale.restock.{id}')");
    window.block(&["*/restock"]).await;
    window.fill("#restock-quantity", "30").await;
    window.does(RESTOCK).await;
    window.sees(RESTOCKED, "It is not known whether that worked").await;
    let lost = window.run(&kept, &[]).await;
    let open: Value = serde_json::from_str(lost.as_str().unwrap()).unwrap();
    // The request has arrived, and its answer has not.
    app.restock(&id, open[0][1].as_str().unwrap(), "phone", 30)
        .await
        .ok(200);
    window.block(&[]).await;
    let refuse = "const real = window.fetch; window.refusal = null;
        window.fetch = (path, options) => window.refusal && String(path).endsWith('/restock')
            ? Promise.resolve(new Response(JSON.stringify(window.refusal), { status: window.refusal.status }))
            : real(path, options);";
    window.run(refuse, &[]).await;
    // None of these mentions the one before.
    for (status, code, said) in [
        (403, "console_token_required", "refused here"),
        (429, "rate_limited", "refused here"),
        (503, "overloaded", "refused here"),
        (503, "unavailable", "It is not known whether that worked"),
        (409, "invalid_transition", "refused here"),
    ] {
        let refusal = json!({"status": status, "code": code, "detail": "refused here"});
        window.run(&format!("window.refusal = {refusal}"), &[]).await;
        window.click(RESTOCK).await;
        window.sees("dialog p", "it is done only once").await;
        window.click("dialog .strong").await;
        window.sees(RESTOCKED, said).await;
        assert_eq!(window.run(&kept, &[]).await, lost, "{code}");
        window.click("form.panel .result button").await;
    }
    window.run("window.refusal = null", &[]).await;
    window.does(RESTOCK).await;
    window.sees(RESTOCKED, "30 units of phone were added").await;
    assert_eq!(app.units(&id).await, [40, 0, 0]);
    assert_eq!(window.run(&kept, &[]).await, "[]");
    // The next restock has a new key.
    window.fill("#restock-quantity", "30").await;
    window.click(RESTOCK).await;
    window.sees("dialog p", "sold at once").await;
    window.click("dialog .strong").await;
    app.wait_for_units(&id, [70, 0, 0]).await;
    window.close().await;
}
