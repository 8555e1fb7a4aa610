//! The first paint: what the shoppers' pages show before their script runs. It is what `sale-page.js`, `item-card.js` and
//! `sales-page.js` show to a visitor who is not signed in, so that nothing moves when the script takes over. The reader's
//! time zone is not known, so times are in UTC until then, and today has its date.

mod format;
mod head;
mod hero;
mod items;
mod list;

use crate::domain::shop::language::{Choice, Language};
use crate::http::views::{PublicItem, PublicSale};
use chrono::{DateTime, Utc};
use format::money;
pub use head::{head, list_head, sale_head};
pub use hero::{empty_hero, hero, message};
pub use items::items;
pub use list::list;
use maud::{Markup, PreEscaped, html};
use serde::Serialize;

/// The reading that the page's script begins with, as a block of data. Without `<`, no text ends the block.
pub fn reading(of: &impl Serialize) -> Markup {
    let json = serde_json::to_string(of).unwrap_or_default().replace('<', "\\u003c");
    html! { script id="reading" type="application/json" { (PreEscaped(json)) } }
}

/// A picture takes its place before it is loaded.
fn picture(address: Option<&str>) -> Markup {
    html! {
        @if let Some(address) = address {
            img class="picture" alt="" loading="lazy" decoding="async" src=(address);
        }
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
    use super::{Choice, reading, switch_among};

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
