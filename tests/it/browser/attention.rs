//! Work that needs an operator's attention is seen from the sale, and dealt with.

use crate::support::app::TestApp;
use crate::support::window::Window;
use serde_json::json;
use thirtyfour::Key;

const RESULT: &str = ".result";
const SETTLE: &str = "#letters tbody button";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dead_letters_are_seen_from_the_sale_and_dealt_with() {
    let app = TestApp::start_api_only().await;
    let (id, order) = app.load_sale_with_dead_letters().await;
    let _worker = app.another("worker").may_log_errors();
    app.wait_for_dead_letters(&id, 3).await;
    app.refuse(&id, &[json!({"kind": "ban", "user": "<b>bob</b>"}), json!({})])
        .await;
    let window = Window::open(&app).await.expect(&["ERR", "409"]);
    window.open_console(&format!("/console/sales/{id}")).await;
    window.sees_tile("Refused messages", |text| text == "2").await;
    window.sees_tile("Dead letters", |text| text == "3").await;
    let links = "return document.querySelectorAll('.tile.is-bad a[href$=\"/attention\"]').length";
    assert_eq!(window.run(links, &[]).await, json!(2));
    let link = format!(".tile.is-bad a[href='/console/sales/{id}/attention']");
    window.click(&link).await;
    window.sees("#view h1", "Needs attention").await;
    window.sees("#of-sale", "A sale").await;
    for text in [
        "0:1-1",
        "ada phone × 2",
        &*order,
        "another order in its place",
        "\\x00\\x00",
        "<b>no event</b>",
    ] {
        window.sees("#letters tbody", text).await;
    }
    window.sees("#refused tbody", "a ban").await;
    window.sees("#refused tbody", "<b>bob</b>").await;
    window.sees("#refused tbody", "nobody can read it").await;
    let hurt = "return document.querySelectorAll('td b').length";
    assert_eq!(window.run(hurt, &[]).await, json!(0));

    // A cancelled dialog does nothing, and neither does an empty note; typed text survives a lost answer.
    window.click(SETTLE).await;
    window.sees("dialog h2", "Is event 0:1-1 dealt with?").await;
    assert_eq!(window.run("return document.activeElement.id", &[]).await, "letter-note");
    window.click("dialog .strong").await;
    window.sees("#letter-note-wrong", "Fill this in").await;
    window.press(Key::Escape).await;
    window.misses("dialog").await;
    window.click(SETTLE).await;
    window.fill("#letter-note", "told <b>ada</b>").await;
    window.press(Key::Escape).await;
    window.misses("dialog").await;
    window.driver().refresh().await.unwrap();
    window.sees("#letters tbody", "ada phone").await;
    window.block(&["*/dead-letters/settle"]).await;
    window.click(SETTLE).await;
    window.holds("letter-note", "told <b>ada</b>").await;
    window.press(Key::Enter).await;
    window.sees(RESULT, "It is not known whether that worked").await;
    window.block(&[]).await;
    window.click(SETTLE).await;
    window.holds("letter-note", "told <b>ada</b>").await;
    window.press(Key::Enter).await;
    window.sees(RESULT, "Event 0:1-1 is dealt with: told <b>ada</b>").await;
    app.wait_for_dead_letters(&id, 2).await;
    for left in ["0:1-2", "0:1-3"] {
        window.sees("#letters tbody tr:first-child", left).await;
        window.click(SETTLE).await;
        window.sees("dialog h2", left).await;
        window.fill("#letter-note", "none").await;
        window.press(Key::Enter).await;
        window.sees(RESULT, &format!("Event {left} is dealt with")).await;
    }
    window.sees("#letters .list", "There are none").await;
    window.fill("#settled", "dealt with").await;
    window.sees("#letters tbody", "told <b>ada</b>").await;
    window.misses(SETTLE).await;

    window.does("#rebuild").await;
    window.sees(RESULT, "The stock was rebuilt").await;
    window.sees("#refused .list", "There are none").await;
    app.assert_balanced(&id).await;
    window.change_language("zh-CN").await;
    window.sees("#view h1", "待处理").await;
    window.sees("#letters h2", "无法入账的事件").await;
    window.change_language("en").await;
    window.click(&format!("#view a[href='/console/sales/{id}']")).await;
    window.sees_tile("Dead letters", |text| text == "0").await;
    window.sees("#view", "Settle event").await;
    window.close().await;
}
