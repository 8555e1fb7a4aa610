//! Tokens that the shop's own sign-in hands over in a link.

use crate::support::app::{TestApp, rfc3339, sale, sale_with, token};
use crate::support::poll;
use crate::support::window::{Window, shared_development};
use chrono::{TimeDelta, Utc};
use serde_json::json;

const BUY: &str = "#items .buy";
const NOTE: &str = "#items .outcome .note";
const ORDER: &str = "#orders .order .pill";
const PAY: &str = "#items .payment a.button";
const ADDRESS: &str = "return location.href";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_link_with_a_token_signs_in_and_does_not_keep_it_in_the_address() {
    let app = TestApp::start().await;
    let id = app.load_sale(&sale()).await;
    let window = Window::open(&app).await;
    window
        .goto(&format!("/sales/{id}?from=shop#token={}", token("ada")))
        .await;
    // The shopper did not ask for it here, so the page asks.
    window.sees("#offer-who", "ada").await;
    window.misses("#who").await;
    let address = window.run(ADDRESS, &[]).await;
    assert!(
        address.as_str().unwrap().ends_with(&format!("/sales/{id}?from=shop")),
        "{address}"
    );
    window.click("#take-offer").await;
    window.sees("#who", "ada").await;
    window.misses("#offer").await;
    window.sees(BUY, "Buy").await;
    window.sees(BUY, "Buy").await;
    window.click(BUY).await;
    window.sees(ORDER, "Reserved").await;
    // It is kept like a pasted one.
    window.driver().refresh().await.unwrap();
    window.sees("#who", "ada").await;
    window.sees(ORDER, "Reserved").await;
    // Neither a link for another account nor one without a token signs anybody out.
    window
        .run(&format!("location.hash = 'token={}'", token("eve")), &[])
        .await;
    window.sees("#offer-who", "eve").await;
    window.sees("#who", "ada").await;
    window.click("#decline-offer").await;
    window.misses("#offer").await;
    window.run("location.hash = 'token=hunter2'", &[]).await;
    poll::answer("the token is gone from the address", || async {
        let address = window.run(ADDRESS, &[]).await;
        (!address.as_str().unwrap().contains('#')).then_some(())
    })
    .await;
    window.sees("#who", "ada").await;
    window.driver().refresh().await.unwrap();
    window.sees("#who", "ada").await;
    window.sees(ORDER, "Reserved").await;
    window.misses("#offer").await;
    let address = window.run(ADDRESS, &[]).await;
    assert!(!address.as_str().unwrap().contains('#'), "{address}");
    assert_eq!(app.units(&id).await, [9, 1, 0]);
    window.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_shopper_wanted_is_kept_over_the_sign_in_and_bought_after_a_press() {
    let app = shared_development().await;
    let id = app.load_sale(&sale()).await;
    let window = Window::open(&app).await;
    window.goto_sale(&id).await;
    window.misses("#sign-in-early").await;
    window.fill("#item-phone-quantity", "3").await;
    window.click(BUY).await;
    window.sees("#sign-in-why", "What you chose is kept").await;
    window.change_language("zh-CN").await;
    window.sees("#sign-in-why", "您的选择会保留").await;
    // A shop's own sign-in is on another page.
    window.goto("/").await;
    window.sees("#sales", "A sale").await;
    window.goto_sale(&id).await;
    window.sign_in("ada").await;
    window.sees(NOTE, "购买 3 件 A phone？").await;
    assert_eq!(window.focus().await, "li#.item");
    assert_eq!(app.units(&id).await, [10, 0, 0]);
    window.click("#items .outcome .actions button").await;
    window.sees(ORDER, "已保留").await;
    window.change_language("en").await;
    window.sees(ORDER, "Reserved").await;
    assert_eq!(app.units(&id).await, [7, 3, 0]);
    // It is taken once: the next shopper wants nothing yet.
    window.click("#sign-out").await;
    window.sign_in("bob").await;
    window.sees("#no-orders", "None yet").await;
    window.misses(NOTE).await;
    window.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn before_the_start_the_page_asks_to_sign_in_in_time() {
    let app = shared_development().await;
    let starts_at = rfc3339(Utc::now() + TimeDelta::minutes(30));
    let id = app.load_sale(&sale_with(&json!({"starts_at": starts_at}))).await;
    let window = Window::open(&app).await;
    window.goto_sale(&id).await;
    window
        .sees("#sign-in-early", "Sign in now, so that you lose no time at the start")
        .await;
    window.change_language("zh-CN").await;
    window.sees("#sign-in-early", "请现在登录").await;
    window.sign_in("ada").await;
    window.misses("#sign-in-early").await;
    window.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_link_to_the_list_with_a_token_signs_in_for_every_sale() {
    let app = TestApp::start().await;
    app.load_sale(&sale()).await;
    let window = Window::open(&app).await;
    window.goto(&format!("/#token={}", token("ada"))).await;
    window.sees("#sales", "A sale").await;
    let address = window.run(ADDRESS, &[]).await;
    assert!(address.as_str().unwrap().ends_with('/'), "{address}");
    window.sees("#offer-who", "ada").await;
    window.click("#take-offer").await;
    window.sees("#who", "ada").await;
    window.click("#sales a").await;
    window.sees("#name", "A sale").await;
    window.sees("#who", "ada").await;
    window.goto("/").await;
    window.sees("#who", "ada").await;
    window.click("#sign-out").await;
    window.misses("#who").await;
    window.sees("#to-sign-in", "Sign in").await;
    window.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_shop_that_is_known_is_linked_to_for_signing_in_and_for_paying() {
    let sign_in = "https://shop.example/sign-in?a=1&back={return}";
    let pay = "https://shop.example/pay/{order}?back={return}";
    let settings = [("FLASHSALE_SIGN_IN_URL", sign_in), ("FLASHSALE_PAY_URL", pay)];
    let app = TestApp::with("all", &settings).await;
    let id = app.load_sale(&sale()).await;
    let window = Window::open(&app).await;
    window.goto(&format!("/sales/{id}?from=a&b#token=nonsense")).await;
    // Nothing to paste, and the shop's text is refused as no token.
    window.sees("#shop-sign-in", "Sign in at the shop").await;
    window.misses("#by-token").await;
    window.sees("#sign-in-why", "The shop has sent no token").await;
    window.sees(BUY, "Buy").await;
    window.click(BUY).await;
    let focus = "return document.activeElement.id";
    assert_eq!(window.run(focus, &[]).await, "shop-sign-in");
    let encoded = "return encodeURIComponent(location.origin + arguments[0])";
    let back = window.run(encoded, &[&format!("/sales/{id}?from=a&b")]).await;
    let back = back.as_str().unwrap();
    let href = "return document.querySelector(arguments[0]).href";
    let link = window.run(href, &["#shop-sign-in"]).await;
    let link = link.as_str().unwrap();
    let asked = sign_in.replace("{return}", &format!("{back}%26sign_in_state%3D"));
    let state = link.strip_prefix(&asked).unwrap_or_else(|| panic!("{link}"));
    assert!(
        state.len() == 32 && state.bytes().all(|it| it.is_ascii_hexdigit()),
        "{link}"
    );
    // A made-up link for another account: no question is skipped for it.
    let made_up = "0".repeat(32);
    window
        .goto(&format!(
            "/sales/{id}?from=a&b&sign_in_state={made_up}#token={}",
            token("eve")
        ))
        .await;
    window.sees("#offer-who", "eve").await;
    window.misses("#who").await;
    window.click("#decline-offer").await;
    // Back from the shop with a token.
    let with_state = format!("/sales/{id}?from=a&b&sign_in_state={state}");
    window.goto(&format!("{with_state}#token={}", token("ada"))).await;
    window.sees("#who", "ada").await;
    window.misses("#offer").await;
    let address = window.run(ADDRESS, &[]).await;
    assert!(address.as_str().unwrap().ends_with("?from=a&b"), "{address}");
    // It was good for once.
    window.goto(&format!("{with_state}#token={}", token("eve"))).await;
    window.sees("#offer-who", "eve").await;
    window.sees("#who", "ada").await;
    window.click("#decline-offer").await;
    window.misses("#shop-sign-in").await;
    // The purchase that was begun has its one button in the card's box.
    window.misses(BUY).await;
    window.click("#items .outcome .actions button").await;
    window.sees(ORDER, "Reserved").await;
    window.sees(PAY, "Pay €499.00").await;
    let orders = app.orders("ada", &id).await.ok(200).body;
    let order = orders["data"][0]["id"].as_str().unwrap();
    assert_eq!(
        window.run(href, &[PAY]).await,
        pay.replace("{order}", order).replace("{return}", back)
    );
    assert_eq!(app.pay("pay_1", &orders["data"][0]).await, "applied");
    window.sees(ORDER, "Paid").await;
    window.misses(PAY).await;
    window.close().await;
}
