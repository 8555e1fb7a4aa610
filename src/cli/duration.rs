//! A length of time as people type it: `90s`, `15m`, `1h`, `7d`.

use std::time::Duration;

/// Reads a whole number and one of the units `s`, `m`, `h`, `d`.
pub fn parse(text: &str) -> Result<Duration, String> {
    let wrong = || format!("{text:?} is not a duration: write 90s, 15m, 1h or 7d");
    let unit = text.chars().last().ok_or_else(wrong)?;
    let seconds_each: u64 = match unit {
        's' => 1,
        'm' => 60,
        'h' => 60 * 60,
        'd' => 24 * 60 * 60,
        _ => return Err(wrong()),
    };
    let digits = &text[..text.len() - unit.len_utf8()];
    if !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(wrong());
    }
    let count: u64 = digits.parse().map_err(|_not_a_number| wrong())?;
    // A century is longer than any sale or token, and keeps every later addition to a date in range.
    count
        .checked_mul(seconds_each)
        .filter(|seconds| *seconds <= 100 * 366 * 24 * 60 * 60)
        .map(Duration::from_secs)
        .ok_or_else(|| format!("{text:?} is too long: at most 100 years"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_unit_is_understood() {
        for (text, seconds) in [("90s", 90), ("15m", 900), ("1h", 3_600), ("7d", 604_800), ("0s", 0)] {
            assert_eq!(parse(text), Ok(Duration::from_secs(seconds)), "{text}");
        }
    }

    #[test]
    fn anything_else_is_refused_with_an_example() {
        for text in [
            "",
            "h",
            "10",
            "-1s",
            "+1s",
            "1.5h",
            "1 h",
            "1w",
            "1é",
            "99999999999999999999s",
            "18446744073709551615d",
        ] {
            assert!(parse(text).is_err(), "{text}");
        }
        assert!(parse("1w").unwrap_err().contains("15m"));
    }
}
