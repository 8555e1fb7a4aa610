//! The runbook: `docs/alerts.md` as a page. The console links each trouble of a sale to its paragraph.

use crate::http::docs::{anchor, html_file, page_of};
use crate::http::endpoint::{Endpoint, handler};
use crate::http::file::File;
use maud::{PreEscaped, html};
use pulldown_cmark::{Event, Parser, Tag, TagEnd, html::push_html};
use std::sync::LazyLock;

pub const ROUTES: &[Endpoint] = &[Endpoint::page("/docs/alerts", handler!(|request| PAGE.handle(request)))];

static PAGE: LazyLock<File> = LazyLock::new(|| {
    let text = include_str!("../../docs/alerts.md");
    let names = headings(text);
    let header = html! { h1 { "Alerts" } p { "What to check, and what to do." } };
    let contents = html! { @for name in &names { li { a href={ "#" (anchor(name)) } { (name) } } } };
    let text = PreEscaped(rendered(text, &names));
    html_file(page_of("Alerts", &header, &contents, &text))
});

/// The text of each heading, in order.
fn headings(text: &str) -> Vec<String> {
    let (mut names, mut is_inside) = (Vec::new(), false);
    for event in Parser::new(text) {
        match event {
            Event::Start(Tag::Heading { .. }) => {
                is_inside = true;
                names.push(String::new());
            }
            Event::End(TagEnd::Heading(_)) => is_inside = false,
            Event::Text(part) | Event::Code(part) if is_inside => {
                if let Some(name) = names.last_mut() {
                    name.push_str(&part);
                }
            }
            _ => {}
        }
    }
    names
}

/// The text as HTML. Its headings have anchors, and only links within the page lead anywhere: the other files are not
/// served.
fn rendered(text: &str, names: &[String]) -> String {
    let mut names = names.iter();
    let mut is_dead_link = false;
    let events = Parser::new(text).filter_map(|event| match event {
        Event::Start(Tag::Heading {
            level, classes, attrs, ..
        }) => Some(Event::Start(Tag::Heading {
            level,
            id: names.next().map(|name| anchor(name).into()),
            classes,
            attrs,
        })),
        Event::Start(Tag::Link { dest_url, .. }) if !dest_url.starts_with('#') => {
            is_dead_link = true;
            None
        }
        Event::End(TagEnd::Link) if is_dead_link => {
            is_dead_link = false;
            None
        }
        event => Some(event),
    });
    let mut page = String::new();
    push_html(&mut page, events);
    // A reader without a mouse can scroll a long line, too.
    page.replace("<pre>", "<pre tabindex=\"0\">")
}
