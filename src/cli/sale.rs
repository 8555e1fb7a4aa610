//! `flashsale sale …`: the operator's work on sales, over the HTTP API.

mod describe;
mod stock;

use super::answer::{self, Form, ShownSale, show};
use super::client::{Answer, ApiArgs, CallError, Client, sale_path};
use super::output::{self, Table};
use super::sale_file::{self, SaleFile};
use super::sale_ref::{LATEST, SaleRef};
use super::{Failure, archive, human, number, pages, report, watch};
use crate::domain::ids::SaleId;
use crate::domain::language::Language;
use crate::domain::sale::{SaleState, Step, Transition};
use crate::domain::sale_guards::ADMISSIONS_MAX;
use crate::stderr;
use anyhow::Context as _;
use chrono::{DateTime, Utc};
use clap::ColorChoice;
use describe::describe;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;
use stock::{preload, restock, units};
use uuid::Uuid;

/// The wait before the next attempt to create a sale.
const RETRY: Duration = Duration::from_secs(1);

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
    api: ApiArgs,
    #[command(subcommand)]
    verb: Verb,
}

/// The commands that change a sale's state.
const VERBS: [(&str, Transition); 4] = [
    ("open", Transition::Open),
    ("pause", Transition::Pause),
    ("resume", Transition::Resume),
    ("close", Transition::Close),
];

/// The sale that a command acts on.
#[derive(Debug, clap::Args)]
pub struct SaleArg {
    /// The sale's id, its first characters (at least four), or @latest for the newest sale.
    #[arg(value_name = "SALE_ID")]
    pub id: SaleRef,
}

/// The sale of a command that cannot be undone.
#[derive(Debug, clap::Args)]
struct ForGood {
    #[command(flatten)]
    sale: SaleArg,
    /// Accept @latest for the sale, although nobody has named it.
    #[arg(long)]
    yes: bool,
}

impl ForGood {
    fn whole(&self, client: &Client) -> Result<Uuid, Failure> {
        if self.sale.id == SaleRef::Latest && !self.yes {
            return Err(Failure::Usage(format!(
                "this cannot be undone: write the sale's id, or add --yes to {LATEST}"
            )));
        }
        self.sale.id.whole(client)
    }
}

#[derive(clap::Subcommand)]
enum Verb {
    #[command(flatten)]
    Act(Action),
    /// Write a sale that is over into a file, and delete it from Postgres.
    #[command(after_help = "\
Redis must have removed the sale: about 26 hours after its end. Its refunds and dead letters must be settled. The file is
text; gzip makes it a tenth. Entries of the audit log stay.

Needs FLASHSALE_DATABASE_URL, or --data with the folder of a running `flashsale up`.

Example:
  flashsale sale archive 3f2c… winter.archive && gzip winter.archive")]
    Archive {
        #[command(flatten)]
        sale: SaleArg,
        /// The file to create [default: sale-SALE_ID.archive].
        file: Option<PathBuf>,
        /// The data folder of a running `flashsale up`, whose Postgres to use.
        #[arg(long, value_name = "DIR")]
        data: Option<PathBuf>,
    },
    /// Restore a sale from the file of `archive`.
    #[command(after_help = "\
Its orders, payments and report are there again; it sells no more. Needs FLASHSALE_DATABASE_URL, or --data with the
folder of a running `flashsale up`.

Example:
  gunzip winter.archive.gz && flashsale sale restore winter.archive")]
    Restore {
        /// The file that `archive` wrote.
        file: PathBuf,
        /// The data folder of a running `flashsale up`, whose Postgres to use.
        #[arg(long, value_name = "DIR")]
        data: Option<PathBuf>,
    },
}

/// What an operator does by the API.
#[derive(clap::Subcommand)]
enum Action {
    /// Create a sale from a TOML file (sale.example.toml shows every key).
    #[command(after_help = "\
If an answer is lost, the command repeats the request a few times; its key makes sure that only one sale is created.
If the outcome stays unknown, it prints the key. Repeat the command with that key: times like \"+10m\" then count from
the time in the key, so that the request is for the same sale. A key of your own has no time: give it to files with
absolute times.

Example:
  ID=$(flashsale sale create sale.example.toml -q)")]
    Create {
        /// The sale file; - is standard input.
        file: PathBuf,
        /// Idempotency key; to retry after an unknown outcome, repeat the printed key, so that only one sale is
        /// created. Another key needs a file with absolute times.
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
        #[command(flatten)]
        sale: SaleArg,
        /// The sale file; - is standard input.
        file: PathBuf,
        /// Replace the draft only if it still has this version.
        #[arg(long, value_name = "VERSION", allow_hyphen_values = true)]
        if_version: Option<String>,
    },
    /// List the sales.
    #[command(after_help = "Example:\n  flashsale sale list --json | jq -r '.[] | select(.state == \"open\").id'")]
    List,
    /// Show a sale.
    #[command(after_help = "Example:\n  flashsale sale show 3f2c…")]
    Show(SaleArg),
    /// Load a sale's stock into Redis, split over its shards; a second preload changes nothing.
    #[command(after_help = "\
A draft whose end has passed is refused: it would be closed at once.

Example:
  flashsale sale preload 3f2c…")]
    Preload(SaleArg),
    /// Open a sale now, without waiting for starts_at.
    #[command(after_help = "Example:\n  flashsale sale open 3f2c…")]
    Open(SaleArg),
    /// Pause a sale; orders can still be paid.
    #[command(after_help = "Example:\n  flashsale sale pause 3f2c…")]
    Pause(SaleArg),
    /// Resume a paused sale.
    #[command(after_help = "Example:\n  flashsale sale resume 3f2c…")]
    Resume(SaleArg),
    /// Close a sale for good.
    #[command(after_help = "Example:\n  flashsale sale close 3f2c… && flashsale audit 3f2c…")]
    Close(ForGood),
    /// Delete a draft for good; a preloaded sale is refused.
    #[command(after_help = "Example:\n  flashsale sale delete 3f2c…")]
    Delete(ForGood),
    /// Add units to an item, or take back unsold units.
    #[command(after_help = "\
Examples:
  flashsale sale restock 3f2c… phone-black 50
  flashsale sale restock 3f2c… phone-black -20")]
    Restock {
        #[command(flatten)]
        sale: SaleArg,
        /// The item's SKU.
        sku: String,
        /// How many units to add; a negative number takes back unsold units.
        #[arg(value_name = "N", allow_hyphen_values = true, value_parser = units)]
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
        #[command(flatten)]
        sale: SaleArg,
        /// When to use colours on a terminal; auto leaves them out if NO_COLOR is set.
        #[arg(long, value_name = "WHEN", value_enum, default_value_t = ColorChoice::Auto)]
        color: ColorChoice,
    },
    /// Report a whole sale: what it sold, how purchases were answered, and how fast.
    #[command(after_help = "\
With --json, also the course of the sale, step by step.

Examples:
  flashsale sale report 3f2c…
  flashsale sale report 3f2c… --json | jq '.course[].answers.reserved'")]
    Report(SaleArg),
    /// Amend a published sale: its name, description, picture, waiting room's rate, a later start or a later end.
    #[command(after_help = "\
A start or an end can be moved until five seconds before it, and only to a later time. Times are written as in a sale
file: \"+48h\" counts from now.

Examples:
  flashsale sale amend 3f2c… --ends-at 2026-11-28T20:00:00Z
  flashsale sale amend 3f2c… --ends-at +48h
  flashsale sale amend 3f2c… --admissions-per-second 50")]
    Amend {
        #[command(flatten)]
        sale: SaleArg,
        #[command(flatten)]
        terms: Amended,
    },
    /// Set the message to a sale's shoppers, on its page and in its waiting room; without an option, print it.
    #[command(after_help = "\
A text in a language that is left out stays as it is. An empty text removes that language.

Examples:
  flashsale sale message 3f2c… --en \"More of size M at 18:00.\"
  flashsale sale message 3f2c…
  flashsale sale message 3f2c… --clear")]
    Message {
        #[command(flatten)]
        sale: SaleArg,
        #[command(flatten)]
        texts: MessageTexts,
        /// Remove the message.
        #[arg(long)]
        clear: bool,
    },
}

/// The new texts of a message: an option for each language.
struct MessageTexts(BTreeMap<&'static str, String>);

impl clap::FromArgMatches for MessageTexts {
    fn from_arg_matches(matches: &clap::ArgMatches) -> Result<Self, clap::Error> {
        let text = |language: Language| {
            let text = matches.get_one::<String>(language.code())?;
            Some((language.code(), text.clone()))
        };
        Ok(Self(Language::all().filter_map(text).collect()))
    }

    fn update_from_arg_matches(&mut self, matches: &clap::ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

impl clap::Args for MessageTexts {
    fn augment_args(command: clap::Command) -> clap::Command {
        command.args(Language::all().map(|language| {
            clap::Arg::new(language.code())
                .long(language.code())
                .value_name("TEXT")
                .conflicts_with("clear")
                .help(format!("The text in {}", language.english()))
        }))
    }

    fn augment_args_for_update(command: clap::Command) -> clap::Command {
        Self::augment_args(command)
    }
}

/// The new values of a published sale, as the body of the request has them: what is absent stays.
#[derive(Debug, clap::Args, serde::Serialize)]
#[group(required = true, multiple = true)]
struct Amended {
    /// The new name.
    #[arg(long)]
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<String>,
    /// What the sale is about; an empty text removes it.
    #[arg(long, value_name = "TEXT")]
    #[serde(skip_serializing_if = "Option::is_none")]
    description: Option<String>,
    /// The address of the sale's picture; an empty one removes it.
    #[arg(long, value_name = "URL")]
    #[serde(skip_serializing_if = "Option::is_none")]
    image_url: Option<String>,
    /// A later start, as 2026-11-28T09:00:00Z or +2h.
    #[arg(long, value_name = "TIME", value_parser = time)]
    #[serde(skip_serializing_if = "Option::is_none")]
    starts_at: Option<DateTime<Utc>>,
    /// A later end, as 2026-11-28T20:00:00Z or +48h.
    #[arg(long, value_name = "TIME", value_parser = time)]
    #[serde(skip_serializing_if = "Option::is_none")]
    ends_at: Option<DateTime<Utc>>,
    /// How many shoppers the waiting room admits a second.
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = number::whole(1, ADMISSIONS_MAX))]
    #[serde(skip_serializing_if = "Option::is_none")]
    admissions_per_second: Option<u32>,
}

fn time(text: &str) -> Result<DateTime<Utc>, String> {
    sale_file::time_of(text, Utc::now())
}

pub fn run(args: &Args) -> Result<(), Failure> {
    let form = args.api.form();
    match &args.verb {
        Verb::Act(action) => act(&args.api, action, form),
        Verb::Archive { sale, file, data } => {
            let id = match &sale.id {
                SaleRef::Id(id) => *id,
                part => part.whole(&args.api.operator()?)?,
            };
            let usual = || PathBuf::from(format!("sale-{id}.archive"));
            let file = file.clone().unwrap_or_else(usual);
            archive::archive(SaleId(id), &file, data.as_deref(), form)
        }
        Verb::Restore { file, data } => archive::restore(file, data.as_deref(), form),
    }
}

fn act(api: &ApiArgs, action: &Action, form: Form) -> Result<(), Failure> {
    let client = &api.operator()?;
    let id = |sale: &SaleArg| sale.id.whole(client);
    match action {
        Action::Create { file, key } => {
            let key = key.clone().unwrap_or_else(|| Uuid::now_v7().to_string());
            create(client, file, &key, RETRY, form)
        }
        Action::Change { sale, file, if_version } => change(client, &id(sale)?, file, if_version.as_deref(), form),
        Action::List => list(client, form),
        Action::Show(sale) => show_sale(&client.get(&sale_path(id(sale)?, ""))?, form, ""),
        Action::Preload(sale) => preload(client, &id(sale)?, form),
        Action::Open(sale) => transition(client, &id(sale)?, "open", form),
        Action::Pause(sale) => transition(client, &id(sale)?, "pause", form),
        Action::Resume(sale) => transition(client, &id(sale)?, "resume", form),
        Action::Close(sale) => transition(client, &sale.whole(client)?, "close", form),
        Action::Delete(sale) => delete(client, &sale.whole(client)?, form),
        Action::Restock {
            sale,
            sku,
            quantity,
            key,
        } => {
            let key = key.clone().unwrap_or_else(|| Uuid::new_v4().to_string());
            restock(client, &id(sale)?, sku, *quantity, &key, form)
        }
        Action::Watch { sale, color } => watch::run(api, &id(sale)?, *color),
        Action::Report(sale) => report::report(client, &id(sale)?, form),
        Action::Amend { sale, terms } => amend(client, &id(sale)?, terms, form),
        Action::Message { sale, texts, clear } => message(client, &id(sale)?, texts, *clear, form),
    }
}

/// Prints a sale in detail, with its version, and then the `next` command for it.
fn show_sale(answer: &Answer, form: Form, next: &str) -> Result<(), Failure> {
    let mut body = answer.body.clone();
    // The API has it in a header, which JSON would lose.
    if let (Some(etag), Some(sale)) = (&answer.etag, body.as_object_mut()) {
        sale.insert("version".to_owned(), bare(etag).into());
    }
    show(&body, form, |sale: ShownSale| {
        let text = describe(&sale, answer.etag.as_deref());
        match next {
            "" => text,
            next => format!("{text}next: flashsale sale {next} {}\n", sale.id),
        }
    })
}

fn create(client: &Client, file: &Path, key: &str, retry: Duration, form: Form) -> Result<(), Failure> {
    let file = sale_file::read(file, time_of(key).unwrap_or_else(Utc::now))?;
    let created = client.post_once("/v1/admin/sales", key, &file.body, retry);
    let advice = format!("to retry, repeat the command with --key {}", output::one_line(key));
    let created = match created {
        Err(CallError::Refused(refusal))
            if refusal.code == "idempotency_key_reused" && file.is_relative && time_of(key).is_none() =>
        {
            return Err(Failure::No(format!(
                "{refusal}; the file has relative times: use a printed key or absolute times"
            )));
        }
        created => accepted(created, &file, &advice)?,
    };
    warn_of_passed_end(&created)?;
    show_sale(&created, form, "preload")
}

/// Warns of a draft whose end has passed. The API accepts it.
fn warn_of_passed_end(answer: &Answer) -> Result<(), Failure> {
    if let Some(end) = answer::read::<ShownSale>(&answer.body)?.passed_end() {
        stderr::line(format_args!(
            "flashsale: warning: the end of this draft, {}, has passed: change it before the preload",
            human::instant(end)
        ));
    }
    Ok(())
}

/// The answer to a sale file. A refusal of the file names its line.
fn accepted(answer: Result<Answer, CallError>, file: &SaleFile, advice: &str) -> Result<Answer, Failure> {
    answer.map_err(|error| match error {
        CallError::Refused(refusal) if refusal.code == "invalid_request" => file.refused(&refusal.detail),
        error => error.with_advice(advice),
    })
}

/// The time in a key, if the key is a UUID with a time. Relative times count from it: with other times, the server
/// would refuse the repeated key as one for another sale.
fn time_of(key: &str) -> Option<DateTime<Utc>> {
    let key = Uuid::try_parse(key).ok().filter(|key| key.get_version_num() == 7)?;
    let (seconds, nanos) = key.get_timestamp()?.to_unix();
    DateTime::from_timestamp(i64::try_from(seconds).ok()?, nanos)
}

fn change(client: &Client, id: &Uuid, file: &Path, version: Option<&str>, form: Form) -> Result<(), Failure> {
    let file = sale_file::read(file, Utc::now())?;
    let etag = match version {
        Some(version) => format!("\"{}\"", bare(version)),
        None => {
            let etag = client.get(&sale_path(id, ""))?.etag;
            etag.context("the server's answer has no version of the draft: is it of the same version?")?
        }
    };
    let changed = client.send("PUT", &sale_path(id, ""), &[("if-match", &etag)], &file.body);
    let advice = format!("`flashsale sale show {id}` shows whether it changed");
    let stale = format!(
        "the draft has changed since version {}: show it again with `flashsale sale show {id}`",
        output::one_line(bare(&etag))
    );
    let changed = changed.map_err(|error| error.in_words("If-Match", &stale));
    let changed = accepted(changed, &file, &advice)?;
    warn_of_passed_end(&changed)?;
    show_sale(&changed, form, "")
}

fn amend(client: &Client, id: &Uuid, terms: &Amended, form: Form) -> Result<(), Failure> {
    let amended = client.send("PATCH", &sale_path(id, ""), &[], &json!(terms).to_string());
    let draft = format!("the sale is a draft: change it with `flashsale sale change {id} FILE`");
    let amended = amended.map_err(|error| match error.in_words("PUT", &draft) {
        CallError::Refused(refusal) if refusal.code == "invalid_request" => Failure::Usage(refusal.to_string()),
        error => error.into(),
    })?;
    // A stage may give a part of the shoppers a waiting room.
    let has_room = ["guards", "staged_guards"].into_iter().any(|set| {
        let room = &amended.body[set]["waiting_room"];
        !room.is_null() && *room != false
    });
    if terms.admissions_per_second.is_some() && !has_room {
        stderr::line("flashsale: warning: the sale has no waiting room, so nobody is admitted at this rate");
    }
    show_sale(&amended, form, "")
}

/// The version in an ETag, without quotes and the mark of a weak ETag.
fn bare(etag: &str) -> &str {
    etag.trim_start_matches("W/").trim_matches('"')
}

fn transition(client: &Client, id: &Uuid, verb: &str, form: Form) -> Result<(), Failure> {
    let turned = client.post(&sale_path(id, &format!("/{verb}")), "");
    let sale = turned.map_err(|error| not_possible(client, id, error))?.body;
    show(&sale, form, |sale: ShownSale| {
        let name = output::one_line(&sale.terms.name);
        format!("sale {id}, {name}, is {}\n", sale.state)
    })
}

/// A refused transition, with the transitions that are possible.
fn not_possible(client: &Client, id: &Uuid, error: CallError) -> Failure {
    let sale = (error.code() == "invalid_transition").then(|| client.get(&sale_path(id, "")));
    let state: Option<SaleState> = sale.and_then(|sale| sale.ok()?.body["state"].as_str()?.parse().ok());
    let is_possible = |transition: Transition| state.is_some_and(|state| matches!(transition.from(state), Step::To(_)));
    let possible = VERBS.iter().filter(|(_, transition)| is_possible(*transition));
    let possible: Vec<&str> = possible.map(|(verb, _)| *verb).collect();
    if possible.is_empty() {
        return error.into();
    }
    Failure::No(format!("{error}; possible now: {}", possible.join(", ")))
}

/// Prints the message, after the change if there is one. The API replaces the whole message, so the texts that stay are
/// sent again.
fn message(client: &Client, id: &Uuid, new: &MessageTexts, is_cleared: bool, form: Form) -> Result<(), Failure> {
    let put = |said: &Value| client.send("PUT", &sale_path(id, "/message"), &[], &said.to_string());
    let mut sale = if is_cleared {
        put(&json!({}))?.body
    } else {
        client.get(&sale_path(id, ""))?.body
    };
    if !new.0.is_empty() {
        let mut said = answer::read::<ShownSale>(&sale)?.message;
        said.extend(
            new.0
                .iter()
                .map(|(language, text)| ((*language).to_owned(), text.clone())),
        );
        sale = put(&json!(said))?.body;
    }
    show(&sale, form, |sale: ShownSale| match sale.message_texts() {
        None => format!("sale {id} has no message to its shoppers\n"),
        Some(texts) => {
            let texts = output::one_line(&texts);
            format!("the message of sale {id} to its shoppers: {texts}\n")
        }
    })
}

fn delete(client: &Client, id: &Uuid, form: Form) -> Result<(), Failure> {
    let sale: ShownSale = answer::read(&client.get(&sale_path(id, ""))?.body)?;
    let deleted = client.send("DELETE", &sale_path(id, ""), &[], "");
    let advice = "repeat it; \"no such sale\" then says that it is deleted";
    let deleted = deleted.map_err(|error| error.with_advice(advice))?.body;
    show(&deleted, form, |_: Value| {
        let name = output::one_line(&sale.terms.name);
        format!("the draft {id}, {name}, is deleted\n")
    })
}

fn list(client: &Client, form: Form) -> Result<(), Failure> {
    let sales = pages::all(client, "/v1/admin/sales", "id")?;
    show(&Value::Array(sales), form, |sales: Vec<ShownSale>| {
        let mut table = Table::new(["ID", "STATE", "STARTS", "ENDS", "SHARDS", "ITEMS", "STOCK", "NAME"]);
        for ShownSale { id, state, terms, .. } in sales {
            table.row([
                id.to_string(),
                state.to_string(),
                human::instant(terms.starts_at),
                human::instant(terms.ends_at),
                terms.shards.to_string(),
                terms.items.len().to_string(),
                terms.items.iter().map(|item| item.stock).sum::<i64>().to_string(),
                terms.name,
            ]);
        }
        table.render()
    })
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
            let Verb::Act(Action::Restock { quantity, key, .. }) = args.verb else {
                panic!("not restock")
            };
            assert_eq!(
                (quantity, key.as_deref(), args.api.form()),
                (-20, Some("k"), Form::Json)
            );
        }
    }

    fn example() -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("sale.example.toml")
    }

    fn header<'a>(request: &'a str, name: &str) -> Option<&'a str> {
        request
            .lines()
            .find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
    }

    /// A sale as the server shows it.
    fn draft() -> Value {
        crate::http::admin::sales::example("draft")
    }

    #[test]
    fn a_sale_whose_answer_is_lost_is_asked_for_again_as_the_same_one() {
        let sale = draft().to_string();
        let made = (201, sale.as_str());
        let server = MockServer::answering(&[(503, ""), (502, "<html>"), made]);
        create(&server.client(), &example(), "key-1", Duration::ZERO, Form::Text).unwrap();
        let requests = server.requests();
        assert_eq!(requests.len(), 3);
        assert!(requests.iter().all(|request| *request == requests[0]), "{requests:#?}");
        assert_eq!(header(&requests[0], "idempotency-key"), Some("key-1"));
        // A repeated command with the printed key sends the same body: its times count from the time in the key.
        let printed = Uuid::now_v7().to_string();
        let server = MockServer::answering(&[made]);
        create(&server.client(), &example(), &printed, Duration::ZERO, Form::Text).unwrap();
        let first = server.requests();
        std::thread::sleep(Duration::from_millis(2));
        let server = MockServer::answering(&[made]);
        create(&server.client(), &example(), &printed, Duration::ZERO, Form::Text).unwrap();
        assert_eq!(server.requests()[0].lines().last(), first[0].lines().last());
        // The attempts end, and the error says how to retry.
        let server = MockServer::answering(&[(503, "")]);
        let failure = create(&server.client(), &example(), "key-1", Duration::ZERO, Form::Text).unwrap_err();
        assert!(failure.to_string().contains("with --key key-1"), "{failure}");
        assert_eq!(server.requests().len(), 3);
        // A permanent refusal is not repeated.
        let server =
            MockServer::answering(&[(400, r#"{"code":"invalid_request","detail":"shards must be 1 to 256"}"#)]);
        let failure = create(&server.client(), &example(), "key-1", Duration::ZERO, Form::Text).unwrap_err();
        assert!(
            matches!(&failure, Failure::Usage(line) if line.contains("sale.example.toml:")),
            "{failure}"
        );
        assert_eq!(server.requests().len(), 1);
    }

    #[test]
    fn a_draft_is_changed_only_as_the_version_that_was_seen() {
        let server = MockServer::answering(&[(200, &draft().to_string())]);
        change(&server.client(), &ID, &example(), None, Form::Text).unwrap();
        change(&server.client(), &ID, &example(), Some("older"), Form::Text).unwrap();
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
    fn an_amendment_has_the_times_of_a_sale_file_and_a_wrong_one_is_bad_usage() {
        use clap::Parser as _;
        let id = ID.to_string();
        let terms = |options: &[&str]| {
            let line = ["sale", "amend", &id].into_iter().chain(options.iter().copied());
            Line::try_parse_from(line).map(|line| match line.args.verb {
                Verb::Act(Action::Amend { terms, .. }) => terms,
                _ => panic!("not amend"),
            })
        };
        let later = terms(&["--ends-at", "+48h", "--description", ""]).unwrap();
        let hours = (later.ends_at.unwrap() - Utc::now()).num_hours();
        assert!((47..=48).contains(&hours), "{hours}");
        assert_eq!(
            json!(terms(&["--starts-at", "2026-11-28T10:00:00+01:00"]).unwrap()),
            json!({"starts_at": "2026-11-28T09:00:00Z"})
        );
        assert_eq!(json!(terms(&["--image-url", ""]).unwrap()), json!({"image_url": ""}));
        for wrong in [&["--ends-at", "tomorrow"][..], &["--ends-at", "2026-11-28"], &[]] {
            assert!(terms(wrong).is_err(), "{wrong:?}");
        }
        let a_draft = r#"{"code":"invalid_transition","detail":"the sale is a draft: replace it with PUT"}"#;
        let server = MockServer::answering(&[(409, a_draft)]);
        let failure = amend(&server.client(), &ID, &later, Form::Text).unwrap_err();
        assert!(failure.to_string().contains("flashsale sale change"), "{failure}");
        let negative = terms(&["--admissions-per-second", "-5"]).unwrap_err().to_string();
        assert!(negative.contains("whole number from 1 to"), "{negative}");
        let refused = r#"{"code":"invalid_request","detail":"name must have 1 to 200 characters"}"#;
        let server = MockServer::answering(&[(400, refused)]);
        let failure = amend(&server.client(), &ID, &later, Form::Text).unwrap_err();
        assert!(matches!(failure, Failure::Usage(_)), "{failure}");
    }

    #[test]
    fn a_message_keeps_the_texts_that_are_left_out() {
        use clap::Parser as _;
        let id = ID.to_string();
        let mut sale = draft();
        sale["message"] = json!({"en": "Soon.", "zh": "很快。"});
        let sent = |options: &[&str]| {
            let line = ["sale", "message", &id].into_iter().chain(options.iter().copied());
            let Verb::Act(Action::Message { texts, clear, .. }) = Line::try_parse_from(line).unwrap().args.verb else {
                panic!("not message")
            };
            let server = MockServer::answering(&[(200, &sale.to_string())]);
            message(&server.client(), &ID, &texts, clear, Form::Text).unwrap();
            let requests = server.requests();
            let put = requests.iter().find(|request| request.starts_with("PUT "));
            put.map(|put| serde_json::from_str::<Value>(put.lines().last().unwrap()).unwrap())
        };
        assert_eq!(sent(&[]), None, "it is only printed");
        assert_eq!(
            sent(&["--en", "Now."]),
            Some(json!({"en": "Now.", "zh": "很快。"})),
            "the other text stays"
        );
        assert_eq!(sent(&["--zh", ""]), Some(json!({"en": "Soon.", "zh": ""})));
        assert_eq!(sent(&["--clear"]), Some(json!({})));
        let both = ["sale", "message", &id, "--clear", "--en", "Now."];
        assert!(Line::try_parse_from(both).is_err());
    }

    #[test]
    fn a_sale_that_nobody_named_is_neither_closed_nor_deleted() {
        use clap::Parser as _;
        let page = json!({"data": [{"id": ID}], "has_more": false}).to_string();
        for verb in ["close", "delete"] {
            let whole = |options: &[&str]| {
                let line = ["sale", verb, LATEST].into_iter().chain(options.iter().copied());
                let server = MockServer::answering(&[(200, &page)]);
                match Line::try_parse_from(line).unwrap().args.verb {
                    Verb::Act(Action::Close(sale) | Action::Delete(sale)) => sale.whole(&server.client()),
                    _ => panic!("not {verb}"),
                }
            };
            assert!(
                matches!(whole(&[]), Err(Failure::Usage(said)) if said.contains("--yes")),
                "{verb}"
            );
            assert_eq!(whole(&["--yes"]).unwrap(), ID, "{verb}");
        }
    }

    #[test]
    fn a_refused_transition_names_those_that_are_possible() {
        for (state, possible) in [("open", "; possible now: pause, close"), ("closed", ""), ("draft", "")] {
            let refused = r#"{"code":"invalid_transition","detail":"d"}"#;
            let sale = json!({"state": state}).to_string();
            let server = MockServer::answering(&[(409, refused), (200, &sale)]);
            let failure = transition(&server.client(), &ID, "resume", Form::Text).unwrap_err();
            assert_eq!(failure.to_string(), format!("invalid_transition: d{possible}"));
        }
    }
}
