//! axe-core finds nothing on any page in any of its states, at a desk and on a telephone, light and dark, in development
//! mode.

use crate::support::app::{ADMIN_KEY, Client, TestApp, Who, rfc3339, sale_with, token};
use crate::support::window::{Appearance, TELEPHONE, Window, development};
use chrono::{TimeDelta, Utc};
use reqwest::Method;
use serde_json::{Value, json};
use thirtyfour::Key;

/// For pictures: all of a page that does not fit a screen.
const LONG: Appearance = Appearance {
    height: 1500,
    ..TELEPHONE
};

/// The card of an item without variants.
const CARD: &str = "#items > li:nth-child(2)";
const NOTE: &str = "#items .outcome .note";

/// Answers purchases by `window.refusal`, once it is set.
const REFUSE: &str = "const real = window.fetch;
    window.fetch = (path, options) => window.refusal && options?.method === 'POST' && String(path).endsWith('/orders')
        ? Promise.resolve(new Response(JSON.stringify(window.refusal),
            { status: window.refusal.status, headers: { 'Retry-After': '30' } }))
        : real(path, options)";

/// The shopper's places in the waiting room from now on, in a browser that may notify.
const MOVES: &str = "window.Notification = class extends EventTarget { static permission = 'default' };
    const real = window.fetch;
    const places = [1235];
    window.fetch = (path, options) => String(path).endsWith('/waiting-room')
        ? Promise.resolve(new Response(JSON.stringify({ state: 'waiting', position: places.shift() ?? 618, waiting: 2000,
            estimated_wait_seconds: 600, ask_again_seconds: 1 })))
        : real(path, options)";

/// A window, and what axe-core has found there.
struct Judge {
    window: Window,
    wrong: Vec<String>,
    /// At the next desk. The scheme changes from state to state, since states have parts of the page in common.
    is_desk_dark: bool,
}

impl Judge {
    async fn of(app: &Client, statuses: &[&'static str]) -> Self {
        Self {
            window: Window::open(app).await.expect(statuses),
            wrong: Vec::new(),
            is_desk_dark: false,
        }
    }

    /// Judges a page once it shows these texts. The first of them is there in Chinese, too.
    async fn judges(&mut self, state: &str, shown: &[(&str, &str)]) {
        for (selector, text) in shown {
            self.window.sees(selector, text).await;
        }
        let found = self.window.findings(shown[0].0, self.is_desk_dark).await;
        self.is_desk_dark = !self.is_desk_dark;
        self.notes(state, found);
    }

    /// The same of a page that is opened first.
    async fn opens(&mut self, path: &str, shown: &[(&str, &str)]) {
        self.window.goto(path).await;
        self.judges(path, shown).await;
    }

    fn notes(&mut self, state: &str, found: Vec<String>) {
        let named = found.into_iter().map(|finding| format!("{state}: {finding}"));
        self.wrong.extend(named);
    }

    async fn ends(self) {
        assert!(self.wrong.is_empty(), "{}", self.wrong.join("\n"));
        self.window.close().await;
    }
}

/// A sale with two variants of one thing and an item besides, with pictures, descriptions and a message.
async fn variants(app: &Client, starts_at: &str) -> String {
    let item = |sku: &str, more: Value| {
        let mut item = json!({"sku": sku, "name": format!("Linen {sku}"), "price_minor": 1900, "currency": "EUR", "stock": 5,
            "per_user_limit": 5, "description": "Washed and soft.", "image_url": "/assets/-/icon.svg"});
        item.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        item
    };
    let items = [
        item("shirt-s", json!({"group": "Linen shirt", "option": "S"})),
        item("cap", json!({})),
        item("shirt-m", json!({"group": "Linen shirt", "option": "M", "stock": 1})),
    ];
    let sale = json!({"name": "Summer launch", "starts_at": starts_at, "description": "Light things.",
        "image_url": "/assets/-/icon.svg", "items": items});
    let id = app.load_sale(&sale_with(&sale)).await;
    let message = app.request(Method::PUT, Who::Operator, &format!("/v1/admin/sales/{id}/message"));
    app.send(message.json(&json!({"en": "More at noon."}))).await.ok(200);
    id
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn axe_finds_nothing_on_any_page_of_the_shop() {
    let app = development().await;
    let soon = rfc3339(Utc::now() + TimeDelta::minutes(30));
    let load = async |changes: Value| app.load_sale(&sale_with(&changes)).await;
    let short = load(json!({"payment_window_seconds": 1})).await;
    app.buy("ada", &short, "k", 1).await.ok(201);
    let before = variants(&app, &soon).await;
    let on = variants(&app, &rfc3339(Utc::now() - TimeDelta::hours(1))).await;
    let room = load(json!({"name": "Autumn launch", "starts_at": soon, "guards": {"waiting_room": true}})).await;
    let captcha = load(json!({"guards": {"purchase_token": true, "challenge": "captcha"}})).await;
    let brief = load(json!({"payment_window_seconds": 8})).await;
    let gone = load(json!({"stock": 1})).await;
    app.buy("bob", &gone, "k", 1).await.ok(201);
    let [paused, over] = [load(json!({})).await, load(json!({})).await];
    app.operate(&paused, "pause").await.ok(200);
    app.operate(&over, "close").await.ok(200);
    let bought = load(json!({})).await;
    let paid = app.buy("ada", &bought, "k1", 2).await.ok(201).body;
    assert_eq!(app.pay("pay_axe", &paid).await, "applied");
    let cancelled = app.buy("ada", &bought, "k2", 1).await.ok(201).id();
    app.cancel("ada", &cancelled).await.ok(200);
    let held = app.buy("ada", &bought, "k3", 1).await.ok(201).id();

    let mut judge = Judge::of(&app, &["403", "404", "ERR"]).await;
    judge.opens("/", &[("#sales", "A sale"), ("#development", "Dev")]).await;
    judge.opens("/nothing", &[("h1", "There is no such page.")]).await;
    let missing = format!("/sales/{}", uuid::Uuid::new_v4());
    let see_all = ("#see-all a[href='/']", "See all sales");
    judge
        .opens(&missing, &[("#name", "There is no such sale."), see_all])
        .await;
    let early = [("#calendar", "Add to calendar"), ("#sign-in-early", "Sign in now")];
    judge.opens(&format!("/sales/{before}"), &early).await;
    let offer = format!("/sales/{on}#token={}", token("eve"));
    judge
        .opens(&offer, &[("#offer-who", "eve"), ("#message", "noon")])
        .await;
    judge.window.click("#decline-offer").await;
    judge.window.click("#items .option:nth-child(1)").await;
    judge.window.sees("#items .variants .buy", "Buy").await;
    judge.window.picture_as(LONG, "variants.png").await;
    let buy = format!("{CARD} .buy");
    judge.window.click(&buy).await;
    let wanted = [("#no-link", "open the link"), ("#sign-in-why", "Sign in to buy")];
    judge.judges("a sign-in is asked for", &wanted).await;
    let names = judge.window.accessible_names().await;
    let has = |role: &str, name: &str| names[role].iter().any(|it| it == name);
    assert!(
        has("heading", "Summer launch") && has("region", "Summer launch") && has("textbox", "Your token from the shop")
    );
    assert_eq!(names["status"].len(), 2, "changes are announced");
    judge.window.open_link().await;
    judge.judges("sign-in of development", &[("#as-anybody", "")]).await;
    judge.window.sign_in("ada").await;
    let begun = [("#items .variants .buy", "Buy"), (CARD, "Buy 1 Linen cap?")];
    judge.judges("a purchase was begun, a variant is open", &begun).await;
    judge.window.click(&format!("{CARD} .outcome button.quiet")).await;
    judge.window.sees(&buy, "Buy").await;
    judge_refusals(&mut judge, &buy).await;

    judge.window.goto_sale(&bought).await;
    let orders = [
        ("#orders [data-state=reserved]", "Reserved"),
        ("#orders [data-state=paid]", "Paid"),
        ("#orders [data-state=cancelled]", "Cancelled"),
    ];
    judge.judges("orders", &orders).await;
    app.cancel("ada", &held).await.ok(200);
    let ended = [(NOTE, "Cancelled. You gave it back.")];
    judge.judges("an order has ended", &ended).await;
    let order = format!("/sales/{short}");
    judge
        .opens(&order, &[("#orders [data-state=expired]", "Expired")])
        .await;
    judge.window.goto_sale(&gone).await;
    judge.window.finds("#items .buy", "Keep trying for me").await;
    judge.judges("sold out", &[("#items .hold", "on hold")]).await;
    judge.window.click("#items .buy").await;
    judge
        .judges("it keeps trying", &[(NOTE, "as soon as one is free")])
        .await;
    judge.window.click("#items .outcome button.quiet").await;
    let note = [("#notice", "What is reserved can still be paid")];
    judge.opens(&format!("/sales/{paused}"), &note).await;
    let last = [("#until", "This sale is over")];
    judge.opens(&format!("/sales/{over}"), &last).await;
    judge.window.goto_sale(&room).await;
    judge.window.click("#items .buy").await;
    let place = [("#items .room .place", "draws a lot"), (NOTE, "waiting room")];
    judge.judges("the waiting room", &place).await;
    judge.window.picture_as(LONG, "waiting-room.png").await;
    judge.window.run(MOVES, &[]).await;
    let place = [
        ("#items .room .place", "Ahead of you: 617"),
        ("#items .room progress", ""),
        ("#items .room button", "Notify me"),
    ];
    judge.judges("the line moves", &place).await;

    // The page does not learn that the order expires.
    judge.window.goto_sale(&brief).await;
    judge.window.click("#items .buy").await;
    judge.window.sees("#items .payment .timer", "0:").await;
    judge.window.block(&["*/v1/orders*"]).await;
    let is_over = [("#items .payment .note", "The time to pay is over")];
    judge.judges("the time to pay is over", &is_over).await;
    judge.window.block(&[]).await;

    judge.window.click("#sign-out").await;
    judge.window.goto_sale(&captcha).await;
    // Challenges are counted by account, in a Redis that tests share.
    judge.window.sign_in(&uuid::Uuid::new_v4().to_string()).await;
    judge.window.click("#items .buy").await;
    judge
        .judges("a captcha", &[(".captcha", "Letters and digits in the picture")])
        .await;
    judge.window.block(&["*/v1/sales/*"]).await;
    judge.window.finds("#connection", "The shop does not answer").await;
    judge.judges("the shop does not answer", &[("#connection", "")]).await;
    judge.window.block(&[]).await;
    judge.ends().await;
}

/// Every code that the page explains in its own words, with these words. Only the words differ, so each is judged once.
async fn judge_refusals(judge: &mut Judge, buy: &str) {
    let note = format!("{CARD} .outcome .note");
    judge.window.run(REFUSE, &[]).await;
    for (status, code, state, words) in [
        (409, "sold_out", "open", "Sold out. If somebody"),
        (409, "purchase_limit_reached", "open", "as many as one person may have"),
        (409, "too_many_holds", "open", "too many unpaid orders"),
        (403, "banned", "open", "may not buy"),
        (403, "challenge_failed", "open", "failed too often"),
        (422, "idempotency_key_reused", "open", "Another purchase"),
        (409, "sale_not_open", "paused", "The sale is paused"),
        (409, "sale_not_open", "closed", "The sale is over"),
        (400, "invalid_request", "open", "That did not work"),
        (503, "overloaded", "open", "very busy"),
        (429, "cooling_down", "open", "there is a pause"),
        (429, "rate_limited", "open", "You ask more often"),
        // The outcome is not known, so nothing else can be bought afterwards.
        (500, "internal", "open", "whether your order went through"),
    ] {
        let refusal = json!({"status": status, "code": code, "sale_state": state, "key_has_order": false});
        judge.window.run(&format!("window.refusal = {refusal}"), &[]).await;
        judge.window.click(buy).await;
        judge.window.sees(&note, words).await;
        let found = judge.window.findings_as(Appearance::default()).await;
        judge.notes(code, found);
        if code == "banned" {
            // The buttons stay off until a reload.
            judge.window.sees(&format!("{buy}[aria-disabled=true]"), "Buy").await;
            judge.window.driver().refresh().await.unwrap();
            judge.window.sees(&format!("{buy}[aria-disabled=false]"), "Buy").await;
            judge.window.run(REFUSE, &[]).await;
        }
        if [429, 503].contains(&status) {
            judge.window.click(&format!("{CARD} .outcome button.quiet")).await;
            judge.window.misses(&note).await;
        }
    }
}

/// An instance with something in every list of the console: a sale that has sold, a draft, a guard warning, a ban, a
/// dead letter, a refund that is due. Returns it with the ids of the two sales.
async fn with_everything() -> (TestApp, String, String) {
    let settings = [
        ("FLASHSALE_DEVELOPMENT", "true"),
        ("FLASHSALE_BROWSING_ALERT_ABOVE", "1"),
    ];
    let app = TestApp::with("all", &settings).await;
    let large = json!({"name": "Autumn launch", "shards": 16, "stock": 200});
    let id = app.load_sale(&sale_with(&large)).await;
    app.buy_at_once(&id, "buyer", 40).await;
    let draft = app.create_sale(&sale_with(&json!({"name": "A draft"}))).await;
    let bot = format!("bot-{}", uuid::Uuid::new_v4());
    for _ in 0..3 {
        app.get(Who::Shopper(&bot), "/v1/sales").await.ok(200);
    }
    let ban = json!({"user": "eve", "reason": "looks too often"});
    let request = app.request(Method::POST, Who::Operator, "/v1/admin/bans");
    app.send(request.json(&ban)).await.ok(201);
    let order = app.buy("ada", &id, "k", 1).await.ok(201).id();
    assert_eq!(app.pay_with("pay_odd", &order, 1, "EUR").await, "refund_due");
    let letter = "insert into dead_letters (sale_id, shard, epoch, seq, event, reason) \
         values ($1, 0, 1, 999, 'no event', 'it cannot be read')";
    sqlx::query(letter)
        .bind(uuid::Uuid::parse_str(&id).unwrap())
        .execute(&mut app.database().await)
        .await
        .unwrap();
    (app, id, draft)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn axe_finds_nothing_in_the_console_and_the_guides() {
    let (app, id, draft) = with_everything().await;
    let stage = json!({"purchase_token": {"value": true, "percent": 10, "shadow": true}});
    let sale = format!("/v1/admin/sales/{id}");
    let amended = app.request(Method::PATCH, Who::Operator, &sale);
    app.send(amended.json(&json!({"guards": stage}))).await.ok(200);
    let mut judge = Judge::of(&app, &["400", "401", "409"]).await;
    for (path, text) in [
        ("/docs", "Flashsale API"),
        ("/problems", "Problem codes"),
        ("/problems/sold_out", "Problem codes"),
        ("/docs/alerts", "Alerts"),
    ] {
        judge.opens(path, &[("h1", text)]).await;
    }
    judge.opens("/console", &[("#sign-in h1", "Operators sign in")]).await;
    judge.window.fill("#key", "not the key of this instance").await;
    judge.window.press(Key::Enter).await;
    let refused = [("#sign-in-why", "This is not the operators’ key")];
    judge.judges("a wrong key", &refused).await;
    judge.window.fill("#key", ADMIN_KEY).await;
    judge.window.press(Key::Enter).await;
    judge.window.misses("#sign-in").await;
    let of_sale = format!("/console/sales/{id}");
    let report = [
        ("[aria-labelledby=table-reportItems] tbody", "phone"),
        ("#fairness", "the first purchase"),
    ];
    judge.opens(&format!("{of_sale}/report"), &report).await;
    let desk = Appearance {
        height: 1800,
        ..Appearance::default()
    };
    judge.window.picture_as(desk, "report.png").await;
    for (path, shown) in [
        (
            &*of_sale,
            &[
                ("#do-pause", "Pause"),
                (".unit .numbers", " held"),
                ("[aria-labelledby=table-alerts] tbody", "bot-"),
                ("[aria-labelledby=table-newestBans] tbody", "looks too often"),
                ("[aria-labelledby=table-audit-log] tbody", "Publish"),
                (".facts", "purchase token: for 10 %, in shadow"),
            ][..],
        ),
        (&format!("{of_sale}/attention"), &[("#letters tbody", "cannot be read")]),
        ("/console", &[("[aria-labelledby=table-sales] tbody", "A draft")]),
        (
            "/console?search=nothing",
            &[("#find-sale", ""), (".list.cards", "No sale fits the search")],
        ),
        ("/console/sales/new", &[("#item-0-sku", "")]),
        (&format!("/console/sales/{draft}/edit"), &[(".item", "Price: €499.00")]),
        (
            "/console/accounts",
            &[
                ("[aria-labelledby=table-alerts] tbody", "bot-"),
                ("[aria-labelledby=table-bans] tbody", "looks too often"),
            ],
        ),
        (
            "/console/orders?user=ada",
            &[("[aria-labelledby=table-orders] tbody", "ada")],
        ),
        (
            "/console/limits",
            &[("#limit-address_rate", "Requests a second of one address")],
        ),
        ("/console/shadow", &[("#view h1", "Whom shadow would have refused")]),
        ("/console/money", &[("[aria-labelledby=table-money] tbody", "pay_odd")]),
        (
            "/console/audit-log",
            &[
                ("[aria-labelledby=table-audit-log] tbody", "Create sale"),
                ("[aria-labelledby=table-sessions] tbody", "You"),
            ],
        ),
    ] {
        judge.opens(path, shown).await;
    }

    judge.window.goto(&of_sale).await;
    judge.window.sees("#do-pause", "Pause").await;
    judge.window.fill("#restock-quantity", "-1000").await;
    judge.window.does("form.panel button[type=submit]").await;
    let unfold = "document.querySelectorAll('details').forEach((it) => { it.open = true; })";
    judge.window.run(unfold, &[]).await;
    let unfolded = [("#do-close", "Close"), ("#restock-quantity-wrong:not(:empty)", "")];
    judge.judges("a restock was refused", &unfolded).await;
    for (press, question) in [
        ("#do-pause", "Pause"),
        ("#do-item", "Texts of"),
        ("#do-try", "Try a guard"),
    ] {
        judge.window.run(unfold, &[]).await;
        judge.window.click(press).await;
        judge.judges(press, &[("dialog", question)]).await;
        judge.window.press(Key::Escape).await;
        judge.window.misses("dialog").await;
    }
    for (verb, verdict) in [("pause", "PAUSED"), ("close", "Over: nobody can buy")] {
        app.operate(&id, verb).await.ok(200);
        judge.judges(verb, &[("#verdict", verdict)]).await;
    }
    let of_draft = format!("/console/sales/{draft}");
    let unpublished = [("#do-preload", ""), ("#sale-state", "Draft")];
    judge.opens(&of_draft, &unpublished).await;
    judge.window.click("#do-preload").await;
    judge
        .judges("the question before publishing", &[("#contract", "A phone")])
        .await;
    judge.window.goto("/console/sales/new").await;
    judge.window.sees("#item-0-sku", "").await;
    judge.window.click("form .actions button").await;
    let empty = [("#view h1", ""), ("#name-wrong", "Fill this in")];
    judge.judges("an empty form", &empty).await;
    judge.window.goto(&format!("/console/sales/{draft}/edit")).await;
    judge.window.sees(".item", "Price: €499.00").await;
    judge.window.fill("#guards-challenge", "captcha").await;
    judge.window.click("form .actions button").await;
    let contrary = [("#view h1", ""), ("#guards-challenge-wrong", "needs a purchase token")];
    judge.judges("guards that contradict each other", &contrary).await;
    judge.window.goto("/console/limits").await;
    judge.window.sees("#limit-address_rate", "").await;
    judge.window.click("#tryIt-address_rate").await;
    judge
        .judges("a trial of a limit", &[("dialog", "The others keep")])
        .await;
    judge.ends().await;
}
