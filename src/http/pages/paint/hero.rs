//! The upper part of a sale's page, with the shop's message.

use super::format::{countdown_parts, moment, span};
use super::{seconds_left, state_word};
use crate::domain::sale::SaleState;
use crate::domain::shop::language::Language;
use crate::http::views::PublicSale;
use maud::{Markup, html};
use std::iter;

/// The upper part of a sale's page.
pub fn hero(language: Language, sale: &PublicSale) -> Markup {
    let (word, until) = match sale.state {
        SaleState::Draft => ("isDraft", None),
        SaleState::Scheduled => ("startsIn", Some(sale.starts_at)),
        SaleState::Open | SaleState::Paused => ("endsIn", Some(sale.ends_at)),
        SaleState::Closed => ("isOver", None),
    };
    let seconds = until.map(|until| seconds_left(sale, until));
    let is_paused = sale.state == SaleState::Paused;
    let notice = if is_paused { language.say("pausedNote") } else { "" };
    html! {
        p { span id="state" class={ "pill is-" (sale.state) } { (language.say(&state_word(sale))) } }
        h1 id="name" { (sale.name) }
        p id="until" .until .scripted[seconds.is_some()] { (language.say(word)) }
        div id="countdown" class="countdown scripted" role="timer" aria-live="off" aria-labelledby="until"
            hidden[seconds.is_none()] {
            @for (number, word) in seconds.map(countdown_parts).unwrap_or_default() {
                span class="part" { b { (format!("{number:02}")) } small { (language.say(word)) } }
            }
        }
        (when(language, Some(sale)))
        p id="notice" class="note" hidden[!is_paused] { (notice) }
        (about(sale.image_url.as_deref(), sale.description.as_deref()))
    }
}

/// The same of a sale that is not there, or cannot be read now.
pub fn empty_hero(language: Language, name: &str, notice: &str) -> Markup {
    html! {
        p { span id="state" class="pill" {} }
        h1 id="name" { (language.say(name)) }
        p id="until" class="until" {}
        div id="countdown" class="countdown scripted" role="timer" aria-live="off" aria-labelledby="until" hidden {}
        (when(language, None))
        p id="notice" class="note" hidden[notice.is_empty()] { (language.say(notice)) }
        (about(None, None))
    }
}

/// When the sale starts and ends. A closed one has only its start: it may have been closed before its time.
pub(super) fn times(language: Language, sale: &PublicSale) -> String {
    if sale.state == SaleState::Closed {
        moment(language, sale.starts_at)
    } else {
        span(language, sale.starts_at, sale.ends_at)
    }
}

/// When the sale sells, and before it does, the button that adds it to a calendar.
fn when(language: Language, sale: Option<&PublicSale>) -> Markup {
    let text = sale.map(|sale| times(language, sale));
    let is_ahead = sale.is_some_and(|sale| sale.state == SaleState::Scheduled);
    html! {
        div class="when" {
            p id="when" class="muted" { (text.unwrap_or_default()) }
            button id="calendar" class="quiet scripted" type="button" hidden[!is_ahead] {
                (language.say("addToCalendar"))
            }
        }
    }
}

/// What the sale is about. Its picture is in view at once, so it loads at once.
fn about(image_url: Option<&str>, description: Option<&str>) -> Markup {
    html! {
        img id="picture" class="picture" alt="" fetchpriority="high" src=[image_url] hidden[image_url.is_none()];
        p id="description" class="description" hidden[description.is_none()] { (description.unwrap_or_default()) }
    }
}

/// The shop's message in the reader's language, or else in the first that it has.
pub fn message(language: Language, sale: Option<&PublicSale>) -> Markup {
    let mut languages = iter::once(language).chain(Language::all());
    let said = sale.and_then(|sale| languages.find_map(|it| Some((it, sale.message.text(it)?))));
    let (spoken, text) = said.unwrap_or((language, ""));
    html! {
        section id="message" class="message" aria-labelledby="message-title" hidden[text.is_empty()] {
            p id="message-title" class="small" data-word="fromShop" { (language.say("fromShop")) }
            p id="message-text" lang=(spoken.tag()) { (text) }
        }
    }
}
