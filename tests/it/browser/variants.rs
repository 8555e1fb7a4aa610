//! Pictures and descriptions, and items of one group as one card with a choice of options.

use crate::support::app::{TestApp, sale_with};
use crate::support::poll::{self, PATIENCE};
use crate::support::window::{Window, shared_development};
use serde_json::{Value, json};
use thirtyfour::Key;

const GROUP: &str = "#items .group";
const BUY: &str = "#items .variants .buy";
/// The names of the items whose cards are open.
const OPEN: &str = "return [...document.querySelectorAll('#items .variants h4')].map((it) => it.textContent)";
/// A file that every instance has.
const DRAWN: &str = "/assets/-/icon.svg";

/// An item of the group `Shirt`, with ten units.
fn shirt(option: &str, price: u32) -> Value {
    let (sku, name) = (format!("shirt-{option}"), format!("Shirt, {option}"));
    json!({"sku": sku, "name": name, "price_minor": price, "currency": "EUR", "stock": 10, "per_user_limit": 2,
        "group": "Shirt", "option": option})
}

async fn has_open(window: &Window, names: &[&str]) {
    let wanted = json!(names);
    poll::within(PATIENCE, &format!("{names:?} are open"), async || {
        window.run(OPEN, &[]).await == wanted
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_shopper_chooses_a_size_and_buys_it_and_each_size_keeps_its_own_state() {
    let app = shared_development().await;
    let cap = json!({"sku": "cap", "name": "Cap", "price_minor": 900, "currency": "EUR", "stock": 10,
        "per_user_limit": 1});
    let items = json!([shirt("S", 1900), cap, shirt("M", 1900), shirt("L", 2100)]);
    let id = app.load_sale(&sale_with(&json!({"items": items}))).await;
    app.restock(&id, "k", "shirt-S", -10).await.ok(200);
    let window = Window::open(&app).await;
    window.goto_sale(&id).await;
    window.sign_in("ada").await;
    // The card is at the place of the first, and sells nothing before the shopper has chosen.
    window.sees("#items > li:nth-child(1).group h3", "Shirt").await;
    window.sees("#items > li:nth-child(2) h3", "Cap").await;
    window.sees(&format!("{GROUP} legend"), "Choose one").await;
    window.sees(&format!("{GROUP} .price"), "from €19.00").await;
    window.finds(&format!("{GROUP} .option.is-sold_out"), "Sold out").await;
    window.misses(BUY).await;
    // The arrow keys choose, and the focus stays.
    window
        .run("document.querySelector('#items .option input').focus()", &[])
        .await;
    window.press(Key::Space).await;
    has_open(&window, &["Shirt, S"]).await;
    window.sees(BUY, "Sold out").await;
    window.press(Key::Down).await;
    has_open(&window, &["Shirt, M"]).await;
    assert!(window.focus().await.starts_with("input#"), "the focus stays");
    window.click(BUY).await;
    window
        .sees(&format!("{GROUP} .outcome .note"), "Reserved for you")
        .await;
    window.sees("#orders h3", "Shirt, M").await;
    // What is unpaid stays in view while the shopper looks at another size.
    window.click(&format!("{GROUP} .option:nth-child(3)")).await;
    has_open(&window, &["Shirt, M", "Shirt, L"]).await;
    window
        .click(&format!("{GROUP} .variants .item:nth-child(2) .buy"))
        .await;
    window
        .sees(
            &format!("{GROUP} .variants .item:nth-child(2) .note"),
            "Reserved for you",
        )
        .await;
    let orders = app.orders("ada", &id).await.ok(200).body;
    let mut skus: Vec<&str> = orders["data"]
        .as_array()
        .unwrap()
        .iter()
        .map(|order| order["sku"].as_str().unwrap())
        .collect();
    skus.sort_unstable();
    assert_eq!(skus, ["shirt-L", "shirt-M"]);
    // Unpaid orders open their sizes after a reload, too.
    window.driver().refresh().await.unwrap();
    has_open(&window, &["Shirt, M", "Shirt, L"]).await;
    let names = window.accessible_names().await;
    let is_marked = |name: &String| name.starts_with('S') && name.ends_with("Sold out");
    assert!(names["radio"].iter().any(is_marked), "{:?}", names["radio"]);
    window.change_language("zh-CN").await;
    window.sees(&format!("{GROUP} legend"), "请选择").await;
    window.sees(&format!("{GROUP} .option.is-sold_out"), "已售罄").await;
    window.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_shopper_chose_before_the_sign_in_opens_after_it() {
    let app = shared_development().await;
    let items = json!([shirt("S", 1900), shirt("M", 1900)]);
    let id = app.load_sale(&sale_with(&json!({"items": items}))).await;
    let window = Window::open(&app).await;
    window.goto(&format!("/sales/{id}")).await;
    window.sees("#items .option:has(:enabled)", "S").await;
    window.click("#items .option:nth-child(2)").await;
    window.click(BUY).await;
    window.sees("#sign-in-why", "Sign in to buy").await;
    window.driver().refresh().await.unwrap();
    window.sees("#items .option:has(:enabled)", "S").await;
    window.sign_in("ada").await;
    has_open(&window, &["Shirt, M"]).await;
    window.sees(&format!("{GROUP} .outcome .note"), "Buy 1 Shirt, M?").await;
    window.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pictures_and_descriptions_are_shown_and_a_picture_that_does_not_load_is_not() {
    let app = TestApp::start().await;
    let mut items = [shirt("S", 1900), shirt("M", 1900)];
    items[0]["image_url"] = json!(DRAWN);
    items[0]["description"] = json!("Cotton.");
    items[1]["image_url"] = json!("/nothing.png");
    items[1]["description"] = json!("Wool.");
    let [s, m] = items;
    let mut lost = s.clone();
    lost["sku"] = json!("lost");
    lost["group"] = json!("Lost");
    lost["image_url"] = json!("/lost.png");
    let mut request = sale_with(&json!({"items": [lost, s, m]}));
    (request["description"], request["image_url"]) = (json!("First line.\nSecond line."), json!(DRAWN));
    let id = app.load_sale(&request).await;
    let window = Window::open(&app).await.expect(&["404"]);
    // Whether a picture is drawn, or hidden.
    let shows = async |selector: &str, wanted: bool| {
        let is_drawn = "const image = document.querySelector(arguments[0]);
            return image?.checkVisibility() ? image.naturalWidth > 0 || null : false";
        poll::within(PATIENCE, &format!("{selector} is drawn: {wanted}"), async || {
            window.run(is_drawn, &[selector]).await == wanted
        })
        .await;
    };
    window.goto("/").await;
    shows("#sales .picture", true).await;
    window.goto_sale(&id).await;
    shows("#picture", true).await;
    window.sees("#description", "First line.\nSecond line.").await;
    shows("#items > li:nth-child(1) > .picture", false).await;
    window.sees("#items > li:nth-child(1) > .description", "Cotton.").await;
    // The card of a group has the picture of the first option, then of the chosen one.
    shows(&format!("{GROUP} > .picture"), true).await;
    window.sees(&format!("{GROUP} > .description"), "Cotton.").await;
    window.click(&format!("{GROUP} .option:nth-child(2)")).await;
    window.sees(&format!("{GROUP} > .description"), "Wool.").await;
    shows(&format!("{GROUP} > .picture"), false).await;
    window.click(&format!("{GROUP} .option:nth-child(1)")).await;
    shows(&format!("{GROUP} > .picture"), true).await;
    window.close().await;
}
