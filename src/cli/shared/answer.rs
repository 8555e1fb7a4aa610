//! The API's answers, printed as JSON or as text. Unknown members are no error: the server may be newer.

use super::human;
use super::output::{self, Table};
use crate::cli::Failure;
use crate::domain::ids::SaleId;
use crate::domain::sale::{NewSale, SaleState};
use crate::domain::shop::currency;
use anyhow::Context as _;
use chrono::{DateTime, Utc};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use std::collections::BTreeMap;

/// Reads an answer as a `T`.
pub fn read<T: DeserializeOwned>(body: &Value) -> Result<T, Failure> {
    let read = T::deserialize(body).context("the server's answer is not as expected: is it of the same version?")?;
    Ok(read)
}

/// The form in which a command prints an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// For people.
    Text,
    /// As the server sent it.
    Json,
    /// The id of each thing in it, one a line. An answer without an id prints nothing.
    Ids,
}

impl Form {
    /// Refuses `--csv` beside a flag for another form.
    pub fn allow_csv(self) -> Result<(), Failure> {
        if self == Self::Text {
            return Ok(());
        }
        Err(Failure::Usage("--csv cannot be used with --json or -q".to_owned()))
    }
}

/// What identifies a thing in an answer. The first that the answer has counts.
const IDS: [&str; 6] = ["id", "payment_id", "position", "user", "address", "sale_id"];

/// Prints an answer in this form; `text` is the form for people.
pub fn show<T: DeserializeOwned>(body: &Value, form: Form, text: impl FnOnce(T) -> String) -> Result<(), Failure> {
    match form {
        Form::Json => output::print_json(body),
        Form::Ids => output::print(&ids(body)),
        Form::Text => output::print(&text(read(body)?)),
    }
}

/// The ids in an answer: of the thing itself, or of the entries of a list.
fn ids(body: &Value) -> String {
    let entries = body.as_array().map_or(std::slice::from_ref(body), Vec::as_slice);
    let id = |entry: &Value| IDS.iter().find_map(|member| entry.get(member)).map(text);
    let ids = entries.iter().filter_map(id);
    ids.map(|id| output::one_line(&id) + "\n").collect()
}

/// A sale, as far as the commands show it.
#[derive(Debug, Deserialize)]
pub struct ShownSale {
    pub id: SaleId,
    pub state: SaleState,
    /// The clock of Redis.
    pub server_time: DateTime<Utc>,
    /// The texts to its shoppers, by language.
    #[serde(default)]
    pub message: BTreeMap<String, String>,
    /// The guards that have another value for a part of the shoppers.
    #[serde(default)]
    pub staged_guards: BTreeMap<String, Value>,
    #[serde(flatten)]
    pub terms: NewSale,
}

impl ShownSale {
    /// The end of a draft, if it has passed. Its preload would close the sale for good.
    pub fn passed_end(&self) -> Option<DateTime<Utc>> {
        let end = self.terms.ends_at;
        (self.state == SaleState::Draft && end <= self.server_time).then_some(end)
    }

    /// The message to the sale's shoppers on one line, if there is one.
    pub fn message_texts(&self) -> Option<String> {
        let texts = self
            .message
            .iter()
            .map(|(language, text)| format!("{language}: {text}"));
        let texts: Vec<String> = texts.collect();
        (!texts.is_empty()).then(|| texts.join("; "))
    }
}

/// A column of a list: its heading, and the member that it shows, such as `event/user`.
pub type Column = (&'static str, &'static str);

/// Prints the entries of a list: as a JSON array, as a table, or as ids. `instead` may replace the text of a member.
pub fn show_list(
    entries: Vec<Value>,
    form: Form,
    columns: &[Column],
    instead: impl Fn(&Value, &str) -> Option<String>,
) -> Result<(), Failure> {
    show(&Value::Array(entries), form, |entries: Vec<Value>| {
        table(&entries, columns, instead)
    })
}

/// A table of these entries.
pub fn table(entries: &[Value], columns: &[Column], instead: impl Fn(&Value, &str) -> Option<String>) -> String {
    let mut table = Table::new(columns.iter().map(|(heading, _)| *heading));
    for entry in entries {
        let cells = columns
            .iter()
            .map(|(_, member)| instead(entry, member).unwrap_or_else(|| cell(entry, member)));
        table.row(cells);
    }
    table.render()
}

/// A member as a cell of a table: a text without quotes, or a dash if there is none. A member whose name ends as those
/// of times and amounts do is shown as people write them.
pub fn cell(of: &Value, member: &str) -> String {
    let value = match of.pointer(&format!("/{member}")) {
        None | Some(Value::Null) => return "-".to_owned(),
        Some(value) => value,
    };
    let shown = match value {
        Value::String(time) if member.ends_with("_at") => human::moment(time),
        // A shard has the end of a ban in whole seconds, rounded up, and its refusals name that one.
        Value::String(time) if member.ends_with("_until") => human::end(time),
        Value::Number(minor) if member.ends_with("_minor") => money(minor.as_i64(), &of["currency"]),
        _ => None,
    };
    shown.unwrap_or_else(|| text(value))
}

fn money(minor: Option<i64>, currency: &Value) -> Option<String> {
    Some(currency::money(minor?, currency.as_str()?))
}

/// The members of an object in words, such as `sku phone, quantity 5`; a dash if there are none.
pub fn words(object: Option<&Value>) -> String {
    let members = object.and_then(Value::as_object).into_iter().flatten();
    let words = members.map(|(name, value)| format!("{name} {}", text(value)));
    listed(&words.collect::<Vec<_>>())
}

/// These words, or a dash if there are none.
pub fn listed(words: &[String]) -> String {
    match words {
        [] => "-".to_owned(),
        words => words.join(", "),
    }
}

/// A value as text; a string has no quotes.
pub fn text(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn the_ids_of_an_answer_are_those_of_its_things() {
        assert_eq!(ids(&json!({"id": "a", "user": "ada"})), "a\n");
        assert_eq!(ids(&json!([{"payment_id": "p"}, {"id": 7}])), "p\n7\n");
        assert_eq!(ids(&json!([])) + &ids(&json!({"shards": 3})), "");
    }

    #[test]
    fn a_member_that_is_missing_is_named() {
        #[derive(Deserialize, Debug)]
        struct Known {
            _a: u8,
        }
        assert!(read::<Known>(&json!({"_a": 1, "new": {}})).is_ok());
        let said = read::<Known>(&json!({"a": 1})).unwrap_err().to_string();
        assert!(
            said.contains("is it of the same version?: missing field `_a`"),
            "{said}"
        );
    }

    #[test]
    fn times_and_amounts_are_shown_as_people_write_them() {
        let entry = json!({"received_at": "2026-11-27T20:00:05.250Z", "settled_at": null, "amount_minor": 49_900,
            "currency": "EUR", "banned_until": "2026-11-27T20:00:05Z", "begun_at": "then"});
        let time = human::moment("2026-11-27T20:00:05Z").unwrap();
        for (member, shown) in [
            ("received_at", time.as_str()),
            ("banned_until", time.as_str()),
            ("settled_at", "-"),
            ("begun_at", "then"),
            ("amount_minor", "499.00 EUR"),
        ] {
            assert_eq!(cell(&entry, member), shown, "{member}");
        }
        assert_eq!(cell(&json!({"amount_minor": 5}), "amount_minor"), "5");
    }

    #[test]
    fn a_table_shows_members_wherever_they_are_and_whatever_they_say() {
        let entries = [
            json!({"id": 7, "event": {"user": "a\u{1b}da"}, "why": null}),
            json!({"event": null, "why": "x"}),
        ];
        let columns = [("ID", "id"), ("USER", "event/user"), ("WHY", "why")];
        let shown = table(&entries, &columns, |it, member| {
            (member == "why" && it["why"].is_null()).then(|| "none".into())
        });
        assert_eq!(shown, "ID  USER  WHY\n 7  a da  none\n -  -     x\n");
    }
}
