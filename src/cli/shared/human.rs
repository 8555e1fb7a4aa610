//! Times as people read them on a terminal. `--json` prints them as the API has them.

use chrono::{DateTime, Local, Offset as _, TimeDelta, TimeZone, Utc};
use std::fmt::Display;

/// The bytes of a time of the API, which has milliseconds. Examples in its texts have none.
const TIME_LENGTH: usize = 24;

/// An instant in the time zone of the terminal, such as `2026-11-27 21:00:05 +01:00`.
pub fn instant(at: DateTime<Utc>) -> String {
    written(&at.with_timezone(&Local))
}

/// An instant of the API, as [`instant`] writes it; `None` if the text is none.
pub fn moment(text: &str) -> Option<String> {
    let at = DateTime::parse_from_rfc3339(text).ok()?;
    Some(instant(at.to_utc()))
}

/// The end of something, as [`instant`] writes it: the first whole second in which it is over.
pub fn end(text: &str) -> Option<String> {
    let at = DateTime::parse_from_rfc3339(text).ok()?;
    Some(instant(at.to_utc() + TimeDelta::nanoseconds(999_999_999)))
}

/// A text with the API's times as [`instant`] writes them.
pub fn with_times(text: &str) -> String {
    let word = |word: &str| {
        let (time, rest) = word.split_at_checked(TIME_LENGTH)?;
        Some(moment(time)? + rest)
    };
    let words = text.split(' ').map(|it| word(it).unwrap_or_else(|| it.to_owned()));
    words.collect::<Vec<_>>().join(" ")
}

fn written<Z: TimeZone<Offset: Display>>(at: &DateTime<Z>) -> String {
    let zone = if at.offset().fix().local_minus_utc() == 0 {
        "UTC".to_owned()
    } else {
        at.format("%:z").to_string()
    };
    format!("{} {zone}", at.format("%Y-%m-%d %H:%M:%S"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use chrono::FixedOffset;

    #[test]
    fn a_time_names_its_zone() {
        let at: DateTime<Utc> = "2026-11-27T20:00:05.250Z".parse().unwrap();
        assert_eq!(written(&at), "2026-11-27 20:00:05 UTC");
        let in_india = FixedOffset::east_opt(5 * 3_600 + 1_800).unwrap();
        assert_eq!(written(&at.with_timezone(&in_india)), "2026-11-28 01:30:05 +05:30");
        assert_eq!(moment("2026-11-27T20:00:05.250Z"), Some(instant(at)));
        assert_eq!(moment("never"), None);
        for end_of in ["2026-11-27T20:00:04.001Z", "2026-11-27T20:00:05.000Z"] {
            assert_eq!(end(end_of), moment("2026-11-27T20:00:05Z"), "{end_of}");
        }
        let text = |time: &str| format!("not before {time}, nor like 2026-11-27T20:00:05Z");
        assert_eq!(with_times(&text("2026-11-27T20:00:05.250Z")), text(&instant(at)));
    }
}
