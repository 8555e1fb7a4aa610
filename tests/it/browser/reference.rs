//! The pages of the API reference, as a developer of a client reads them.

use crate::support::app::{TestApp, Who};
use crate::support::document::operations;
use crate::support::poll::{self, PATIENCE};
use crate::support::window::{Appearance, Window};
use flashsale::domain::code::Code;
use serde_json::json;
use thirtyfour::Key;

/// The focused element: its text, its place in the window, and whether the focus is visible.
const FOCUS: &str = "const [node, style] = [document.activeElement, getComputedStyle(document.activeElement)];
    const { left, top } = node.getBoundingClientRect();
    return [node.innerText, left >= 0 && top >= 0 && top < innerHeight, style.outlineStyle]";

/// Wide enough for the contents beside the text.
const DESK: Appearance = Appearance {
    width: 1280,
    height: 900,
    language: "en-US",
    is_dark: false,
};

/// Whether the marked entry of the contents is in view.
const IS_IN_CONTENTS: &str = "const [list, entry] = ['#contents', '#contents [aria-current]']
        .map((selector) => document.querySelector(selector).getBoundingClientRect());
    return entry.top >= list.top && entry.bottom <= list.bottom";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_reference_is_read_on_a_telephone_in_both_schemes_and_without_a_mouse() {
    let app = TestApp::start().await;
    for (is_dark, ground) in [(false, "rgb(250, 249, 247)"), (true, "rgb(20, 18, 16)")] {
        let telephone = Appearance {
            width: 360,
            height: 820,
            is_dark,
            ..Appearance::default()
        };
        let window = Window::with(&app, telephone).await;
        window.goto("/docs").await;
        window.sees("h1", "Flashsale API").await;
        // Its style has loaded, which its policy allows.
        let colour = "return getComputedStyle(document.documentElement).backgroundColor";
        assert_eq!(window.run(colour, &[]).await, ground);
        let width = window.run("return document.documentElement.scrollWidth", &[]).await;
        assert!(width.as_u64().unwrap() <= 360, "{width}");
        // Content wider than the page scrolls by itself, also without a mouse.
        let out_of_reach = "const isWide = (node) => node.scrollWidth > node.clientWidth
                && ['auto', 'scroll'].includes(getComputedStyle(node).overflowX);
            const wide = [...document.querySelectorAll('main *')].filter(isWide);
            return [wide.length > 0, wide.filter((node) => node.tabIndex < 0).map((node) => node.outerHTML.slice(0, 80))]";
        assert_eq!(window.run(out_of_reach, &[]).await, json!([true, []]));
        window.press(Key::Tab).await;
        assert_eq!(
            window.run(FOCUS, &[]).await,
            json!(["Skip to the content", true, "solid"])
        );
        window.press(Key::Enter).await;
        assert_eq!(window.run("return location.hash", &[]).await, "#content");
        window.press(Key::Tab).await;
        let is_inside = "return document.activeElement.closest('main') !== null";
        assert_eq!(window.run(is_inside, &[]).await, true, "past the contents");
        // And through the contents to a heading.
        window.goto("/docs").await;
        let last = "const links = document.querySelectorAll('nav a');
            links[links.length - 1].focus();
            return links[links.length - 1].hash";
        let place = window.run(last, &[]).await;
        window.press(Key::Enter).await;
        let top = "return document.querySelector(location.hash).getBoundingClientRect().top";
        let top = window.run(top, &[]).await.as_f64().unwrap();
        assert_eq!(window.run("return location.hash", &[]).await, place);
        assert!((0.0..820.0).contains(&top), "{place} is at {top}");
        window.close().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_developer_searches_and_sees_where_the_page_is() {
    let app = TestApp::start_api_only().await;
    let window = Window::with(&app, DESK).await;
    window.goto("/docs").await;
    window.sees("nav [aria-current]", "Authentication").await;
    let scroll = "document.getElementById('showOrder').scrollIntoView()";
    window.run(scroll, &[]).await;
    window.sees("nav [aria-current]", "Show one's own order").await;
    // The contents have followed, so that the mark is in view.
    assert_eq!(window.run(IS_IN_CONTENTS, &[]).await, true);
    // The end of the page: the last places cannot scroll to the top.
    window.run("scrollTo(0, document.body.scrollHeight)", &[]).await;
    window.sees("nav [aria-current]", "What a problem means").await;

    // A route, by the keyboard.
    window.fill("#query", "/cancel").await;
    window.sees("#results li:first-child a", "Cancel one's own order").await;
    window.misses("#contents").await;
    window.press(Key::Enter).await;
    assert_eq!(window.run("return location.hash", &[]).await, "#cancelOrder");
    // A code, which is also in the text of many routes.
    window.fill("#query", "sold_out").await;
    window.sees("#results li:first-child a", "sold_out").await;
    window.sees("#results", "Buy: reserve units of an item").await;
    window.click("#results li:first-child a").await;
    window.sees("tr:target", Code::SoldOut.title()).await;
    window.fill("#query", "xyzzy").await;
    window.sees("#found", "Nothing found").await;
    window.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_type_of_a_problem_leads_to_what_a_client_does() {
    let app = TestApp::start_api_only().await;
    let window = Window::with(&app, DESK).await;
    let refused = app.get(Who::Nobody, "/v1/admin/sales").await.no(401, "unauthenticated");
    let advice = Code::Unauthenticated.advice().replace('`', "");
    window.goto(refused.text("type")).await;
    window.sees("main", Code::Unauthenticated.title()).await;
    window.sees("main", &advice).await;
    window.sees("nav [aria-current=page]", "unauthenticated").await;
    // And from there to the same code among all.
    window.click("nav [aria-current]").await;
    window.sees("section:target", &advice).await;
    window.sees("main", Code::SoldOut.title()).await;
    let top = "return document.querySelector(':target').getBoundingClientRect().top";
    let top = window.run(top, &[]).await.as_f64().unwrap();
    assert!((0.0..900.0).contains(&top), "{top}");
    window.sees("nav [aria-current=location]", "unauthenticated").await;
    window.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_example_is_copied_in_the_language_that_all_examples_have() {
    let app = TestApp::start_api_only().await;
    let window = Window::with(&app, DESK).await;
    let permissions = json!({"permissions": ["clipboardReadWrite", "clipboardSanitizedWrite"]});
    window.devtools("Browser.grantPermissions", permissions).await;
    window
        .devtools("Emulation.setFocusEmulationEnabled", json!({"enabled": true}))
        .await;
    window.goto("/docs").await;
    window.sees("#listSales pre[data-language=curl]", "curl").await;
    for (language, sign) in [
        ("JavaScript", "await fetch"),
        ("Python", "urlopen"),
        ("curl", "curl -sS"),
    ] {
        window.click(&format!("#buy [value={language}]")).await;
        for id in ["buy", "listSales", "signIn"] {
            window.sees(&format!("#{id} pre[data-language={language}]"), sign).await;
            let shown = "return [...document.querySelectorAll(`#${arguments[0]} .example pre`)]
                .filter((node) => node.checkVisibility()).length";
            assert_eq!(window.run(shown, &[id]).await, 1, "{id} in {language}");
        }
        // It stays in view, although the examples above it changed.
        let top = "return document.querySelector('#buy .example').getBoundingClientRect().top";
        let top = window.run(top, &[]).await.as_f64().unwrap();
        assert!((0.0..900.0).contains(&top), "{language}: {top}");
        window.click("#buy .example .copy").await;
        window.sees("#buy .example .copy", "Copied").await;
        let (_, _, buy) = operations().find(|(_, _, it)| it["operationId"] == "buy").unwrap();
        let mut samples = buy["x-codeSamples"].as_array().unwrap().iter();
        let sample = samples.find(|it| it["label"] == language).unwrap();
        poll::within(PATIENCE, &format!("the example in {language} is copied"), async || {
            window.run("return navigator.clipboard.readText()", &[]).await == sample["source"]
        })
        .await;
    }
    // The choice is kept.
    window.click("#buy [value=Python]").await;
    window.goto("/docs").await;
    window.sees("#listSales pre[data-language=Python]", "urlopen").await;
    window.close().await;
}
