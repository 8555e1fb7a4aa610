//! Times as people read them on a terminal. `--json` prints them as the API has them.

use chrono::{DateTime, Local, Offset as _, TimeZone, Utc};
use std::fmt::Display;

/// An instant in the time zone of the terminal, such as `2026-11-27 21:00:05 +01:00`.
pub fn instant(at: DateTime<Utc>) -> String {
    written(&at.with_timezone(&Local))
}

/// An instant of the API, as [`instant`] writes it; `None` if the text is none.
pub fn moment(text: &str) -> Option<String> {
    let at = DateTime::parse_from_rfc3339(text).ok()?;
    Some(instant(at.to_utc()))
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
    }
}
