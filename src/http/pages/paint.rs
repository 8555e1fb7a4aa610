//! The first paint: what the shoppers' pages show before their script runs. It is what `sale-page.js`, `item-card.js` and
//! `sales-page.js` show to a visitor who is not signed in, so that nothing moves when the script takes over. The reader's
//! time zone is not known, so times are in UTC until then, and today has its date.

mod format;

use crate::domain::language::{Choice, Language};
use crate::domain::sale::SaleState;
use crate::http::views::{Availability, PublicItem, PublicSale};
use chrono::{DateTime, Utc};
use format::{DAY_SECONDS, countdown_parts, moment, money, span};
use maud::{Markup, PreEscaped, html};
use serde::Serialize;
use std::collections::BTreeMap;
use std::iter;

/// The most characters that another site gets of a description.
const QUOTED_MAX: usize = 200;

/// Above this limit, the script shows a field in place of a list of quantities.
const CHOICE_MAX: u32 = 10;

/// The reading that the page's script begins with, as a block of data. Without `<`, no text ends the block.
pub fn reading(of: &impl Serialize) -> Markup {
    let json = serde_json::to_string(of).unwrap_or_default().replace('<', "\\u003c");
    html! { script id="reading" type="application/json" { (PreEscaped(json)) } }
}

/// The title of a page, and what another site shows of a link to it.
pub fn head(language: Language, shop: &str, title: &str) -> Markup {
    html! {
        title { (title) " · " (shop) }
        meta property="og:type" content="website";
        meta property="og:title" content=(title);
        meta property="og:site_name" content=(shop);
        meta property="og:locale" content=(language.form().replace('-', "_"));
    }
}

pub fn sale_head(language: Language, shop: &str, sale: &PublicSale) -> Markup {
    let texts = [
        match &sale.description {
            Some(description) => quoted(description),
            None => language.say(&state_word(sale)).to_owned(),
        },
        lowest_price(language, sale.items.iter()),
        times(language, sale),
    ];
    let description = texts.join(" · ");
    // Other sites want a whole address.
    let image = sale.image_url.as_deref().filter(|address| !address.starts_with('/'));
    html! {
        (head(language, shop, &sale.name))
        (described(&description))
        @if let Some(image) = image {
            meta property="og:image" content=(image);
        }
    }
}

/// The head of the list: its description has the names of the sales.
pub fn list_head(language: Language, shop: &str, sales: &[PublicSale]) -> Markup {
    let names: Vec<&str> = in_order(sales).iter().map(|sale| sale.name.as_str()).collect();
    let description = if names.is_empty() {
        language.say("noSales").to_owned()
    } else {
        quoted(&names.join(" · "))
    };
    html! {
        (head(language, shop, language.say("sales")))
        (described(&description))
    }
}

/// What search engines and other sites show below a link.
fn described(description: &str) -> Markup {
    html! {
        meta name="description" content=(description);
        meta property="og:description" content=(description);
    }
}

/// The beginning of a text, on one line.
fn quoted(text: &str) -> String {
    let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    let end = line.char_indices().nth(QUOTED_MAX).map(|(end, _)| end);
    end.map_or_else(|| line.clone(), |end| format!("{}…", &line[..end]))
}

/// A picture takes its place before it is loaded.
fn picture(address: Option<&str>) -> Markup {
    html! {
        @if let Some(address) = address {
            img class="picture" alt="" loading="lazy" decoding="async" src=(address);
        }
    }
}

fn description(text: Option<&str>) -> Markup {
    html! {
        @if let Some(text) = text {
            p class="description" { (text) }
        }
    }
}

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

/// When the sale starts and ends. A closed one has only its start: it may have been closed before its time.
fn times(language: Language, sale: &PublicSale) -> String {
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

/// The items in their order; those of one group together, at the place of the first.
pub fn items(language: Language, sale: &PublicSale) -> Markup {
    let mut places = BTreeMap::<&str, usize>::new();
    let mut parts: Vec<Vec<&PublicItem>> = Vec::new();
    for one in &sale.items {
        let place = match &one.group {
            Some(group) => *places.entry(group).or_insert(parts.len()),
            None => parts.len(),
        };
        match parts.get_mut(place) {
            Some(part) => part.push(one),
            None => parts.push(vec![one]),
        }
    }
    html! {
        @for part in &parts {
            @match (part.as_slice(), &part[0].group) {
                ([_, _, ..], Some(name)) => { (group(language, sale, name, part)) }
                _ => { (item(language, sale, part[0])) }
            }
        }
    }
}

fn may_queue(sale: &PublicSale) -> bool {
    sale.state == SaleState::Scheduled && sale.guards.waiting_room
}

/// Variants of one thing, of which the shopper chooses one.
fn group(language: Language, sale: &PublicSale, name: &str, items: &[&PublicItem]) -> Markup {
    let is_selling = sale.state == SaleState::Open || may_queue(sale);
    let image = items.iter().find_map(|item| item.image_url.as_deref());
    let text = items.iter().find_map(|item| item.description.as_deref());
    html! {
        li class="item group" {
            (picture(image))
            h3 { (name) }
            p class="price" { (lowest_price(language, items.iter().copied())) }
            fieldset {
                legend class="muted small" { (language.say("choose")) }
                div class="options" {
                    @for item in items {
                        @let left = left_of(item);
                        @let is_marked = is_selling && item.availability != Availability::Available;
                        label class={ "option is-" (left) } {
                            input type="radio" disabled;
                            span { (item.option.as_ref().unwrap_or(&item.name)) }
                            small hidden[!is_marked] {
                                @if is_marked { (language.say(&format!("left_{left}"))) }
                            }
                        }
                    }
                }
            }
            div class="variants" {}
            (description(text))
        }
    }
}

const fn left_of(item: &PublicItem) -> &'static str {
    match item.availability {
        Availability::Available => "available",
        Availability::Low => "low",
        Availability::SoldOut => "sold_out",
    }
}

fn item(language: Language, sale: &PublicSale, item: &PublicItem) -> Markup {
    let may_queue = may_queue(sale);
    let is_selling = sale.state == SaleState::Open || may_queue;
    let hold = match sale.state {
        SaleState::Open | SaleState::Paused => hold_words(language, sale, item),
        _ => String::new(),
    };
    let word = match sale.state {
        SaleState::Paused => "pausedButton",
        SaleState::Closed => "closedButton",
        _ if !is_selling => "notYet",
        _ if item.availability == Availability::SoldOut && !may_queue => {
            if item.on_hold == Some(true) {
                "keepTrying"
            } else {
                "left_sold_out"
            }
        }
        _ if sale.guards.waiting_room => "enterRoom",
        _ => "buy",
    };
    let left = left_of(item);
    html! {
        li class="item" {
            (picture(item.image_url.as_deref()))
            div class="item-head" {
                h3 { (item.name) }
                span class={ "pill is-" (left) } hidden[!is_selling] { (language.say(&format!("left_{left}"))) }
            }
            p class="price" { (money(language, item.price_minor, &item.currency)) }
            p class="muted small" { (language.say_with("limitNote", "n", &item.per_user_limit.to_string())) }
            p class="small hold" hidden[hold.is_empty()] { (hold) }
            div class="buying scripted" {
                div class="choice" hidden[item.per_user_limit < 2] {
                    label { (language.say("quantity")) }
                    @if item.per_user_limit > CHOICE_MAX {
                        input type="number" value="1" disabled;
                    } @else {
                        select disabled { option { "1" } }
                    }
                }
                button class="strong buy" type="button" disabled aria-disabled="true" { (language.say(word)) }
            }
            (description(item.description.as_deref()))
        }
    }
}

/// Whether units of a sold-out item may come back, and when.
fn hold_words(language: Language, sale: &PublicSale, item: &PublicItem) -> String {
    let next = item.next_release_at.as_deref();
    let next = next.and_then(|next| next.parse::<DateTime<Utc>>().ok());
    match (item.on_hold, next) {
        (None, _) => String::new(),
        (Some(false), _) => language.say("noneOnHold").to_owned(),
        (Some(true), Some(next)) => {
            let is_today = next.date_naive() == sale.server_time.date_naive();
            let time = if is_today {
                next.format("%H:%M UTC").to_string()
            } else {
                moment(language, next)
            };
            language.say_with("onHoldUntil", "time", &time)
        }
        (Some(true), None) => language.say("onHold").to_owned(),
    }
}

/// What changes the language, for `startLanguage` of `language.js`.
pub fn switch(language: Language) -> Markup {
    switch_among(&Language::choices(), language.code(), language.say("language"))
}

/// A menu, or a button to the other one of two languages. A single one needs neither.
fn switch_among(languages: &[Choice<'_>], own: &str, label: &str) -> Markup {
    match languages {
        [] | [_] => html! {},
        [first, second] => {
            let other = if first.code == own { second } else { first };
            html! {
                button class="quiet scripted" id="language" type="button" lang=(other.tag) { (other.name) }
            }
        }
        _ => html! {
            label class="for-readers scripted" for="language" data-word="language" { (label) }
            select class="scripted" id="language" autocomplete="off" {
                @for it in languages {
                    option value=(it.code) lang=(it.tag) selected[it.code == own] { (it.name) }
                }
            }
        },
    }
}

/// What the console says without JavaScript: in all languages, because it is one file for all readers.
pub fn script_needed() -> Markup {
    html! {
        @for language in Language::all() {
            p class="muted" lang=(language.tag()) { (language.say("consoleNeedsScript")) }
        }
    }
}

/// Sales in the script's order.
fn in_order(sales: &[PublicSale]) -> Vec<&PublicSale> {
    let mut sorted: Vec<&PublicSale> = sales.iter().collect();
    sorted.sort_by_key(|sale| (rank(sale.state), sale.starts_at));
    sorted
}

pub fn list(language: Language, sales: &[PublicSale]) -> Markup {
    let sorted = in_order(sales);
    html! {
        @if sorted.is_empty() {
            li class="muted" { (language.say("noSales")) }
        }
        @for sale in sorted {
            @let is_sold_out = is_sold_out(sale);
            li class="sale" {
                (picture(sale.image_url.as_deref()))
                div class="item-head" {
                    h2 { a href={ "/sales/" (sale.id) } { (sale.name) } }
                    @if is_sold_out {
                        span class="pill" { (language.say("left_sold_out")) }
                    } @else {
                        span class={ "pill is-" (sale.state) } { (language.say(&state_word(sale))) }
                    }
                }
                p class="muted" { (timing(language, sale)) }
                p class="muted" { (lowest_price(language, sale.items.iter())) }
            }
        }
    }
}

/// Open sales come first.
const fn rank(state: SaleState) -> u8 {
    match state {
        SaleState::Open => 0,
        SaleState::Paused => 1,
        SaleState::Scheduled => 2,
        SaleState::Closed | SaleState::Draft => 3,
    }
}

fn is_sold_out(sale: &PublicSale) -> bool {
    let mut items = sale.items.iter();
    sale.state == SaleState::Open && items.all(|item| item.availability == Availability::SoldOut)
}

/// The time until the sale starts or ends. For a closed sale, the date when it started.
fn timing(language: Language, sale: &PublicSale) -> String {
    let (word, date, until) = match sale.state {
        SaleState::Scheduled => ("startsIn", "startsOn", sale.starts_at),
        SaleState::Open | SaleState::Paused => ("endsIn", "endsOn", sale.ends_at),
        SaleState::Draft | SaleState::Closed => return moment(language, sale.starts_at),
    };
    let seconds = seconds_left(sale, until);
    // More than a day ahead, the date says more than the hours left.
    if seconds > DAY_SECONDS {
        return language.say_with(date, "time", &moment(language, until));
    }
    let (hours, minutes, seconds) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    let word = language.say(word);
    if hours > 0 {
        format!("{word} {hours}:{minutes:02}:{seconds:02}")
    } else {
        format!("{word} {minutes}:{seconds:02}")
    }
}

fn state_word(sale: &PublicSale) -> String {
    format!("state_{}", sale.state)
}

/// Whole seconds, rounded up.
fn seconds_left(sale: &PublicSale, until: DateTime<Utc>) -> i64 {
    let millis = (until - sale.server_time).num_milliseconds().max(0);
    millis / 1000 + i64::from(millis % 1000 > 0)
}

fn lowest_price<'a>(language: Language, mut items: impl Iterator<Item = &'a PublicItem> + Clone) -> String {
    let Some(lowest) = items.clone().min_by_key(|item| item.price_minor) else {
        return String::new();
    };
    let amount = money(language, lowest.price_minor, &lowest.currency);
    if items.all(|item| item.price_minor == lowest.price_minor) {
        amount
    } else {
        language.say_with("from", "amount", &amount)
    }
}

#[cfg(test)]
mod tests {
    use super::{Choice, QUOTED_MAX, quoted, reading, switch_among};

    #[test]
    fn other_sites_get_the_beginning_of_a_description() {
        assert_eq!(quoted("Warm things,\n\nonce a year."), "Warm things, once a year.");
        let long = quoted(&"暖".repeat(QUOTED_MAX + 1));
        assert_eq!(long.chars().count(), QUOTED_MAX + 1);
        assert!(long.ends_with("暖…"), "{long}");
    }

    #[test]
    fn readers_choose_among_more_than_two_languages_in_a_menu() {
        let choice = |code, tag, name| Choice { code, tag, name };
        let three = [
            choice("en", "en", "English"),
            choice("zh", "zh-CN", "中文"),
            choice("de", "de", "Deutsch"),
        ];
        let switch = |languages: &[Choice<'_>]| switch_among(languages, "zh", "语言").into_string();
        assert_eq!(
            switch(&three),
            "<label class=\"for-readers scripted\" for=\"language\" data-word=\"language\">语言</label>\
             <select class=\"scripted\" id=\"language\" autocomplete=\"off\">\
             <option value=\"en\" lang=\"en\">English</option>\
             <option value=\"zh\" lang=\"zh-CN\" selected>中文</option>\
             <option value=\"de\" lang=\"de\">Deutsch</option></select>"
        );
        let button = "<button class=\"quiet scripted\" id=\"language\" type=\"button\" lang=\"en\">English</button>";
        assert_eq!(switch(&three[..2]), button);
        assert_eq!(switch(&three[1..2]), "");
    }

    #[test]
    fn no_name_ends_the_block_of_data() {
        let block = reading(&"</script><script>").into_string();
        assert_eq!(block.matches('<').count(), 2, "{block}");
    }
}
