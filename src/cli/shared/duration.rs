//! A length of time as people type it: `90s`, `15m`, `1h 30min`, `2 hours`, `7d`. `web/console/console-duration.js` reads
//! the same texts.

use std::time::Duration;

/// The milliseconds of each unit, and its words, separated by spaces.
const UNITS: [(u64, &str); 5] = [
    (86_400_000, "d day days 天"),
    (3_600_000, "h hr hrs hour hours 小时"),
    (60_000, "min m mins minute minutes 分钟"),
    (1000, "s sec secs second seconds 秒"),
    (1, "ms"),
];

/// A century is longer than any sale or token, and keeps every later addition to a date in range.
const MILLISECONDS_MAX: u64 = 100 * 366 * 86_400_000;

/// Reads whole numbers with their units. A number alone could mean seconds or minutes, so only 0 may lack its unit.
pub fn parse(text: &str) -> Result<Duration, String> {
    let wrong = || format!("{text:?} is not a duration: write 90s, 15m, 1h 30m or 7d");
    let mut rest = text.trim();
    if rest == "0" {
        return Ok(Duration::ZERO);
    }
    if rest.is_empty() {
        return Err(wrong());
    }
    let mut milliseconds = 0;
    while !rest.is_empty() {
        let digits = rest.find(|it: char| !it.is_ascii_digit()).ok_or_else(wrong)?;
        let (count, behind) = rest.split_at(digits);
        let count: u64 = count.parse().map_err(|_not_a_number| wrong())?;
        let behind = behind.trim_start();
        let end = behind.find(|it: char| it.is_ascii_digit() || it.is_whitespace());
        let (word, further) = behind.split_at(end.unwrap_or(behind.len()));
        let mut units = UNITS.iter();
        let unit = units.find(|(_, words)| words.split(' ').any(|it| it == word));
        let (length, _) = unit.ok_or_else(wrong)?;
        milliseconds = count
            .checked_mul(*length)
            .and_then(|part| part.checked_add(milliseconds))
            .filter(|sum| *sum <= MILLISECONDS_MAX)
            .ok_or_else(|| format!("{text:?} is too long: at most 100 years"))?;
        rest = further.trim_start();
    }
    Ok(Duration::from_millis(milliseconds))
}

/// Reads a length of at least a second.
pub fn parse_lasting(text: &str) -> Result<Duration, String> {
    let length = parse(text)?;
    let lasts = length >= Duration::from_secs(1);
    lasts
        .then_some(length)
        .ok_or_else(|| "it would end at once: write at least 1s".to_owned())
}

/// A length in its two largest units, such as `1 h 30 min`; less than a second is left out.
pub fn text(length: Duration) -> String {
    let (mut left, mut parts) = (u128::from(length.as_secs()) * 1000, Vec::new());
    for (milliseconds, words) in UNITS {
        let count = left / u128::from(milliseconds);
        left %= u128::from(milliseconds);
        if count > 0 {
            let unit = words.split(' ').next().unwrap_or_default();
            parts.push(format!("{count} {unit}"));
        }
    }
    parts.truncate(2);
    if parts.is_empty() {
        return "0 s".to_owned();
    }
    parts.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    /// The texts that the console is tested with, too.
    #[derive(serde::Deserialize)]
    struct Texts {
        milliseconds: BTreeMap<String, u64>,
        refused: Vec<String>,
    }

    fn texts() -> Texts {
        serde_json::from_str(include_str!("../../../tests/durations.json")).unwrap()
    }

    #[test]
    fn durations_are_read_as_people_type_them() {
        for (text, milliseconds) in texts().milliseconds {
            assert_eq!(parse(&text), Ok(Duration::from_millis(milliseconds)), "{text}");
        }
    }

    #[test]
    fn anything_else_is_refused_with_an_example() {
        let too_long = ["99999999999999999999s", "18446744073709551615d", "36600d 1ms"].map(str::to_owned);
        for text in texts().refused.into_iter().chain(too_long) {
            assert!(parse(&text).is_err(), "{text}");
        }
        assert_eq!(parse("36600d"), Ok(Duration::from_millis(MILLISECONDS_MAX)));
        assert!(parse("1w").unwrap_err().contains("15m"));
        assert!(parse_lasting("999ms").is_err() && parse_lasting("0").is_err());
        assert_eq!(parse_lasting("1s"), Ok(Duration::from_secs(1)));
    }

    #[test]
    fn a_length_is_written_as_it_can_be_read() {
        for (seconds, shown) in [
            (0, "0 s"),
            (59, "59 s"),
            (60, "1 min"),
            (3_600, "1 h"),
            (5_430, "1 h 30 min"),
            (90_000, "1 d 1 h"),
        ] {
            assert_eq!(text(Duration::from_secs(seconds)), shown);
        }
        assert_eq!(parse(&text(Duration::from_secs(5_400))), Ok(Duration::from_secs(5_400)));
    }
}
