//! A shopper's purchases on a good day, and the messages on a bad one.

use crate::support::app::{Shared, TestApp, Who, rfc3339, sale, sale_with};
use crate::support::poll::{self, PATIENCE};
use crate::support::window::{Appearance, TELEPHONE, Window, development, shared_development};
use chrono::{DateTime, TimeDelta, Timelike as _, Utc};
use reqwest::Method;
use serde_json::{Value, json};
use std::time::Duration;
use thirtyfour::Key;
use uuid::Uuid;

const BUY: &str = "#items .buy";
const NOTE: &str = "#items .outcome .note";
const TIMER: &str = "#items .outcome .timer";
const ORDER: &str = "#orders .order .pill";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_shopper_buys_pays_and_is_shown_that_it_is_paid() {
    let app = shared_development().await;
    let items = json!([
        {"sku": "phone", "name": "Aurora headphones, midnight blue", "price_minor": 49_900, "currency": "EUR",
         "stock": 10, "per_user_limit": 5},
        {"sku": "camera", "name": "Field camera, 35 mm", "price_minor": 89_000, "currency": "EUR", "stock": 1,
         "per_user_limit": 1},
    ]);
    let id = app
        .load_sale(&sale_with(&json!({"name": "Autumn launch", "items": items})))
        .await;
    let tall = Appearance {
        height: 1180,
        ..Appearance::default()
    };
    let window = Window::with(&app, tall).await;
    window.goto("/").await;
    window.sees("#sales", "Autumn launch").await;
    window.click(&format!("#sales a[href='/sales/{id}']")).await;
    window.sees("#name", "Autumn launch").await;
    window.sees("#state", "On sale").await;
    window.sees("#items .price", "€499.00").await;
    // A shopper who is not signed in reads so, with the place to sign in.
    window.click(BUY).await;
    window.sees("#sign-in-why", "Sign in to buy").await;
    window.sign_in("ada").await;
    window.sees(NOTE, "Buy 1 Aurora headphones, midnight blue?").await;
    window.misses(BUY).await;
    window.click("#items .outcome .actions button.strong").await;
    window.sees(NOTE, "Reserved for you").await;
    window.sees(ORDER, "Reserved").await;
    window.sees("#items .payment .timer", "14:").await;
    // The payment is on the page once: the order's row leads to it.
    window
        .sees("#orders .order a[href='#item-phone']", "Pay or cancel by")
        .await;
    window.misses("#orders .payment").await;
    assert_eq!(window.attempt().await, None, "a known order needs no key");
    window.picture("sale.png").await;
    window.click("#items .payment button.strong").await;
    window.sees(ORDER, "Paid").await;
    window.misses("#items .payment").await;
    assert_eq!(
        window.focus().await,
        "h3#item-phone.",
        "it was on a button that is gone"
    );
    assert_eq!(app.units(&id).await, [9, 0, 1]);
    // The item's card says so, too, also after a reload, and leads to the order.
    let order = app.orders("ada", &id).await.ok(200).body["data"][0]["id"].clone();
    let order = order.as_str().unwrap();
    let link = format!("#items .outcome a[href='#order-{order}']");
    let short = format!("Order …{}", &order[order.len() - 8..]);
    for is_reloaded in [false, true] {
        if is_reloaded {
            window.driver().refresh().await.unwrap();
        }
        window.sees(NOTE, "Paid. Thank you. It is yours.").await;
        window.sees(&link, &short).await;
        window.sees("#items .item > .muted", "You have 1 of 5, paid").await;
    }
    window.sees(&format!("#order-{order}"), "Paid").await;
    // Another is cancelled, which needs two presses.
    window.click(BUY).await;
    window.sees("#orders .order[data-state=reserved]", "Reserved").await;
    window.click("#items .payment .actions button:nth-child(2)").await;
    window.sees("#items .payment .note", "Cancel this order?").await;
    window.misses("#items .payment button.strong").await;
    window.click("#items .payment .actions button:nth-child(3)").await;
    window.sees("#orders .order[data-state=cancelled]", "Cancelled").await;
    assert_eq!(window.focus().await, "h3#item-phone.");
    window.sees(NOTE, "Cancelled. You gave it back.").await;
    app.wait_for_units(&id, [9, 0, 1]).await;
    window.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_shopper_buys_and_pays_on_a_dark_telephone_in_chinese() {
    let app = shared_development().await;
    let id = app.load_sale(&sale()).await;
    let appearance = Appearance {
        language: "zh-CN",
        is_dark: true,
        ..TELEPHONE
    };
    let window = Window::with(&app, appearance).await;
    window.goto_sale(&id).await;
    window.sign_in("ada").await;
    window.click(BUY).await;
    window.sees("#orders .order[data-state=reserved]", "").await;
    window.sees("#items .outcome.is-due", "").await;
    window.click("#items .payment button.strong").await;
    window.sees("#orders .order[data-state=paid]", "").await;
    window.sees("#items .outcome.is-good .note", "谢谢，商品归您了。").await;
    let fits = "return document.documentElement.scrollWidth <= innerWidth && matchMedia('(prefers-color-scheme: dark)').matches";
    assert_eq!(window.run(fits, &[]).await, true);
    assert_eq!(app.units(&id).await, [9, 0, 1]);
    window.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_order_that_is_not_paid_expires_before_the_shoppers_eyes() {
    let app = shared_development().await;
    let id = app.load_sale(&sale_with(&json!({"payment_window_seconds": 10}))).await;
    let window = Window::of_shopper(&app, &id, "ada").await;
    window.click(BUY).await;
    window.sees(ORDER, "Reserved").await;
    window.sees(ORDER, "Expired").await;
    window.sees("#orders .note", "not paid in time").await;
    app.wait_for_units(&id, [10, 0, 0]).await;
    window.close().await;
}

/// Waits until a screen reader gets this text.
async fn announces(window: &Window, text: &str) {
    poll::within(PATIENCE, text, async || {
        let live = "return document.getElementById('live').textContent";
        window.run(live, &[]).await == json!(text)
    })
    .await;
}

/// So many items of which a shopper may have one.
fn shoes(count: u32) -> Value {
    let shoe = |n: u32| {
        json!({"sku": format!("size-{n}"), "name": format!("Shoe, size {n}"), "price_minor": 49_900, "currency": "EUR",
            "stock": 10, "per_user_limit": 1})
    };
    (1..=count).map(shoe).collect()
}

/// Whether an element is within the screen, and nothing covers it.
const IN_VIEW: &str = "const node = document.querySelector(arguments[0]);
    const { top, bottom, left, width, height } = node.getBoundingClientRect();
    return height > 0 && top >= 0 && bottom <= innerHeight
        && node.contains(document.elementFromPoint(left + width / 2, top + height / 2))";

/// Scrolls the page so that the bar covers most of this button.
const HALF_COVERED: &str = "const { top } = document.querySelector(arguments[0]).getBoundingClientRect();
    scrollBy(0, top - innerHeight + 90)";

/// Whether nothing of the payment with this button is on the screen.
const IS_BELOW: &str = "const payment = document.querySelector(arguments[0]).closest('.payment');
    return payment.getBoundingClientRect().top >= innerHeight";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_first_screen_of_a_telephone_shows_the_time_to_pay_and_how() {
    let pay = "https://shop.example/pay/{order}";
    let settings = [("FLASHSALE_DEVELOPMENT", "true"), ("FLASHSALE_PAY_URL", pay)];
    let app = TestApp::with("all", &settings).await;
    let window = Window::with(&app, TELEPHONE).await;
    for (count, wanted) in [(1, 1), (20, 1), (20, 11), (20, 20)] {
        let id = app.load_sale(&sale_with(&json!({"items": shoes(count)}))).await;
        window.goto_sale(&id).await;
        if window.text("#who").await.is_none() {
            window.sign_in("ada").await;
        }
        let item = format!("#items > li:nth-child({wanted})");
        window.sees(&format!("{item} .buy"), "Buy").await;
        window.click(&format!("{item} .buy")).await;
        window.sees("#to-pay", &format!("Shoe, size {wanted}")).await;
        window.sees("#to-pay-timer", "14:").await;
        window.sees("#to-pay-link", "Pay €499.00").await;
        // The bar, and the item's own box.
        let (timer, paying) = (format!("{item} .payment .timer"), format!("{item} .payment a.button"));
        for part in ["#to-pay-timer", "#to-pay-link", &timer, &paying] {
            poll::within(PATIENCE, &format!("{part} of {count} is in view"), async || {
                window.run(IN_VIEW, &[part]).await == json!(true)
            })
            .await;
        }
        let note = format!("{item} .payment .note");
        window.sees(&note, "Pay by").await;
        let order = app.orders("ada", &id).await.ok(200).body["data"][0].clone();
        let minute = &order["expires_at"].as_str().unwrap()[13..16];
        window.sees(&note, minute).await;
        window.sees(&format!("{item} .buy"), "1 of 1 reserved").await;
        // One cannot buy more.
        window.misses(&format!("{item} .pill")).await;
        if wanted == 11 {
            // A page that is loaded again is where it was, and the bar was not there when the browser scrolled.
            window.run(HALF_COVERED, &[&paying]).await;
            window.driver().refresh().await.unwrap();
            window.sees("#to-pay-timer", "1").await;
            poll::within(PATIENCE, "the bar does not cover the payment", async || {
                window.run(IN_VIEW, &[&paying]).await == json!(true)
                    || window.run(IS_BELOW, &[&paying]).await == json!(true)
            })
            .await;
        }
        let unpaid_first =
            "return document.querySelector('#orders').compareDocumentPosition(document.querySelector('#items'))
            === Node.DOCUMENT_POSITION_FOLLOWING";
        assert_eq!(window.run(unpaid_first, &[]).await, json!(true));
        let order = app.orders("ada", &id).await.ok(200).body["data"][0].clone();
        let href = "return document.querySelector('#to-pay-link').href";
        let paid_there = pay.replace("{order}", order["id"].as_str().unwrap());
        assert_eq!(window.run(href, &[]).await, paid_there);
        assert_eq!(app.pay(&format!("pay_phone_{count}_{wanted}"), &order).await, "applied");
        window.misses("#to-pay").await;
        window.sees(&format!("{item} .buy"), "You have 1 of 1").await;
        window.misses(&format!("{item} .pill")).await;
        poll::within(PATIENCE, "the items come first again", async || {
            window.run(unpaid_first, &[]).await == json!(false)
        })
        .await;
    }
    window.close().await;
}

/// The middle of a button, in the middle of the screen, once the page has scrolled to what was bought.
const MIDDLE: &str = "const frame = () => new Promise(requestAnimationFrame);
    return frame().then(frame).then(frame).then(() => {
        const node = document.querySelector(arguments[0]);
        node.scrollIntoView({ block: 'center' });
        const { left, top, width, height } = node.getBoundingClientRect();
        return [left + width / 2, top + height / 2];
    })";

/// Taps at a place of the screen, whatever is there.
async fn taps(window: &Window, place: &Value) {
    for kind in ["mousePressed", "mouseReleased"] {
        let tap = json!({"type": kind, "x": place[0], "y": place[1], "button": "left", "clickCount": 1});
        window.devtools("Input.dispatchMouseEvent", tap).await;
    }
}

/// Lets a button cover the whole screen.
const COVER: &str = "const button = document.querySelector(arguments[0]);
    Object.assign(button.style, { position: 'fixed', inset: '0', width: '100vw', height: '100vh', zIndex: '9' })";

/// The page's clock stands still, so many milliseconds from now.
const STANDS: &str = "const still = performance.now() + Number(arguments[0]); performance.now = () => still";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_second_tap_where_another_button_has_slid_buys_nothing() {
    let app = shared_development().await;
    let id = app.load_sale(&sale_with(&json!({"items": shoes(2)}))).await;
    let window = Window::with(&app, TELEPHONE).await;
    window.goto_sale(&id).await;
    window.sign_in("ada").await;
    window.click(BUY).await;
    window.sees("#items .payment .timer", "14:").await;
    window.click("#items .payment .actions button:nth-child(2)").await;
    window.sees("#items .payment .note", "Cancel this order?").await;
    let sure = window
        .run(MIDDLE, &["#items .payment .actions button:nth-child(3)"])
        .await;
    // On a busy machine, the second tap may come late.
    window.run(STANDS, &["0"]).await;
    taps(&window, &sure).await;
    window.sees("#orders .order[data-state=cancelled]", "Cancelled").await;
    let other = "#items > li:nth-child(2)";
    window.run(COVER, &[&format!("{other} .buy")]).await;
    taps(&window, &sure).await;
    let begun = "return document.querySelectorAll('#items [aria-busy=true], #orders [data-state=reserved]').length";
    assert_eq!(window.run(begun, &[]).await, json!(0));
    assert_eq!(window.attempt().await, None);
    // A moment later, the same tap is meant for the button.
    window.run(STANDS, &["2000"]).await;
    taps(&window, &sure).await;
    window.sees(&format!("{other} .note"), "Reserved for you").await;
    window.close().await;
}

/// The name of the item at a place of the screen.
const ITEM_AT: &str = "const [x, y] = [...arguments].map(Number);
    return document.elementFromPoint(x, y)?.closest('.item')?.querySelector('h3').textContent ?? null";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_moves_under_the_finger_that_cancels_or_pays() {
    let app = shared_development().await;
    let id = app.load_sale(&sale_with(&json!({"items": shoes(20)}))).await;
    let window = Window::with(&app, TELEPHONE).await;
    window.goto_sale(&id).await;
    window.sign_in("ada").await;
    let item = "#items > li:nth-child(16)";
    for (buttons, words) in [
        (&[2, 3][..], "Cancelled. You gave it back."),
        (&[1], "Paid. Thank you. It is yours."),
    ] {
        window.click(&format!("{item} .buy")).await;
        window.sees(&format!("{item} .payment .timer"), "14:").await;
        let (mut place, mut before) = (Value::Null, None);
        for button in buttons {
            let button = format!("{item} .payment .actions button:nth-child({button})");
            window.sees(&button, "").await;
            // The button of the last tap goes with the next drawing, and this one then takes its place.
            if let Some(before) = before.replace(button.clone()) {
                window.misses(&before).await;
            }
            place = window.run(MIDDLE, &[&button]).await;
            taps(&window, &place).await;
        }
        window.sees(&format!("{item} .note"), words).await;
        let [x, y] = [0_usize, 1].map(|at| place[at].to_string());
        assert_eq!(window.run(ITEM_AT, &[&x, &y]).await, "Shoe, size 16", "{words}");
    }
    window.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_desk_has_the_bar_while_the_payment_is_out_of_view_and_it_pays() {
    let app = shared_development().await;
    let more = (1..20).map(|n| {
        json!({"sku": format!("case-{n}"), "name": "A case", "price_minor": 1900, "currency": "EUR", "stock": 1,
            "per_user_limit": 1})
    });
    let items: Vec<Value> = [sale()["items"][0].clone()].into_iter().chain(more).collect();
    let id = app.load_sale(&sale_with(&json!({"items": items}))).await;
    let first = app.buy("ada", &id, "a", 2).await.ok(201).id();
    app.buy("ada", &id, "b", 1).await.ok(201);
    let window = Window::with(&app, Appearance::default()).await;
    window.goto_sale(&id).await;
    window.sign_in("ada").await;
    window.sees("#items .payment .timer", "14:").await;
    let to_payment = "document.querySelector('#items .payment').scrollIntoView({ block: 'center' })";
    window.run(to_payment, &[]).await;
    window.misses("#to-pay").await;
    window.run("scrollTo(0, document.body.scrollHeight)", &[]).await;
    for (part, text) in [
        ("#to-pay-what", "Reserved: A phone × 2"),
        ("#to-pay-more", "and 1 more"),
        ("#to-pay-timer", "14:"),
        ("#to-pay-now", "Pay €998.00"),
    ] {
        window.sees(part, text).await;
    }
    window.misses("#to-pay-link").await;
    window.click("#to-pay-now").await;
    window
        .sees(&format!("#orders [data-order='{first}'] .pill"), "Paid")
        .await;
    assert_eq!(window.focus().await, "h3#item-phone.");
    window.run("scrollTo(0, document.body.scrollHeight)", &[]).await;
    window.sees("#to-pay-now", "Pay €499.00").await;
    window.misses("#to-pay-more").await;
    window.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_green_or_can_be_pressed_once_the_time_to_pay_is_over() {
    let app = shared_development().await;
    let id = app.load_sale(&sale_with(&json!({"payment_window_seconds": 8}))).await;
    let window = Window::of_shopper(&app, &id, "ada").await.expect(&["ERR"]);
    window.click(BUY).await;
    window.sees("#items .payment .timer", "0:0").await;
    // The page does not learn that the order expires.
    window.block(&["*/v1/orders*"]).await;
    window.sees("#items .payment .note", "The time to pay is over").await;
    window.sees(ORDER, "Time over").await;
    for gone in [
        "#items .payment .actions",
        "#orders .payment .actions",
        "#to-pay",
        "#items .payment .timer",
    ] {
        window.misses(gone).await;
    }
    let classes = "return [...document.querySelectorAll('#items .outcome, #orders .pill')].map((it) => it.className)";
    assert_eq!(window.run(classes, &[]).await, json!(["outcome is-over", "pill "]));
    assert!(!window.text("#items").await.unwrap().contains("Reserved for you"));
    window.block(&[]).await;
    window.sees(ORDER, "Expired").await;
    window.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_screen_reader_hears_that_five_two_and_one_minutes_are_left_to_pay() {
    let app = shared_development().await;
    let id = app.load_sale(&sale()).await;
    let window = Window::of_shopper(&app, &id, "ada").await.expect(&["ERR"]);
    window.click(BUY).await;
    window.sees(ORDER, "Reserved").await;
    window.sees("#items .payment .timer", "14:").await;
    let order = app.orders("ada", &id).await.ok(200).body["data"][0].clone();
    let expires_at: DateTime<Utc> = order["expires_at"].as_str().unwrap().parse().unwrap();
    // An answer would set the page's clock right again.
    window.block(&["*/v1/*"]).await;
    window.sees("#connection", "The shop does not answer").await;
    let to_290_seconds = expires_at - Utc::now() - TimeDelta::seconds(290);
    let to_110_seconds = TimeDelta::seconds(180);
    let to_50_seconds = TimeDelta::seconds(60);
    for (step, minutes) in [(to_290_seconds, 5), (to_110_seconds, 2), (to_50_seconds, 1)] {
        window.run(STANDS, &[&step.num_milliseconds().to_string()]).await;
        announces(&window, &format!("Time left to pay for A phone: {minutes} min.")).await;
    }
    window.block(&[]).await;
    window.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_late_shopper_sees_that_all_is_sold_and_when_units_are_back() {
    let app = shared_development().await;
    let id = app
        .load_sale(&sale_with(&json!({"stock": 2, "per_user_limit": 2})))
        .await;
    let window = Window::of_shopper(&app, &id, "ada").await.expect(&["409"]);
    let order = app.buy("bob", &id, "k", 1).await.ok(201).id();
    window.fill("#item-phone-quantity", "2").await;
    window.click(BUY).await;
    window.sees(NOTE, "Fewer than 2 are left.").await;
    window.sees("#items .outcome.is-bad", "").await;
    // Nothing is left to choose.
    window.misses("#item-phone-quantity").await;
    app.buy("eve", &id, "k", 1).await.ok(201);
    window.finds(BUY, "Keep trying for me").await;
    window.sees("#items .pill", "Sold out").await;
    window.sees("#items .hold", "0 left, some on hold").await;
    app.cancel("bob", &order).await.ok(200);
    window.finds(BUY, "Buy").await;
    window.click(BUY).await;
    window.sees(ORDER, "Reserved").await;
    window.finds(BUY, "Keep trying for me").await;
    window.sees("#items .item > .muted", "1 of 2 reserved").await;
    // The limit is two: one more, and then no button that can only fail.
    app.restock(&id, "r", "phone", 5).await.ok(200);
    window.finds(BUY, "Buy").await;
    window.misses("#item-phone-quantity").await;
    window.click(BUY).await;
    window.sees(BUY, "2 of 2 reserved").await;
    let is_off = "return document.querySelector('#items .buy').getAttribute('aria-disabled')";
    assert_eq!(window.run(is_off, &[]).await, json!("true"));
    window.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_a_refusal_of_too_many_a_shopper_may_choose_fewer() {
    let app = shared_development().await;
    let id = app
        .load_sale(&sale_with(&json!({"stock": 2, "per_user_limit": 3})))
        .await;
    let window = Window::of_shopper(&app, &id, "ada").await.expect(&["409"]);
    window.fill("#item-phone-quantity", "3").await;
    window.click(BUY).await;
    window.sees(NOTE, "Fewer than 3 are left. Try fewer.").await;
    let choices =
        "return [...document.querySelectorAll('#item-phone-quantity option:not(:disabled)')].map((it) => it.value)";
    assert_eq!(window.run(choices, &[]).await, json!(["1", "2"]));
    window.fill("#item-phone-quantity", "2").await;
    window.click(BUY).await;
    window.sees(ORDER, "Reserved").await;
    assert_eq!(app.units(&id).await, [0, 2, 0]);
    window.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_shopper_who_holds_the_last_unit_does_not_read_that_it_is_sold_out() {
    let app = shared_development().await;
    let id = app
        .load_sale(&sale_with(&json!({"stock": 1, "per_user_limit": 1})))
        .await;
    let window = Window::of_shopper(&app, &id, "ada").await;
    window.sees("#items .pill", "Almost gone").await;
    window.click(BUY).await;
    window.sees(BUY, "1 of 1 reserved").await;
    // The page has read that nothing is free.
    window.misses("#items .pill").await;
    window.misses("#items .hold").await;
    let order = app.orders("ada", &id).await.ok(200).body["data"][0]["id"].clone();
    app.cancel("ada", order.as_str().unwrap()).await.ok(200);
    window.finds("#items .pill", "Almost gone").await;
    window.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_shopper_with_too_many_unpaid_orders_is_asked_to_pay_first_and_for_nothing_else() {
    let app = shared_development().await;
    let id = app.load_sale(&sale_with(&json!({"guards": {"holds_max": 1}}))).await;
    let held = app.buy("ada", &id, "k", 1).await.ok(201).id();
    let window = Window::of_shopper(&app, &id, "ada").await;
    window.sees(BUY, "Pay for or cancel your order first").await;
    window.misses("#items .pill").await;
    window.misses("#item-phone-quantity").await;
    let is_off = "return document.querySelector('#items .buy').getAttribute('aria-disabled')";
    assert_eq!(window.run(is_off, &[]).await, json!("true"));
    app.cancel("ada", &held).await.ok(200);
    window.finds(BUY, "Buy").await;
    window.sees("#items .pill", "Available").await;
    window.click(BUY).await;
    window.sees(ORDER, "Reserved").await;
    window.sees(BUY, "Pay for or cancel your order first").await;
    window.misses("#items .pill").await;
    window.close().await;
}

/// Whether the timers of the most urgent order agree in ten drawings. Each question for the time moves the page's clock on.
const TIMERS_AGREE: &str = "let asked = 0;
    const real = performance.now.bind(performance);
    performance.now = () => real() + (asked += 1) * 300;
    const timers = () => [...document.querySelectorAll('#to-pay-timer, #items .payment .timer')].map((it) => it.textContent);
    const seen = [];
    return new Promise((resolve) => {
        const watch = new MutationObserver(() => {
            seen.push(timers());
            if (seen.length === 10) {
                watch.disconnect();
                performance.now = real;
                resolve(seen.every((texts) => texts.length === 2 && texts[0] === texts[1]));
            }
        });
        watch.observe(document.getElementById('to-pay-timer'), { childList: true });
    })";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_two_orders_the_card_has_the_urgent_one_and_all_its_timers_show_the_same() {
    let app = shared_development().await;
    let id = app.load_sale(&sale()).await;
    let first = app.buy("ada", &id, "a", 1).await.ok(201).id();
    let second = app.buy("ada", &id, "b", 1).await.ok(201).id();
    let window = Window::of_shopper(&app, &id, "ada").await;
    let [first, second] = [first, second].map(|order| format!("#orders [data-order='{order}']"));
    window.sees(&format!("{first} a"), "Pay or cancel by").await;
    window.misses(&format!("{first} .payment")).await;
    window.sees(&format!("{second} .payment .timer"), "14:").await;
    assert_eq!(window.run(TIMERS_AGREE, &[]).await, json!(true));
    // Once it is paid for, the other one takes its place.
    window.click("#items .payment button.strong").await;
    window.sees(&format!("{first} .pill"), "Paid").await;
    window.sees(&format!("{second} a"), "Pay or cancel by").await;
    window.close().await;
}

/// Refuses every purchase because of too many unpaid orders.
const TOO_MANY_HOLDS: &str = "const real = window.fetch;
    window.fetch = (path, options) => {
        if (options.method !== 'POST' || !path.endsWith('/orders')) { return real(path, options); }
        const refusal = { status: 409, code: 'too_many_holds', key_has_order: false };
        return Promise.resolve(new Response(JSON.stringify(refusal), { status: 409 }));
    }";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refusal_because_of_unpaid_orders_goes_away_with_the_order() {
    let app = shared_development().await;
    let id = app.load_sale(&sale()).await;
    let held = app.buy("ada", &id, "k", 1).await.ok(201).id();
    let window = Window::of_shopper(&app, &id, "ada").await;
    window.sees(ORDER, "Reserved").await;
    window.run(TOO_MANY_HOLDS, &[]).await;
    window.click(BUY).await;
    window.sees(NOTE, "You have too many unpaid orders").await;
    app.cancel("ada", &held).await.ok(200);
    window.sees(NOTE, "Cancelled. You gave it back.").await;
    window.sees(ORDER, "Cancelled").await;
    window.close().await;
}

/// The server's clock, as the page reads it, is two hours ahead.
const TWO_HOURS_AHEAD: &str = "const real = window.fetch;
    window.fetch = async (path, options) => {
        const answer = await real(path, options);
        const body = await answer.clone().json();
        if (!body.server_time) { return answer; }
        const server_time = new Date(Date.parse(body.server_time) + 7200_000).toISOString();
        return new Response(JSON.stringify({ ...body, server_time }), answer);
    }";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_banned_shopper_sees_when_the_ban_ends_and_may_press_the_button_again_then() {
    let app = shared_development().await;
    let now = Utc::now();
    let ends_at = rfc3339(now + TimeDelta::days(1));
    let id = app.load_sale(&sale_with(&json!({"ends_at": ends_at}))).await;
    let user = format!("banned-{}", Uuid::new_v4());
    // A ban ends at a whole second.
    let until = rfc3339((now + TimeDelta::hours(1)).with_nanosecond(0).unwrap());
    let ban = json!({"user": user, "reason": "a test", "until": until});
    let request = app.request(Method::POST, Who::Operator, "/v1/admin/bans");
    app.send(request.json(&ban)).await.ok(201);
    let window = Window::open(&app).await.expect(&["403"]);
    // Where it is between noon and one, so that an hour more is the same day.
    let zone = format!("Etc/GMT{:+}", i64::from(now.hour()) - 12);
    window
        .devtools("Emulation.setTimezoneOverride", json!({ "timezoneId": zone }))
        .await;
    window.goto_sale(&id).await;
    window.sign_in(&user).await;
    window.click(BUY).await;
    let time = "return new Intl.DateTimeFormat(arguments[0], { timeStyle: 'short' }).format(new Date(arguments[1]))";
    for (tag, form, before, after) in [
        ("zh-CN", "zh-CN", "此账号在 ", " 之前不能购买。"),
        ("en", "en-US", "This account may not buy until ", "."),
    ] {
        window.change_language(tag).await;
        let time = window.run(time, &[form, &until]).await;
        let words = format!("{before}{}{after}", time.as_str().unwrap());
        window.sees(NOTE, &words).await;
    }
    window.sees("#items .buy[aria-disabled=true]", "Buy").await;
    window.misses("#items .pill.is-available").await;
    window.run(TWO_HOURS_AHEAD, &[]).await;
    window.finds("#items .buy[aria-disabled=false]", "Buy").await;
    window.sees("#items .pill.is-available", "Available").await;
    window.misses(NOTE).await;
    window.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_page_that_keeps_trying_buys_the_unit_that_comes_back() {
    let app = shared_development().await;
    let id = app.load_sale(&sale_with(&json!({"stock": 1}))).await;
    let held = app.buy("bob", &id, "k", 1).await.ok(201).id();
    let window = Window::of_shopper(&app, &id, "ada").await;
    window.finds("#items .hold", "The next may come back by").await;
    window.sees(BUY, "Keep trying for me").await;
    // A shopper who stops has bought nothing.
    window.click(BUY).await;
    window.sees(NOTE, "as soon as one is free").await;
    window.click("#items .outcome button.quiet").await;
    window.misses(NOTE).await;
    announces(&window, "Stopped. Nothing was bought.").await;
    assert_eq!(window.attempt().await, None);
    // It goes on after a reload, and nothing has to be pressed.
    window.click(BUY).await;
    window.sees(BUY, "Trying").await;
    window.driver().refresh().await.unwrap();
    window.sees(BUY, "Trying").await;
    app.cancel("bob", &held).await.ok(200);
    window.sees(NOTE, "Reserved for you").await;
    window.sees(ORDER, "Reserved").await;
    assert_eq!(app.units(&id).await, [0, 1, 0]);
    // What is paid does not come back, so there is nothing to try for.
    window.click("#items .payment button.strong").await;
    window.sees(ORDER, "Paid").await;
    window.finds(BUY, "Sold out").await;
    window.sees("#items .hold", "none on hold").await;
    window.close().await;
}

/// The items of a sale of which the first is soon sold out.
fn one_phone_and_cases() -> Value {
    json!([
        {"sku": "phone", "name": "A phone", "price_minor": 49_900, "currency": "EUR", "stock": 1, "per_user_limit": 1},
        {"sku": "case", "name": "A case", "price_minor": 1900, "currency": "EUR", "stock": 10, "per_user_limit": 1},
    ])
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_page_that_keeps_trying_waits_as_long_as_the_sales_rate_asks_and_then_buys() {
    let app = shared_development().await;
    let rate = json!({"items": one_phone_and_cases(), "purchase_rate": {"limit": 1, "window_ms": 20_000}});
    let id = app.load_sale(&sale_with(&rate)).await;
    let held = app.buy("bob", &id, "k", 1).await.ok(201).id();
    let window = Window::of_shopper(&app, &id, "ada").await.expect(&["429"]);
    window.finds(BUY, "Keep trying for me").await;
    window.click(BUY).await;
    window.sees(BUY, "Trying").await;
    app.buy_sku("ada", &id, "k", "case", 1).await.ok(201);
    app.cancel("bob", &held).await.ok(200);
    window.sees(NOTE, "You ask more often than this sale allows").await;
    window
        .sees("#items > li:first-child .outcome .note", "Reserved for you")
        .await;
    window.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_shopper_who_asks_too_often_sees_the_wait_and_then_buys() {
    let app = shared_development().await;
    let rate = json!({"purchase_rate": {"limit": 1, "window_ms": 15_000}});
    let id = app.load_sale(&sale_with(&rate)).await;
    let window = Window::of_shopper(&app, &id, "ada").await.expect(&["429"]);
    app.buy("ada", &id, "k", 1).await.ok(201);
    window.click(BUY).await;
    window.sees(NOTE, "You ask more often than this sale allows").await;
    window.sees(TIMER, "Again in 0:").await;
    window.sees(BUY, "Please wait").await;
    let key = window.attempt().await.unwrap()["key"].clone();
    // Nothing has to be pressed.
    window.sees(NOTE, "Reserved for you").await;
    let orders = app.orders("ada", &id).await.ok(200).body;
    assert_eq!(orders["data"].as_array().unwrap().len(), 2, "{key}: {orders}");
    window.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sale_counts_down_by_the_servers_clock_opens_by_itself_and_is_paused_and_closed() {
    let app = shared_development().await;
    let window = Window::open(&app).await;
    let starts_at = Utc::now() + TimeDelta::seconds(25);
    let id = app
        .load_sale(&sale_with(&json!({"starts_at": rfc3339(starts_at)})))
        .await;
    // A browser whose clock is an hour ahead. The page itself notes when its button opens, by the machine's clock: a busy
    // test would see that late.
    let script = "const real = Date.now; Date.now = () => real() + 3600_000;
        new MutationObserver(() => {
            if (document.querySelector('#items .buy')?.textContent === 'Buy') {
                window.opened ??= Math.round(performance.timeOrigin + performance.now());
            }
        }).observe(document, { childList: true, characterData: true, subtree: true });";
    window
        .devtools("Page.addScriptToEvaluateOnNewDocument", json!({"source": script}))
        .await;
    window.goto_sale(&id).await;
    window.sees("#until", "Starts in").await;
    window.sees(BUY, "Not yet").await;
    // Less than a minute is in seconds alone.
    window.sees("#countdown", "sec").await;
    window.misses("#countdown .part + .part").await;
    window.sign_in("ada").await;
    window.sees(BUY, "Buy").await;
    let (since, start) = ("return window.opened - arguments[0]", starts_at.timestamp_millis());
    let late = window.run(since, &[&start.to_string()]).await.as_i64().unwrap();
    // The page knows the server's clock to half a round trip, which a busy machine makes long.
    assert!(
        (-500..2000).contains(&late),
        "the button opened {late} ms after the start"
    );
    for (verb, word) in [("pause", "Paused"), ("resume", "Buy"), ("close", "Over")] {
        app.operate(&id, verb).await.ok(200);
        window.finds(BUY, word).await;
        if verb == "resume" {
            window.sees("#items .pill", "Available").await;
            window.sees("#items .choice", "Quantity").await;
            window.misses("#notice").await;
        } else {
            window.misses("#items .pill").await;
            window.misses("#items .choice").await;
        }
        if verb == "pause" {
            window.sees("#notice", "What is reserved can still be paid").await;
        }
    }
    window.sees("#until", "This sale is over").await;
    window.close().await;
}

/// Presses Tab until the focus is on an element, and shows.
async fn tabs_to(window: &Window, selector: &str) {
    let is_there = "return document.activeElement.matches(arguments[0])";
    for _ in 0..15 {
        window.press(Key::Tab).await;
        if window.run(is_there, &[selector]).await == json!(true) {
            let outline = "return getComputedStyle(document.activeElement).outlineStyle";
            assert_eq!(window.run(outline, &[]).await, "solid", "one sees where one is");
            return;
        }
    }
    panic!("Tab does not lead to {selector}, but to {}", window.focus().await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_telephone_and_a_keyboard_are_enough_from_the_list_to_a_paid_order() {
    let app = development().await;
    let id = app.load_sale(&sale()).await;
    let telephone = Appearance {
        width: 360,
        height: 820,
        is_dark: true,
        ..Appearance::default()
    };
    let window = Window::with(&app, telephone).await;
    let script = "return document.documentElement.scrollWidth";
    window.goto("/").await;
    window.sees("#sales", "A sale").await;
    assert!(window.run(script, &[]).await.as_u64().unwrap() <= 360);
    window.open_link().await;
    window.fill("#user", "ada").await;
    window.press(Key::Enter).await;
    window.sees("#who", "ada").await;
    tabs_to(&window, &format!("#sales a[href='/sales/{id}']")).await;
    window.press(Key::Enter).await;
    window.sees("#items .buy:not([disabled])", "Buy").await;
    tabs_to(&window, BUY).await;
    window.press(Key::Enter).await;
    window.sees(ORDER, "Reserved").await;
    assert_eq!(
        window
            .run("return document.getElementById('live').textContent", &[])
            .await
            .as_str()
            .unwrap(),
        "Reserved for you. Not yours until it is paid."
    );
    window.picture("telephone.png").await;
    assert!(window.run(script, &[]).await.as_u64().unwrap() <= 360);
    tabs_to(&window, "#items .payment button.strong").await;
    window.press(Key::Enter).await;
    window.sees(ORDER, "Paid").await;
    window.sees(NOTE, "Paid. Thank you.").await;
    assert_eq!(window.focus().await, "h3#item-phone.");
    assert_eq!(app.units(&id).await, [9, 0, 1]);
    window.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_list_shows_a_shopper_what_is_unpaid_and_signing_out_says_that_it_stays_reserved() {
    let app = development().await;
    let id = app.load_sale(&sale()).await;
    let window = Window::of_shopper(&app, &id, "ada").await;
    window.click(BUY).await;
    window.sees(ORDER, "Reserved").await;
    window.goto("/").await;
    let of_list = format!("#sales li:has(a[href='/sales/{id}'])");
    let pill = format!("{of_list} .pill");
    window.sees(&pill, "Reserved").await;
    window.sees(&of_list, "left to pay · Ends in").await;
    // The next shopper at the same browser sees nothing of it.
    window.click("#sign-out").await;
    window
        .sees("#sign-in-why", "What is reserved for you stays so until")
        .await;
    window.sees(&pill, "On sale").await;
    window.sign_in("bob").await;
    window.misses("#sign-in-why").await;
    window.sees(&pill, "On sale").await;
    window.click("#sign-out").await;
    window.misses("#sign-in-why").await;
    window.sign_in("ada").await;
    window.sees(&pill, "Reserved").await;
    window.goto_sale(&id).await;
    window.click("#items .payment button.strong").await;
    window.sees(ORDER, "Paid").await;
    window.goto("/").await;
    window.sees("#who", "ada").await;
    window.finds(&pill, "On sale").await;
    window.click("#sign-out").await;
    window.misses("#sign-in-why").await;
    window.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_list_says_when_a_sale_starts_or_ends_that_is_days_ahead() {
    let app = development().await;
    // First, because it may wait for its place longer than the minute for which a time below holds.
    let window = Window::open(&app).await;
    let in_days = |days| rfc3339(Utc::now() + TimeDelta::days(days));
    let (start, end) = (in_days(3), in_days(5));
    let open = app.load_sale(&sale_with(&json!({"ends_at": end}))).await;
    let later = app
        .load_sale(&sale_with(&json!({"starts_at": start, "ends_at": end})))
        .await;
    let soon = app.load_sale(&sale()).await;
    window.goto("/").await;
    let format = "const format = new Intl.DateTimeFormat('en-US', { year: 'numeric', month: 'short', day: 'numeric',
            hour: 'numeric', minute: '2-digit', timeZoneName: 'short' });
        return format.format(new Date(arguments[0]))";
    let start = window.run(format, &[&start]).await;
    let end = window.run(format, &[&end]).await;
    let starts = format!("Starts {}", start.as_str().unwrap());
    let ends = format!("Ends {}", end.as_str().unwrap());
    let time_of = |sale: &str| format!("#sales li:has(a[href='/sales/{sale}']) p");
    window.sees(&time_of(&open), &ends).await;
    window.sees(&time_of(&later), &starts).await;
    window.sees(&time_of(&soon), "Ends in 59:").await;
    window
        .sees(&format!("#sales li:has(a[href='/sales/{soon}'])"), "€499.00")
        .await;
    app.operate(&open, "pause").await.ok(200);
    let pill = format!("#sales li:has(a[href='/sales/{open}']) .pill");
    window.finds(&pill, "Paused").await;
    window.sees(&time_of(&open), &ends).await;
    window.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_shopper_may_type_up_to_the_limit_and_sees_the_price_first() {
    let app = shared_development().await;
    let id = app
        .load_sale(&sale_with(&json!({"stock": 100, "per_user_limit": 50})))
        .await;
    let window = Window::of_shopper(&app, &id, "ada").await;
    let (quantity, wrong) = ("#item-phone-quantity", "#item-phone-wrong");
    for nonsense in ["51", "0", "1.5", ""] {
        window.fill(quantity, nonsense).await;
        window.click(BUY).await;
        window.sees(wrong, "a whole number from 1 to 50").await;
        let focus = "return document.activeElement.id + document.activeElement.getAttribute('aria-invalid')";
        assert_eq!(window.run(focus, &[]).await, "item-phone-quantitytrue", "{nonsense:?}");
        assert_eq!(window.attempt().await, None);
        window.misses("#items .total").await;
        window.fill(quantity, "1").await;
        window.misses(wrong).await;
    }
    window.fill(quantity, "12").await;
    window.sees("#items .total", "Total €5,988.00").await;
    window.click(BUY).await;
    window.sees(NOTE, "Reserved for you").await;
    assert_eq!(app.units(&id).await, [88, 12, 0]);
    window.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_quantity_chosen_before_the_start_survives_a_reload() {
    let app = shared_development().await;
    let starts_at = rfc3339(Utc::now() + TimeDelta::minutes(30));
    let id = app.load_sale(&sale_with(&json!({"starts_at": starts_at}))).await;
    let window = Window::of_shopper(&app, &id, "ada").await;
    window.fill("#item-phone-quantity", "2").await;
    window.sees("#items .total", "Total €998.00").await;
    window.driver().refresh().await.unwrap();
    window.sees("#items .total", "Total €998.00").await;
    app.operate(&id, "open").await.ok(200);
    window.finds(BUY, "Buy").await;
    window.click(BUY).await;
    window.sees("#orders h3", "A phone × 2").await;
    window.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_title_shows_a_shopper_in_another_tab_that_it_is_their_turn() {
    let app = shared_development().await;
    let starts_at = rfc3339(Utc::now() + TimeDelta::minutes(30));
    let room = json!({"starts_at": starts_at, "guards": {"waiting_room": true}, "payment_window_seconds": 600});
    let id = app.load_sale(&sale_with(&room)).await;
    let window = Window::open(&app).await;
    let titled = async |title: &str| {
        poll::within(Duration::from_secs(20), title, async || {
            window.driver().title().await.unwrap() == title
        })
        .await;
    };
    window.goto_sale(&id).await;
    titled("A sale · Flashsale").await;
    window.sign_in("ada").await;
    window.click(BUY).await;
    titled("In the queue · A sale · Flashsale").await;
    app.operate(&id, "open").await.ok(200);
    titled("Reserved: about 10 min to pay · A sale · Flashsale").await;
    window.change_language("zh-CN").await;
    titled("已保留：付款时间剩余约 10 分钟 · A sale · Flashsale").await;
    let order = app.orders("ada", &id).await.ok(200).body["data"][0].clone();
    assert_eq!(app.pay("pay_by_title", &order).await, "applied");
    window.finds(ORDER, "已付款").await;
    titled("A sale · Flashsale").await;
    announces(&window, "A phone：已付款。谢谢，商品归您了。").await;
    window.close().await;
}

/// A shopper's window that tries for the sold-out phone of a sale that also has a case.
async fn trying_for_a_phone(app: &Shared) -> Window {
    let id = app
        .load_sale(&sale_with(&json!({"items": one_phone_and_cases()})))
        .await;
    app.buy("bob", &id, "k", 1).await.ok(201);
    let window = Window::of_shopper(app, &id, "ada").await;
    window.finds(BUY, "Keep trying for me").await;
    window.click(BUY).await;
    window
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_title_shows_the_time_to_pay_before_an_attempt_that_waits() {
    let app = shared_development().await;
    let window = trying_for_a_phone(&app).await;
    window.has_title("Trying for you · A sale · Flashsale").await;
    window.click("#items .outcome button.quiet").await;
    window.misses(NOTE).await;
    window.click("#items > li:nth-child(2) .buy").await;
    window.sees(ORDER, "Reserved").await;
    window.click(BUY).await;
    window.sees(NOTE, "as soon as one is free").await;
    window
        .has_title("Reserved: about 15 min to pay · A sale · Flashsale")
        .await;
    window.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn while_the_page_tries_for_one_item_the_others_say_why_they_wait() {
    let app = shared_development().await;
    let window = trying_for_a_phone(&app).await;
    let case = "#items > li:nth-child(2)";
    let why = format!("{case} a[href='#item-phone']");
    window.sees(&why, "You are trying for A phone: stop that first.").await;
    window.change_language("zh-CN").await;
    window.sees(&why, "正在替您尝试购买 A phone：请先停止。").await;
    window.change_language("en").await;
    window.click("#items .outcome button.quiet").await;
    window.misses(&why).await;
    window.click(&format!("{case} .buy")).await;
    window.sees(&format!("{case} .note"), "Reserved for you").await;
    window.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sale_that_has_not_started_can_be_added_to_a_calendar() {
    let app = shared_development().await;
    let (starts_at, ends_at) = (Utc::now() + TimeDelta::days(3), Utc::now() + TimeDelta::days(4));
    let name = "双十一, autumn launch; phones \\ headphones, the last ones of the year 2026";
    let changes = json!({"name": name, "starts_at": rfc3339(starts_at), "ends_at": rfc3339(ends_at)});
    let id = app.load_sale(&sale_with(&changes)).await;
    let window = Window::open(&app).await;
    window.goto_sale(&id).await;
    window.sees("#calendar", "Add to calendar").await;
    let file = window.saves("#calendar", "sale.ics").await;
    assert!(file.split("\r\n").all(|line| line.len() <= 75), "{file}");
    let lines = file.replace("\r\n ", "");
    let address = window.run("return location.origin + location.pathname", &[]).await;
    let stamp = "%Y%m%dT%H%M%SZ";
    for line in [
        format!("DTSTART:{}", starts_at.format(stamp)),
        format!("DTEND:{}", ends_at.format(stamp)),
        r"SUMMARY:双十一\, autumn launch\; phones \\ headphones\, the last ones of the year 2026".to_owned(),
        format!("URL:{}", address.as_str().unwrap()),
        "TRIGGER:-PT10M".to_owned(),
    ] {
        assert!(lines.contains(&format!("\r\n{line}\r\n")), "{line} is not in {lines}");
    }
    window.change_language("zh-CN").await;
    window.sees("#calendar", "加入日历").await;
    app.operate(&id, "open").await.ok(200);
    window.finds("#state", "抢购中").await;
    window.misses("#calendar").await;
    window.close().await;
}
