//! `flashsale sale …`: the operator's work on sales, over the HTTP API.

mod amend;
mod archive;
mod describe;
mod draft;
mod file;
mod message;
mod report;
mod stock;
mod transition;
mod watch;

use crate::cli::Failure;
use crate::cli::shared::answer::{Form, ShownSale, show};
use crate::cli::shared::client::{ApiArgs, Client, PAUSE, sale_path};
use crate::cli::shared::output::Table;
use crate::cli::shared::sale_ref::{LATEST, SaleRef};
use crate::cli::shared::{human, pages};
use crate::domain::ids::SaleId;
use crate::domain::sale::Transition;
use crate::domain::sale::report::ReportTable;
use amend::{Amended, amend};
use clap::ColorChoice;
use describe::show_sale;
use draft::{change, create, delete};
use message::{MessageTexts, message};
use serde_json::Value;
use std::path::PathBuf;
use stock::{preload, restock, units};
use transition::transition;
use uuid::Uuid;

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

/// The sale that a command acts on.
#[derive(Debug, clap::Args)]
pub struct SaleArg {
    /// The sale's id, its first (at least four) or last eight characters, or @latest for the newest sale.
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
    #[command(after_help = "\
Examples:
  flashsale sale list --search winter
  flashsale sale list --json | jq -r '.[] | select(.state == \"open\").id'")]
    List {
        /// Only sales with this text in their name, or in an item's name or SKU, or at the beginning of their id.
        #[arg(long, value_name = "TEXT")]
        search: Option<String>,
    },
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
  flashsale sale report 3f2c… --csv items > items.csv
  flashsale sale report 3f2c… --json | jq '.course[].answers.reserved'")]
    Report {
        #[command(flatten)]
        sale: SaleArg,
        /// Print one table of the report as CSV for a spreadsheet.
        #[arg(long, value_name = "TABLE", value_parser = report::table_name())]
        csv: Option<ReportTable>,
    },
    /// Amend a published sale: its name, description, picture, waiting room's rate, trials, a later start or end.
    #[command(after_help = "\
A start or an end can be moved until five seconds before it, and only to a later time. Times are written as in a sale
file: \"+48h\" counts from now. A guard on trial has another value for a part of the shoppers; a larger part keeps
those of a smaller one, and 0 picks nobody.

Examples:
  flashsale sale amend 3f2c… --ends-at 2026-11-28T20:00:00Z
  flashsale sale amend 3f2c… --ends-at +48h
  flashsale sale amend 3f2c… --admissions-per-second 50
  flashsale sale amend 3f2c… --guard purchase_token=true --percent 10 --shadow
  flashsale sale amend 3f2c… --end-trial purchase_token")]
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
            create(&client.clone().patient(PAUSE), file, &key, form)
        }
        Action::Change { sale, file, if_version } => change(client, &id(sale)?, file, if_version.as_deref(), form),
        Action::List { search } => list(client, search.as_deref(), form),
        Action::Show(sale) => show_sale(&client.get(&sale_path(id(sale)?, ""))?, form, ""),
        Action::Preload(sale) => preload(client, &id(sale)?, form),
        Action::Open(sale) => transition(client, &id(sale)?, Transition::Open, form),
        Action::Pause(sale) => transition(client, &id(sale)?, Transition::Pause, form),
        Action::Resume(sale) => transition(client, &id(sale)?, Transition::Resume, form),
        Action::Close(sale) => transition(client, &sale.whole(client)?, Transition::Close, form),
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
        Action::Report { sale, csv } => report::report(client, &id(sale)?, *csv, form),
        Action::Amend { sale, terms } => amend(client, &sale.id, terms, form),
        Action::Message { sale, texts, clear } => message(client, &id(sale)?, texts, *clear, form),
    }
}

fn list(client: &Client, search: Option<&str>, form: Form) -> Result<(), Failure> {
    let mut path = "/v1/admin/sales".to_owned();
    if let Some(text) = search {
        path.push_str("?search=");
        path.extend(form_urlencoded::byte_serialize(text.as_bytes()));
    }
    let sales = pages::all(client, &path, "id")?;
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
    use crate::cli::shared::mock_server::MockServer;
    use serde_json::json;

    pub const ID: Uuid = Uuid::from_u128(0x0190_0000_0000_7000_8000_0000_0000_0001);

    #[derive(clap::Parser)]
    pub struct Line {
        #[command(flatten)]
        pub args: Args,
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

    /// A sale as the server shows it.
    pub fn draft() -> Value {
        crate::http::admin::sales::example("draft")
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
}
