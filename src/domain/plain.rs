//! Plain text, typed by one person and shown to others: a few words on one line, or several lines.

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

/// The pattern of plain lines: the same, with line breaks.
pub const LINES_PATTERN: &str = concat!(
    r"^[^\u0000-\u0009\u000b-\u001f\u007f-\u009f\u2028-\u202e\u2066-\u2069]*",
    r"[^\u0000-\u0020\u007f-\u00a0\u1680\u2000-\u200a\u2028-\u202f\u205f\u2066-\u2069\u3000]",
    r"[^\u0000-\u0009\u000b-\u001f\u007f-\u009f\u2028-\u202e\u2066-\u2069]*$"
);

/// The pattern of a text that may also be empty.
pub fn or_empty(pattern: &str) -> String {
    format!("^$|{pattern}")
}

/// The rule that a text does not follow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("must have 1 to {max} characters, not only white space and none that breaks or reorders the line")]
pub struct NotPlain {
    max: usize,
}

/// The rule that a text of several lines does not follow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "must have 1 to {max} characters, not only white space, and besides line breaks (\\n) none that breaks or reorders \
     a line"
)]
pub struct NotPlainLines {
    max: usize,
}

/// Whether a character that is not a control character breaks a line or changes the order of the text after it.
pub fn breaks_or_turns(it: char) -> bool {
    BREAKS.contains(&it) || ISOLATES.contains(&it)
}

/// Whether a character is invisible, so that two texts that differ only by it appear the same.
pub fn is_unseen(it: char) -> bool {
    matches!(it, '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2060}'..='\u{2064}' | '\u{feff}')
}

/// A type of plain texts with at most so many characters.
macro_rules! plain_text {
    ($(#[doc = $doc:literal])+ $name:ident $max:ident) => {
        $(#[doc = $doc])+
        #[derive(Debug, Clone, PartialEq, Eq, Hash)]
        pub struct $name(String);

        impl $name {
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
    trimmed(text, max, is_plain).ok_or(NotPlain { max })
}

/// The same for a text of several lines.
pub fn lines(text: &str, max: usize) -> Result<&str, NotPlainLines> {
    trimmed(text, max, |it| it == '\n' || is_plain(it)).ok_or(NotPlainLines { max })
}

fn is_plain(it: char) -> bool {
    !it.is_control() && !breaks_or_turns(it)
}

fn trimmed(text: &str, max: usize, is_allowed: impl Fn(char) -> bool) -> Option<&str> {
    let trimmed = text.trim();
    let is_right = !trimmed.is_empty() && text.chars().count() <= max && text.chars().all(is_allowed);
    is_right.then_some(trimmed)
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

    #[test]
    fn several_lines_are_plain_without_other_control_characters() {
        assert_eq!(lines("\n\nOne\n\n two \n", 20), Ok("One\n\n two"));
        for text in ["", "\n", "a\r\nb", "a\tb", "a\u{202e}b", "a\u{2028}b", &"é".repeat(21)] {
            let said = lines(text, 20).unwrap_err().to_string();
            assert!(said.starts_with("must have 1 to 20 characters"), "{text:?}: {said}");
        }
    }

    /// The published patterns accept the same texts as the parsers, tried with each character that could make a
    /// difference.
    #[test]
    fn the_patterns_let_the_same_through() {
        let schema = |pattern: String| {
            let schema = json!({"type": "string", "maxLength": 2, "pattern": pattern});
            jsonschema::draft202012::new(&schema).unwrap()
        };
        let (one_line, several) = (schema(PLAIN_PATTERN.to_owned()), schema(LINES_PATTERN.to_owned()));
        let or_none = schema(or_empty(LINES_PATTERN));
        assert!(or_none.is_valid(&json!("")) && !or_none.is_valid(&json!(" ")));
        for character in '\0'..='\u{3100}' {
            for text in [
                character.to_string(),
                format!("a{character}"),
                format!("{character}a"),
                format!("{character} "),
            ] {
                let are_lines = lines(&text, 2).is_ok();
                assert_eq!(one_line.is_valid(&json!(text)), plain(&text, 2).is_ok(), "{text:?}");
                assert_eq!(several.is_valid(&json!(text)), are_lines, "{text:?}");
                assert_eq!(or_none.is_valid(&json!(text)), are_lines, "{text:?}");
            }
        }
    }
}
