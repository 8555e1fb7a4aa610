//! The stock of a sale: loading it into Redis, and adding or taking back units.

use crate::cli::Failure;
use crate::cli::shared::answer::{self, Form, ShownSale, cell, listed, show};
use crate::cli::shared::client::{CallError, Client, retry_with, sale_path};
use crate::cli::shared::human;
use crate::cli::shared::output::{self, Table};
use crate::cli::shared::progress::Progress;
use crate::domain::ids::Sku;
use crate::domain::operator::report::ShardStats;
use crate::domain::sale::SaleState;
use crate::stderr;
use serde::Deserialize;
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;
use uuid::Uuid;

/// After this time without an answer, `restock` prints how to repeat the request.
const PATIENCE: Duration = Duration::from_secs(1);

pub(super) fn units(text: &str) -> Result<i64, String> {
    let units = text.parse::<i64>().ok().filter(|units| *units != 0);
    units.ok_or_else(|| "write a whole number such as 50 or -20".to_owned())
}

pub(super) fn preload(client: &Client, id: &Uuid, form: Form) -> Result<(), Failure> {
    let before: ShownSale = answer::read(&client.get(&sale_path(id, ""))?.body)?;
    if let Some(end) = before.passed_end() {
        return Err(Failure::No(format!(
            "the end of this draft, {}, has passed, so its preload would close it for good: `flashsale sale change \
             {id} FILE` gives it a later one",
            human::instant(end)
        )));
    }
    let progress = Progress::of("putting the stock into Redis");
    let answer = client.post(&sale_path(id, "/preload"), "");
    drop(progress);
    let is_repeated = before.state != SaleState::Draft;
    show(&answer?.body, form, |loaded: Loaded| loaded.describe(id, is_repeated))
}

/// A sale after its preload. A sale that was preloaded long ago may be closed.
#[derive(Deserialize)]
struct Loaded {
    state: SaleState,
    shards: Vec<ShardStats>,
}

impl Loaded {
    /// A table with a row a shard and a column an item, the sums, and the state. Of a repeated preload, which loads
    /// nothing, the units that are free now in place of the table.
    fn describe(&self, id: &Uuid, is_repeated: bool) -> String {
        let mut skus: Vec<&Sku> = self.shards.iter().flat_map(|shard| shard.available.keys()).collect();
        skus.sort_unstable();
        skus.dedup();
        let units = |shard: &ShardStats, sku: &Sku| shard.available.get(sku).copied().unwrap_or(0);
        let sum = |sku: &Sku| self.shards.iter().map(|shard| units(shard, sku)).sum::<i64>();
        let mut text = if is_repeated {
            let free: Vec<String> = skus.iter().map(|sku| format!("{sku} {}", sum(sku))).collect();
            format!("already loaded; free now: {}\n", listed(&free))
        } else {
            let mut table = Table::new(["SHARD"].into_iter().chain(skus.iter().map(|sku| sku.as_str())));
            for shard in &self.shards {
                let row = skus.iter().map(|sku| units(shard, sku).to_string());
                table.row([shard.shard.to_string()].into_iter().chain(row));
            }
            let mut text = table.render();
            for sku in skus {
                let _ = writeln!(text, "{sku}: {} in all", sum(sku));
            }
            text
        };
        let note = if self.state == SaleState::Closed {
            ": it sells no more"
        } else {
            ""
        };
        let _ = writeln!(text, "sale {id} is {}{note}", self.state);
        text
    }
}

pub(super) fn restock(
    client: &Client,
    id: &Uuid,
    sku: &str,
    quantity: i64,
    key: &str,
    form: Form,
) -> Result<(), Failure> {
    let request = json!({"sku": sku, "quantity": quantity}).to_string();
    let again = retry_with(key);
    let (answered, answer) = mpsc::channel::<()>();
    let patience = again.clone();
    // An operator who gives up waiting needs the key, so as not to add the units twice.
    thread::spawn(move || {
        if answer.recv_timeout(PATIENCE) == Err(RecvTimeoutError::Timeout) {
            stderr::line(format_args!("flashsale: no answer yet; {patience}"));
        }
    });
    let path = sale_path(id, "/restock");
    let outcome = client.send("POST", &path, &[("idempotency-key", key)], &request);
    drop(answered);
    let body = outcome.map_err(|error| not_restocked(client, id, error, &again))?.body;
    if quantity > 0 && body["state"] == SaleState::Closed.as_str() {
        stderr::line(
            "flashsale: warning: the sale is closed, so nobody can buy these units; a negative number takes them back",
        );
    }
    let verb = if quantity < 0 { "taken back" } else { "added" };
    show(&body, form, |_: Value| {
        format!("{}: {verb} {}\n", output::one_line(sku), quantity.unsigned_abs())
    })
}

/// A refused restock, with the sale's SKUs and their free units.
fn not_restocked(client: &Client, id: &Uuid, error: CallError, again: &str) -> Failure {
    let is_about_items = ["insufficient_stock", "not_found"].contains(&error.code());
    let stats = is_about_items
        .then(|| client.get(&sale_path(id, "/stats")).ok())
        .flatten();
    let items = stats.iter().flat_map(|stats| stats.body["items"].as_array()).flatten();
    let free: Vec<String> = items
        .map(|item| format!("{} {}", cell(item, "sku"), cell(item, "available")))
        .collect();
    if free.is_empty() {
        return error.with_advice(again);
    }
    let text = format!("{error}; free units: {}", output::one_line(&free.join(", ")));
    error.failure(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::shared::mock_server::MockServer;

    const ID: Uuid = Uuid::from_u128(0x0190_0000_0000_7000_8000_0000_0000_0001);

    #[test]
    fn a_restock_says_how_to_repeat_it_only_where_that_may_help() {
        let problem = |status| (status, r#"{"code":"c","detail":"d"}"#);
        for (status, may_help) in [(503, true), (429, true), (404, false), (409, false), (422, false)] {
            let server = MockServer::answering(&[problem(status)]);
            let failure = restock(&server.client(), &ID, "phone", 5, "key-1", Form::Text).unwrap_err();
            assert_eq!(
                failure.to_string().contains("--key 'key-1'"),
                may_help,
                "{status}: {failure}"
            );
        }
    }

    #[test]
    fn a_refused_restock_names_the_items_and_their_free_units() {
        for code in ["insufficient_stock", "not_found"] {
            let refused = json!({"code": code, "detail": "d"}).to_string();
            let stats = r#"{"items":[{"sku":"phone","available":26},{"sku":"case","available":0}]}"#;
            let server = MockServer::answering(&[(409, &refused), (200, stats)]);
            let failure = restock(&server.client(), &ID, "phone", -99, "k", Form::Text).unwrap_err();
            assert_eq!(failure.to_string(), format!("{code}: d; free units: phone 26, case 0"));
        }
        let server = MockServer::answering(&[(404, r#"{"code":"not_found","detail":"there is no such sale"}"#)]);
        let failure = restock(&server.client(), &ID, "phone", 5, "k", Form::Text).unwrap_err();
        assert_eq!(
            failure.to_string(),
            "not_found: there is no such sale; see `flashsale sale list`"
        );
        assert!(units("many").is_err_and(|said| said.contains("50 or -20")) && units("0").is_err());
        assert_eq!(units("-20"), Ok(-20));
    }

    #[test]
    fn a_draft_whose_end_has_passed_is_not_preloaded() {
        let mut sale = crate::http::admin::sales::example("draft");
        sale["ends_at"] = sale["server_time"].clone();
        let server = MockServer::answering(&[(200, &sale.to_string())]);
        let failure = preload(&server.client(), &ID, Form::Text).unwrap_err();
        assert!(
            matches!(&failure, Failure::No(said) if said.contains("has passed") && said.contains("sale change")),
            "{failure}"
        );
        assert_eq!(server.requests().len(), 1);
        // Another state is the server's to answer.
        sale["state"] = "closed".into();
        let server = MockServer::answering(&[(200, &sale.to_string()), (404, "")]);
        preload(&server.client(), &ID, Form::Text).unwrap_err();
        assert_eq!(server.requests().len(), 2);
    }

    #[test]
    fn preloading_shows_every_shard_and_the_state() {
        let shard = |shard, a, b| {
            json!({"shard": shard, "epoch": 1, "available": {"a": a, "b": b}, "held": {}, "sold": {}, "sent": {},
                "received": {}, "in_transit": {}, "undrained_events": 0})
        };
        for (state, note) in [("open", ""), ("closed", ": it sells no more")] {
            let loaded = json!({"state": state, "shards": [shard(0, 3, 1), shard(1, 2, 0)]});
            let loaded: Loaded = answer::read(&loaded).unwrap();
            assert_eq!(
                loaded.describe(&ID, false),
                format!(
                    "SHARD  a  b\n    0  3  1\n    1  2  0\na: 5 in all\nb: 1 in all\nsale {ID} is {state}{note}\n"
                )
            );
            assert_eq!(
                loaded.describe(&ID, true),
                format!("already loaded; free now: a 5, b 1\nsale {ID} is {state}{note}\n")
            );
        }
    }
}
