//! Parses bodies and queries. If one is wrong, the detail names the member or parameter, and what the OpenAPI schema
//! requires of it.

use crate::domain::mistake::{self, listed};
use crate::http::openapi::schemas::{Schemas, elements};
use crate::http::problem::Problem;
use parking_lot::Mutex;
use schemars::JsonSchema;
use serde::de::DeserializeOwned;
use serde_json::Value;
use serde_path_to_error::{Error, Segment};
use std::any::TypeId;
use std::collections::HashMap;
use std::fmt::Display;
use std::sync::{Arc, LazyLock};

/// Parses a JSON object.
pub fn parse_json<T: DeserializeOwned + JsonSchema + 'static>(body: &[u8]) -> Result<T, Problem> {
    // A derived `Deserialize` would also accept a list of the members.
    if body.trim_ascii_start().first() != Some(&b'{') {
        let object = described(&schema_of::<T>());
        return Err(Problem::invalid(format!("the body must be JSON: {object}")));
    }
    serde_json::from_slice(body).map_err(|error| {
        if !error.is_data() {
            return broken(&error);
        }
        // The second parse records the path of the error. A valid body does not pay for it.
        let mut again = serde_json::Deserializer::from_slice(body);
        refusal("the body", serde_path_to_error::deserialize::<_, T>(&mut again))
    })
}

/// The problem of a body that is not JSON, with the place.
fn broken(error: &serde_json::Error) -> Problem {
    let (line, column) = (error.line(), error.column());
    if error.is_eof() {
        return Problem::invalid(format!("the body ends in the middle, at line {line}, column {column}"));
    }
    let said = error.to_string();
    let what = said.rsplit_once(" at line ").map_or(said.as_str(), |(what, _)| what);
    Problem::invalid(format!("the body is not JSON: {what}, at line {line}, column {column}"))
}

/// Parses a JSON value. The error is the text for the client.
pub fn parse_value<T: DeserializeOwned + JsonSchema + 'static>(value: Value) -> Result<T, String> {
    let parsed = serde_path_to_error::deserialize::<_, T>(value);
    parsed.map_err(|error| wrong::<T>("the body", &error))
}

/// Parses a query.
pub fn parse_query<T: DeserializeOwned + JsonSchema + 'static>(query: &str) -> Result<T, Problem> {
    serde_urlencoded::from_str(query).map_err(|_| {
        let again = serde_urlencoded::Deserializer::new(form_urlencoded::parse(query.as_bytes()));
        refusal("the query", serde_path_to_error::deserialize::<_, T>(again))
    })
}

/// The schema of a type. It is made once: any client may send wrong bodies as often as it likes.
fn schema_of<T: JsonSchema + 'static>() -> Arc<Value> {
    static MADE: LazyLock<Mutex<HashMap<TypeId, Arc<Value>>>> = LazyLock::new(Mutex::default);
    let mut made = MADE.lock();
    let schema = made.entry(TypeId::of::<T>());
    Arc::clone(schema.or_insert_with(|| Arc::new(Schemas::alone::<T>())))
}

fn refusal<T: JsonSchema + 'static, E: Display>(whole: &str, parsed: Result<T, Error<E>>) -> Problem {
    Problem::invalid(match parsed {
        Err(error) => wrong::<T>(whole, &error),
        Ok(_) => format!("{whole} is not valid"),
    })
}

fn wrong<T: JsonSchema + 'static>(whole: &str, error: &Error<impl Display>) -> String {
    let said = error.inner().to_string();
    // For these two errors, the path names the object, not the member.
    if said.starts_with("missing field ") || said.starts_with("duplicate field ") {
        let path = error.path();
        let at = if path.iter().len() == 0 {
            String::new()
        } else {
            path.to_string()
        };
        return mistake::plain(&at, &said);
    }
    let schema = schema_of::<T>();
    let (mut schema, mut at) = (&*schema, String::new());
    for segment in error.path() {
        match segment {
            Segment::Map { key } => {
                let object = with(schema, "properties");
                at += if at.is_empty() { "" } else { "." };
                at += key;
                match object["properties"].get(key) {
                    Some(member) => schema = member,
                    None => return format!("{at} is unknown; known are {}", listed(&names(object), "and")),
                }
            }
            Segment::Seq { index } => match with(schema, "items").get("items") {
                Some(element) => {
                    schema = element;
                    at += &format!("[{index}]");
                }
                // The body has a list where the schema has an object.
                None => break,
            },
            Segment::Enum { .. } | Segment::Unknown => {}
        }
    }
    let what = if at.is_empty() { whole } else { &at };
    format!("{what} must be {}", described(schema))
}

/// The schema that has this part: this one, or the first of its alternatives that has it.
fn with<'a>(schema: &'a Value, part: &str) -> &'a Value {
    if schema.get(part).is_some() {
        return schema;
    }
    alternatives(schema).find(|it| it.get(part).is_some()).unwrap_or(schema)
}

fn alternatives(schema: &Value) -> impl Iterator<Item = &Value> {
    let kinds = ["anyOf", "oneOf"].into_iter();
    kinds.flat_map(move |kind| elements(schema, kind))
}

fn names(object: &Value) -> Vec<&str> {
    let members = object["properties"].as_object().into_iter().flatten();
    members.map(|(name, _)| name.as_str()).collect()
}

/// What a value must be, in words.
fn described(schema: &Value) -> String {
    let consts = alternatives(schema).filter_map(|it| it.get("const"));
    let choices = elements(schema, "enum").chain(consts).chain(schema.get("const"));
    let choices: Vec<&str> = choices.filter_map(Value::as_str).collect();
    if !choices.is_empty() {
        return listed(&choices, "or");
    }
    let kinds = match &schema["type"] {
        Value::Array(kinds) => kinds.iter().filter_map(Value::as_str).collect(),
        kind => kind.as_str().into_iter().collect::<Vec<_>>(),
    };
    match kinds.into_iter().find(|kind| *kind != "null") {
        Some("object") => object(schema),
        Some("array") => format!("a list{}", range(schema, "Items", "of", "")),
        Some("integer" | "number") => format!("an integer{}", range(schema, "imum", "from", "")),
        Some("boolean") => "true or false".to_owned(),
        Some("string") => match schema["format"].as_str() {
            Some("uuid") => "a UUID".to_owned(),
            Some("date-time") => "a time as in RFC 3339, like 2026-11-22T09:00:00Z".to_owned(),
            _ => format!("a string{}", range(schema, "Length", "of", " characters")),
        },
        _ => alternatives(schema)
            .find(|it| it["type"] != "null")
            .map_or_else(|| "another value".to_owned(), described),
    }
}

fn object(schema: &Value) -> String {
    let required: Vec<&str> = elements(schema, "required").filter_map(Value::as_str).collect();
    let all = names(schema);
    let optional: Vec<&str> = all.into_iter().filter(|name| !required.contains(name)).collect();
    match (required.is_empty(), optional.is_empty()) {
        (true, true) => "an object".to_owned(),
        (false, true) => format!("an object with {}", listed(&required, "and")),
        (true, false) => format!("an object that may have {}", listed(&optional, "and")),
        (false, false) => format!(
            "an object with {}, which may have {}",
            listed(&required, "and"),
            listed(&optional, "and")
        ),
    }
}

/// The bounds `min…` and `max…` of a schema in words, with `before` in front of both and the unit after them.
fn range(schema: &Value, of: &str, before: &str, unit: &str) -> String {
    let bound = |end: &str| schema.get(format!("{end}{of}"));
    match (bound("min"), bound("max")) {
        (Some(low), Some(high)) => format!(" {before} {low} to {high}{unit}"),
        (Some(low), None) => format!(" of at least {low}{unit}"),
        (None, Some(high)) => format!(" of at most {high}{unit}"),
        (None, None) => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::ids::SaleId;
    use chrono::{DateTime, Utc};
    use serde::Deserialize;
    use serde_json::json;
    use std::sync::atomic::{AtomicUsize, Ordering};

    static MADE: AtomicUsize = AtomicUsize::new(0);

    /// Counts how often its schema is made.
    struct Counted;

    impl<'de> Deserialize<'de> for Counted {
        fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
            u8::deserialize(from).map(|_| Self)
        }
    }

    impl JsonSchema for Counted {
        fn schema_name() -> std::borrow::Cow<'static, str> {
            "Counted".into()
        }
        fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
            MADE.fetch_add(1, Ordering::Relaxed);
            schemars::json_schema!({"type": "object"})
        }
    }

    #[test]
    fn a_schema_is_made_once_however_much_is_wrong() {
        for body in ["[]", "x", "", "{}", "[]"] {
            assert!(parse_json::<Counted>(body.as_bytes()).is_err());
        }
        assert_eq!(MADE.load(Ordering::Relaxed), 1);
    }

    #[derive(Deserialize, JsonSchema)]
    #[serde(deny_unknown_fields)]
    #[expect(dead_code, reason = "only read")]
    struct Order {
        sale: SaleId,
        at: Option<DateTime<Utc>>,
        #[schemars(range(min = 1, max = 9))]
        quantity: i64,
        colour: Option<Colour>,
        lines: Vec<Line>,
        gift: Option<Line>,
    }

    #[derive(Deserialize, JsonSchema)]
    #[serde(deny_unknown_fields)]
    #[expect(dead_code, reason = "only read")]
    struct Line {
        #[schemars(length(min = 1, max = 64))]
        sku: String,
        is_wrapped: bool,
        count: u32,
    }

    #[derive(Deserialize, JsonSchema)]
    #[serde(rename_all = "snake_case")]
    enum Colour {
        /// Like roses.
        Red,
        /// Like violets.
        PaleBlue,
    }

    #[derive(Deserialize, JsonSchema, Debug)]
    #[serde(deny_unknown_fields)]
    #[expect(dead_code, reason = "only read")]
    struct Filter {
        colour: String,
        #[schemars(range(min = 1, max = 100))]
        limit: Option<u8>,
    }

    fn of_body(body: &str) -> String {
        let parsed = parse_json::<Order>(body.as_bytes());
        parsed.err().unwrap().to_string()
    }

    #[test]
    fn what_is_wrong_with_a_body_is_said_by_its_members() {
        let line = json!({"sku": "a", "is_wrapped": true, "count": 1});
        let good = json!({"sale": SaleId(uuid::Uuid::nil()), "quantity": 1, "lines": [line]});
        assert!(parse_json::<Order>(good.to_string().as_bytes()).is_ok());
        let changed = |at: &str, to: Value| {
            let mut body = good.clone();
            match body.pointer_mut(at) {
                Some(member) => *member = to,
                None => body[&at[1..]] = to,
            }
            of_body(&body.to_string())
        };
        for (at, to, expected) in [
            ("/quantity", json!("one"), "quantity must be an integer from 1 to 9"),
            ("/quantity", json!(1.5), "quantity must be an integer from 1 to 9"),
            ("/sale", json!("x"), "sale must be a UUID"),
            (
                "/at",
                json!("noon"),
                "at must be a time as in RFC 3339, like 2026-11-22T09:00:00Z",
            ),
            ("/colour", json!("green"), "colour must be red or pale_blue"),
            ("/lines", json!({}), "lines must be a list"),
            (
                "/lines/0/sku",
                json!(1),
                "lines[0].sku must be a string of 1 to 64 characters",
            ),
            (
                "/lines/0/is_wrapped",
                json!("yes"),
                "lines[0].is_wrapped must be true or false",
            ),
            (
                "/lines/0/count",
                json!(-1),
                "lines[0].count must be an integer of at least 0",
            ),
            ("/lines/0", json!({"sku": "a"}), "lines[0].is_wrapped is missing"),
            (
                "/gift",
                json!(7),
                "gift must be an object with sku, is_wrapped and count",
            ),
            (
                "/gift",
                json!([7]),
                "gift must be an object with sku, is_wrapped and count",
            ),
            ("/size", json!(7), "size is unknown; known are "),
        ] {
            let said = changed(at, to);
            assert!(said.starts_with(&format!("invalid_request: {expected}")), "{said}");
        }
        let twice = good.to_string().replacen('{', "{\"quantity\":1,", 1);
        assert_eq!(of_body(&twice), "invalid_request: quantity is there twice");
        assert!(of_body(&format!("{good}x")).starts_with("invalid_request: the body is not JSON: "));
    }

    #[test]
    fn a_body_that_is_no_object_is_refused_with_its_members() {
        for body in ["", " ", "[]", "null", "7", "\"x\"", "[1,2]", "nonsense", "\u{feff}{}"] {
            let said = of_body(body);
            let expected =
                "invalid_request: the body must be JSON: an object with sale, quantity and lines, which may have ";
            assert!(said.starts_with(expected), "{body}: {said}");
        }
        for (body, expected) in [
            ("{", "the body ends in the middle, at line 1, column 1"),
            ("{\n\"sale\": \"x", "the body ends in the middle, at line 2, column "),
            ("{\"sale\"}", "the body is not JSON: expected `:`, at line 1, column "),
            (
                "{\"sale\":}",
                "the body is not JSON: expected value, at line 1, column ",
            ),
            (
                "{sale: 1}",
                "the body is not JSON: key must be a string, at line 1, column ",
            ),
        ] {
            let said = of_body(body);
            assert!(
                said.starts_with(&format!("invalid_request: {expected}")),
                "{body}: {said}"
            );
        }
    }

    #[test]
    fn what_is_wrong_with_a_query_is_said_by_its_parameters() {
        assert!(parse_query::<Filter>("colour=red&limit=3").is_ok());
        for (query, expected) in [
            ("colour=red&limit=x", "limit must be an integer from 1 to 100"),
            ("colour=red&limit=-1", "limit must be an integer from 1 to 100"),
            ("colour=red&limit=", "limit must be an integer from 1 to 100"),
            ("colour=red&limt=1", "limt is unknown; known are colour and limit"),
            ("colour=red&colour=red", "colour is there twice"),
            ("limit=1", "colour is missing"),
            ("", "colour is missing"),
        ] {
            let said = parse_query::<Filter>(query).unwrap_err().to_string();
            assert_eq!(said, format!("invalid_request: {expected}"), "{query}");
        }
    }
}
