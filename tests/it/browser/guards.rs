//! Sales that demand a challenge, a wait or a token before a purchase.

use crate::support::app::{Shared, rfc3339, sale_with};
use crate::support::poll::{self, PATIENCE};
use crate::support::servers;
use crate::support::window::{Window, shared_development};
use chrono::{TimeDelta, Utc};
use flashsale::domain::shopper::challenge::{Challenge, LASTS, MINUTE_MAX};
use flashsale::stock::Stock;
use serde_json::{Value, json};

const BUY: &str = "#items .buy";
const NOTE: &str = "#items .outcome .note";
const ORDER: &str = "#orders .order .pill";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_place_in_the_waiting_room_becomes_an_order_when_its_turn_comes() {
    let app = shared_development().await;
    let window = Window::open(&app).await;
    let starts_at = rfc3339(Utc::now() + TimeDelta::minutes(30));
    let guards = json!({"starts_at": starts_at, "guards": {"waiting_room": true}});
    let id = app.load_sale(&sale_with(&guards)).await;
    window.goto_sale(&id).await;
    window.sign_in("ada").await;
    window.sees(BUY, "Queue to buy").await;
    window.misses("#items .pill.is-available").await;
    window.click(BUY).await;
    window.sees(NOTE, "You are in the waiting room").await;
    // A place in line is neither a refusal nor something to do.
    window.sees("#items .outcome:not([class*=is-])", "").await;
    window.sees("#items .room .place", "draws a lot").await;
    window.sees("#items .room", "You may close this page").await;
    window.sees("#items .room", "Updated").await;
    let room = window.text("#items .outcome").await.unwrap();
    assert!(!room.contains("Your turn in") && !room.contains("Stay"), "{room}");
    // A shopper who leaves has bought nothing, and finds the same place on return.
    window.click("#items .outcome button.quiet").await;
    window.misses("#items .room").await;
    window.misses(NOTE).await;
    assert_eq!(window.focus().await, "li#.item", "it was on a button that is gone");
    assert_eq!(window.attempt().await, None);
    window.click(BUY).await;
    window.sees(NOTE, "You are in the waiting room").await;
    app.operate(&id, "open").await.ok(200);
    window.sees(NOTE, "Reserved for you").await;
    window.sees("#items .outcome.is-due", "").await;
    window.sees(ORDER, "Reserved").await;
    // As long as the turn lasts, the button buys at once, and says so.
    window.sees(BUY, "Buy").await;
    let ends = "const name = Object.keys(localStorage).find((it) => it.startsWith('flashsale.room.'));
        const room = JSON.parse(localStorage.getItem(name));
        localStorage.setItem(name, JSON.stringify({ ...room, until: new Date(0).toISOString() }))";
    window.run(ends, &[]).await;
    window.sees(BUY, "Queue to buy").await;
    window.close().await;
}

/// Waits in a room whose places come from this script, and returns what the item's card says.
async fn said_in_room(sale: &Value, place: &Value) -> String {
    let app = shared_development().await;
    let id = app.load_sale(sale).await;
    let window = Window::of_shopper(&app, &id, "ada").await;
    let script = format!(
        "const real = window.fetch;
        window.fetch = (path, options) => path.endsWith('/waiting-room')
            ? Promise.resolve(new Response(JSON.stringify({place}))) : real(path, options)"
    );
    window.run(&script, &[]).await;
    window.click(BUY).await;
    window.sees("#items .room", "Updated").await;
    let said = window.text("#items").await.unwrap();
    window.close().await;
    said
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_waiting_room_says_one_thing_either_stay_or_go() {
    let room = json!({"guards": {"waiting_room": true}});
    let place =
        |seconds: u32| json!({"state": "waiting", "position": 5, "waiting": 9, "estimated_wait_seconds": seconds});
    let soon = said_in_room(&sale_with(&room), &place(60)).await;
    assert!(
        soon.contains("Your turn in about 60 s.") || soon.contains("Your turn in about 5"),
        "{soon}"
    );
    assert!(
        soon.contains("Stay here") && !soon.contains("close this page"),
        "{soon}"
    );
    // The first reply may have no place yet, and may come before the sale's next reading.
    let first = json!({"state": "waiting", "waiting": 9, "estimated_wait_seconds": 10});
    let first = said_in_room(&sale_with(&room), &first).await;
    assert!(
        first.contains("Stay here") && !first.contains("Your turn in"),
        "{first}"
    );
    let gone = said_in_room(&sale_with(&room), &json!({"state": "sold_out"})).await;
    assert!(
        gone.contains("Everything is taken") && gone.contains("Sold out"),
        "{gone}"
    );
    let later = said_in_room(&sale_with(&room), &place(600)).await;
    assert!(later.contains("Your turn in about 10 min, at "), "{later}");
    assert!(later.contains("close this page") && !later.contains("Stay"), "{later}");
    // Lots are drawn at the start, so no turn is known a minute before it.
    let starts_at = rfc3339(Utc::now() + TimeDelta::seconds(100));
    let early = json!({"starts_at": starts_at, "guards": {"waiting_room": true}});
    let waiting = json!({"state": "waiting", "waiting": 9, "estimated_wait_seconds": 60});
    let early = said_in_room(&sale_with(&early), &waiting).await;
    assert!(
        early.contains("Stay here") && !early.contains("Your turn in"),
        "{early}"
    );
}

/// A browser that lets pages notify once they have asked, and counts the notifications in `window.notified`. The page
/// counts as hidden while `window.isAway`. Its first place in the line is behind 1,234 others, and its second behind 617.
const NOTIFYING: &str = "window.notified = [];
    window.Notification = class extends EventTarget {
        static permission = 'default';
        static requestPermission() { this.permission = 'granted'; return Promise.resolve('granted'); }
        constructor(title, { body }) { super(); window.notified.push(`${title} · ${body}`); }
    };
    Object.defineProperty(document, 'visibilityState', { get: () => (window.isAway ? 'hidden' : 'visible') });
    const real = window.fetch;
    const places = [1235, 618];
    window.fetch = (path, options) => {
        if (!path.endsWith('/waiting-room') || (window.isAway && places.length === 0)) { return real(path, options); }
        window.place = places.shift() ?? window.place;
        const place = { state: 'waiting', position: window.place, waiting: 2000, estimated_wait_seconds: 600, ask_again_seconds: 1 };
        return Promise.resolve(new Response(JSON.stringify(place)));
    }";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiting_shopper_sees_the_line_move_and_is_notified_of_the_turn() {
    let app = shared_development().await;
    let id = app
        .load_sale(&sale_with(&json!({"guards": {"waiting_room": true}})))
        .await;
    let window = Window::open(&app).await;
    window
        .devtools("Page.addScriptToEvaluateOnNewDocument", json!({"source": NOTIFYING}))
        .await;
    window.goto_sale(&id).await;
    window.sign_in("ada").await;
    window.click(BUY).await;
    window.sees("#items .room .place", "Ahead of you: 617").await;
    let bar = window
        .run("return document.querySelector('#items .room progress').value", &[])
        .await;
    assert_eq!(bar, json!(0.5), "half of the line has gone since it was seen first");
    window.sees("#items .room", "Your turn in about 10 min, at ").await;
    window.has_title("In the queue: 617 ahead · A sale · Flashsale").await;
    window.click("#items .room button").await;
    window.sees("#items .room", "your browser notifies you").await;
    window.misses("#items .room button").await;
    assert_eq!(window.run("return window.notified", &[]).await, json!([]));
    window.run("window.isAway = true", &[]).await;
    poll::within(PATIENCE, "the shopper is notified", async || {
        window.run("return window.notified", &[]).await == json!(["Reserved: about 15 min to pay · A sale"])
    })
    .await;
    window
        .has_title("Reserved: about 15 min to pay · A sale · Flashsale")
        .await;
    window.close().await;
}

/// Lets ada buy in a sale with a waiting room whose answers come from this script, until it has counted so many.
async fn bought_after_waiting(script: &str, counted: &str, count: u32) -> (Shared, String, Window) {
    let app = shared_development().await;
    let id = app
        .load_sale(&sale_with(&json!({"guards": {"waiting_room": true}})))
        .await;
    let window = Window::of_shopper(&app, &id, "ada").await;
    window.run(script, &[]).await;
    window.click(BUY).await;
    window.sees(NOTE, "Reserved for you").await;
    assert_eq!(window.run(&format!("return window.{counted}"), &[]).await, json!(count));
    assert_eq!(app.units(&id).await, [9, 1, 0]);
    (app, id, window)
}

/// Answers five requests for a turn by a place; each time, the page's clock goes on by 200 seconds.
const LONG_QUEUE: &str = "const [real, clock] = [window.fetch, Date.now];
    window.turns = 0;
    Date.now = () => clock.call(Date) + window.turns * 200_000;
    window.fetch = (path, options) => {
        if (!path.endsWith('/waiting-room') || window.turns === 5) { return real(path, options); }
        window.turns += 1;
        const place = { state: 'waiting', position: 1, waiting: 1, ask_again_seconds: 0 };
        return Promise.resolve(new Response(JSON.stringify(place)));
    }";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_page_still_buys_after_a_wait_of_a_quarter_of_an_hour() {
    let (_app, _id, window) = bought_after_waiting(LONG_QUEUE, "turns", 5).await;
    window.close().await;
}

/// Answers every other request for a turn by a 429, six times, and the others by a place; or, if `isRefused` says so,
/// every purchase.
const REFUSALS: &str = "const real = window.fetch;
    window.asked = 0;
    const refusal = () => new Response(JSON.stringify({ status: 429, code: 'rate_limited' }), { status: 429 });
    const place = () => new Response(JSON.stringify({ state: 'waiting', position: 1, waiting: 1, ask_again_seconds: 0 }));
    window.fetch = (path, options) => {
        if (window.isRefused && options.method === 'POST' && path.endsWith('/orders')) {
            return Promise.resolve(refusal());
        }
        if (!path.endsWith('/waiting-room') || window.asked === 12) { return real(path, options); }
        window.asked += 1;
        return Promise.resolve(window.asked % 2 === 1 ? refusal() : place());
    }";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waits_are_counted_in_a_row_and_end_a_purchase_only_then() {
    let (app, id, window) = bought_after_waiting(REFUSALS, "asked", 12).await;
    window.run("window.isRefused = true", &[]).await;
    window.click(BUY).await;
    window.sees(NOTE, "Try again when the time is over").await;
    assert_eq!(window.attempt().await, None);
    assert_eq!(app.units(&id).await, [9, 1, 0]);
    window.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_proof_of_work_is_solved_by_the_page() {
    let app = shared_development().await;
    let guards = json!({"purchase_token": true, "challenge": "proof_of_work", "proof_cost": 50});
    let id = app.load_sale(&sale_with(&json!({"guards": guards}))).await;
    let window = Window::of_shopper(&app, &id, "ada").await;
    window.click(BUY).await;
    window.sees(NOTE, "Reserved for you").await;
    assert_eq!(app.units(&id).await, [9, 1, 0]);
    window.close().await;
}

/// The last challenge of the page.
async fn posed(window: &Window) -> Value {
    let mut request = None;
    poll::within(PATIENCE, "a challenge is posed", async || {
        let events = window.network().await;
        window.requests_to_home(&events);
        let answered = events
            .iter()
            .filter(|event| event["method"] == "Network.responseReceived");
        let mut of_challenge = answered.filter(|event| {
            let url = event["params"]["response"]["url"].as_str().unwrap_or_default();
            url.ends_with("/v1/challenges")
        });
        request = of_challenge
            .next_back()
            .map(|event| event["params"]["requestId"].clone());
        request.is_some()
    })
    .await;
    let body = window
        .devtools("Network.getResponseBody", json!({"requestId": request}))
        .await;
    serde_json::from_str(body["body"].as_str().unwrap()).unwrap()
}

/// Sets the text of a challenge, regardless of its picture.
async fn set_captcha_text(sale: &str, user: &str, challenge: &Value, text: &str) {
    let stock = Stock::connect(&servers::redis()).await.unwrap();
    let user = user.parse().unwrap();
    let challenge = Challenge {
        id: challenge["id"].as_str().unwrap().parse().unwrap(),
        sale: sale.parse().unwrap(),
        user: &user,
    };
    stock.pose_challenge(&challenge, text, LASTS).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_captcha_is_shown_asked_for_again_and_read() {
    let app = shared_development().await;
    let guards = json!({"purchase_token": true, "challenge": "captcha"});
    let id = app.load_sale(&sale_with(&json!({"guards": guards}))).await;
    let window = Window::open(&app).await.expect(&["403"]);
    window.goto_sale(&id).await;
    // Challenges are counted by account, in a Redis that tests share.
    let user = uuid::Uuid::new_v4().to_string();
    window.sign_in(&user).await;
    window.click(BUY).await;
    window.sees(".captcha label", "Letters and digits in the picture").await;
    window.sees("#items .outcome.is-due", "").await;
    let is_drawn = "const image = document.querySelector('.captcha img');
        return image.complete && image.naturalWidth === 260 && document.activeElement.id === 'letters'";
    poll::within(PATIENCE, "the picture is there", async || {
        window.run(is_drawn, &[]).await == json!(true)
    })
    .await;
    let first = posed(&window).await;
    // It follows the page's language at once, and keeps the typed text.
    window.fill("#letters", "00000").await;
    window.sees(BUY, "Answer below").await;
    window.change_language("zh-CN").await;
    window.sees(".captcha label", "图片中的字符").await;
    let alternative = "return document.querySelector('.captcha img').alt";
    assert_eq!(window.run(alternative, &[]).await, "一张含有五个字母或数字的图片");
    window.change_language("en").await;
    window.sees(".captcha label", "Letters and digits in the picture").await;
    window.click(".captcha button.strong").await;
    window.sees(".captcha .warning", "not right, or came too late").await;
    let second = posed(&window).await;
    assert_ne!(first["id"], second["id"]);
    set_captcha_text(&id, &user, &second, "AB3XY").await;
    window.fill("#letters", "ab3xy").await;
    window.click(".captcha button.strong").await;
    window.sees(NOTE, "Reserved for you").await;
    window.misses(".captcha").await;
    assert_eq!(app.units(&id).await, [9, 1, 0]);
    window.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_asks_for_too_many_pictures_keeps_the_last_one_and_reads_why() {
    let app = shared_development().await;
    let guards = json!({"purchase_token": true, "challenge": "captcha"});
    let id = app.load_sale(&sale_with(&json!({"guards": guards}))).await;
    let window = Window::open(&app).await.expect(&["429"]);
    window.goto_sale(&id).await;
    // Challenges are counted by account, in a Redis that tests share.
    let user = uuid::Uuid::new_v4().to_string();
    window.sign_in(&user).await;
    window.click(BUY).await;
    let mut last = json!(null);
    let picture = "return document.querySelector('.captcha img')?.src ?? null";
    for asked in 0..MINUTE_MAX {
        if asked > 0 {
            window.click(".captcha .actions button").await;
        }
        poll::within(PATIENCE, "another picture is there", async || {
            let shown = window.run(picture, &[]).await;
            !shown.is_null() && shown != last
        })
        .await;
        last = window.run(picture, &[]).await;
    }
    let challenge = posed(&window).await;
    window.click(".captcha .actions button").await;
    window.sees(".captcha .warning", "at most five pictures a minute").await;
    assert_eq!(window.run(picture, &[]).await, last);
    set_captcha_text(&id, &user, &challenge, "AB3XY").await;
    window.fill("#letters", "ab3xy").await;
    window.click(".captcha button.strong").await;
    window.sees(NOTE, "Reserved for you").await;
    window.close().await;
}

/// A sale with a waiting room and a captcha, and a shopper on its page. Challenges are counted by account, in a Redis that
/// tests share.
async fn with_room_and_captcha(app: &Shared) -> (String, String, Window) {
    let guards = json!({"waiting_room": true, "purchase_token": true, "challenge": "captcha"});
    let id = app.load_sale(&sale_with(&json!({"guards": guards}))).await;
    let user = uuid::Uuid::new_v4().to_string();
    let window = Window::of_shopper(app, &id, &user).await;
    (id, user, window)
}

async fn answers_the_captcha(window: &Window, sale: &str, user: &str) {
    window.sees(".captcha p", "Type what the picture shows").await;
    window.sees("#items .outcome .timer", "Your turn: ").await;
    let title = "Your turn: type what the picture shows · A sale · Flashsale";
    window.has_title(title).await;
    set_captcha_text(sale, user, &posed(window).await, "AB3XY").await;
    window.fill("#letters", "ab3xy").await;
    window.click(".captcha button.strong").await;
    window.sees(NOTE, "Reserved for you").await;
}

/// Answers the first purchase that the shopper's turn is over, and counts the challenges.
const TURN_OVER: &str = "const real = window.fetch;
    window.posed = 0;
    window.fetch = (path, options) => {
        window.posed += Number(path.endsWith('/challenges'));
        if (window.isOver || options.method !== 'POST' || !path.endsWith('/orders')) { return real(path, options); }
        window.isOver = true;
        const refusal = { status: 403, code: 'admission_required', key_has_order: false };
        return Promise.resolve(new Response(JSON.stringify(refusal), { status: 403 }));
    }";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_right_answer_still_counts_after_the_turn_has_ended() {
    let app = shared_development().await;
    let (id, user, window) = with_room_and_captcha(&app).await;
    window.run(TURN_OVER, &[]).await;
    window.click(BUY).await;
    answers_the_captcha(&window, &id, &user).await;
    let seen = window.run("return [window.isOver, window.posed]", &[]).await;
    assert_eq!(seen, json!([true, 1]), "no second picture");
    assert_eq!(app.units(&id).await, [9, 1, 0]);
    window.close().await;
}

/// Keeps an admission that ends in five seconds, and that the server does not know.
const TURN_ENDS: &str = "const until = new Date(Date.now() + 5000).toISOString();
    localStorage.setItem(`flashsale.room.${arguments[0]}.${arguments[1]}`, JSON.stringify({ admission: 'old', until }))";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_picture_is_shown_to_a_shopper_whose_turn_is_nearly_over() {
    let app = shared_development().await;
    let (id, user, window) = with_room_and_captcha(&app).await;
    window.run(TURN_ENDS, &[&id, &user]).await;
    window.click(BUY).await;
    answers_the_captcha(&window, &id, &user).await;
    window.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_captcha_has_the_items_box_for_itself_and_the_payment_stays_among_the_orders() {
    let app = shared_development().await;
    let (id, user, window) = with_room_and_captcha(&app).await;
    window.click(BUY).await;
    answers_the_captcha(&window, &id, &user).await;
    window.sees("#items .payment .timer", "14:").await;
    window.click(BUY).await;
    window.sees(".captcha p", "Type what the picture shows").await;
    window.misses("#items .payment").await;
    window.sees("#orders .payment .timer", "14:").await;
    window.click("#items .outcome > .actions button.quiet").await;
    window.misses(".captcha").await;
    window.sees("#items .payment .timer", "14:").await;
    window.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_shopper_who_cannot_see_the_picture_buys_by_a_proof_where_allowed() {
    let app = shared_development().await;
    let picture = json!({"purchase_token": true, "challenge": "captcha", "captcha_proof_cost": 0});
    let either = json!({"purchase_token": true, "challenge": "captcha", "captcha_proof_cost": 50});
    let window = Window::open(&app).await;
    let unseen = ".captcha .actions button + button";
    for (guards, takes_proof) in [(picture, false), (either, true)] {
        let id = app.load_sale(&sale_with(&json!({"guards": guards}))).await;
        window.goto_sale(&id).await;
        // Challenges are counted by account, in a Redis that tests share.
        window.sign_in(&uuid::Uuid::new_v4().to_string()).await;
        window.click(BUY).await;
        window.sees(".captcha label", "Letters and digits in the picture").await;
        assert_eq!(window.text(unseen).await.is_some(), takes_proof);
        if takes_proof {
            window.click(unseen).await;
            window.sees(NOTE, "Reserved for you").await;
            assert_eq!(app.units(&id).await, [9, 1, 0]);
        } else {
            window.click("#sign-out").await;
        }
    }
    window.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whose_proof_is_refused_is_shown_the_picture_again() {
    let app = shared_development().await;
    let guards = json!({"purchase_token": true, "challenge": "captcha", "captcha_proof_cost": 50});
    let id = app.load_sale(&sale_with(&json!({"guards": guards}))).await;
    let window = Window::open(&app).await.expect(&["403"]);
    window.goto_sale(&id).await;
    // Challenges are counted by account, in a Redis that tests share.
    let user = uuid::Uuid::new_v4().to_string();
    window.sign_in(&user).await;
    window.click(BUY).await;
    window.sees(".captcha label", "Letters and digits in the picture").await;
    posed(&window).await;
    // The browser's answers are spoilt on their way.
    let spoil = "const real = window.fetch;
        window.fetch = (path, options) => {
            if (path.endsWith('/tokens')) {
                const body = JSON.parse(options.body);
                body.challenge.answer = 'AAAA';
                options.body = JSON.stringify(body);
                window.fetch = real;
            }
            return real(path, options);
        }";
    window.run(spoil, &[]).await;
    window.click(".captcha .actions button + button").await;
    window.sees(".captcha p", "Type what the picture shows").await;
    let picture = posed(&window).await;
    assert_eq!(picture["kind"], "captcha");
    set_captcha_text(&id, &user, &picture, "AB3XY").await;
    window.fill("#letters", "ab3xy").await;
    window.click(".captcha button.strong").await;
    window.sees(NOTE, "Reserved for you").await;
    assert_eq!(app.units(&id).await, [9, 1, 0]);
    window.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_proof_that_takes_too_long_is_stopped_and_the_picture_comes_again() {
    let app = shared_development().await;
    // Far more than a browser does during this test.
    let guards = json!({"purchase_token": true, "challenge": "captcha", "captcha_proof_cost": 200_000});
    let id = app.load_sale(&sale_with(&json!({"guards": guards}))).await;
    let window = Window::open(&app).await;
    window.goto_sale(&id).await;
    // Challenges are counted by account, in a Redis that tests share.
    window.sign_in(&uuid::Uuid::new_v4().to_string()).await;
    window.click(BUY).await;
    window.sees(".captcha label", "Letters and digits in the picture").await;
    window.click(".captcha .actions button + button").await;
    window.sees(NOTE, "solving a small task").await;
    let focus = "return document.activeElement.className";
    assert_eq!(
        window.run(focus, &[]).await,
        "item",
        "the focus stays where the picture was"
    );
    window.click("#items .outcome button.quiet").await;
    window.misses(NOTE).await;
    window.click(BUY).await;
    window.sees(".captcha label", "Letters and digits in the picture").await;
    assert_eq!(app.units(&id).await, [10, 0, 0]);
    window.close().await;
}
