//! Tokens that the shop's own sign-in hands over in a link.

use super::window::Window;
use crate::support::app::{TestApp, sale, token};

const BUY: &str = "#items .buy";
const ORDER: &str = "#orders .order .pill";
const PAY: &str = "#orders .order a.button";
const ADDRESS: &str = "return location.href";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_link_with_a_token_signs_in_and_does_not_keep_it_in_the_address() {
    let app = TestApp::start().await;
    let id = app.load_sale(&sale()).await;
    let window = Window::open(&app).await;
    window
        .goto(&format!("/sales/{id}?from=shop#token={}", token("ada")))
        .await;
    window.sees("#who", "ada").await;
    let address = window.run(ADDRESS, &[]).await;
    assert!(
        address.as_str().unwrap().ends_with(&format!("/sales/{id}?from=shop")),
        "{address}"
    );
    window.click(BUY).await;
    window.sees(ORDER, "Reserved").await;
    // It is kept as one that was pasted is.
    window.driver().refresh().await.unwrap();
    window.sees("#who", "ada").await;
    window.sees(ORDER, "Reserved").await;
    // A link for somebody else means somebody else, and one with no token nobody.
    window
        .run(&format!("location.hash = 'token={}'", token("bob")), &[])
        .await;
    window.sees("#who", "bob").await;
    window.sees("#no-orders", "None yet").await;
    window.run("location.hash = 'token=hunter2'", &[]).await;
    window.sees("#sign-in-why", "not a token").await;
    window.misses("#who").await;
    let address = window.run(ADDRESS, &[]).await;
    assert!(!address.as_str().unwrap().contains('#'), "{address}");
    assert_eq!(app.units(&id).await, [9, 1, 0]);
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
    window.click("#sales a").await;
    window.sees("#who", "ada").await;
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
    // Nothing to paste, and what the shop sent is said to be none.
    window.sees("#shop-sign-in", "Sign in at the shop").await;
    window.misses("#by-token").await;
    window.sees("#sign-in-why", "The shop has sent no token").await;
    window.click(BUY).await;
    let focus = "return document.activeElement.id";
    assert_eq!(window.run(focus, &[]).await, "shop-sign-in");
    let encoded = "return encodeURIComponent(location.origin + arguments[0])";
    let back = window.run(encoded, &[&format!("/sales/{id}?from=a&b")]).await;
    let back = back.as_str().unwrap();
    let href = "return document.querySelector(arguments[0]).href";
    assert_eq!(
        window.run(href, &["#shop-sign-in"]).await,
        sign_in.replace("{return}", back)
    );
    // Back from there with a token.
    window
        .run(&format!("location.hash = 'token={}'", token("ada")), &[])
        .await;
    window.sees("#who", "ada").await;
    window.misses("#shop-sign-in").await;
    window.click(BUY).await;
    window.sees(ORDER, "Reserved").await;
    window.sees(PAY, "Pay at the shop").await;
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
