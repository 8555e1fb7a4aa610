//! Plain text: a few words on one line, typed by one person and shown to others.

use std::ops::RangeInclusive;

/// Characters that break a line, or change the order in which the text after them is shown. Besides these, control
/// characters are not plain.
const BREAKS: RangeInclusive<char> = '\u{2028}'..='\u{202e}';
const ISOLATES: RangeInclusive<char> = '\u{2066}'..='\u{2069}';

/// The pattern of a plain text: no characters that are not plain, and not only white space.
pub const PLAIN_PATTERN: &str = concat!(
    r"^[^\u0000-\u001f\u007f-\u009f\u2028-\u202e\u2066-\u2069]*",
    r"[^\u0000-\u0020\u007f-\u00a0\u1680\u2000-\u200a\u2028-\u202f\u205f\u2066-\u2069\u3000]",
    r"[^\u0000-\u001f\u007f-\u009f\u2028-\u202e\u2066-\u2069]*$"
);

/// The rule that a text does not follow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("must have 1 to {max} characters, not only white space and none that breaks or reorders the line")]
pub struct NotPlain {
    max: usize,
}

/// Whether a character that is not a control character breaks a line or changes the order of the text after it.
#[must_use]
pub fn breaks_or_turns(it: char) -> bool {
    BREAKS.contains(&it) || ISOLATES.contains(&it)
}

/// Whether a character is invisible, so that two texts that differ only by it appear the same.
#[must_use]
pub fn is_unseen(it: char) -> bool {
    matches!(it, '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2060}'..='\u{2064}' | '\u{feff}')
}

/// A type of plain texts with at most so many characters.
macro_rules! plain_text {
    ($(#[doc = $doc:literal])+ $name:ident $max:ident) => {
        $(#[doc = $doc])+
        #[derive(Debug, Clone, PartialEq, Eq)]
        pub struct $name(String);

        impl $name {
            #[must_use]
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl std::str::FromStr for $name {
            type Err = $crate::domain::plain::NotPlain;
            fn from_str(text: &str) -> Result<Self, Self::Err> {
                Ok(Self($crate::domain::plain::plain(text, $max)?.to_owned()))
            }
        }
    };
}

pub(super) use plain_text;

/// The text without white space around it, if it is plain and has at most `max` characters.
pub fn plain(text: &str, max: usize) -> Result<&str, NotPlain> {
    let is_plain = |it: char| !it.is_control() && !breaks_or_turns(it);
    let trimmed = text.trim();
    if trimmed.is_empty() || text.chars().count() > max || !text.chars().all(is_plain) {
        return Err(NotPlain { max });
    }
    Ok(trimmed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_line_of_words_in_any_script_is_plain() {
        for (text, expected) in [
            ("re_1", "re_1"),
            (" Ada  Lovelace ", "Ada  Lovelace"),
            ("王伟", "王伟"),
            ("<b>'\"&\\", "<b>'\"&\\"),
            ("\u{1f469}\u{200d}\u{1f4bb}", "\u{1f469}\u{200d}\u{1f4bb}"),
        ] {
            assert_eq!(plain(text, 20), Ok(expected));
        }
        assert_eq!(plain(&"é".repeat(64), 64), Ok(&*"é".repeat(64)));
    }

    #[test]
    fn what_is_empty_long_or_moves_the_cursor_is_not() {
        let long = "é".repeat(65);
        for text in [
            "",
            " ",
            "\u{3000}",
            "a\nb",
            "a\t",
            "\0",
            "a\u{7f}",
            "\u{85}",
            "\u{1b}[2J",
            "a\u{202e}b",
            "a\u{2028}b",
            "\u{2066}a",
            &long,
        ] {
            let said = plain(text, 64).unwrap_err().to_string();
            assert!(said.starts_with("must have 1 to 64 characters"), "{text:?}: {said}");
        }
    }

    /// The published pattern accepts the same texts as the parser, tried with each character that could make a
    /// difference.
    #[test]
    fn the_pattern_lets_the_same_through() {
        let schema = json!({"type": "string", "minLength": 1, "maxLength": 2, "pattern": PLAIN_PATTERN});
        let schema = jsonschema::draft202012::new(&schema).unwrap();
        for character in '\0'..='\u{3100}' {
            for text in [
                character.to_string(),
                format!("a{character}"),
                format!("{character}a"),
                format!("{character} "),
            ] {
                let is_taken = plain(&text, 2).is_ok();
                assert_eq!(schema.is_valid(&json!(text)), is_taken, "{text:?}");
            }
        }
    }
}
