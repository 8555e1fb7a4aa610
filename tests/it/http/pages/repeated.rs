//! What the console's scripts and the commands repeat of the server: limits, guards, members and transitions.

use super::{assets, root};
use flashsale::domain::guard;
use flashsale::domain::order::{dead_letter, payment};
use flashsale::domain::sale::guards::{ChallengeKind, SaleGuards};
use flashsale::domain::sale::message::MESSAGE_MAX;
use flashsale::domain::sale::{Durability, ITEMS_MAX, SaleRequest, SaleState, Step, Transition};
use flashsale::domain::shopper::ban;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;

/// The number that a line of a file ends with.
fn number(text: &str, line: &str) -> u64 {
    let rest = text.split(line).nth(1).unwrap_or_else(|| panic!("no {line}"));
    let digits: String = rest
        .chars()
        .take_while(|it| it.is_ascii_digit() || *it == '_')
        .filter(char::is_ascii_digit)
        .collect();
    digits.parse().unwrap()
}

#[test]
fn the_console_has_the_same_limits_as_the_server() {
    let assets = assets();
    for (file, name, limit) in [
        ("console-form.js", "ITEMS_MAX", ITEMS_MAX),
        ("console-change.js", "MESSAGE_MAX", MESSAGE_MAX),
        ("console-accounts.js", "REASON_MAX", ban::REASON_MAX),
        ("console-attention.js", "NOTE_MAX", dead_letter::NOTE_MAX),
        ("console-money.js", "REFERENCE_MAX", payment::REFERENCE_MAX),
    ] {
        let repeated = number(&assets[file], &format!("const {name} = "));
        assert_eq!(usize::try_from(repeated).unwrap(), limit, "{file}: {name}");
    }
    for (name, limit) in [
        ("NUMBER_MAX", u32::MAX),
        ("RATE_MAX", guard::RATE_MAX),
        ("PAGE_VIEWS_MAX", guard::PAGE_VIEWS_MAX),
        ("LATENCY_MAX_MS", guard::LATENCY_MAX_MS),
        ("BAN_SECONDS_MAX", guard::BAN_SECONDS_MAX),
    ] {
        let repeated = number(&assets["console-limits.js"], &format!("const {name} = "));
        assert_eq!(repeated, u64::from(limit), "{name}");
    }
}

/// A client that gave up sooner would leave the server working for nobody.
#[test]
fn the_console_and_the_commands_wait_longer_than_the_server_works() {
    let assets = assets();
    let source = |path: &str| fs::read_to_string(root().join("src").join(path)).unwrap();
    let seconds = |path: &str, name: &str| number(&source(path), &format!("{name}: Duration = Duration::from_secs("));
    let (audit, rebuild) = (seconds("http.rs", "AUDIT_WAIT"), seconds("http.rs", "REBUILD_WAIT"));
    let answer = seconds("http.rs", "OPERATOR_WAIT");
    let export = seconds("http/admin/lists.rs", "EXPORT_MAX");
    for (file, name, server) in [
        ("console-sale.js", "AUDIT_MS", audit),
        ("console-api.js", "REBUILD_MS", rebuild),
        ("console-download.js", "FILE_MS", export),
    ] {
        let waits = number(&assets[file], &format!("const {name} = "));
        assert!(waits > 1000 * server, "{name}: {waits} ms for {server} s");
    }
    for (file, name, server) in [
        ("cli/operator/audit.rs", "AUDIT_LIMIT", audit),
        ("cli/operator/rebuild.rs", "REBUILD_LIMIT", rebuild),
        ("cli/operator/sale/watch.rs", "ANSWER_LIMIT", answer),
        ("cli/shared/client.rs", "REQUEST_LIMIT", answer),
    ] {
        let waits = seconds(file, name);
        assert!(waits > server, "{name}: {waits} s for {server} s");
    }
}

#[test]
fn the_console_and_the_guide_know_every_guard_of_a_sale() {
    let assets = assets();
    let guide = fs::read_to_string(root().join("docs/guards.md")).unwrap();
    let guards = serde_json::to_value(SaleGuards::default()).unwrap();
    for name in guards.as_object().unwrap().keys() {
        // Without a field, the form would delete the setting of a draft.
        let row = format!("name: '{name}'");
        assert!(
            assets["console-guards.js"].contains(&row),
            "console-guards.js has no row {name}"
        );
        assert!(guide.contains(name), "docs/guards.md has nothing of {name}");
    }
}

#[test]
fn the_form_of_a_sale_has_every_member_of_the_api_and_every_choice() {
    let form = assets()["console-terms.js"].clone();
    let schema = schemars::schema_for!(SaleRequest).to_value();
    let members =
        |schema: &Value| -> Vec<String> { schema["properties"].as_object().unwrap().keys().cloned().collect() };
    let item = schema["properties"]["items"]["items"]["$ref"].as_str().unwrap();
    let item = schema.pointer(item.trim_start_matches('#')).unwrap();
    // The form has these in parts of their own.
    let of_sale = members(&schema)
        .into_iter()
        .filter(|name| !["items", "guards"].contains(&name.as_str()));
    for name in of_sale.chain(members(item)) {
        // Without a field, the form would delete what a draft has there.
        assert!(
            form.contains(&format!("name: '{name}'")) || form.contains(&format!("name: '{name}.")),
            "console-terms.js has no row {name}"
        );
    }
    for (file, choices) in [
        ("console-terms.js", schemars::schema_for!(Durability)),
        ("console-guards.js", schemars::schema_for!(ChallengeKind)),
    ] {
        let choices: Vec<String> = choices.as_value()["oneOf"]
            .as_array()
            .unwrap()
            .iter()
            .map(|choice| format!("'{}'", choice["const"].as_str().unwrap()))
            .collect();
        let options = choices.join(", ");
        assert!(assets()[file].contains(&options), "{file} does not offer {options}");
    }
}

#[test]
fn the_console_offers_the_transitions_that_each_state_allows() {
    let script = assets()["console-sale.js"].clone();
    for (name, state) in [
        ("scheduled", SaleState::Scheduled),
        ("open", SaleState::Open),
        ("paused", SaleState::Paused),
        ("closed", SaleState::Closed),
    ] {
        let allowed = Transition::ALL
            .iter()
            .filter(|transition| matches!(transition.from(state), Step::To(_)))
            .map(|transition| format!("'{}'", transition.as_str()));
        let row = format!("    {name}: [{}],\n", allowed.collect::<Vec<_>>().join(", "));
        assert!(script.contains(&row), "console-sale.js lacks {row}");
    }
}

/// The bounds of all numbers in a schema, by name.
fn bounds(schema: &Value, found: &mut BTreeMap<String, (u64, u64)>) {
    for (name, value) in schema.as_object().into_iter().flatten() {
        if let (Some(min), Some(max)) = (value["minimum"].as_u64(), value["maximum"].as_u64()) {
            found.insert(name.clone(), (min, max));
        }
        bounds(value, found);
    }
}

#[test]
fn the_form_of_a_sale_has_the_bounds_of_the_api() {
    let mut expected = BTreeMap::new();
    for schema in [schemars::schema_for!(SaleGuards), schemars::schema_for!(SaleRequest)] {
        bounds(schema.as_value(), &mut expected);
    }
    let assets = assets();
    let mut compared = BTreeSet::new();
    for row in ["console-guards.js", "console-terms.js"]
        .iter()
        .flat_map(|file| assets[*file].split("name: '").skip(1))
    {
        let (path, rest) = row.split_once('\'').unwrap();
        let number = |bound: &str| -> Option<u64> {
            let digits = rest
                .split_once(bound)?
                .1
                .chars()
                .take_while(|it| it.is_ascii_digit() || *it == '_');
            digits.filter(char::is_ascii_digit).collect::<String>().parse().ok()
        };
        let name = path.rsplit('.').next().unwrap();
        let kind = rest.split('}').next().unwrap();
        if ["whole", "price", "duration"]
            .iter()
            .any(|it| kind.contains(&format!("kind: '{it}'")))
        {
            assert_eq!(
                (number("min: "), number("max: ")),
                {
                    let (min, max) = expected[name];
                    (Some(min), Some(max))
                },
                "{path}"
            );
            compared.insert(name);
        }
    }
    assert_eq!(compared.len(), expected.len(), "{compared:?} of {expected:?}");
}
