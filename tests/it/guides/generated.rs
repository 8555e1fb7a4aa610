//! Tables in docs/ that are made from the code. `UPDATE_DOCS=1` in the environment of this test writes them anew.

use flashsale::config;
use flashsale::domain::code::Code;
use flashsale::domain::purchase::Refusal;
use flashsale::http::openapi::REFERENCE;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

const BEGIN: &str = "<!-- made from the code: ./dev docs -->\n";
const END: &str = "<!-- end -->\n";

/// Compares the table of a page with the one that the code makes, or writes it there.
fn is_current(page: &str, table: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(page);
    let text = fs::read_to_string(&path).unwrap();
    let (before, rest) = text
        .split_once(BEGIN)
        .unwrap_or_else(|| panic!("{page} has no {BEGIN}"));
    let (found, after) = rest.split_once(END).unwrap_or_else(|| panic!("{page} has no {END}"));
    if std::env::var_os("UPDATE_DOCS").is_some() {
        fs::write(&path, format!("{before}{BEGIN}{table}{END}{after}")).unwrap();
    } else {
        assert_eq!(found, table, "{page} is not current; run ./dev docs");
    }
}

#[test]
fn the_table_of_variables_is_that_of_the_program() {
    is_current("docs/configuration.md", &config::markdown());
}

/// Who may ask, by the first of the security schemes of an operation.
fn who(operation: &serde_json::Value) -> &'static str {
    let schemes = operation["security"][0].as_object();
    match schemes.and_then(|it| it.keys().next()).map(String::as_str) {
        Some("shopper") => "shopper",
        Some("provider") => "provider",
        Some(_) => "operator",
        None => "anybody",
    }
}

#[test]
fn the_table_of_requests_is_that_of_the_routes() {
    let document = REFERENCE.document();
    let mut table = "| request | who | what |\n| --- | --- | --- |\n".to_owned();
    let mut rows = 0;
    for group in document["tags"].as_array().unwrap() {
        for (path, methods) in document["paths"].as_object().unwrap() {
            for (method, operation) in methods.as_object().unwrap() {
                if operation["tags"][0] == group["name"] {
                    let (method, what) = (method.to_uppercase(), operation["summary"].as_str().unwrap());
                    writeln!(table, "| `{method} {path}` | {} | {what} |", who(operation)).unwrap();
                    rows += 1;
                }
            }
        }
    }
    assert!(rows > 40, "{table}");
    is_current("docs/api-reference.md", &table);
}

#[test]
fn the_table_of_codes_is_that_of_the_program() {
    let mut table = "| code | status | no order | what to do |\n| --- | --- | --- | --- |\n".to_owned();
    for code in Code::ALL {
        let refusals: Vec<bool> = Refusal::each()
            .iter()
            .filter(|it| it.code() == *code)
            .map(Refusal::is_key_free)
            .collect();
        // The gateway limits requests before anybody knows their key.
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
