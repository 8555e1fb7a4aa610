//! The reference page, as a developer of a client reads it.

use crate::support::app::TestApp;
use crate::support::window::{Appearance, Window};
use serde_json::json;
use thirtyfour::Key;

/// The focused element: its text, its place in the window, and whether the focus is visible.
const FOCUS: &str = "const [node, style] = [document.activeElement, getComputedStyle(document.activeElement)];
    const { left, top } = node.getBoundingClientRect();
    return [node.innerText, left >= 0 && top >= 0 && top < innerHeight, style.outlineStyle]";

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
