//! The message of operators to the shoppers of a sale, in the languages of the pages.

use super::plain::{NotPlain, PLAIN_PATTERN, or_empty, plain};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

/// The most characters of a message.
pub const MESSAGE_MAX: usize = 280;

/// A message to the shoppers of a sale. A page shows it in the reader's language, or else in the other one.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct SaleMessage {
    /// The text in English: some words on one line. Empty is none.
    #[serde(skip_serializing_if = "String::is_empty")]
    #[schemars(schema_with = "text")]
    pub en: String,
    /// The text in Chinese: some words on one line. Empty is none.
    #[serde(skip_serializing_if = "String::is_empty")]
    #[schemars(schema_with = "text")]
    pub zh: String,
}

fn text(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"type": "string", "maxLength": MESSAGE_MAX, "pattern": or_empty(PLAIN_PATTERN)})
}

impl SaleMessage {
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.en.is_empty() && self.zh.is_empty()
    }

    /// The message without white space around its texts.
    ///
    /// # Errors
    /// The language of the first text that is not plain, and the rule.
    pub fn check(self) -> Result<Self, (&'static str, NotPlain)> {
        let checked = |language, text: &str| match text {
            "" => Ok(String::new()),
            text => plain(text, MESSAGE_MAX)
                .map(str::to_owned)
                .map_err(|wrong| (language, wrong)),
        };
        Ok(Self {
            en: checked("en", &self.en)?,
            zh: checked("zh", &self.zh)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(en: &str, zh: &str) -> SaleMessage {
        SaleMessage {
            en: en.to_owned(),
            zh: zh.to_owned(),
        }
    }

    #[test]
    fn a_text_is_plain_or_empty() {
        assert_eq!(
            message(" Ten more minutes. ", "").check(),
            Ok(message("Ten more minutes.", ""))
        );
        assert!(message("", "").is_empty());
        assert!(!message("", "再等十分钟").is_empty());
        for (wrong, language) in [
            (message("a\nb", ""), "en"),
            (message("a", " "), "zh"),
            (message("a", &"等".repeat(MESSAGE_MAX + 1)), "zh"),
        ] {
            assert_eq!(wrong.check().unwrap_err().0, language);
        }
    }
}
