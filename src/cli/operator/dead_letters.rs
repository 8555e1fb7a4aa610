//! `flashsale dead-letters`: lists events that the ledger could not store, and settles them.

use super::sale::SaleArg;
use crate::cli::shared::answer::{Column, show, show_list};
use crate::cli::shared::client::{ApiArgs, sale_path};
use crate::cli::shared::{output, pages};
use crate::cli::{Failure, parsed};
use crate::domain::order::dead_letter::{DeadLetterId, Note};
use clap::Subcommand;
use serde_json::{Value, json};

const COLUMNS: [Column; 9] = [
    ("POSITION", "position"),
    ("SINCE", "created_at"),
    ("USER", "event/user"),
    ("SKU", "event/sku"),
    ("UNITS", "event/quantity"),
    ("REVOKED", "order_id"),
    ("WHY", "reason"),
    ("SETTLED", "settled_at"),
    ("NOTE", "note"),
];

#[derive(clap::Args)]
#[command(after_help = "\
A dead letter is an event that Postgres could not store. Its order is revoked, if the event names the order. Notify the
shopper, rebuild the sale to free the units, then settle the dead letter here; until then it stays listed. Needs
FLASHSALE_ADMIN_KEY.

Examples:
  flashsale dead-letters list 3f2c…
  flashsale dead-letters settle 3f2c… 0:1-2 --note 'informed ada, who bought again'")]
pub struct Args {
    #[command(flatten)]
    api: ApiArgs,
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    /// List the dead letters of a sale, with the reason for each.
    #[command(after_help = "\
Examples:
  flashsale dead-letters list 3f2c… --json | jq -r '.[].event.user'
  flashsale dead-letters list 3f2c… --settled")]
    List {
        #[command(flatten)]
        sale: SaleArg,
        /// List the settled dead letters instead.
        #[arg(long)]
        settled: bool,
    },
    /// Settle a dead letter. Repeating this with the same note is no error; another note is refused.
    #[command(
        after_help = "Example:\n  flashsale dead-letters settle 3f2c… 0:1-2 --note 'informed ada, who bought again'"
    )]
    Settle {
        #[command(flatten)]
        sale: SaleArg,
        /// The position of the event, as `dead-letters list` prints it.
        #[arg(value_parser = parsed::<DeadLetterId>)]
        position: DeadLetterId,
        /// What was done about the dead letter.
        #[arg(long, value_name = "TEXT", value_parser = parsed::<Note>)]
        note: Note,
    },
}

pub fn run(args: &Args) -> Result<(), Failure> {
    let operator = args.api.operator()?;
    match &args.verb {
        Verb::List { sale, settled } => {
            let path = sale_path(sale.id.whole(&operator)?, &format!("/dead-letters?settled={settled}"));
            let letters = pages::all(&operator, &path, "position")?;
            show_list(letters, args.api.form(), &COLUMNS, |_, _| None)
        }
        Verb::Settle { sale, position, note } => {
            let body = json!({"position": position.to_string(), "note": note.as_str()}).to_string();
            let settled = operator.post(&sale_path(sale.id.whole(&operator)?, "/dead-letters/settle"), &body);
            let settled = settled.map_err(|error| error.with_advice("it is safe to repeat the command"))?;
            show(&settled.body, args.api.form(), |_: Value| {
                format!("{position} is dealt with: {}\n", output::one_line(note.as_str()))
            })
        }
    }
}
