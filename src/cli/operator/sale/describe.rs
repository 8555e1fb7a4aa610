//! A sale in detail: its terms, the guards that are on, and its items.

use crate::cli::Failure;
use crate::cli::operator::guards::describe_stage;
use crate::cli::shared::answer::{Form, ShownSale, show, text};
use crate::cli::shared::client::Answer;
use crate::cli::shared::output::Table;
use crate::cli::shared::{duration, human};
use crate::domain::sale::NewSale;
use crate::domain::sale::guards::SaleGuards;
use crate::domain::shop::currency;
use std::fmt::Write as _;
use std::time::Duration;

/// Prints a sale in detail, with its version, and then the `next` command for it.
pub(super) fn show_sale(answer: &Answer, form: Form, next: &str) -> Result<(), Failure> {
    let mut body = answer.body.clone();
    // The API has it in a header, which JSON would lose.
    if let (Some(etag), Some(sale)) = (&answer.etag, body.as_object_mut()) {
        sale.insert("version".to_owned(), bare(etag).into());
    }
    show(&body, form, |sale: ShownSale| {
        let text = describe(&sale, answer.etag.as_deref());
        match next {
            "" => text,
            next => format!("{text}next: flashsale sale {next} {}\n", sale.id),
        }
    })
}

/// The version in an ETag, without quotes and the mark of a weak ETag.
pub(super) fn bare(etag: &str) -> &str {
    etag.trim_start_matches("W/").trim_matches('"')
}

/// A sale with its terms and items.
fn describe(sale: &ShownSale, etag: Option<&str>) -> String {
    // By name, so that the compiler asks how to show a new term.
    let NewSale {
        name,
        description,
        image_url,
        starts_at,
        ends_at,
        shards,
        payment_window_seconds,
        purchase_rate,
        durability,
        guards: set,
        items: sold,
    } = &sale.terms;
    let mut facts = Table::new(["id".to_owned(), sale.id.to_string()]);
    let mut fact = |name: &str, value: String| facts.row([name.to_owned(), value]);
    fact("name", name.clone());
    fact("state", sale.state.to_string());
    if let Some(etag) = etag {
        fact("version", bare(etag).to_owned());
    }
    for (label, text) in [("description", description), ("picture", image_url)] {
        if let Some(text) = text {
            fact(label, text.clone());
        }
    }
    if let Some(texts) = sale.message_texts() {
        fact("message", texts);
    }
    fact("starts at", human::instant(*starts_at));
    fact("ends at", human::instant(*ends_at));
    fact("shards", shards.to_string());
    fact(
        "payment window",
        length(Duration::from_secs((*payment_window_seconds).into())),
    );
    let window = Duration::from_millis(u64::try_from(purchase_rate.window_ms).unwrap_or(0));
    fact(
        "purchase rate",
        format!("{} in {}", purchase_rate.limit, length(window)),
    );
    fact("durability", durability.as_str().to_owned());
    let guards = guards(set);
    if !guards.is_empty() {
        fact("guards", guards.join(", "));
    }
    if !sale.staged_guards.is_empty() {
        let trials = sale.staged_guards.iter();
        let trials = trials.map(|(name, stage)| format!("{name} {}", describe_stage(name, stage)));
        fact("on trial", trials.collect::<Vec<_>>().join("; "));
    }
    let mut items = Table::new(["SKU", "PRICE", "STOCK", "PER USER", "NAME"]);
    let mut more = Table::new(["SKU", "GROUP", "OPTION", "PICTURE", "DESCRIPTION"]);
    let mut has_more = false;
    for item in sold {
        items.row([
            item.sku.to_string(),
            currency::money(item.price_minor, &item.currency),
            item.stock.to_string(),
            item.per_user_limit.to_string(),
            item.name.clone(),
        ]);
        let texts = [&item.group, &item.option, &item.image_url, &item.description];
        if texts.iter().any(|text| text.is_some()) {
            has_more = true;
            let texts = texts.map(|text| text.as_deref().unwrap_or("-").to_owned());
            more.row([item.sku.to_string()].into_iter().chain(texts));
        }
    }
    let mut text = format!("{}\n{}", facts.render(), items.render());
    if has_more {
        let _ = write!(text, "\n{}", more.render());
    }
    text
}

/// A length of time in words, or in seconds if those words would round it.
fn length(exact: Duration) -> String {
    let words = duration::text(exact);
    if duration::parse(&words) == Ok(exact) {
        words
    } else {
        format!("{} s", exact.as_secs_f64())
    }
}

/// The guards that are on, each with its value.
fn guards(guards: &SaleGuards) -> Vec<String> {
    let on = guards.in_effect();
    let mut shown: Vec<String> = on
        .iter()
        .map(|(name, value)| {
            if value.is_boolean() {
                name.clone()
            } else {
                format!("{name} {}", text(value))
            }
        })
        .collect();
    shown.sort_unstable();
    shown
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::shared::answer;
    use serde_json::{Value, json};

    #[test]
    fn a_sale_shows_the_guards_that_are_on() {
        let shown = |set: Value| {
            let all = SaleGuards::default().with(set.as_object().unwrap().clone()).unwrap();
            guards(&all).join(", ")
        };
        assert_eq!(shown(json!({})), "");
        let on = json!({"purchase_token": true, "challenge": "captcha", "holds_max": 2, "unpaid_cooldown_seconds": 60,
            "waiting_room": true});
        assert_eq!(
            shown(on),
            "admission_seconds 300, admissions_per_second 100, captcha_proof_cost 4000, challenge captcha, \
             holds_max 2, purchase_token, unpaid_cooldown_seconds 60, waiting_room"
        );
    }

    #[test]
    fn a_length_is_in_words_and_never_rounded() {
        for (milliseconds, shown) in [
            (900_000, "15 min"),
            (60_000, "1 min"),
            (5_400_000, "1 h 30 min"),
            (3_661_000, "3661 s"),
            (1_500, "1.5 s"),
        ] {
            assert_eq!(length(Duration::from_millis(milliseconds)), shown);
        }
    }

    #[test]
    fn a_sale_shows_its_items_aligned_and_a_guard_of_a_later_version_is_no_error() {
        let mut sale = crate::http::admin::sales::example("draft");
        sale["guards"] = json!({"holds_max": 3, "horoscope": true});
        assert!(!describe(&answer::read(&sale).unwrap(), None).contains("message"));
        sale["message"] = json!({"en": "Soon.", "zh": "很快。"});
        sale["staged_guards"] = json!({"holds_max": {"value": 0, "percent": 5, "shadow": false},
            "purchase_token": {"value": true, "percent": 10, "shadow": true}});
        let text = describe(&answer::read(&sale).unwrap(), None);
        let starts = human::moment("2026-11-22T09:00:00Z").unwrap();
        assert!(text.contains(&format!("starts at       {starts}\n")), "{text}");
        assert!(text.contains("guards          holds_max 3\n"), "{text}");
        let trials = "on trial        holds_max no limit for 5 %; purchase_token true for 10 %, in shadow\n";
        assert!(text.contains(trials), "{text}");
        for terms in ["payment window  15 min\n", "purchase rate   5 in 1 min\n"] {
            assert!(text.contains(terms), "{text}");
        }
        assert!(text.contains("message         en: Soon.; zh: 很快。\n"), "{text}");
        let line = "TSHIRT-M  25.00 EUR    100         2  T-shirt, medium\n";
        assert!(text.contains(line), "{text}");
        assert!(text.contains("description     Warm things, once a year.\n"), "{text}");
        let more = "TSHIRT-M  T-shirt  M       https://images.example/t-shirt.jpg  Organic cotton. Wash at 30 °C.\n";
        assert!(text.ends_with(more), "{text}");
        let item = sale["items"][0].as_object_mut().unwrap();
        for member in ["description", "image_url", "group", "option"] {
            item.remove(member);
        }
        let text = describe(&answer::read(&sale).unwrap(), None);
        assert!(text.ends_with(line), "{text}");
    }
}
