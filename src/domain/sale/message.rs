//! The message of operators to the shoppers of a sale, in the languages of the pages.

use crate::domain::plain::{NotPlain, PLAIN_PATTERN, or_empty, plain};
use crate::domain::shop::language::Language;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::{Deserializer, Error, MapAccess, Visitor};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;

/// The most characters of a message.
pub const MESSAGE_MAX: usize = 280;

/// A message to the shoppers of a sale: its texts by the codes of their languages.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct SaleMessage(BTreeMap<&'static str, String>);

impl SaleMessage {
    /// A message of the ledger. A text in a language that this version lacks is left out.
    pub fn from_stored(stored: &Value) -> Self {
        let text = |language: Language| {
            let code = language.code();
            Some((code, stored.get(code)?.as_str()?.to_owned()))
        };
        Self(Language::all().filter_map(text).collect())
    }

    pub fn is_empty(&self) -> bool {
        self.0.values().all(String::is_empty)
    }

    pub fn text(&self, language: Language) -> Option<&str> {
        self.0.get(language.code()).map(String::as_str)
    }

    /// The message without empty texts, and without white space around the others. Fails with the language of the first
    /// text that is not plain, and the rule.
    pub fn check(self) -> Result<Self, (&'static str, NotPlain)> {
        let texts = self.0.into_iter().filter(|(_, text)| !text.is_empty());
        let checked = texts.map(|(code, text)| match plain(&text, MESSAGE_MAX) {
            Ok(text) => Ok((code, text.to_owned())),
            Err(wrong) => Err((code, wrong)),
        });
        checked.collect::<Result<_, _>>().map(Self)
    }
}

/// Refuses unknown languages, as other bodies refuse unknown members.
impl<'de> Deserialize<'de> for SaleMessage {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_map(Texts)
    }
}

struct Texts;

impl<'de> Visitor<'de> for Texts {
    type Value = SaleMessage;

    fn expecting(&self, into: &mut fmt::Formatter<'_>) -> fmt::Result {
        into.write_str("an object of texts")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<SaleMessage, A::Error> {
        let mut texts = BTreeMap::new();
        while let Some((Code(code), text)) = members.next_entry::<Code, String>()? {
            if texts.insert(code, text).is_some() {
                return Err(A::Error::duplicate_field(code));
            }
        }
        Ok(SaleMessage(texts))
    }
}

/// The code of a language.
struct Code(&'static str);

impl<'de> Deserialize<'de> for Code {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let code = String::deserialize(from)?;
        let language = Language::of_code(&code);
        let unknown = || D::Error::custom(format_args!("no language has the code {code}"));
        language.map(|it| Self(it.code())).ok_or_else(unknown)
    }
}

impl JsonSchema for SaleMessage {
    fn schema_name() -> Cow<'static, str> {
        "SaleMessage".into()
    }
    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        let text = |language: Language| {
            let schema = json!({
                "description": format!("The text in {}: some words on one line. Empty is none.", language.english()),
                "type": "string",
                "maxLength": MESSAGE_MAX,
                "pattern": or_empty(PLAIN_PATTERN),
            });
            (language.code().to_owned(), schema)
        };
        let texts: Map<String, Value> = Language::all().map(text).collect();
        json_schema!({
            "description": "A message to the shoppers of a sale. A page shows it in the reader's language, or else in \
                another that it has.",
            "type": "object",
            "properties": texts,
            "additionalProperties": false,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(en: &str, zh: &str) -> SaleMessage {
        SaleMessage(BTreeMap::from([("en", en.to_owned()), ("zh", zh.to_owned())]))
    }

    #[test]
    fn a_text_is_plain_or_empty() {
        assert_eq!(
            message(" Ten more minutes. ", "").check(),
            Ok(SaleMessage::from_stored(&json!({"en": "Ten more minutes."})))
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

    #[test]
    fn unknown_languages_are_refused_in_requests_and_left_out_of_stored_messages() {
        let known = json!({"zh": "再等十分钟", "en": "Ten more minutes."});
        let read: SaleMessage = serde_json::from_value(known.clone()).unwrap();
        assert_eq!(json!(read), known);
        for wrong in [r#"{"xx": "a"}"#, r#"{"en": "a", "en": "b"}"#, r#"{"en": null}"#, "[]"] {
            assert!(serde_json::from_str::<SaleMessage>(wrong).is_err(), "{wrong}");
        }
        let stored = json!({"en": "a", "xx": "b"});
        assert_eq!(json!(SaleMessage::from_stored(&stored)), json!({"en": "a"}));
    }
}
