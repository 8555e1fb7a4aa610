//! `flashsale sale …`: the operator's work on sales, over the HTTP API.

use super::answer::{self, Sale, Shard};
use super::client::{CallError, Client, Connection, sale_path};
use super::output::{self, Table};
use super::progress::Progress;
use super::{Failure, pages, sale_file, watch};
use crate::stderr;
use anyhow::Context as _;
use chrono::{DateTime, SecondsFormat, Utc};
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;
use uuid::Uuid;

/// After this time without an answer, `restock` prints how to repeat the request.
const PATIENCE: Duration = Duration::from_secs(1);
/// The wait before the next attempt to create a sale.
const RETRY: Duration = Duration::from_secs(1);

/// Arguments of `sale`.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  flashsale sale create sale.example.toml
  flashsale sale change 3f2c… sale.example.toml
  flashsale sale preload 3f2c…
  flashsale sale watch 3f2c…

Needs FLASHSALE_ADMIN_KEY.")]
pub struct Args {
    #[command(flatten)]
    connection: Connection,
    /// Print the server's answer as JSON.
    #[arg(long, global = true)]
    json: bool,
    #[command(subcommand)]
    action: Action,
}

#[derive(clap::Subcommand)]
enum Action {
    /// Create a sale from a TOML file (sale.example.toml shows every key).
    #[command(after_help = "\
If an answer is lost, the command repeats the request a few times; its key makes sure that only one sale is created.
If the outcome stays unknown, it prints the key. Repeat the command with that key: times like \"+10m\" then count from
the time in the key, so that the request is for the same sale.

Example:
  ID=$(flashsale sale create sale.example.toml --json | jq -r .id)")]
    Create {
        /// The sale file; - is standard input.
        file: PathBuf,
        /// Idempotency key; to retry after an unknown outcome, repeat the printed key, so that only one sale is
        /// created.
        #[arg(long)]
        key: Option<String>,
    },
    /// Replace a draft with a TOML file; a preloaded sale is refused.
    #[command(after_help = "\
With --if-version, the command fails if the draft has changed since `flashsale sale show` printed that version.
Without it, the command detects only a change that is made while it runs.

Examples:
  flashsale sale change 3f2c… sale.example.toml
  flashsale sale change 3f2c… sale.example.toml --if-version 9a1f…")]
    Change {
        /// The sale's id.
        #[arg(value_parser = sale_id)]
        id: Uuid,
        /// The sale file; - is standard input.
        file: PathBuf,
        /// Replace the draft only if it still has this version.
        #[arg(long, value_name = "VERSION")]
        if_version: Option<String>,
    },
    /// List the sales.
    #[command(after_help = "Example:\n  flashsale sale list --json | jq -r '.data[] | select(.state == \"open\").id'")]
    List,
    /// Show a sale.
    #[command(after_help = "Example:\n  flashsale sale show 3f2c…")]
    Show {
        /// The sale's id.
        #[arg(value_parser = sale_id)]
        id: Uuid,
    },
    /// Load a sale's stock into Redis, split over its shards; a second preload changes nothing.
    #[command(after_help = "Example:\n  flashsale sale preload 3f2c…")]
    Preload {
        /// The sale's id.
        #[arg(value_parser = sale_id)]
        id: Uuid,
    },
    /// Open a sale now, without waiting for starts_at.
    #[command(after_help = "Example:\n  flashsale sale open 3f2c…")]
    Open {
        /// The sale's id.
        #[arg(value_parser = sale_id)]
        id: Uuid,
    },
    /// Pause a sale; orders can still be paid.
    #[command(after_help = "Example:\n  flashsale sale pause 3f2c…")]
    Pause {
        /// The sale's id.
        #[arg(value_parser = sale_id)]
        id: Uuid,
    },
    /// Resume a paused sale.
    #[command(after_help = "Example:\n  flashsale sale resume 3f2c…")]
    Resume {
        /// The sale's id.
        #[arg(value_parser = sale_id)]
        id: Uuid,
    },
    /// Close a sale for good.
    #[command(after_help = "Example:\n  flashsale sale close 3f2c… && flashsale audit 3f2c…")]
    Close {
        /// The sale's id.
        #[arg(value_parser = sale_id)]
        id: Uuid,
    },
    /// Delete a draft for good; a preloaded sale is refused.
    #[command(after_help = "Example:\n  flashsale sale delete 3f2c…")]
    Delete {
        /// The sale's id.
        #[arg(value_parser = sale_id)]
        id: Uuid,
    },
    /// Add units to an item, or take back unsold units.
    #[command(after_help = "\
Examples:
  flashsale sale restock 3f2c… phone-black 50
  flashsale sale restock 3f2c… phone-black -20")]
    Restock {
        /// The sale's id.
        #[arg(value_parser = sale_id)]
        id: Uuid,
        /// The item's SKU.
        sku: String,
        /// How many units to add; a negative number takes back unsold units.
        #[arg(value_name = "N", allow_hyphen_values = true)]
        quantity: i64,
        /// Idempotency key; to retry after an unknown outcome, repeat the printed key, so that units are added only
        /// once.
        #[arg(long)]
        key: Option<String>,
    },
    /// Watch a sale live: on a terminal with sparklines of the last minute, elsewhere with a line for each change.
    #[command(after_help = "\
Shows purchases and refusals a second, the main reasons for refusals, response times, and where the units are. While
Postgres is away, it shows the units that Redis has. With --json it prints each sample, about one a second, as
GET /v1/admin/sales/{id}/live sends it. It ends when the sale is closed and everything is in Postgres, or with Ctrl-C.

Examples:
  flashsale sale watch 3f2c…
  flashsale sale watch 3f2c… --json | jq -c '[.sale.orders, .point.answers]'")]
    Watch {
        /// The sale's id.
        #[arg(value_parser = sale_id)]
        id: Uuid,
    },
}

/// # Errors
/// `Usage` for a bad file or a missing key, `No` when the server refuses, `Fault` when it does not answer.
pub fn run(args: &Args) -> Result<(), Failure> {
    let operator = || args.connection.operator();
    match &args.action {
        Action::Create { file, key } => {
            let key = key.clone().unwrap_or_else(|| Uuid::now_v7().to_string());
            create(&operator()?, file, &key, RETRY, args.json)
        }
        Action::Change { id, file, if_version } => change(&operator()?, id, file, if_version.as_deref(), args.json),
        Action::List => list(&operator()?, args.json),
        Action::Show { id } => {
            let sale = operator()?.get(&sale_path(id, ""))?;
            show(&sale.body, args.json, |it| describe(it, sale.etag.as_deref()))
        }
        Action::Preload { id } => preload(&operator()?, id, args.json),
        Action::Open { id } => turn(&operator()?, id, "open", args.json),
        Action::Pause { id } => turn(&operator()?, id, "pause", args.json),
        Action::Resume { id } => turn(&operator()?, id, "resume", args.json),
        Action::Close { id } => turn(&operator()?, id, "close", args.json),
        Action::Delete { id } => delete(&operator()?, id, args.json),
        Action::Restock { id, sku, quantity, key } => {
            let key = key.clone().unwrap_or_else(|| Uuid::new_v4().to_string());
            restock(&operator()?, id, sku, *quantity, &key, args.json)
        }
        Action::Watch { id } => watch::run(&args.connection, id, args.json),
    }
}

/// # Errors
/// Says what a sale's id is and where to find it.
pub fn sale_id(text: &str) -> Result<Uuid, String> {
    text.parse().map_err(|_error| {
        "a sale's id is a UUID such as 0190a5c8-2f3c-7d11-9c5b-6a1f0e7d4b21: the `id` that `flashsale sale create` \
         prints, and `flashsale sale list`"
            .to_owned()
    })
}

/// Prints a sale as JSON, or as `text` writes it.
fn show(body: &Value, json: bool, text: impl Fn(&Sale) -> String) -> Result<(), Failure> {
    if json {
        output::print_json(body)
    } else {
        output::print(&text(&answer::read(body)?))
    }
}

fn create(client: &Client, file: &Path, key: &str, retry: Duration, json: bool) -> Result<(), Failure> {
    let (sale, source) = sale_file::read(file, drawn_at(key).unwrap_or_else(Utc::now))?;
    let body = serde_json::to_string(&sale).context("the sale is no JSON")?;
    let created = match client.post_once("/v1/admin/sales", key, &body, retry) {
        Ok(created) => created,
        Err(CallError::Refused(refusal)) if refusal.code == "invalid_request" => {
            return Err(source.refused(&refusal.detail));
        }
        Err(error) => {
            let key = output::one_line(key);
            return Err(error.with_advice(&format!("to retry, repeat the command with --key {key}")));
        }
    };
    show(&created.body, json, |sale| {
        format!(
            "{}\nnext: flashsale sale preload {}\n",
            describe(sale, created.etag.as_deref()).trim_end(),
            sale.id
        )
    })
}

/// The time in a key, if the key is a UUID with a time. Relative times count from it: with other times, the server
/// would refuse the repeated key as one for another sale.
fn drawn_at(key: &str) -> Option<DateTime<Utc>> {
    let drawn = Uuid::try_parse(key).ok().filter(|key| key.get_version_num() == 7)?;
    let (seconds, nanos) = drawn.get_timestamp()?.to_unix();
    DateTime::from_timestamp(i64::try_from(seconds).ok()?, nanos)
}

fn change(client: &Client, id: &Uuid, file: &Path, version: Option<&str>, json: bool) -> Result<(), Failure> {
    let (sale, source) = sale_file::read(file, Utc::now())?;
    let body = serde_json::to_string(&sale).context("the sale is no JSON")?;
    let etag = match version {
        Some(version) => format!("\"{}\"", bare(version)),
        None => {
            let etag = client.get(&sale_path(id, ""))?.etag;
            etag.context("the server's answer has no version of the draft: is it of the same version?")?
        }
    };
    let changed = match client.put(&sale_path(id, ""), &etag, &body) {
        Ok(changed) => changed,
        Err(CallError::Refused(refusal)) if refusal.code == "invalid_request" => {
            return Err(source.refused(&refusal.detail));
        }
        Err(error) => {
            return Err(error.with_advice(&format!("`flashsale sale show {id}` shows whether it changed")));
        }
    };
    show(&changed.body, json, |sale| describe(sale, changed.etag.as_deref()))
}

/// The version in an ETag, without quotes and the mark of a weak ETag.
fn bare(etag: &str) -> &str {
    etag.trim_start_matches("W/").trim_matches('"')
}

fn turn(client: &Client, id: &Uuid, verb: &str, json: bool) -> Result<(), Failure> {
    let sale = client.post(&sale_path(id, &format!("/{verb}")), &[], "")?.body;
    show(&sale, json, |sale| {
        format!("sale {id} is {}\n", output::one_line(&sale.state))
    })
}

fn delete(client: &Client, id: &Uuid, json: bool) -> Result<(), Failure> {
    let deleted = client.delete(&sale_path(id, ""));
    let advice = "repeat it; \"no such sale\" then says that it is deleted";
    let deleted = deleted.map_err(|error| error.with_advice(advice))?.body;
    if json {
        return output::print_json(&deleted);
    }
    output::print(&format!("the draft {id} is deleted\n"))
}

fn preload(client: &Client, id: &Uuid, json: bool) -> Result<(), Failure> {
    let progress = Progress::of("putting the stock into Redis");
    let answer = client.post(&sale_path(id, "/preload"), &[], "");
    drop(progress);
    let body = answer?.body;
    if json {
        return output::print_json(&body);
    }
    let shards: Vec<Shard> = answer::read(body.get("shards").unwrap_or(&Value::Null))?;
    let state = body.get("state").and_then(Value::as_str).unwrap_or("-");
    output::print(&format!("{}{}", shard_table(&shards), loaded(id, state)))
}

/// The sale's state after a preload. A sale that was preloaded long ago may be closed.
fn loaded(id: &Uuid, state: &str) -> String {
    match state {
        "closed" => format!("sale {id} is closed: it sells no more\n"),
        state => format!("sale {id} is {}\n", output::one_line(state)),
    }
}

fn restock(client: &Client, id: &Uuid, sku: &str, quantity: i64, key: &str, json: bool) -> Result<(), Failure> {
    let request = json!({"sku": sku, "quantity": quantity}).to_string();
    let again = format!("to retry, repeat the command with --key {}", output::one_line(key));
    let (answered, answer) = mpsc::channel::<()>();
    let patience = again.clone();
    // An operator who gives up waiting needs the key, so as not to add the units twice.
    thread::spawn(move || {
        if answer.recv_timeout(PATIENCE) == Err(RecvTimeoutError::Timeout) {
            stderr::line(format_args!("flashsale: no answer yet; {patience}"));
        }
    });
    let outcome = client.post(&sale_path(id, "/restock"), &[("idempotency-key", key)], &request);
    drop(answered);
    let body = match outcome {
        Ok(answer) => answer.body,
        Err(error) => return Err(error.with_advice(&again)),
    };
    if json {
        return output::print_json(&body);
    }
    let verb = if quantity < 0 { "taken back" } else { "added" };
    output::print(&format!(
        "{}: {verb} {}\n",
        output::one_line(sku),
        quantity.unsigned_abs()
    ))
}

fn list(client: &Client, json: bool) -> Result<(), Failure> {
    let sales = pages::all(client, "/v1/admin/sales", "id")?;
    if json {
        return output::print_json(&json!({"data": sales, "has_more": false}));
    }
    let mut table = Table::new(["ID", "STATE", "STARTS", "ENDS", "SHARDS", "ITEMS", "STOCK", "NAME"]);
    for sale in answer::read::<Vec<Sale>>(&Value::Array(sales))? {
        table.row([
            sale.id,
            sale.state,
            instant(sale.starts_at),
            instant(sale.ends_at),
            number(sale.shards),
            sale.items.len().to_string(),
            sale.items.iter().map(|item| item.stock).sum::<u64>().to_string(),
            sale.name,
        ]);
    }
    output::print(&table.render())
}

/// A sale in detail, with its version.
fn describe(sale: &Sale, etag: Option<&str>) -> String {
    let mut facts = Table::new(["id".to_owned(), sale.id.clone()]);
    let mut fact = |name: &str, value: String| facts.row([name.to_owned(), value]);
    fact("name", sale.name.clone());
    fact("state", sale.state.clone());
    if let Some(etag) = etag {
        fact("version", bare(etag).to_owned());
    }
    fact("starts at", instant(sale.starts_at));
    fact("ends at", instant(sale.ends_at));
    fact("shards", number(sale.shards));
    fact(
        "payment window",
        sale.payment_window_seconds
            .map_or_else(dash, |seconds| format!("{seconds} s")),
    );
    let rate = sale.purchase_rate.as_ref();
    fact(
        "purchase rate",
        rate.map_or_else(dash, |rate| format!("{} in {} ms", rate.limit, rate.window_ms)),
    );
    fact("durability", sale.durability.clone().unwrap_or_else(dash));
    let guards = guards(sale);
    if !guards.is_empty() {
        fact("guards", guards.join(", "));
    }
    let mut items = Table::new(["SKU", "PRICE", "CURRENCY", "STOCK", "PER USER", "NAME"]);
    for item in &sale.items {
        items.row([
            item.sku.clone(),
            // Minor units, as everywhere in the API: the number in a major unit depends on the currency.
            item.price_minor.to_string(),
            item.currency.clone(),
            item.stock.to_string(),
            number(item.per_user_limit),
            item.name.clone(),
        ]);
    }
    format!("{}\n{}", facts.render(), items.render())
}

/// The guards that are on, each with its value.
fn guards(sale: &Sale) -> Vec<String> {
    let value = |name: &str| sale.guards.get(name).unwrap_or(&Value::Null);
    let is_on = |name: &str| match value(name) {
        Value::Bool(is_on) => *is_on,
        Value::Number(number) => number.as_f64() != Some(0.0),
        Value::String(kind) => kind != "none",
        _ => false,
    };
    let with_value = |name: &str| format!("{name} {}", answer::scalar(value(name)));
    let mut shown = Vec::new();
    for name in sale.guards.keys().filter(|name| is_on(name)) {
        match name.as_str() {
            // These only set how another guard works.
            "proof_cost" if *value("challenge") != "proof_of_work" => {}
            "captcha_proof_cost" if *value("challenge") != "captcha" => {}
            "admissions_per_second" | "admission_seconds" if !is_on("waiting_room") => {}
            name if value(name).is_boolean() => shown.push(name.to_owned()),
            name => shown.push(with_value(name)),
        }
    }
    shown
}

/// A table with a row a shard and a column an item, and the sums below.
fn shard_table(shards: &[Shard]) -> String {
    let mut skus: Vec<&String> = shards.iter().flat_map(|shard| shard.available.keys()).collect();
    skus.sort_unstable();
    skus.dedup();
    let units = |shard: &Shard, sku: &String| shard.available.get(sku).copied().unwrap_or(0);
    let mut table = Table::new(std::iter::once("SHARD".to_owned()).chain(skus.iter().map(|sku| (*sku).clone())));
    for shard in shards {
        let row = skus.iter().map(|sku| units(shard, sku).to_string());
        table.row(std::iter::once(shard.shard.to_string()).chain(row));
    }
    let mut text = table.render();
    for sku in skus {
        let sum: i64 = shards.iter().map(|shard| units(shard, sku)).sum();
        let _ = writeln!(text, "{}: {sum} in all", output::one_line(sku));
    }
    text
}

fn instant(time: Option<DateTime<Utc>>) -> String {
    time.map_or_else(dash, |time| time.to_rfc3339_opts(SecondsFormat::AutoSi, true))
}

fn number(value: Option<u64>) -> String {
    value.map_or_else(dash, |value| value.to_string())
}

fn dash() -> String {
    "-".to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::mock_server::MockServer;

    const ID: Uuid = Uuid::from_u128(0x0190_0000_0000_7000_8000_0000_0000_0001);

    #[derive(clap::Parser)]
    struct Line {
        #[command(flatten)]
        args: Args,
    }

    #[test]
    fn a_negative_quantity_and_options_stand_anywhere() {
        use clap::{CommandFactory as _, Parser as _};
        Line::command().debug_assert();
        let id = ID.to_string();
        for line in [
            ["sale", "restock", &id, "phone", "-20", "--key", "k", "--json"],
            ["sale", "--json", "restock", &id, "phone", "--key", "k", "-20"],
        ] {
            let args = Line::try_parse_from(line)
                .unwrap_or_else(|error| panic!("{error}"))
                .args;
            let Action::Restock { quantity, key, .. } = args.action else {
                panic!("not restock")
            };
            assert_eq!((quantity, key.as_deref(), args.json), (-20, Some("k"), true));
        }
    }

    #[test]
    fn what_is_no_sale_id_is_told_what_one_is() {
        use clap::Parser as _;
        assert!(Line::try_parse_from(["sale", "change", "nope", "sale.toml"]).is_err());
        for verb in ["show", "preload", "open", "pause", "resume", "close", "watch"] {
            let Err(error) = Line::try_parse_from(["sale", verb, "nope"]) else {
                panic!("nope is no sale")
            };
            let text = error.to_string();
            assert!(text.contains("nope") && text.contains("flashsale sale list"), "{text}");
            assert_eq!(error.exit_code(), 2);
        }
        assert!(Line::try_parse_from(["sale", "restock", "nope", "phone", "5"]).is_err());
    }

    fn client(server: &MockServer) -> Client {
        Client::new(server.url(), Some("key".to_owned()), Duration::from_secs(2)).unwrap()
    }

    #[test]
    fn an_empty_list_is_no_failure() {
        list(
            &client(&MockServer::answering(&[(200, r#"{"data":[],"has_more":false}"#)])),
            false,
        )
        .unwrap();
    }

    fn example() -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("sale.example.toml")
    }

    fn header<'a>(request: &'a str, name: &str) -> Option<&'a str> {
        request
            .lines()
            .find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
    }

    #[test]
    fn a_sale_whose_answer_is_lost_is_asked_for_again_as_the_same_one() {
        let made = (201, r#"{"id":"x"}"#);
        let server = MockServer::answering(&[(503, ""), (502, "<html>"), made]);
        create(&client(&server), &example(), "key-1", Duration::ZERO, false).unwrap();
        let requests = server.requests();
        assert_eq!(requests.len(), 3);
        assert!(requests.iter().all(|request| *request == requests[0]), "{requests:#?}");
        assert_eq!(header(&requests[0], "idempotency-key"), Some("key-1"));
        // A repeated command with the printed key sends the same body: its times count from the time in the key.
        let printed = Uuid::now_v7().to_string();
        let server = MockServer::answering(&[made]);
        create(&client(&server), &example(), &printed, Duration::ZERO, false).unwrap();
        let first = server.requests();
        thread::sleep(Duration::from_millis(2));
        let server = MockServer::answering(&[made]);
        create(&client(&server), &example(), &printed, Duration::ZERO, false).unwrap();
        assert_eq!(server.requests()[0].lines().last(), first[0].lines().last());
        // The attempts end, and the error says how to retry.
        let server = MockServer::answering(&[(503, "")]);
        let failure = create(&client(&server), &example(), "key-1", Duration::ZERO, false).unwrap_err();
        assert!(failure.to_string().contains("with --key key-1"), "{failure}");
        assert_eq!(server.requests().len(), 3);
        // A permanent refusal is not repeated.
        let server =
            MockServer::answering(&[(400, r#"{"code":"invalid_request","detail":"shards must be 1 to 256"}"#)]);
        let failure = create(&client(&server), &example(), "key-1", Duration::ZERO, false).unwrap_err();
        assert!(
            matches!(&failure, Failure::Usage(line) if line.contains("sale.example.toml:")),
            "{failure}"
        );
        assert_eq!(server.requests().len(), 1);
    }

    #[test]
    fn a_draft_is_changed_only_as_the_version_that_was_seen() {
        let server = MockServer::answering(&[(200, r#"{"id":"x"}"#)]);
        change(&client(&server), &ID, &example(), None, false).unwrap();
        change(&client(&server), &ID, &example(), Some("older"), false).unwrap();
        let requests = server.requests();
        assert!(
            requests[0].starts_with(&format!("GET /v1/admin/sales/{ID} ")),
            "{requests:?}"
        );
        for (request, etag) in [(&requests[1], "\"v1\""), (&requests[2], "\"older\"")] {
            assert!(request.starts_with(&format!("PUT /v1/admin/sales/{ID} ")), "{request}");
            assert_eq!(header(request, "if-match"), Some(etag));
        }
        assert_eq!([bare("W/\"a1\""), bare("\"a1\""), bare("a1")], ["a1"; 3]);
    }

    #[test]
    fn restocking_sends_the_key_and_a_signed_quantity() {
        let server = MockServer::answering(&[(200, "{}")]);
        restock(&client(&server), &ID, "phone", -5, "again", false).unwrap();
        let request = &server.requests()[0];
        assert!(
            request.starts_with(&format!("POST /v1/admin/sales/{ID}/restock ")),
            "{request}"
        );
        assert!(request.contains("idempotency-key: again\r\n"), "{request}");
        let sent = request
            .lines()
            .next_back()
            .and_then(|body| serde_json::from_str::<Value>(body).ok());
        assert_eq!(sent, Some(json!({"sku": "phone", "quantity": -5})), "{request}");
    }

    #[test]
    fn a_restock_says_how_to_repeat_it_only_where_that_may_help() {
        let problem = |status| (status, r#"{"code":"c","detail":"d"}"#);
        for (status, may_help) in [(503, true), (429, true), (404, false), (409, false), (422, false)] {
            let server = MockServer::answering(&[problem(status)]);
            let failure = restock(&client(&server), &ID, "phone", 5, "key-1", false).unwrap_err();
            assert_eq!(
                failure.to_string().contains("--key key-1"),
                may_help,
                "{status}: {failure}"
            );
        }
    }

    #[test]
    fn a_sale_shows_the_guards_that_are_on() {
        let shown = |guards: Value| {
            let sale = json!({"id": ID, "guards": guards});
            guards_line(&describe(&answer::read(&sale).unwrap(), None))
        };
        let off = json!({"purchase_token": false, "challenge": "none", "proof_cost": 1000, "holds_max": 0,
            "unpaid_cooldown_seconds": 0, "waiting_room": false, "admissions_per_second": 100,
            "admission_seconds": 300});
        assert_eq!(shown(off), None);
        let on = json!({"purchase_token": true, "challenge": "captcha", "proof_cost": 1000, "holds_max": 2,
            "unpaid_cooldown_seconds": 60, "waiting_room": true, "admissions_per_second": 100,
            "admission_seconds": 300});
        let expected = "guards          admission_seconds 300, admissions_per_second 100, challenge captcha, \
                        holds_max 2, purchase_token, unpaid_cooldown_seconds 60, waiting_room";
        assert_eq!(shown(on).as_deref(), Some(expected));
    }

    fn guards_line(text: &str) -> Option<String> {
        text.lines().find(|line| line.starts_with("guards")).map(str::to_owned)
    }

    #[test]
    fn a_transition_that_is_refused_is_a_no() {
        let body = r#"{"code":"invalid_transition","detail":"a closed sale cannot open"}"#;
        let server = MockServer::answering(&[(409, body)]);
        let failure = turn(&client(&server), &ID, "open", false).unwrap_err();
        assert!(matches!(failure, Failure::No(line) if line == "invalid_transition: a closed sale cannot open"));
    }

    #[test]
    fn preloading_shows_every_shard() {
        let answer = json!([
            {"shard": 0, "available": {"a": 3, "b": 1}},
            {"shard": 1, "available": {"a": 2}},
        ]);
        let shards: Vec<Shard> = answer::read(&answer).unwrap();
        assert_eq!(
            shard_table(&shards),
            "SHARD  a  b\n    0  3  1\n    1  2  0\na: 5 in all\nb: 1 in all\n"
        );
    }

    #[test]
    fn preloading_says_what_became_of_the_sale() {
        assert_eq!(loaded(&ID, "open"), format!("sale {ID} is open\n"));
        assert_eq!(
            loaded(&ID, "closed"),
            format!("sale {ID} is closed: it sells no more\n")
        );
    }

    #[test]
    fn a_sale_shows_its_items_aligned() {
        let sale = json!({"id": ID, "name": "Launch", "state": "draft", "starts_at": "2026-11-27T20:00:00.000Z",
            "items": [{"sku": "a", "price_minor": 100, "currency": "EUR", "stock": 5, "name": "A"}]});
        let text = describe(&answer::read(&sale).unwrap(), None);
        assert!(text.contains("starts at       2026-11-27T20:00:00Z\n"), "{text}");
        assert!(text.ends_with("a      100  EUR           5  -         A\n"), "{text}");
    }
}
