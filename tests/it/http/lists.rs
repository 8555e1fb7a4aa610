//! Lists of pages, commands and rivals that name parts of the API. Each test names what a list lacks.

use super::openapi::members;
use crate::support::document::{DOCUMENT, operations};
use crate::support::root;
use flashsale::domain::sale::Transition;
use flashsale::domain::shop::language::Language;
use serde_json::Value;
use std::collections::BTreeSet;
use std::fs;

/// Operators' routes that need a browser's session, or that only the console shows.
const WITHOUT_COMMAND: [&str; 5] = [
    "/v1/admin/health",
    "/v1/admin/session",
    "/v1/admin/sessions",
    "/v1/admin/sessions/end",
    "/v1/admin/sales/{id}/refused-messages",
];
/// Members of operators' requests that the audit log's page shows by the API's own name.
const AS_SENT: [&str; 2] = ["end_sessions", "session_id"];
/// Members of an order that its row in the shop leaves out, and those that the operators' list leaves out.
const NOT_IN_SHOP: [&str; 5] = ["sale_id", "sku", "confirmed", "created_at", "paid_at"];
const NOT_IN_CONSOLE: [&str; 3] = ["confirmed", "expires_at", "paid_at"];

/// The text of a file, or of all files in a folder.
fn text(path: &str) -> String {
    let mut left = vec![root().join(path)];
    let mut all = String::new();
    while let Some(path) = left.pop() {
        if path.is_dir() {
            left.extend(fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path()));
        } else {
            all += &fs::read_to_string(path).unwrap();
        }
    }
    all
}

fn between<'t>(text: &'t str, start: &str, end: &str) -> &'t str {
    let (_, rest) = text.split_once(start).unwrap_or_else(|| panic!("no {start}"));
    rest.split_once(end).unwrap().0
}

/// The English words of the console that begin so, without the beginning.
fn words(start: &str) -> BTreeSet<String> {
    let file: Value = serde_json::from_str(&text("web/languages/en.json")).unwrap();
    let words = file["console"].as_object().unwrap().keys();
    words
        .filter_map(|word| word.strip_prefix(start).map(str::to_owned))
        .collect()
}

/// The last word of a path that is no parameter.
fn last_word(path: &str) -> &str {
    path.rsplit('/').find(|word| !word.starts_with('{')).unwrap()
}

fn schema_members(schema: &str) -> BTreeSet<String> {
    let properties = &DOCUMENT["components"]["schemas"][schema]["properties"];
    properties.as_object().unwrap().keys().cloned().collect()
}

#[test]
fn operators_have_a_command_for_every_route_and_a_place_in_the_console_for_every_change() {
    let (commands, console) = (text("src/cli"), text("web/console"));
    for (method, path, _) in operations().filter(|(_, path, _)| path.starts_with("/v1/admin/")) {
        let word = last_word(path);
        // The commands take the names of transitions from the same table as the routes.
        let transition = Transition::from_name(word).map(|it| format!("Transition::{it:?},"));
        // With its slash: a command may use the word alone for something else.
        let path_end = format!("/{word}");
        let has_command = std::iter::once(&path_end)
            .chain(&transition)
            .any(|it| commands.contains(it));
        assert!(
            has_command || WITHOUT_COMMAND.contains(&path),
            "src/cli has no command for {method} {path}"
        );
        let has_button = console.contains(&path_end) || console.contains(&format!("'{word}'"));
        assert!(
            has_button || method == "get",
            "web/console has nothing for {method} {path}"
        );
    }
}

#[test]
fn the_console_asks_explains_and_reports_every_action_on_a_sale() {
    let (asked, explained, reported) = (words("sure_"), words("about_"), words("did_"));
    let actions = operations().filter_map(|(method, path, _)| {
        let action = path
            .strip_prefix("/v1/admin/sales/{id}/")
            .filter(|_| method == "post")?;
        (!action.contains('/')).then(|| action.to_owned())
    });
    let mut all: BTreeSet<String> = actions.chain(words("do_")).collect();
    // It is asked as `add` or `take`.
    assert!(all.remove("restock"));
    all.extend(asked.union(&reported).cloned());
    for action in all {
        for (start, words) in [("sure_", &asked), ("about_", &explained), ("did_", &reported)] {
            assert!(words.contains(&action), "web/languages/en.json has no {start}{action}");
        }
    }
}

#[test]
fn the_audit_log_has_a_label_for_every_member_of_a_request() {
    let (asked, terms) = (
        text("web/console/console-asked.js"),
        text("web/console/console-terms.js"),
    );
    let labelled = between(&asked, "const MEMBERS = {\n", "\n};").lines();
    let labelled = labelled.filter_map(|line| line.trim().split_once(": [").map(|(name, _)| name));
    let terms = between(&terms, "export const TERMS = [", "\n];")
        .split("name: '")
        .skip(1);
    let terms = terms.map(|rest| rest.split('\'').next().unwrap());
    let languages = Language::all().map(|language| language.code());
    let labelled: BTreeSet<&str> = labelled.chain(terms).chain(AS_SENT).chain(languages).collect();
    let settings = words("set_");
    for (_, path, operation) in operations().filter(|(_, path, _)| path.starts_with("/v1/admin/")) {
        let schema = operation.pointer("/requestBody/content/application~1json/schema");
        // A request to sign in is recorded without its body.
        let Some(schema) = schema.filter(|_| operation["operationId"] != "signIn") else {
            continue;
        };
        let mut found = BTreeSet::new();
        members(schema, "", &mut found);
        for name in found.iter().filter(|name| !name.contains('.')) {
            let has_label = match operation["operationId"].as_str() {
                Some("changeGuards") => settings.contains(name),
                _ => labelled.contains(name.as_str()),
            };
            assert!(has_label, "MEMBERS of console-asked.js lacks {name} of {path}");
        }
    }
}

#[test]
fn the_console_describes_every_guard_that_is_on() {
    let file = text("web/console/console-guards.js");
    let rows = between(&file, "export const GUARDS = [", "\n];");
    let values: String = rows
        .split("others: [")
        .skip(1)
        .map(|rest| rest.split(']').next().unwrap())
        .collect();
    for row in rows.split("name: '").skip(1) {
        let name = row.split('\'').next().unwrap();
        assert!(
            row.contains(" on: '") || values.contains(&format!("'{name}'")),
            "GUARDS of console-guards.js: {name} has no `on`, and is in no `others`"
        );
    }
}

/// The page waits after these by itself; `unavailable` leaves the outcome unknown.
#[test]
fn the_shop_has_words_for_every_code_after_which_it_waits() {
    let shop = text("web/shop");
    let steps = ["buy", "askWaitingRoom", "getPurchaseToken", "askChallenge"];
    let mut codes = BTreeSet::new();
    for (_, _, operation) in operations() {
        if steps.contains(&operation["operationId"].as_str().unwrap()) {
            for status in ["429", "503"] {
                let answer = &operation["responses"][status];
                let found = answer.pointer("/content/application~1problem+json/schema/properties/code/enum");
                let found = found.and_then(Value::as_array).into_iter().flatten();
                codes.extend(found.map(|code| code.as_str().unwrap()));
            }
        }
    }
    // The general words are about too many requests.
    assert!(codes.remove("unavailable") && codes.remove("rate_limited"));
    assert!(codes.contains("overloaded"), "{codes:?}");
    for table in ["const SLOW = {", "const SLOW_END = {"] {
        let rows = between(&shop, table, "}");
        for code in &codes {
            assert!(
                rows.contains(&format!(" {code}: '")),
                "{table} of web/shop has no {code}"
            );
        }
    }
}

#[test]
fn every_member_of_an_order_is_shown_or_left_out_on_purpose() {
    for (file, schema, left_out) in [
        ("web/shop/order-row.js", "Order", &NOT_IN_SHOP[..]),
        ("web/console/console-orders.js", "OwnedOrder", &NOT_IN_CONSOLE[..]),
    ] {
        let text = text(file);
        let names: BTreeSet<&str> = text.split(|it: char| !it.is_alphanumeric() && it != '_').collect();
        for member in schema_members(schema) {
            assert!(
                names.contains(member.as_str()) || left_out.contains(&member.as_str()),
                "{file} does not show {member}; say here if it should not"
            );
        }
    }
}

#[test]
fn an_export_has_every_member_of_an_order_an_action_or_a_payment_with_parts_of_its_order() {
    let columns = |path: &str| -> BTreeSet<String> {
        let file = text(path);
        let columns = between(&file, "const COLUMNS: ", "\n];").lines();
        let columns = columns.filter_map(|line| line.trim().strip_prefix("(\"")?.split_once('"'));
        columns.map(|(name, _)| name.to_owned()).collect()
    };
    assert_eq!(columns("src/http/admin/orders.rs"), schema_members("OwnedOrder"));
    assert_eq!(columns("src/http/admin/actions.rs"), schema_members("Action"));
    let mut of_payment = schema_members("ListedPayment");
    assert!(of_payment.remove("order"));
    of_payment.extend(["order_state", "sale_id", "user"].map(str::to_owned));
    assert_eq!(columns("src/http/admin/payments.rs"), of_payment);
}

#[test]
fn the_orders_of_the_benchmarks_rivals_have_the_members_of_ours() {
    let rivals = text("bench/src/rivals.rs");
    let fields = between(&rivals, "struct Order {\n", "\n}").lines();
    let fields = fields.filter_map(|line| line.trim().split_once(": "));
    let fields: BTreeSet<String> = fields.map(|(name, _)| name.to_owned()).collect();
    assert_eq!(fields, schema_members("Order"));
}
