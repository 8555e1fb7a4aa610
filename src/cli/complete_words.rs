//! `flashsale complete-words`: the sale ids and SKUs for the word under the cursor, each with a description behind a
//! tab. The completion scripts of the shells call it. It prints nothing where a word is neither.

use super::answer::cell;
use super::client::ApiArgs;
use super::sale_ref::SaleRef;
use super::{Failure, output, pages};
use serde_json::Value;
use std::time::Duration;

/// How long a shell waits for an answer of the server.
const ANSWER_MAX: Duration = Duration::from_secs(2);
/// How many sales are searched, newest first.
const SALES_MAX: usize = 1_000;

#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    api: ApiArgs,
    /// The words after `flashsale`, up to the one to complete.
    #[arg(last = true)]
    words: Vec<String>,
}

/// What the word under the cursor names.
#[derive(Debug, PartialEq, Eq)]
enum Wanted<'a> {
    Sale,
    /// An item of this sale.
    Sku(&'a str),
}

pub fn run(args: &Args) -> Result<(), Failure> {
    let Some((typed, before)) = args.words.split_last() else {
        return Ok(());
    };
    let mut command = super::command();
    // Gives each subcommand the options of the commands above it.
    command.build();
    let Some(wanted) = wanted(&command, before).filter(|_| !typed.starts_with('-')) else {
        return Ok(());
    };
    // Without the operators' key, the sales that shoppers see.
    let (client, path) = match args.api.operator_within(ANSWER_MAX) {
        Ok(operator) => (operator, "/v1/admin/sales"),
        Err(_) => (args.api.client_within(None, ANSWER_MAX)?, "/v1/sales"),
    };
    let text = match wanted {
        Wanted::Sale => lines(&pages::newest(&client, path, "id", SALES_MAX)?, ["id", "name"], typed),
        Wanted::Sku(sale) => {
            let sale: SaleRef = sale.parse().map_err(Failure::Usage)?;
            let sale = sale.among(&client, path, "no such sale")?;
            let sale = client.get(&format!("{path}/{sale}"))?.body;
            let items = sale["items"].as_array().map_or(&[][..], Vec::as_slice);
            lines(items, ["sku", "name"], typed)
        }
    };
    output::print(&text)
}

/// A line for each entry whose first member begins with what was typed.
fn lines(entries: &[Value], [member, about]: [&str; 2], typed: &str) -> String {
    let shown = |entry: &Value, name: &str| output::one_line(&cell(entry, name));
    entries
        .iter()
        .filter(|entry| shown(entry, member).starts_with(typed))
        .map(|entry| format!("{}\t{}\n", shown(entry, member), shown(entry, about)))
        .collect()
}

/// What the word after these words names.
fn wanted<'a>(mut command: &clap::Command, before: &'a [String]) -> Option<Wanted<'a>> {
    let (mut option, mut values) = (None, Vec::new());
    for word in before {
        if option.take().is_some() {
            continue;
        }
        if let Some(name) = word.strip_prefix("--") {
            let named = command.get_arguments().find(|arg| arg.get_long() == Some(name));
            option = named.filter(|arg| arg.get_action().takes_values());
        } else if let Some(inner) = command.find_subcommand(word) {
            command = inner;
        } else if word.parse::<i64>().is_ok() || !word.starts_with('-') {
            values.push(word.as_str());
        }
    }
    let arg = option.or_else(|| command.get_positionals().nth(values.len()))?;
    let is_sale = |arg: &clap::Arg| {
        arg.get_value_names()
            .is_some_and(|names| names[0].as_str() == "SALE_ID")
    };
    match arg.get_id().as_str() {
        _ if is_sale(arg) => Some(Wanted::Sale),
        "sku" => values.first().copied().map(Wanted::Sku),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_word_names_a_sale_or_an_item_by_its_place() {
        let mut command = super::super::command();
        command.build();
        for (line, expected) in [
            ("sale show", Some(Wanted::Sale)),
            ("sale restock", Some(Wanted::Sale)),
            ("sale restock 3f2c", Some(Wanted::Sku("3f2c"))),
            ("sale restock --url http://a --json 3f2c", Some(Wanted::Sku("3f2c"))),
            ("sale restock 3f2c phone", None),
            ("buy --user ada", Some(Wanted::Sale)),
            ("buy 3f2c --user ada", Some(Wanted::Sku("3f2c"))),
            ("buy --user", None),
            ("orders list --sale", Some(Wanted::Sale)),
            ("orders list", None),
            ("audit", Some(Wanted::Sale)),
            ("inspect", Some(Wanted::Sale)),
            ("sale", None),
            ("sale create", None),
            ("", None),
        ] {
            let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
            assert_eq!(wanted(&command, &words), expected, "{line}");
        }
    }

    #[test]
    fn a_line_has_what_begins_as_typed_and_its_name() {
        let entries = [
            json!({"id": "0190", "name": "Winter\tlaunch"}),
            json!({"id": "0191", "name": "Spring"}),
        ];
        assert_eq!(lines(&entries, ["id", "name"], "0190"), "0190\tWinter launch\n");
        assert_eq!(lines(&entries, ["id", "name"], "").lines().count(), 2);
    }
}
