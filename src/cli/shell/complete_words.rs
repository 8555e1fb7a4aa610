//! `flashsale complete-words`: the ids of sales and orders and the SKUs for the word under the cursor, each with a
//! description behind a tab. The completion scripts of the shells call it. It prints nothing where a word is none.

use crate::cli::Failure;
use crate::cli::shared::answer::cell;
use crate::cli::shared::client::ApiArgs;
use crate::cli::shared::order_ref::{self, OPERATORS, SHOPPERS};
use crate::cli::shared::sale_ref::{LATEST, SaleRef};
use crate::cli::shared::{output, pages};
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
    Order,
    /// An item of this sale.
    Sku(&'a str),
}

pub fn run(args: &Args) -> Result<(), Failure> {
    let Some((typed, before)) = args.words.split_last() else {
        return Ok(());
    };
    let mut command = crate::cli::command();
    // Gives each subcommand the options of the commands above it.
    command.build();
    let Some(wanted) = wanted(&command, before).filter(|_| !typed.starts_with('-')) else {
        return Ok(());
    };
    // Without the operators' key, the sales that shoppers see.
    let (client, lists) = match args.api.operator_within(ANSWER_MAX) {
        Ok(operator) => (operator, OPERATORS),
        Err(_) => (args.api.client_within(None, ANSWER_MAX)?, SHOPPERS),
    };
    let path = lists.sales;
    let text = match wanted {
        Wanted::Sale => {
            let sales = pages::newest(&client, path, "id", SALES_MAX)?;
            lines(&with_latest(words(&sales, "id", &["name"]), typed), typed)
        }
        // Shoppers' orders need a shopper's token.
        Wanted::Order if lists.orders == SHOPPERS.orders => return Ok(()),
        Wanted::Order => {
            let orders = order_ref::newest(&client, lists)?;
            let mut found = words(&orders, "id", &["sku", "state", "created_at"]);
            // A number that was copied from a page. Without a character of it, it would only repeat the id.
            if !typed.is_empty() {
                let numbers = orders.iter().zip(found.clone()).filter_map(|(order, (_, about))| {
                    let number = order_ref::number_of(order)?;
                    Some((number.to_owned(), about))
                });
                found.extend(numbers);
            }
            lines(&with_latest(found, typed), typed)
        }
        Wanted::Sku(sale) => {
            let sale: SaleRef = sale.parse().map_err(Failure::Usage)?;
            let sale = sale.among(&client, path, "no such sale")?;
            let sale = client.get(&format!("{path}/{sale}"))?.body;
            let items = sale["items"].as_array().map_or(&[][..], Vec::as_slice);
            lines(&words(items, "sku", &["name"]), typed)
        }
    };
    output::print(&text)
}

/// A word for each entry, with its description.
fn words(entries: &[Value], member: &str, about: &[&str]) -> Vec<(String, String)> {
    let shown = |entry: &Value, name: &str| output::one_line(&cell(entry, name));
    let described = |entry: &Value| {
        let about: Vec<String> = about.iter().map(|name| shown(entry, name)).collect();
        (shown(entry, member), about.join(", "))
    };
    entries.iter().map(described).collect()
}

/// The words, and `@latest` if it is being typed or saves a choice.
fn with_latest(mut words: Vec<(String, String)>, typed: &str) -> Vec<(String, String)> {
    if words.len() > 1 || typed.starts_with('@') {
        words.push((LATEST.to_owned(), "the newest".to_owned()));
    }
    words
}

/// A line for each word that begins with what was typed.
fn lines(words: &[(String, String)], typed: &str) -> String {
    let found = words.iter().filter(|(word, _)| word.starts_with(typed));
    found.map(|(word, about)| format!("{word}\t{about}\n")).collect()
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
    let value = arg.get_value_names().and_then(|names| names.first());
    match (value.map_or("", |name| name.as_str()), arg.get_id().as_str()) {
        ("SALE_ID", _) => Some(Wanted::Sale),
        ("ORDER_ID", _) => Some(Wanted::Order),
        (_, "sku") => values.first().copied().map(Wanted::Sku),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_word_names_a_sale_or_an_item_by_its_place() {
        let mut command = crate::cli::command();
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
            ("orders show", Some(Wanted::Order)),
            ("pay --user ada", Some(Wanted::Order)),
            ("pay 4c6f1a37", None),
            ("buy @latest", Some(Wanted::Sku("@latest"))),
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
        let words = words(&entries, "id", &["name"]);
        assert_eq!(lines(&words, "0190"), "0190\tWinter launch\n");
        assert_eq!(lines(&with_latest(words.clone(), ""), "").lines().count(), 3);
        assert_eq!(lines(&with_latest(words[..1].to_vec(), ""), "").lines().count(), 1);
        assert_eq!(lines(&with_latest(words, "@l"), "@l"), "@latest\tthe newest\n");
    }
}
