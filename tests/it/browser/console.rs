//! Operators' work at the console.

mod drafts;

use crate::support::app::{ADMIN_KEY, Client, Instance, TestApp, Who, rfc3339, sale, sale_with};
use crate::support::poll::PATIENCE;
use crate::support::window::{Appearance, Window};
use crate::support::{poll, servers};
use chrono::{TimeDelta, Utc};
use reqwest::Method;
use serde_json::{Value, json};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use thirtyfour::Key;

const RESULT: &str = ".result";
const STREAM: &str = "#stream";
const STATE: &str = "#sale-state";
const VERDICT: &str = "#verdict";
const NEWEST_ACTION: &str = "[aria-labelledby=table-audit-log] tbody tr:first-child";
const RESTOCK: &str = "form.panel button[type=submit]";
/// The outcome of a restock, beside its fields.
const RESTOCKED: &str = "form.panel .result";
const RESTOCK_WRONG: &str = "#restock-quantity-wrong";
/// How many buy at once, and how often each of them tries at the most.
const BUYERS: usize = 8;
const TRIES_MAX: usize = 1000;

impl Window {
    /// Presses a button, and confirms.
    pub async fn does(&self, selector: &str) {
        self.click(selector).await;
        self.sees("dialog .strong", "").await;
        self.click("dialog .strong").await;
        self.misses("dialog").await;
    }

    /// Replaces the text of a field.
    pub async fn types(&self, id: &str, text: &str) {
        let script = "const node = document.getElementById(arguments[0]);
            node.value = arguments[1]; node.dispatchEvent(new Event('input', { bubbles: true }))";
        self.run(script, &[id, text]).await;
    }

    pub async fn value(&self, id: &str) -> String {
        let value = self
            .run("return document.getElementById(arguments[0]).value", &[id])
            .await;
        value.as_str().unwrap().to_owned()
    }

    /// Waits until a field has this text.
    pub async fn holds(&self, id: &str, text: &str) {
        let script = "return document.getElementById(arguments[0])?.value ?? null";
        poll::within(PATIENCE, &format!("#{id} has the text {text:?}"), async || {
            self.run(script, &[id]).await == text
        })
        .await;
    }

    /// Whether all of it can be seen without scrolling.
    async fn is_in_view(&self, selector: &str) -> bool {
        let script = "const box = document.querySelector(arguments[0]).getBoundingClientRect();
            return box.height > 0 && box.top >= 0 && box.bottom <= window.innerHeight";
        self.run(script, &[selector]).await == true
    }

    /// The number in a tile, by its title, also while the tile is folded away.
    async fn tile(&self, title: &str) -> String {
        let script = "const all = [...document.querySelectorAll('.tile')];
            return all.find((it) => it.textContent.startsWith(arguments[0]))?.querySelector('dd').textContent ?? ''";
        self.run(script, &[title]).await.as_str().unwrap().to_owned()
    }

    pub async fn sees_tile(&self, title: &str, is_right: impl Fn(&str) -> bool) {
        let patience = Duration::from_secs(20);
        poll::within(patience, &format!("the tile {title} is right"), async || {
            is_right(&self.tile(title).await)
        })
        .await;
    }

    /// Types a whole new sale with one item.
    async fn types_sale(&self, name: &str, starts_in: TimeDelta) {
        let local = "const at = new Date(arguments[0]); const two = (n) => String(n).padStart(2, '0');
            return `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())}T` +
                `${two(at.getHours())}:${two(at.getMinutes())}:${two(at.getSeconds())}`";
        for (id, at) in [("starts_at", starts_in), ("ends_at", starts_in + TimeDelta::hours(1))] {
            let text = self.run(local, &[&rfc3339(Utc::now() + at)]).await;
            self.types(id, text.as_str().unwrap()).await;
        }
        for (id, text) in [
            ("name", name),
            ("purchase_rate-limit", "1000"),
            ("item-0-sku", "phone"),
            ("item-0-name", "Aurora headphones"),
            ("item-0-price_minor", "499.00"),
            ("item-0-stock", "400"),
            ("item-0-per_user_limit", "2"),
        ] {
            self.types(id, text).await;
        }
    }
}

/// Shoppers who buy, several at once, until they are stopped; each returns the number of units.
fn crowd(client: &Client, sale: &str, stop: &Arc<AtomicBool>) -> tokio::task::JoinSet<i64> {
    let mut buyers = tokio::task::JoinSet::new();
    for buyer in 0..BUYERS {
        let (client, sale, stop) = (client.clone(), sale.to_owned(), Arc::clone(stop));
        buyers.spawn(async move {
            let mut got = 0;
            for number in (buyer..BUYERS * TRIES_MAX).step_by(BUYERS) {
                if stop.load(Ordering::Relaxed) {
                    break;
                }
                let answer = client
                    .buy(&format!("shopper-{}", number % 150), &sale, &format!("k{number}"), 1)
                    .await;
                got += i64::from(answer.status == 201);
                // Slowly, so that the tiles of each second are seen before all is sold.
                poll::pass(Duration::from_millis(600)).await;
            }
            got
        });
    }
    buyers
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_operator_creates_a_sale_and_sees_it_through_to_its_end() {
    let app = TestApp::start().await;
    let tall = Appearance {
        width: 1200,
        height: 1400,
        ..Appearance::default()
    };
    // A request in flight during the sign-out is answered 401.
    let window = Window::with(&app, tall).await.expect(&["409", "401"]);
    window.open_console("/console").await;
    window.sees("#view", "There are no sales yet").await;
    window.click(".head a").await;
    window.sees("#view h1", "New sale").await;
    window.types_sale("Autumn launch", TimeDelta::minutes(30)).await;
    window.sees(".item", "Price: €499.00").await;
    window.click("form .actions button").await;
    window.sees(STATE, "Draft").await;
    window.sees("#sale-name", "Autumn launch").await;
    let id = app.get(Who::Operator, "/v1/admin/sales").await.ok(200).body["data"][0]["id"].clone();
    let id = id.as_str().unwrap().to_owned();
    // It may still be changed.
    window.click("#actions a").await;
    window.sees("#view h1", "Edit draft").await;
    window.sees(".item", "Price: €499.00").await;
    window.types("item-0-stock", "120").await;
    window.click("form .actions button").await;
    window.sees(STREAM, "up to date").await;
    window.sees(".unit .numbers", "120 in all").await;

    // The question is the contract. Cancelling it changes nothing.
    window.click("#do-preload").await;
    window
        .sees(
            "#contract",
            "120 × Aurora headphones (phone) at €499.00. At most 2 per person",
        )
        .await;
    window.sees("#contract", "Time to pay: 15 min.").await;
    window.misses("#contract .warning").await;
    window.press(Key::Escape).await;
    window.misses("dialog").await;
    assert_eq!(app.admin(&id, "").await.ok(200).body["state"], "draft");
    window.does("#do-preload").await;
    window.sees(RESULT, "The stock is loaded").await;
    window.sees(STATE, "Scheduled").await;
    window.sees("#sale-until", "Starts in").await;
    window.sees(NEWEST_ACTION, "Publish").await;
    window.does("#do-open").await;
    window.sees(NEWEST_ACTION, "Open").await;
    window.sees(RESULT, "The sale is open").await;
    window.sees(STATE, "Open").await;

    window.sees(VERDICT, "Nobody is buying now").await;
    window.sees("#system summary", "all well").await;
    window.misses("#system .tiles").await;

    let stop = Arc::new(AtomicBool::new(false));
    let shoppers = crowd(&app, &id, &stop);
    window.sees(".unit .numbers", " held").await;
    window.sees(VERDICT, "Selling normally.").await;
    window
        .sees_tile("Accepted a second", |text| text.parse::<i64>().is_ok_and(|it| it > 0))
        .await;
    window
        .sees_tile("Reserved orders", |text| text.parse::<i64>().is_ok_and(|it| it > 10))
        .await;
    window.sees_tile("99 % answered", |text| text.ends_with(" ms")).await;
    window.sees_tile("Reserved orders", |text| text == "120").await;
    window.sees(".unit .numbers", "0 available · 120 held").await;
    window
        .sees(
            VERDICT,
            "Everything is taken: 120 units are held unpaid and may come back.",
        )
        .await;
    window
        .sees(VERDICT, "All units of Aurora headphones were taken at")
        .await;
    window.sees(".unit h3", "Aurora headphones · phone").await;
    window.sees(".unit .large", "reserved: €59,880.00").await;
    window.sees("#taken", "Taken: €0.00. Reserved: €59,880.00.").await;
    window
        .sees_tile("Refused a second", |text| text.parse::<i64>().is_ok_and(|it| it > 0))
        .await;
    window.sees(".plot:nth-child(2) .legend", "sold out").await;
    let lines = "return [...document.querySelectorAll('.plot .line')].filter((it) => it.getAttribute('d').includes('L')).length";
    poll::within(PATIENCE, "the plots have lines", async || {
        window.run(lines, &[]).await.as_i64().unwrap() >= 3
    })
    .await;
    window.picture("console.png").await;

    window.does("#do-pause").await;
    window.sees(RESULT, "The sale is paused").await;
    window.sees(STATE, "Paused").await;
    window.sees(VERDICT, "PAUSED for 0:").await;
    window.sees(NEWEST_ACTION, "Pause").await;
    stop.store(true, Ordering::Relaxed);
    assert_eq!(shoppers.join_all().await.into_iter().sum::<i64>(), 120);
    window.fill("#restock-quantity", "30").await;
    window.does(RESTOCK).await;
    window.sees(RESTOCKED, "30 units of phone were added").await;
    window.sees(NEWEST_ACTION, "Restock").await;
    assert!(window.is_in_view(RESTOCKED).await);
    window.sees(".unit .numbers", "30 available").await;
    window.fill("#restock-quantity", "-31").await;
    window.click(RESTOCK).await;
    window.sees("dialog .strong", "Take back").await;
    window.click("dialog .strong").await;
    window.misses("dialog").await;
    window.sees(RESTOCK_WRONG, "Only 30 units are free.").await;
    window.misses(RESTOCKED).await;
    assert!(window.is_in_view(RESTOCK_WRONG).await);
    assert_eq!(
        window.run("return document.activeElement.id", &[]).await,
        "restock-quantity"
    );
    window.click("#audit").await;
    window.sees(".note.is-good", "all 150 units are accounted for").await;
    // What is said of an earlier action goes with the next one.
    window.sees(RESTOCK_WRONG, "Only 30 units are free.").await;
    window.does("#do-resume").await;
    window.sees(RESULT, "goes on").await;
    window.sees(NEWEST_ACTION, "Resume").await;
    window.misses(RESTOCK_WRONG).await;
    // What cannot be taken back is out of the way.
    window.misses("#do-close").await;
    window.misses("#do-rebuild").await;
    window.click("#further summary").await;
    window.click("#do-rebuild").await;
    window.sees("dialog", "It is needed only after a loss").await;
    window.click("dialog .strong.danger").await;
    window.misses("dialog").await;
    window.sees(RESULT, "The stock was rebuilt").await;
    window.sees(NEWEST_ACTION, "Rebuild").await;
    window.click("#further summary").await;
    window.does("#do-close").await;
    window.sees(RESULT, "The sale is closed").await;
    window.sees(NEWEST_ACTION, "Close").await;
    window.sees(STATE, "Closed").await;
    window.sees(VERDICT, "Over: nobody can buy any more").await;
    window.click("#further summary").await;
    window.misses("#do-close").await;
    // Also a sale that is over may have lost its Redis.
    window.sees("#do-rebuild", "Rebuild").await;
    window.sees("#actions a", "Shop page").await;

    window.click("#nav a[href='/console/audit-log']").await;
    window.sees("#view h1", "Audit log").await;
    for action in [
        "Create sale",
        "Change sale",
        "Publish",
        "Open",
        "Pause",
        "Restock",
        "Refused: There are not that many free units.",
        "Close",
        "Sign in",
    ] {
        window.sees("#view tbody", action).await;
    }
    window.click("#sign-out").await;
    window.sees("#sign-in-why", "signed out").await;
    window.misses("#view").await;
    let request = app.request(Method::GET, Who::Nobody, "/v1/admin/session");
    assert_eq!(app.send(request).await.ok(200).body["signed_in"], false);
    window.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn durations_are_typed_as_people_write_them() {
    let app = TestApp::start_api_only().await;
    let window = Window::open(&app).await;
    window.open_console("/console/sales/new").await;
    window.types_sale("Winter", TimeDelta::minutes(30)).await;
    window.holds("payment_window_seconds", "15 min").await;
    window.holds("purchase_rate-window_ms", "1 min").await;
    // A number alone could mean seconds or minutes.
    for wrong in ["900", "1 h 30", "1.5 h", "-1 s", "500 ms", "0", "2 d", "soon"] {
        window.types("payment_window_seconds", wrong).await;
        window.click("form .actions button").await;
        window
            .sees(
                "#payment_window_seconds-wrong",
                "such as 1 h 30 min or 90 s, from 1 s to 1 d",
            )
            .await;
    }
    // The command line reads the same texts.
    let unlike = "const { milliseconds, refused } = JSON.parse(arguments[0]);
        return import(new URL('console-duration.js', document.querySelector('script[type=module]').src)).then(({ durationOf }) => [
            ...Object.keys(milliseconds).filter((text) => durationOf(text) !== milliseconds[text]),
            ...refused.filter((text) => durationOf(text) !== null),
        ])";
    let texts = include_str!("../../durations.json");
    assert_eq!(window.run(unlike, &[texts]).await, json!([]));
    window.types("payment_window_seconds", "1h30m").await;
    window.types("purchase_rate-window_ms", "1 s 500 ms").await;
    window.types("guards-unpaid_cooldown_seconds", "5 min").await;
    window.click("form .actions button").await;
    window.sees(STATE, "Draft").await;
    let made = app.get(Who::Operator, "/v1/admin/sales").await.ok(200).body["data"][0].clone();
    assert_eq!(made["payment_window_seconds"], 5400);
    assert_eq!(made["purchase_rate"]["window_ms"], 1500);
    assert_eq!(made["guards"]["unpaid_cooldown_seconds"], 300);
    for text in ["1 h 30 min", "a pause of 5 min after an unpaid order"] {
        window.sees(".facts", text).await;
    }
    window.click("#actions a").await;
    window.holds("payment_window_seconds", "1 h 30 min").await;
    window.holds("guards-unpaid_cooldown_seconds", "5 min").await;
    // Words of each language are read, whatever that of the page.
    window.change_language("zh-CN").await;
    window.sees("#view h1", "编辑草稿").await;
    window.types("payment_window_seconds", "15 分钟").await;
    window.types("purchase_rate-window_ms", "1小时30分钟").await;
    window.click("form .actions button").await;
    for text in ["付款时限 15 分钟", "每段时长 1 小时 30 分钟", "未付款后冷却 5 分钟"] {
        window.sees(".facts", text).await;
    }
    window.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_list_of_sales_is_the_overview_of_the_day() {
    let app = TestApp::start().await;
    let named = |name: &str| sale_with(&json!({ "name": name }));
    let mut later = named("Next");
    later["starts_at"] = json!(rfc3339(Utc::now() + TimeDelta::minutes(30)));
    let over = app.load_sale(&named("Done")).await;
    app.operate(&over, "close").await.ok(200);
    app.create_sale(&named("Sketch")).await;
    app.load_sale(&later).await;
    let id = app.load_sale(&named("Selling")).await;
    let order = app.buy("ada", &id, "k", 3).await.ok(201);
    assert_eq!(app.pay_with("pay_odd", &order.id(), 1, "EUR").await, "refund_due");
    let window = Window::with(&app, Appearance::default()).await;
    window.open_console("/console").await;
    let row = format!("tr:has(a[href='/console/sales/{id}'])");
    window.sees(&row, "70 %").await;
    window.sees(&row, "Ends in").await;
    window.sees(&format!("{row} a.due[href*=refund_due]"), "1").await;
    // A column without a value is not there, and the times have the same form on every day.
    window.misses("[aria-labelledby=table-sales] th:nth-child(6)").await;
    window
        .sees("[aria-labelledby=table-sales] th:nth-child(7)", "Refunds due")
        .await;
    let year = &rfc3339(Utc::now())[..4];
    for time in ["8", "9"] {
        window.sees(&format!("{row} td:nth-child({time})"), year).await;
    }
    let lines = format!("return document.querySelector(\"{row} td:nth-child(3) span\").getClientRects().length");
    assert_eq!(window.run(&lines, &[]).await, 1);
    let texts =
        "return [...document.querySelectorAll('#view tbody tr')].map((it) => it.querySelector('th, a').textContent)";
    assert_eq!(
        window.run(texts, &[]).await,
        json!(["On now", "Selling", "Next", "Next", "Drafts", "Sketch", "Over", "Done"])
    );
    // Units that are held may come back.
    let mut orders = vec![order.body];
    for (user, units) in [("bob", 5), ("cyd", 2)] {
        orders.push(app.buy(user, &id, "k", units).await.ok(201).body);
    }
    window.sees(&row, "All held").await;
    for (number, order) in orders.iter().enumerate() {
        assert_eq!(app.pay(&format!("pay_{number}"), order).await, "applied");
    }
    window.sees(&row, "Sold out").await;
    // Money that is owed back is seen from every page.
    window.goto("/console/limits").await;
    let badge = "return document.querySelector('#nav a[href=\"/console/money\"]').dataset.badge ?? ''";
    poll::within(PATIENCE, "the badge counts it", async || {
        window.run(badge, &[]).await == "1"
    })
    .await;
    // What needs attention, and how fast orders come.
    let letter = "insert into dead_letters (sale_id, shard, epoch, seq, event, reason) \
         values ($1, 0, 1, 999, 'no event', 'it cannot be read')";
    sqlx::query(letter)
        .bind(uuid::Uuid::parse_str(&id).unwrap())
        .execute(&mut app.database().await)
        .await
        .unwrap();
    app.restock(&id, "more", "phone", 10_000).await.ok(200);
    app.wait_for_units(&id, [10_000, 0, 10]).await;
    window.goto("/console").await;
    window
        .sees(&format!("{row} a.due[href='/console/sales/{id}']"), "1")
        .await;
    let columns = [(5, "Orders a second"), (6, "Needs attention")];
    for (column, name) in columns {
        let heading = format!("[aria-labelledby=table-sales] th:nth-child({column})");
        window.sees(&heading, name).await;
    }
    let mut buyers = 0;
    poll::within(PATIENCE, "the list shows orders a second", async || {
        buyers += 1;
        app.buy(&format!("buyer-{buyers}"), &id, "k", 1).await.ok(201);
        let pace = window.text(&format!("{row} td:nth-child(5)")).await;
        pace.is_some_and(|pace| pace.parse::<f64>().is_ok_and(|pace| pace > 0.0))
    })
    .await;
    window.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sale_that_the_list_has_not_read_is_found_and_an_empty_search_leads_back() {
    let app = TestApp::start_api_only().await;
    let named = |name: &str, sku: &str| sale_with(&json!({"name": name, "sku": sku}));
    let old = app.create_sale(&named("Autumn launch", "shirt-m")).await;
    // As many as the list reads at first.
    for _ in 0..50 {
        app.create_sale(&named("Filler", "phone")).await;
    }
    let window = Window::open(&app).await;
    window.open_console("/console").await;
    let found = format!("#view tbody a[href='/console/sales/{old}']");
    let has_rows = async |count: usize| {
        let rows = "return document.querySelectorAll('#view tbody tr:not(.group)').length";
        poll::within(PATIENCE, &format!("{count} sales are listed"), async || {
            window.run(rows, &[]).await == json!(count)
        })
        .await;
    };
    has_rows(50).await;
    window.misses(&found).await;
    window.misses("[role=search] button:not([type=submit])").await;
    let names = window.accessible_names().await;
    assert!(
        names["search"].len() == 1
            && names["textbox"] == ["Name of the sale or of an item, SKU, or beginning of the id"],
        "{names:?}"
    );
    for search in ["autumn", "SHIRT", &old] {
        window.fill("#find-sale", search).await;
        window.press(Key::Enter).await;
        window.sees(&found, "Autumn launch").await;
        has_rows(1).await;
        window.sees("[role=search]", "All sales").await;
    }
    // A screen reader hears of the result, and the address has the search.
    let live = "return document.getElementById('live').textContent";
    poll::within(PATIENCE, "the result is announced", async || {
        window.run(live, &[]).await == "One sale is listed."
    })
    .await;
    window.driver().refresh().await.unwrap();
    window.holds("find-sale", &old).await;
    window.sees(&found, "Autumn launch").await;
    has_rows(1).await;

    window.fill("#find-sale", "spring & summer").await;
    window.press(Key::Enter).await;
    window.sees("#view .list", "No sale fits the search.").await;
    has_rows(0).await;
    assert_eq!(
        window.run("return location.search", &[]).await,
        "?search=spring+%26+summer"
    );
    window.change_language("zh-CN").await;
    window.sees("#view .list", "没有符合搜索的活动").await;
    window.sees("[role=search]", "全部活动").await;
    window.change_language("en").await;
    // The way back, by the keyboard alone.
    window.fill("#find-sale", "spring").await;
    for _ in 0..2 {
        window.press(Key::Tab).await;
    }
    window.press(Key::Enter).await;
    has_rows(50).await;
    window.holds("find-sale", "").await;
    assert_eq!(window.focus().await, "input#find-sale.");
    assert_eq!(window.run("return location.search", &[]).await, "");
    // The browser's Back leads through the searches.
    for (search, rows) in [("spring & summer", 0), (&*old, 1)] {
        window.driver().back().await.unwrap();
        window.holds("find-sale", search).await;
        has_rows(rows).await;
    }
    window.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sale_can_be_paused_from_anywhere_on_its_page() {
    let app = TestApp::shared().await;
    let id = app.load_sale(&sale()).await;
    for width in [360, 1000] {
        let appearance = Appearance {
            width,
            ..Appearance::default()
        };
        let window = Window::with(&app, appearance).await;
        window.open_console(&format!("/console/sales/{id}")).await;
        window.sees("#do-pause", "Pause").await;
        window.sees(".facts", "phone").await;
        window
            .run("scrollTo(0, document.documentElement.scrollHeight)", &[])
            .await;
        assert!(window.run("return scrollY", &[]).await.as_f64().unwrap() > 500.0);
        assert!(window.is_in_view("#do-pause").await && window.is_in_view(STATE).await);
        window.click("#do-pause").await;
        // Danger has another colour than the safe way on.
        window.sees("dialog .strong.danger", "Pause").await;
        let colour = "return getComputedStyle(document.querySelector(arguments[0])).backgroundColor";
        let danger = window.run(colour, &["dialog .strong"]).await;
        window.click("dialog .strong").await;
        window.sees("#do-resume", "Resume").await;
        assert_ne!(window.run(colour, &["#do-resume"]).await, danger);
        window.does("#do-resume").await;
        window.sees(STATE, "Open").await;
        window.close().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_live_page_outlives_its_server_and_says_so() {
    let address = format!("127.0.0.1:{}", servers::free_port());
    let mut app = TestApp::with("all", &[("FLASHSALE_LISTEN", &*address)]).await;
    let id = app.load_sale(&sale()).await;
    let window = Window::open(&app).await.expect(&["ERR", "503"]);
    window.open_console(&format!("/console/sales/{id}")).await;
    window.sees(STREAM, "up to date").await;
    window.sees(".unit .numbers", "10 available").await;
    app.instance.kill();
    window.sees(".stream.is-lost", "Numbers are old since").await;
    // The last known data are still visible.
    window.sees(".unit .numbers", "10 available").await;
    window.does("#do-pause").await;
    window.sees(RESULT, "It is not known whether that worked").await;
    app.instance = Instance::start(&app.environment, "all");
    window.sees(STREAM, "up to date").await;
    app.buy("ada", &id, "k", 3).await.ok(201);
    window.sees(".unit .numbers", "7 available · 3 held").await;
    window.does("#do-pause").await;
    window.sees(STATE, "Paused").await;
    window.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_live_feed_is_shown_as_full_and_not_as_a_lost_connection() {
    let app = TestApp::start().await;
    let id = app.load_sale(&sale()).await;
    let path = format!("/v1/admin/sales/{id}/live");
    let mut viewers = Vec::new();
    for _ in 0..64 {
        let viewer = app.request(Method::GET, Who::Operator, &path).send().await.unwrap();
        assert_eq!(viewer.status().as_u16(), 200);
        viewers.push(viewer);
    }
    let window = Window::open(&app).await.expect(&["503"]);
    window.open_console(&format!("/console/sales/{id}")).await;
    window.sees(STREAM, "There is no live view now").await;
    window
        .sees(&format!("{STREAM} [lang=en]"), "64 viewers at the most")
        .await;
    window.change_language("zh-CN").await;
    window.sees(STREAM, "目前无法实时查看").await;
    drop(viewers);
    window.sees(STREAM, "数字为最新").await;
    window.misses(&format!("{STREAM} [lang=en]")).await;
    window.sees(".unit .numbers", "可售 10").await;
    window.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_audit_log_shows_terms_and_requests_in_words() {
    let app = TestApp::start().await;
    let id = app.create_sale(&sale()).await;
    let guards = json!({"purchase_token": true, "challenge": "captcha", "captcha_proof_cost": 500, "holds_max": 3});
    let changed = sale_with(&json!({"guards": guards, "stock": 25}));
    let request = app.request(Method::PUT, Who::Operator, &format!("/v1/admin/sales/{id}"));
    app.send(request.json(&changed)).await.ok(200);
    let plain = app.create_sale(&sale()).await;
    let proof = json!({"purchase_token": true, "challenge": "proof_of_work"});
    app.create_sale(&sale_with(&json!({"guards": proof}))).await;
    let limits = app.request(Method::PATCH, Who::Operator, "/v1/admin/guards");
    app.send(limits.json(&json!({"browsing_ban_seconds": 129_600})))
        .await
        .ok(200);
    let stranger = app.request(Method::POST, Who::Nobody, "/v1/admin/session");
    app.send(stranger.json(&json!({"key": "not the key of operators"})))
        .await
        .no(401, "unauthenticated");
    let orders = format!("/v1/admin/orders?sale_id={id}&state=paid&from=2026-02-01T00:00:00Z");
    let export = app
        .request(Method::GET, Who::Operator, &orders)
        .header("Accept", "text/csv");
    assert_eq!(export.send().await.unwrap().status(), 200);
    let order = uuid::Uuid::new_v4().to_string();
    app.get(Who::Operator, &format!("/v1/admin/orders/{order}"))
        .await
        .no(404, "not_found");
    let window = Window::open(&app).await;
    window.open_console(&format!("/console/sales/{id}")).await;
    let on = "a purchase token is asked for, it is given out for a captcha, \
              or for a proof of work that costs 500, an account has 3 unpaid orders at the most";
    window.sees(".facts", on).await;
    for text in [
        "Change sale",
        on,
        "phone: A phone, €499.00, stock 25, At most 5 per person",
        "Requests of one shopper: 1000 in 1 min",
    ] {
        window.sees(NEWEST_ACTION, text).await;
    }
    let on = "要求购买令牌，通过图片验证码发放令牌";
    window.change_language("zh-CN").await;
    window.sees(".facts", on).await;
    window.sees(NEWEST_ACTION, on).await;
    window.sees(NEWEST_ACTION, "库存 25").await;
    for raw in ["false", "holds_max", "purchase_rate", "undefined"] {
        let text = window.text("#view").await.unwrap();
        assert!(!text.contains(raw), "{raw}: {text}");
    }
    window.goto(&format!("/console/sales/{plain}")).await;
    window.sees(".facts", "防护 无").await;
    window.goto("/console/audit-log").await;
    for text in [
        "通过难度为 配置值 的工作量证明发放令牌",
        "此类封禁的时长：1 天 12 小时",
        "未登录",
        "被拒绝：密钥错误",
        &format!("订单编号：{order}"),
    ] {
        window.sees("#view tbody", text).await;
    }
    // An export says so, and which sale it is about.
    let exports =
        "return [...document.querySelectorAll('#view tbody tr')].filter((it) => it.textContent.includes('导出订单'))
        .map((it) => [it.querySelector('a').getAttribute('href'), it.querySelector('.small').textContent])";
    let exports = window.run(exports, &[]).await;
    assert_eq!(exports[0][0], format!("/console/sales/{id}"));
    let asked = exports[0][1].as_str().unwrap();
    assert!(
        asked.contains("订单状态：已付款") && asked.contains("从：2026年"),
        "{asked}"
    );
    for raw in ["accept", "csv", "sale_id", "from"] {
        assert!(!asked.contains(raw), "{raw}: {asked}");
    }
    window.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refusal_is_shown_in_the_language_of_the_page() {
    let app = TestApp::start().await;
    let id = app.load_sale(&sale()).await;
    let chinese = Appearance {
        language: "zh-CN",
        ..Appearance::default()
    };
    let window = Window::with(&app, chinese).await.expect(&["400", "401", "409"]);
    window.goto("/console/accounts").await;
    window.sees("#sign-in h1", "运营人员登录").await;
    window.fill("#key", ADMIN_KEY).await;
    window.press(Key::Enter).await;
    window.misses("#sign-in").await;
    // The meaning of the code; and the API's own detail, which names the field, in English.
    window.fill("#ban-user", &"bot".repeat(50)).await;
    window.fill("#ban-reason", "resells").await;
    window.does("form.panel button").await;
    window.sees("#ban-user-wrong", "请求无效。").await;
    window.sees("#ban-user-wrong [lang=en]", "user").await;
    window.goto(&format!("/console/sales/{id}")).await;
    window.sees(STATE, "进行中").await;
    window.click("#system summary").await;
    window.sees("#instances", "1 / 1").await;
    window.fill("#restock-quantity", "-11").await;
    window.does(RESTOCK).await;
    window.sees(RESTOCK_WRONG, "可售数量不足，目前只有 10 件。").await;
    window.change_language("en").await;
    window.sees("#instances", "1 of 1").await;
    window.does(RESTOCK).await;
    poll::within(PATIENCE, "it is said in English alone", async || {
        let all = window.text(RESTOCK_WRONG).await.unwrap_or_default();
        all.contains("free") && all.is_ascii()
    })
    .await;
    // The form finds what is wrong in its own fields. What only the server finds is said in the page's words, too.
    window.goto("/console/sales/new").await;
    window.sees("#view h1", "New sale").await;
    window.change_language("zh-CN").await;
    window.sees("#view h1", "新建活动").await;
    window.types_sale("双十一", TimeDelta::minutes(30)).await;
    let starts_at = window.value("starts_at").await;
    let ends_at = window.value("ends_at").await;
    window.types("ends_at", &starts_at).await;
    window.types("item-0-sku", "two words").await;
    window.fill("#guards-challenge", "图片验证码").await;
    window.click("form .actions button").await;
    for (field, right, said) in [
        ("item-0-sku", "phone", "须为 1 到 64 个字母"),
        ("guards-challenge", "none", "验证用于发放购买令牌"),
    ] {
        window.sees("form .errors", said).await;
        window.sees(&format!("#{field}-wrong"), said).await;
        window.types(field, right).await;
    }
    window.click("form .actions button").await;
    window.sees("#ends_at-wrong", "须晚于开始时间").await;
    window.misses("#ends_at-wrong [lang=en]").await;
    window.types("ends_at", &ends_at).await;
    window.change_language("en").await;
    window.goto(&format!("/console/sales/{id}")).await;
    window.sees(STATE, "Open").await;
    // A payment has a state, too: another operator has settled it.
    let order = app.buy("ada", &id, "k", 1).await.ok(201).id();
    assert_eq!(app.pay_with("pay_odd", &order, 1, "EUR").await, "refund_due");
    window.goto("/console/money").await;
    window.sees("#view tbody", "pay_odd").await;
    window.change_language("zh-CN").await;
    window.click("#view tbody td:last-child button").await;
    window.fill("#refund-reference", "re_2").await;
    let request = app.request(Method::POST, Who::Operator, "/v1/admin/payments/settle");
    let settled = json!({"payment_id": "pay_odd", "reference": "re_1"});
    app.send(request.json(&settled)).await.ok(200);
    window.click("dialog .strong").await;
    window.sees(RESULT, "目前的状态不允许此操作。").await;
    window.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn money_that_is_owed_back_is_seen_from_the_sale() {
    let app = TestApp::start().await;
    let id = app.load_sale(&sale()).await;
    let order = app.buy("ada", &id, "k", 1).await.ok(201).body;
    assert_eq!(
        app.pay_with("pay_odd", order["id"].as_str().unwrap(), 1, "EUR").await,
        "refund_due"
    );
    let window = Window::open(&app).await.expect(&["ERR"]);
    window.open_console(&format!("/console/sales/{id}")).await;
    window.sees("#trouble-refunds", "Refunds due: 1.").await;
    // What an operator does about it stands in the runbook, which the program serves.
    let runbook = "#trouble-refunds a[href='/docs/alerts#flashsalerefundsdue']";
    window.sees(runbook, "What to do").await;
    window.click(runbook).await;
    window.sees("#flashsalerefundsdue", "FlashsaleRefundsDue").await;
    window.goto(&format!("/console/sales/{id}")).await;
    window.sees("#trouble-refunds", "Refunds due: 1.").await;
    window.click("#trouble-refunds a").await;
    window.sees("#view h1", "Money").await;
    window.sees("#view tbody", "pay_odd").await;
    window.sees("#view tbody", "€0.01").await;
    window.sees("#view tbody", "the order costs €499.00").await;
    // A cancelled dialog does nothing, and neither does an empty reference.
    let settle = "#view tbody td:last-child button";
    window.click(settle).await;
    window.sees("dialog h2", "Was €0.01 paid back?").await;
    assert_eq!(
        window.run("return document.activeElement.id", &[]).await,
        "refund-reference"
    );
    window.click("dialog .strong").await;
    window.sees("#refund-reference-wrong", "Fill this in").await;
    window.press(Key::Escape).await;
    window.misses("dialog").await;
    // Typed text survives a lost answer.
    window.block(&["*/payments/settle"]).await;
    window.click(settle).await;
    window.fill("#refund-reference", "re_<b>1</b>").await;
    window.click("dialog .strong").await;
    window.sees(RESULT, "It is not known whether that worked").await;
    window.block(&[]).await;
    window.driver().refresh().await.unwrap();
    window.sees("#view tbody", "pay_odd").await;
    window.click(settle).await;
    window.holds("refund-reference", "re_<b>1</b>").await;
    window.press(Key::Enter).await;
    window.sees(RESULT, "pay_odd was paid back as re_<b>1</b>").await;
    window.sees("#view .list", "There are none").await;
    let due = async || app.stats(&id).await["alerts"]["refunds_due"].clone();
    assert_eq!(due().await, 0);
    window.fill("#settled", "paid back").await;
    window.sees("#view tbody", "re_<b>1</b>").await;
    window.misses(settle).await;
    // A payment that is not owed back can be shown as well, and cannot be settled.
    assert_eq!(app.pay("pay_right", &order).await, "applied");
    window.fill("#outcome", "applied").await;
    window.sees("#view tbody", "pay_right").await;
    window.misses("#settled").await;
    window.misses(settle).await;
    window.goto("/console/audit-log").await;
    window.sees("#view tbody", "Settle refund").await;
    window.sees("#view tbody", "re_<b>1</b>").await;
    window.goto(&format!("/console/sales/{id}")).await;
    window.sees_tile("Paid orders", |text| text == "1").await;
    window.misses("#trouble-refunds").await;
    window.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn names_from_outside_are_text_in_the_console_too() {
    let app = TestApp::start().await;
    let hostile = "<script>window.hurt = 1</script><img src=x onerror='window.hurt = 1'>";
    let mut sale = sale_with(&json!({"name": hostile}));
    sale["items"][0]["name"] = json!(format!("{hostile}&amp;"));
    let id = app.load_sale(&sale).await;
    app.pay_with("<img src=x onerror='hurt = 1'>", hostile, 1, "<b>").await;
    let window = Window::open(&app).await;
    window.open_console("/console").await;
    window.sees("#view tbody", hostile).await;
    window.goto(&format!("/console/sales/{id}")).await;
    window.sees("#sale-name", hostile).await;
    window.sees(".facts", hostile).await;
    window.click("#do-pause").await;
    window.sees("dialog h2", hostile).await;
    window.press(Key::Escape).await;
    window.goto("/console/audit-log").await;
    window.sees("#view tbody", hostile).await;
    window.goto("/console/money?outcome=unmatched").await;
    window.sees("#view tbody", hostile).await;
    let hurt = "return window.hurt ?? document.querySelectorAll('main script, main img, td > b').length";
    assert_eq!(window.run(hurt, &[]).await, json!(0));
    window.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_operator_ends_the_session_of_another() {
    let app = TestApp::start_api_only().await;
    let body = json!({"key": ADMIN_KEY, "name": "<b>bob</b>"});
    let lost = app.request(Method::POST, Who::Nobody, "/v1/admin/session").json(&body);
    app.send(lost).await.ok(201);
    let window = Window::open(&app).await;
    window.open_console("/console/audit-log").await;
    let sessions = "[aria-labelledby=table-sessions] tbody";
    window.sees(sessions, "<b>bob</b>").await;
    // Its own session has no button.
    window.sees(&format!("{sessions} tr:first-child"), "You").await;
    let buttons = format!("return document.querySelectorAll('{sessions} button').length");
    assert_eq!(window.run(&buttons, &[]).await, 1);
    window.click(&format!("{sessions} button")).await;
    window.sees("dialog h2", "End the session of <b>bob</b>?").await;
    window.click("dialog .strong").await;
    window.sees("section .result", "The session has ended").await;
    poll::within(PATIENCE, "one session is left", async || {
        window.run(&buttons, &[]).await == 0
    })
    .await;
    window
        .sees("[aria-labelledby=table-audit-log] tbody", "End session")
        .await;
    // It is found by its time, by the address too, and saved as a table.
    window.types("find-to", "2020-01-01T00:00:00").await;
    window.click("#view form.panel .strong").await;
    window.sees("#view .list", "There are none").await;
    window.driver().refresh().await.unwrap();
    window.sees("#view .list", "There are none").await;
    window.types("find-to", "").await;
    window.types("find-from", "2020-01-01T00:00:00").await;
    window.click("#view form.panel .strong").await;
    window
        .sees("[aria-labelledby=table-audit-log] tbody", "End session")
        .await;
    let table = window.saves("#download", "audit-log.csv").await;
    assert!(table.contains(",sessions.end,"), "{table}");
    window.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_operator_sees_no_control_that_the_role_of_the_key_refuses() {
    let (view, run) = ("9b74c9897bac770ffc029102a200c5de", "c4ca4238a0b923820dcc509a6f75849b");
    let keys = format!("ada:view:{view},bob:run:{run}");
    let app = TestApp::with("api", &[("FLASHSALE_OPERATOR_KEYS", &keys)]).await;
    let id = app.load_sale(&sale()).await;
    let draft = app.create_sale(&sale()).await;
    let [page, draft] = [id, draft].map(|sale| format!("/console/sales/{sale}"));
    let controls = "return [...document.querySelectorAll('#view button, #view a.button')]
        .filter((it) => it.checkVisibility()).map((it) => it.textContent)";
    let window = Window::with(&app, Appearance::default()).await;
    window.open_console_with(&page, view).await;
    window.sees("#acting", "ada").await;
    window.sees("#role", "only reads").await;
    window.sees(STATE, "Open").await;
    let reads = ["Shop page", "Report of the whole sale", "Count every unit"];
    assert_eq!(window.run(controls, &[]).await, json!(reads));
    for (path, part, loaded, reads) in [
        ("/console", "#view tbody", "Draft", &["Look up"][..]),
        ("/console/limits", "#limit-address_rate", "address_rate", &[]),
        (draft.as_str(), STATE, "Draft", &["Preview"]),
        ("/console/sales/new", ".denied", "Your key does not allow this", &[]),
    ] {
        window.goto(path).await;
        window.sees(part, loaded).await;
        assert_eq!(window.run(controls, &[]).await, json!(reads), "{path}");
    }
    // A column that would hold controls alone is not there.
    window.goto("/console/limits").await;
    window
        .sees("[aria-labelledby=table-limits] th:first-child", "Limit")
        .await;
    window.misses("[aria-labelledby=table-limits] th:last-child").await;
    window.goto("/console/audit-log").await;
    window.sees("#view .muted", "own key proves the name").await;
    window.click("#sign-out").await;
    window.sees("#sign-in-why", "signed out").await;
    window.sees("#key-hint", "Your own key").await;
    window.sees("#operator-hint", "Your own key has your name").await;
    window.open_console_with(&page, run).await;
    window.sees("#role", "runs sales").await;
    window.sees(STATE, "Open").await;
    window.click("#further summary").await;
    let runs = [
        "Pause",
        "Shop page",
        "Message to shoppers…",
        "Close for good",
        "Rebuild…",
        "Report of the whole sale",
        "Count every unit",
        "Restock",
    ];
    assert_eq!(window.run(controls, &[]).await, json!(runs));
    window.does("#do-pause").await;
    window.sees(STATE, "Paused").await;
    window.goto(&draft).await;
    window.sees(STATE, "Draft").await;
    assert_eq!(window.run(controls, &[]).await, json!(["Preview"]));
    // Who may do all sees no mark.
    window.click("#sign-out").await;
    window.sees("#sign-in-why", "signed out").await;
    window.open_console(&draft).await;
    window.misses("#role").await;
    window.sees("#do-preload", "Publish").await;
    window.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_name_turns_what_stands_around_it() {
    let app = TestApp::start().await;
    let (turning, from_right) = ("ada\u{202e}nimda", "\u{5d0}\u{5d3}\u{5d4}");
    let unseen = "bob\u{200b}";
    for user in [turning, from_right, unseen] {
        let ban = json!({"user": user, "reason": "too often"});
        app.send(app.request(Method::POST, Who::Operator, "/v1/admin/bans").json(&ban))
            .await
            .ok(201);
    }
    let window = Window::open(&app).await;
    window.open_console("/console/accounts").await;
    window.sees("section:nth-of-type(2) tbody", "ada⟨U+202E⟩nimda").await;
    window.sees("section:nth-of-type(2) tbody", "bob⟨U+200B⟩").await;
    let isolated = "return [...document.querySelectorAll('td code')].every((it) =>
        getComputedStyle(it.firstElementChild).unicodeBidi === 'isolate' && !/[\\u202a-\\u202e]/.test(it.textContent))";
    assert_eq!(window.run(isolated, &[]).await, true);
    for (user, shown) in [
        (turning, "ada⟨U+202E⟩nimda"),
        (from_right, "\u{2068}\u{5d0}\u{5d3}\u{5d4}\u{2069}"),
        (unseen, "bob⟨U+200B⟩"),
    ] {
        let lift = "const row = [...document.querySelectorAll('section:nth-of-type(2) tr')]
            .find((it) => it.textContent.includes(arguments[0]));
            row.querySelector('button').click()";
        window
            .run(lift, &[if user == from_right { from_right } else { shown }])
            .await;
        window.sees("dialog h2", &format!("Lift the ban of {shown}?")).await;
        window.click("dialog .strong").await;
        window.sees(RESULT, shown).await;
    }
    window.sees("section:nth-of-type(2)", "Nobody is banned").await;
    window.goto("/console/audit-log").await;
    window.sees("#view tbody", "ada⟨U+202E⟩nimda").await;
    window
        .sees("#view tbody", "\u{2068}\u{5d0}\u{5d3}\u{5d4}\u{2069}")
        .await;
    window.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wrong_key_is_refused_and_the_right_one_opens_every_page() {
    let app = TestApp::start().await;
    let window = Window::open(&app).await.expect(&["401"]);
    window.goto("/console/audit-log").await;
    window.sees("#sign-in h1", "Operators sign in").await;
    window.misses("#view").await;
    window.press(Key::Enter).await;
    window.sees("#sign-in-why", "Type the operators").await;
    let invalid = "return document.activeElement.id + document.activeElement.ariaInvalid";
    assert_eq!(window.run(invalid, &[]).await, "keytrue");
    window.fill("#key", "wrong").await;
    window.press(Key::Enter).await;
    window.sees("#sign-in-why", "This is not the operators").await;
    window.fill("#key", ADMIN_KEY).await;
    window.press(Key::Enter).await;
    window.sees("#view h1", "Audit log").await;
    for (path, title) in [
        ("/console", "Sales"),
        ("/console/accounts", "Accounts"),
        ("/console/money", "Money"),
        ("/console/orders", "Orders"),
        ("/console/limits", "Limits"),
    ] {
        window.goto(path).await;
        window.sees("#view h1", title).await;
    }
    let cookie = window.run("return document.cookie", &[]).await;
    assert_eq!(cookie, "", "no script reads it");
    window.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_operator_gives_a_name_once_and_the_audit_log_shows_it() {
    let app = TestApp::start().await;
    let id = app.load_sale(&sale()).await;
    let name = "<img src=x onerror='window.hurt = 1'>";
    let window = Window::open(&app).await.expect(&["400", "401"]);
    window.goto(&format!("/console/sales/{id}")).await;
    window.sees("#sign-in h1", "Operators sign in").await;
    window
        .run("document.getElementById('operator').value = 'a\\u202eb'", &[])
        .await;
    window.fill("#key", ADMIN_KEY).await;
    window.press(Key::Enter).await;
    window
        .sees("#operator-wrong", "no characters that change the text direction")
        .await;
    assert_eq!(window.run("return document.activeElement.id", &[]).await, "operator");
    let invalid = "return document.getElementById('operator').ariaInvalid";
    assert_eq!(window.run(invalid, &[]).await, "true");
    window.fill("#operator", name).await;
    window.click("#by-key button").await;
    window.misses("#sign-in").await;
    assert_eq!(window.run(invalid, &[]).await, "false");
    window.sees("#acting", name).await;
    window.sees("#do-pause", "Pause").await;
    window.does("#do-pause").await;
    window.sees(STATE, "Paused").await;
    window.sees("[aria-labelledby=table-audit-log] tbody", name).await;
    window.click("#sign-out").await;
    window.sees("#sign-in-why", "signed out").await;
    // This browser remembers it, and the next operator gives their own name.
    window.goto("/console/audit-log").await;
    window.sees("#sign-in h1", "Operators sign in").await;
    window.holds("operator", name).await;
    window.fill("#operator", "Bob").await;
    window.fill("#key", ADMIN_KEY).await;
    window.press(Key::Enter).await;
    window.sees("#view tbody tr:first-child bdi", "Bob").await;
    window.sees("#view tbody", &format!("{name} · Console")).await;
    let hurt = "return window.hurt ?? document.querySelectorAll('main img').length";
    assert_eq!(window.run(hurt, &[]).await, json!(0));
    // An operator who gives no name does not get an earlier one.
    window.click("#sign-out").await;
    window.sees("#sign-in-why", "signed out").await;
    window.fill("#operator", " ").await;
    window.fill("#key", ADMIN_KEY).await;
    window.press(Key::Enter).await;
    window.misses("#sign-in").await;
    window.misses("#acting").await;
    let last = app.get(Who::Operator, "/v1/admin/actions?limit=1").await.ok(200);
    assert_eq!(last.body["data"][0]["operator"], Value::Null, "{last:?}");
    window.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_console_fits_a_telephone_in_the_dark_and_speaks_chinese() {
    let app = TestApp::shared().await;
    let large = json!({"name": "双十一", "shards": 16, "stock": 200});
    let id = app.load_sale(&sale_with(&large)).await;
    for user in 0..40 {
        let order = app.buy(&format!("u{user}"), &id, "k", 3).await.ok(201);
        if user < 10 {
            assert_eq!(app.pay(&order.id(), &order.body).await, "applied");
        }
    }
    let telephone = Appearance {
        width: 360,
        height: 900,
        is_dark: true,
        language: "zh-CN",
    };
    let window = Window::with(&app, telephone).await;
    window.goto(&format!("/console/sales/{id}")).await;
    window.sees("#sign-in h1", "运营人员登录").await;
    window.fill("#key", ADMIN_KEY).await;
    window.press(Key::Enter).await;
    window.sees(STATE, "进行中").await;
    window.sees(".unit .numbers", "占用 90").await;
    let width = "return document.documentElement.scrollWidth";
    assert!(window.run(width, &[]).await.as_u64().unwrap() <= 360);
    // An amount is not broken over lines.
    window.sees(".unit .large", "€14,970.00").await;
    let broken =
        "return [...document.querySelectorAll('.large dd:nth-of-type(1)')].filter((it) => it.offsetHeight > 40).length";
    assert_eq!(window.run(broken, &[]).await, 0);
    window.change_language("en").await;
    window.sees(STATE, "Open").await;
    window.sees(".unit .numbers", "90 held").await;
    window.sees("#do-pause", "Pause").await;
    window.picture("console-telephone.png").await;
    window.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn operators_at_an_address_of_their_own_are_sent_to_no_shop() {
    let admin = format!("127.0.0.1:{}", servers::free_port());
    let app = TestApp::with("all", &[("FLASHSALE_ADMIN_LISTEN", &*admin)]).await;
    let operators = Client::at(&format!("http://{admin}"));
    let id = operators.load_sale(&sale()).await;
    let window = Window::open(&operators).await.expect(&["404"]);
    window.open_console(&format!("/console/sales/{id}")).await;
    window.sees("#do-pause", "Pause").await;
    window.misses("#actions a").await;
    window.close().await;
    drop(app);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn units_are_shown_however_many_they_are_and_where_there_are_none_it_is_said_why() {
    let app = TestApp::shared().await;
    let window = Window::open(&app).await;
    window.open_console("/console").await;
    let shown = |sale: &Value| {
        format!(
            "return import(new URL('console-units.js', document.querySelector('script[type=module]').src)).then(({{ unitsOf }}) => {{
                const units = unitsOf();
                units.update({sale});
                const bars = units.shards.querySelectorAll('.columns rect').length;
                return `${{bars}}: ${{units.shards.textContent}}`;
            }})"
        )
    };
    let items: Vec<Value> = (0..3)
        .map(|number| {
            json!({"sku": format!("item-{number}"), "total": 10, "available": 6, "held": 3, "sold": 1,
                "in_transit": 0})
        })
        .collect();
    let none = json!({"state": "closed", "items": items, "shards": []});
    let text = window.run(&shown(&none), &[]).await;
    let text = text.as_str().unwrap();
    assert!(
        text.starts_with("0: ") && text.contains("no longer in Redis") && !text.contains("Not published"),
        "{text}"
    );
    let none = json!({"state": "draft", "items": items, "shards": []});
    let text = window.run(&shown(&none), &[]).await;
    assert!(text.as_str().unwrap().contains("Not published yet"), "{text}");
    // With very many shards, only the sums of each are shown.
    let shards: Vec<Value> = (0..4)
        .map(|shard| json!({"shard": shard, "undrained_events": 0, "units": [4, 2, 1, 0, 0, 0], "items": null}))
        .collect();
    let many = json!({"state": "open", "items": items, "shards": shards});
    let text = window.run(&shown(&many), &[]).await;
    let text = text.as_str().unwrap();
    assert!(
        text.starts_with("20: ") && text.contains("All items together") && text.contains("18 available · 9 held"),
        "{text}"
    );
    assert!(!text.contains("In transit:"), "{text}");
    window.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_page_shows_units_on_their_way_at_the_shard_that_sent_them() {
    let app = TestApp::shared().await;
    let window = Window::open(&app).await;
    window.open_console("/console").await;
    let item = json!({"sku": "phone", "total": 40, "available": 26, "held": 0, "sold": 0, "in_transit": 14});
    let shard = |shard: u16, available: i64, transit: i64| {
        json!({"shard": shard, "undrained_events": 0,
            "units": [available, 0, 0, transit, 0, transit], "items": {"phone": [available, 0, 0, transit, 0, transit]}})
    };
    let show = |shards: &[Value]| {
        let sale = json!({"state": "open", "items": [item], "shards": shards});
        format!(
            "return import(new URL('console-units.js', document.querySelector('script[type=module]').src)).then(async ({{ unitsOf }}) => {{
                const units = unitsOf();
                const node = document.getElementById('view').appendChild(units.shards);
                units.update({sale});
                node.querySelector('details').open = true;
                units.update({sale});
                const heights = (part) => [...node.querySelectorAll(`.columns .part-${{part}}`)]
                    .map((it) => Number(it.getAttribute('height')));
                const column = [...node.querySelectorAll('th')].findIndex((it) => it.textContent === 'In transit');
                const sums = [...node.querySelectorAll('tbody tr')].map((row) => row.children[column].textContent);
                node.remove();
                return {{ text: node.textContent, transit: heights('transit'), available: heights('available'), sums }};
            }})"
        )
    };
    let shown = window
        .run(&show(&[shard(0, 10, 0), shard(1, 6, 4), shard(2, 10, 10)]), &[])
        .await;
    let text = shown["text"].as_str().unwrap();
    assert!(text.contains("In transit: 4 from shard 1, 10 from shard 2."), "{text}");
    assert!(text.contains("14 in transit"), "{text}");
    // They stand on the units that the shard still has, and the highest column is twenty units high.
    assert_eq!(shown["transit"], json!([0, 12, 30]));
    assert_eq!(shown["available"], json!([30, 18, 30]));
    assert_eq!(shown["sums"], json!(["0", "4", "10"]));
    let many: Vec<Value> = (0..7).map(|number| shard(number, 1, 2)).collect();
    let shown = window.run(&show(&many), &[]).await;
    let text = shown["text"].as_str().unwrap();
    assert!(text.contains("2 from shard 4, …."), "{text}");
    assert!(!text.contains("from shard 5"), "{text}");
    window.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_repeated_announcement_is_read_out_twice() {
    let app = TestApp::shared().await;
    let window = Window::open(&app).await;
    window.open_console("/console").await;
    let twice =
        "return import(new URL('dom.js', document.querySelector('script[type=module]').src)).then(({ announce }) => {
        const live = document.getElementById('live');
        announce('Done.');
        announce('Done.');
        return live.textContent;
    })";
    assert_eq!(
        window.run(twice, &[]).await,
        "",
        "a screen reader hears of a change alone"
    );
    let live = "return document.getElementById('live').textContent";
    poll::within(PATIENCE, "it is announced again", async || {
        window.run(live, &[]).await == "Done."
    })
    .await;
    window.close().await;
}
