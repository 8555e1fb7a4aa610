//! The head of a shoppers' page: its title, and what search engines and other sites show of it.

use super::hero::times;
use super::list::in_order;
use super::{lowest_price, state_word};
use crate::domain::shop::language::Language;
use crate::http::views::PublicSale;
use maud::{Markup, html};

/// The most characters that another site gets of a description.
const QUOTED_MAX: usize = 200;

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_sites_get_the_beginning_of_a_description() {
        assert_eq!(quoted("Warm things,\n\nonce a year."), "Warm things, once a year.");
        let long = quoted(&"暖".repeat(QUOTED_MAX + 1));
        assert_eq!(long.chars().count(), QUOTED_MAX + 1);
        assert!(long.ends_with("暖…"), "{long}");
    }
}
