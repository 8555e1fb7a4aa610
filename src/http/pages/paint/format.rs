//! Prices and times, as browsers show them.

use crate::domain::shop::currency;
use crate::domain::shop::language::Language;
use chrono::{DateTime, Datelike as _, Utc};

pub(super) const DAY_SECONDS: i64 = 86_400;

/// Days, hours, minutes and seconds with their words, from the first that is not zero.
pub(super) fn countdown_parts(seconds: i64) -> Vec<(i64, &'static str)> {
    let parts = [
        (seconds / DAY_SECONDS, "days"),
        (seconds / 3600 % 24, "hours"),
        (seconds / 60 % 60, "minutes"),
        (seconds % 60, "seconds"),
    ];
    let is_unseen = |(number, word): &(i64, &str)| *number == 0 && *word != "seconds";
    parts.into_iter().skip_while(is_unseen).collect()
}

pub(super) fn money(language: Language, minor: i64, currency: &str) -> String {
    let (whole, fraction) = currency::parts(minor.unsigned_abs().into(), currency);
    let mut amount = grouped(language, &whole);
    if !fraction.is_empty() {
        amount += language.say("decimal");
        amount += &fraction;
    }
    let price = language.say("priceForm");
    let signed = match language.say(&format!("sign_{currency}")) {
        // No line breaks between the code and the number.
        "" => price.replace("}{", "}\u{a0}{").replace("{sign}", currency),
        sign => price.replace("{sign}", sign),
    };
    signed.replace("{amount}", &amount)
}

/// With a mark after each thousand.
fn grouped(language: Language, digits: &str) -> String {
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text += language.say("thousands");
        }
        text.push(digit);
    }
    text
}

fn day(language: Language, at: DateTime<Utc>) -> String {
    let mut months = language.say("months").split(' ');
    let month = months.nth(at.month0() as usize).unwrap_or_default();
    let text = language.say("dayForm").replace("{month}", month);
    text.replace("{day}", &at.day().to_string())
        .replace("{year}", &at.year().to_string())
}

pub(super) fn moment(language: Language, at: DateTime<Utc>) -> String {
    format!("{} {}", day(language, at), at.format("%H:%M UTC"))
}

pub(super) fn span(language: Language, from: DateTime<Utc>, to: DateTime<Utc>) -> String {
    if from.date_naive() == to.date_naive() {
        let hours = (from.format("%H:%M"), to.format("%H:%M UTC"));
        format!("{} {} – {}", day(language, from), hours.0, hours.1)
    } else {
        format!("{} – {}", moment(language, from), moment(language, to))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::time::from_millis;

    fn chinese_language() -> Language {
        Language::of_code("zh").unwrap()
    }

    #[test]
    fn prices_are_as_browsers_show_them() {
        for (minor, currency, english, chinese) in [
            (2500, "EUR", "€25.00", "€25.00"),
            (123_456_789, "USD", "$1,234,567.89", "US$1,234,567.89"),
            (5, "CNY", "CN¥0.05", "¥0.05"),
            (2500, "JPY", "¥2,500", "JP¥2,500"),
            (2500, "KWD", "KWD\u{a0}2.500", "KWD\u{a0}2.500"),
            (250_000, "HUF", "HUF\u{a0}2,500.00", "HUF\u{a0}2,500.00"),
            (100_000, "CHF", "CHF\u{a0}1,000.00", "CHF\u{a0}1,000.00"),
        ] {
            assert_eq!(money(Language::ENGLISH, minor, currency), english);
            assert_eq!(money(chinese_language(), minor, currency), chinese);
        }
    }

    #[test]
    fn times_have_their_zone_and_days_only_if_there_are_any() {
        let (from, to, later) = (from_millis(0), from_millis(3_600_000), from_millis(90_000_000));
        assert_eq!(span(Language::ENGLISH, from, to), "1 Jan 1970 00:00 – 01:00 UTC");
        assert_eq!(
            span(chinese_language(), from, later),
            "1970年1月1日 00:00 UTC – 1970年1月2日 01:00 UTC"
        );
        assert_eq!(countdown_parts(0), [(0, "seconds")]);
        assert_eq!(countdown_parts(59), [(59, "seconds")]);
        assert_eq!(countdown_parts(3600), [(1, "hours"), (0, "minutes"), (0, "seconds")]);
        assert_eq!(countdown_parts(90_061)[0], (1, "days"));
    }
}
