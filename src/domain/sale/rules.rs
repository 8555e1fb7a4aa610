//! The rules for names, texts, pictures, numbers and times, for the terms of a sale and for amendments.

use crate::domain::plain::lines;
use crate::domain::shop::image_url::image_url;
use crate::domain::time::from_millis;
use chrono::{DateTime, Datelike as _, Utc};
use std::fmt;

/// The most characters of a sale's or an item's name.
pub(in crate::domain) const NAME_MAX: usize = 200;
/// The pattern of a name: no control characters, and not only white space.
pub(in crate::domain) const NAME_PATTERN: &str = concat!(
    r"^[^\u0000-\u001f\u007f-\u009f]*",
    r"[^\u0000-\u0020\u007f-\u00a0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]",
    r"[^\u0000-\u001f\u007f-\u009f]*$"
);
/// The most characters of a sale's or an item's description.
pub(in crate::domain) const DESCRIPTION_MAX: usize = 2000;

/// Why a sale is not valid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct InvalidSale(pub String);

/// `value` in the smaller type, if it is within the bounds; else an error with the field and the bounds.
pub(super) fn bounded<T: TryFrom<i64>>(field: &str, value: i64, low: i64, high: i64) -> Result<T, InvalidSale> {
    let wrong = || InvalidSale(format!("{field} must be {low} to {high}, not {value}"));
    if value < low || value > high {
        return Err(wrong());
    }
    T::try_from(value).map_err(|_| wrong())
}

pub(in crate::domain) fn text(field: &str, value: &str) -> Result<String, InvalidSale> {
    let length = value.chars().count();
    if value.trim().is_empty() || length > NAME_MAX || value.chars().any(char::is_control) {
        return Err(InvalidSale(format!(
            "{field} must be 1 to {NAME_MAX} characters, none of them a control character"
        )));
    }
    Ok(value.to_owned())
}

/// An optional text that follows its rule. Empty is none.
pub(super) fn given<'a, E: fmt::Display>(
    field: &str,
    text: Option<&'a str>,
    rule: impl FnOnce(&'a str) -> Result<&'a str, E>,
) -> Result<Option<String>, InvalidSale> {
    let checked = text.filter(|text| !text.is_empty()).map(rule).transpose();
    let wrong = |wrong| InvalidSale(format!("{field} {wrong}"));
    Ok(checked.map_err(wrong)?.map(str::to_owned))
}

pub(in crate::domain) fn description(field: &str, text: Option<&str>) -> Result<Option<String>, InvalidSale> {
    given(field, text, |text| lines(text, DESCRIPTION_MAX))
}

pub(in crate::domain) fn picture(field: &str, address: Option<&str>) -> Result<Option<String>, InvalidSale> {
    given(field, address, image_url)
}

pub(in crate::domain) fn instant(field: &str, at: DateTime<Utc>) -> Result<DateTime<Utc>, InvalidSale> {
    if !(1970..=9999).contains(&at.year()) {
        return Err(InvalidSale(format!("{field} must lie in the years 1970 to 9999")));
    }
    // Whole milliseconds, so that Redis compares the same instant that the API shows. Not by nanoseconds, for which an
    // `i64` only reaches the year 2262.
    Ok(from_millis(at.timestamp_millis()))
}
