//! Tables and lists in docs/, and types of scripts, that are made from the code. `UPDATE_DOCS=1` in the environment of
//! this test writes them.

use flashsale::config;
use flashsale::domain::code::Code;
use flashsale::domain::order::purchase::Refusal;
use flashsale::http::openapi::REFERENCE;
use serde_json::Value;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

const BEGIN: &str = "<!-- made from the code: ./dev docs -->\n";
const END: &str = "<!-- end -->\n";

/// Compares the made part of a page with what the code makes, or writes it there.
fn is_current(page: &str, made: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(page);
    let text = fs::read_to_string(&path).unwrap();
    let (before, rest) = text
        .split_once(BEGIN)
        .unwrap_or_else(|| panic!("{page} has no {BEGIN}"));
    let (found, after) = rest.split_once(END).unwrap_or_else(|| panic!("{page} has no {END}"));
    is_written(page, found, made, &format!("{before}{BEGIN}{made}{END}{after}"));
}

/// Compares what a file has with what the code makes, or writes the file.
fn is_written(file: &str, found: &str, made: &str, whole: &str) {
    if std::env::var_os("UPDATE_DOCS").is_some() {
        fs::write(Path::new(env!("CARGO_MANIFEST_DIR")).join(file), whole).unwrap();
    } else {
        assert_eq!(found, made, "{file} is not current; run ./dev docs");
    }
}

#[test]
fn the_table_of_variables_is_that_of_the_program() {
    is_current("docs/configuration.md", &config::markdown());
}

/// Who may ask, by the first of the security schemes of an operation: the heading of its list.
fn who(operation: &Value) -> &'static str {
    let schemes = operation["security"][0].as_object();
    match schemes.and_then(|it| it.keys().next()).map(String::as_str) {
        Some("shopper") => "Shoppers",
        Some("provider") => "The payment provider",
        Some(_) => "Operators",
        None => "Anybody",
    }
}

#[test]
fn the_lists_of_requests_are_those_of_the_routes() {
    let document = REFERENCE.document();
    let mut requests = Vec::new();
    for group in document["tags"].as_array().unwrap() {
        for (path, methods) in document["paths"].as_object().unwrap() {
            for (method, operation) in methods.as_object().unwrap() {
                if operation["tags"][0] == group["name"] {
                    let (method, what) = (method.to_uppercase(), operation["summary"].as_str().unwrap());
                    requests.push((who(operation), format!("- `{method} {path}`: {what}\n")));
                }
            }
        }
    }
    assert!(requests.len() > 40, "{requests:?}");
    let lists = ["Anybody", "Shoppers", "Operators", "The payment provider"].map(|heading| {
        let of_it = requests.iter().filter(|(who, _)| *who == heading);
        let list: String = of_it.map(|(_, line)| line.as_str()).collect();
        format!("## {heading}\n\n{list}")
    });
    is_current("docs/api-reference.md", &lists.join("\n"));
}

#[test]
fn the_table_of_codes_is_that_of_the_program() {
    let mut table = "| code | status | no order | what to do |\n|---|---|---|---|\n".to_owned();
    for code in Code::ALL {
        let refusals: Vec<bool> = Refusal::each()
            .iter()
            .filter(|it| it.code() == *code)
            .map(Refusal::is_key_free)
            .collect();
        // The gateway limits requests before their key is read.
        let is_early = *code == Code::RateLimited;
        let no_order = match (refusals.contains(&true), refusals.contains(&false) || is_early) {
            (true, false) => "yes",
            (true, true) => "some",
            (false, _) => "no",
        };
        let (name, status, advice) = (code.as_str(), code.status(), code.advice());
        writeln!(table, "| `{name}` | {status} | {no_order} | {advice} |").unwrap();
    }
    is_current("docs/api.md", &table);
}

/// A schema as a type of TypeScript, whose further lines begin with this indentation.
fn type_of(schema: &Value, indent: &str) -> String {
    let quoted = |value: &Value| value.to_string().replace('"', "'");
    let union = |all: &Value, each: &dyn Fn(&Value) -> String| {
        let all: Vec<String> = all.as_array().unwrap().iter().map(each).collect();
        all.join(" | ")
    };
    if let Some(name) = schema["$ref"].as_str() {
        return name.rsplit('/').next().unwrap().to_owned();
    }
    if let Some(only) = schema.get("const") {
        return quoted(only);
    }
    if let Some(choices) = schema.get("enum") {
        return union(choices, &quoted);
    }
    if let Some(kinds) = schema.get("oneOf").or_else(|| schema.get("anyOf")) {
        return union(kinds, &|it| type_of(it, indent));
    }
    match &schema["type"] {
        Value::String(kind) => type_of_kind(kind, schema, indent),
        // Any JSON: only objects are sent so.
        Value::Null => type_of_kind("object", schema, indent),
        kinds => union(kinds, &|it| type_of_kind(it.as_str().unwrap(), schema, indent)),
    }
}

fn type_of_kind(kind: &str, schema: &Value, indent: &str) -> String {
    match kind {
        "array" => {
            let entry = type_of(&schema["items"], indent);
            match (schema["minItems"].as_u64(), schema["maxItems"].as_u64()) {
                (Some(least), Some(most)) if least == most => {
                    format!("[{}]", vec![entry; usize::try_from(most).unwrap()].join(", "))
                }
                _ if entry.contains('|') => format!("({entry})[]"),
                _ => format!("{entry}[]"),
            }
        }
        "object" => match schema.get("properties") {
            Some(members) => members_of(members, &schema["required"], indent),
            None => {
                let named = schema["patternProperties"]
                    .as_object()
                    .and_then(|it| it.values().next());
                let value = named.or_else(|| schema.get("additionalProperties").filter(|it| it.is_object()));
                let value = value.map_or_else(|| "unknown".to_owned(), |it| type_of(it, indent));
                format!("Record<string, {value}>")
            }
        },
        "integer" => "number".to_owned(),
        other => other.to_owned(),
    }
}

fn members_of(members: &Value, required: &Value, indent: &str) -> String {
    let inner = format!("{indent}    ");
    let mut text = "{\n".to_owned();
    for (name, member) in members.as_object().unwrap() {
        let member = type_of(member, &inner);
        let is_required = required.as_array().is_some_and(|all| all.iter().any(|it| it == name));
        let (mark, member) = match member.strip_suffix(" | null") {
            Some(member) if !is_required => ("?", member),
            _ => (if is_required { "" } else { "?" }, member.as_str()),
        };
        writeln!(text, "{inner}{name}{mark}: {member};").unwrap();
    }
    text + indent + "}"
}

#[test]
fn the_types_of_scripts_are_those_of_the_document() {
    let mut types = "\
// The bodies and answers of the API, made from its document: ./dev docs. All types are global, so a script names a type
// without an import. Times are RFC 3339 texts. A member that may be missing is never null.

interface Page<Entry> {
    data: Entry[];
    has_more: boolean;
}
"
    .to_owned();
    let document = REFERENCE.document();
    let schemas = document["components"]["schemas"].as_object().unwrap();
    for (name, schema) in schemas.iter().filter(|(name, _)| !name.starts_with("PageOf")) {
        let made = type_of(schema, "");
        if made.starts_with('{') && schema["type"] == "object" {
            writeln!(types, "\ninterface {name} {made}").unwrap();
        } else {
            let made = if made.len() > 100 {
                made.replace(" | ", "\n    | ")
            } else {
                made
            };
            writeln!(types, "\ntype {name} = {made};").unwrap();
        }
    }
    let file = "tests/javascript/api.d.ts";
    let found = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(file)).unwrap();
    is_written(file, &found, &types, &types);
}
