//! Tokens that the shop's own sign-in hands over in a link.

use super::window::Window;
use crate::support::app::{TestApp, sale, token};

const BUY: &str = "#items .buy";
const ORDER: &str = "#orders .order .pill";
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
