//! The document that describes the API. Every answer of a test is checked against it: its status, its headers, its body, and
//! that the document allows an accepted request's body and query.

use flashsale::http::openapi::REFERENCE;
use jsonschema::Validator;
use reqwest::Url;
use reqwest::header::HeaderMap;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{LazyLock, OnceLock};

/// Headers that count only if the document has them.
const COMPARED: [&str; 4] = ["location", "idempotency-replayed", "retry-after", "www-authenticate"];

/// The document.
pub static DOCUMENT: LazyLock<Value> = LazyLock::new(|| REFERENCE.document());

/// Its components, with no other members than the named ones.
static CLOSED: LazyLock<Value> = LazyLock::new(|| {
    let mut components = DOCUMENT["components"].clone();
    for component in components["schemas"].as_object_mut().unwrap().values_mut() {
        close(component);
    }
    components
});

/// Its content, ready to check answers.
static RULES: LazyLock<BTreeMap<(String, String), Rules>> = LazyLock::new(|| {
    let operations = operations();
    let rules =
        operations.map(|(method, path, operation)| ((method.to_uppercase(), path.to_owned()), Rules::of(operation)));
    rules.collect()
});

struct Rules {
    parameters: BTreeSet<String>,
    body: Option<Schema>,
    answers: BTreeMap<u16, Expected>,
}

struct Expected {
    headers: Vec<String>,
    bodies: BTreeMap<String, Schema>,
}

/// A schema of the document, with its checker once a test needs that: all of them take seconds.
struct Schema {
    schema: &'static Value,
    is_strict: bool,
    validator: OnceLock<Validator>,
}

impl Schema {
    const fn of(schema: &'static Value, is_strict: bool) -> Self {
        Self {
            schema,
            is_strict,
            validator: OnceLock::new(),
        }
    }

    /// What is wrong with a value.
    fn errors(&self, value: &Value) -> Vec<String> {
        let validator = self.validator.get_or_init(|| validator(self.schema, self.is_strict));
        validator.iter_errors(value).map(|error| error.to_string()).collect()
    }
}

/// Every operation with its method and path.
pub fn operations() -> impl Iterator<Item = (&'static str, &'static str, &'static Value)> {
    let paths = DOCUMENT["paths"].as_object().unwrap().iter();
    paths.flat_map(|(path, methods)| {
        let methods = methods.as_object().unwrap().iter();
        methods.map(|(method, operation)| (method.as_str(), path.as_str(), operation))
    })
}

/// A checker for a schema of the document; in strict mode, unnamed members are errors.
pub fn validator(schema: &Value, is_strict: bool) -> Validator {
    let mut schema = schema.clone();
    let mut components = &DOCUMENT["components"];
    if is_strict {
        close(&mut schema);
        components = &CLOSED;
    }
    let whole = json!({"components": components, "allOf": [schema]});
    jsonschema::draft202012::options()
        .should_validate_formats(true)
        .should_ignore_unknown_formats(true)
        .build(&whole)
        .unwrap()
}

/// Lets an object have the members that are named, and no others.
fn close(schema: &mut Value) {
    match schema {
        Value::Object(parts) => {
            if parts.contains_key("properties") && !parts.contains_key("$ref") {
                parts.entry("additionalProperties").or_insert(json!(false));
            }
            parts.values_mut().for_each(close);
        }
        Value::Array(parts) => parts.iter_mut().for_each(close),
        _ => {}
    }
}

impl Rules {
    fn of(operation: &'static Value) -> Self {
        let body = operation.pointer("/requestBody/content/application~1json/schema");
        let answers = operation["responses"].as_object().unwrap().iter();
        let parameters = operation["parameters"].as_array().into_iter().flatten();
        let in_query = parameters.filter(|it| it["in"] == "query");
        Self {
            parameters: in_query.map(|it| it["name"].as_str().unwrap().to_owned()).collect(),
            body: body.map(|schema| Schema::of(schema, false)),
            answers: answers
                .map(|(status, answer)| (status.parse().unwrap(), Expected::of(answer)))
                .collect(),
        }
    }
}

impl Expected {
    fn of(answer: &'static Value) -> Self {
        let headers = answer["headers"].as_object().unwrap().keys();
        let content = answer.get("content").and_then(Value::as_object).into_iter().flatten();
        Self {
            headers: headers.map(|name| name.to_lowercase()).collect(),
            bodies: content
                .map(|(kind, content)| (kind.clone(), Schema::of(&content["schema"], true)))
                .collect(),
        }
    }
}

fn fits(template: &str, path: &str) -> bool {
    let mut parts = (template.split('/'), path.split('/'));
    loop {
        match (parts.0.next(), parts.1.next()) {
            (None, None) => return true,
            (Some(said), Some(asked)) if said == asked || said.starts_with('{') => {}
            _ => return false,
        }
    }
}

/// The events of a stream that have data; others are none.
fn events(text: &str) -> Vec<Value> {
    let events = text.split("\n\n").map(|event| {
        let lines = event.lines().filter_map(|line| line.split_once(": "));
        lines
            .filter(|(name, _)| ["event", "id", "data"].contains(name))
            .map(|(name, value)| (name.to_owned(), value.into()))
    });
    let events = events.map(|members| Value::Object(members.collect()));
    events.filter(|event| event.get("data").is_some()).collect()
}

/// Checks an answer against the document. A request for a path or a method that it lacks is skipped: that is checked by its
/// test.
#[track_caller]
pub fn check(method: &str, url: &Url, sent: Option<&[u8]>, (status, headers, text): (u16, &HeaderMap, &str)) {
    let (asked, path) = (if method == "HEAD" { "GET" } else { method }, url.path());
    // A path by name before one with an id in its place.
    let found = RULES
        .iter()
        .filter(|((of, template), _)| of == asked && fits(template, path));
    let Some(((_, template), rules)) = found.min_by_key(|((_, template), _)| template.matches('{').count()) else {
        return;
    };
    // The document is of an instance that serves everything at one address.
    if status == 404 && text.contains("there is no such path") {
        return;
    }
    let what = || format!("{method} {template} answered {status}: {text}");
    let Some(expected) = rules.answers.get(&status) else {
        panic!("not in the document: {}", what());
    };
    for name in &expected.headers {
        assert!(
            headers.contains_key(name),
            "no {name}, which the document has: {}",
            what()
        );
    }
    for name in COMPARED {
        let is_said = expected.headers.iter().any(|it| it == name);
        assert!(
            is_said || !headers.contains_key(name),
            "{name}, which the document has not: {}",
            what()
        );
    }
    if status < 300 {
        for (name, _) in url.query_pairs() {
            assert!(
                rules.parameters.contains(&*name),
                "taken, but not in the document: {name}: {}",
                what()
            );
        }
    }
    if let (Some(body), Some(sent)) = (&rules.body, sent.filter(|_| (200..300).contains(&status))) {
        let sent = serde_json::from_slice(sent).unwrap();
        let wrong = body.errors(&sent);
        assert!(wrong.is_empty(), "taken, but not by the document: {sent}: {wrong:?}");
    }
    if method == "HEAD" || status == 304 {
        return;
    }
    let kind = headers["content-type"].to_str().unwrap();
    let Some(body) = expected.bodies.get(kind) else {
        panic!("{kind} is not in the document: {}", what());
    };
    let values = match kind {
        "text/event-stream" => events(text),
        _ if kind.contains("json") => vec![serde_json::from_str(text).unwrap()],
        _ => vec![Value::from(text)],
    };
    for value in values {
        let wrong = body.errors(&value);
        assert!(wrong.is_empty(), "not as the document has it: {wrong:?}: {}", what());
    }
}
