//! `flashsale rebuild`: rebuilds a sale's stock in Redis from Postgres.

use super::client::{Connection, sale_path};
use super::output::{self, Table};
use super::progress::{Progress, Stage};
use super::{Failure, answer, sale};
use serde::Deserialize;
use serde_json::Value;
use std::collections::BTreeMap;
use std::time::Duration;
use uuid::Uuid;

/// Enough for a hundred million orders: a million takes some 15 seconds.
const REBUILD_LIMIT: Duration = Duration::from_secs(1800);

/// Arguments of `rebuild`.
#[derive(clap::Args)]
#[command(after_help = "\
The server rebuilds a shard that lost data by itself. This command rebuilds all shards on demand, even while the sale
sells. Until the rebuild is done, purchases of the sale are answered with 503. Needs FLASHSALE_ADMIN_KEY.

Examples:
  flashsale rebuild 3f2c… --dry-run
  flashsale rebuild 3f2c… && flashsale audit 3f2c…")]
pub struct Args {
    #[command(flatten)]
    connection: Connection,
    /// Print the server's answer as JSON.
    #[arg(long)]
    json: bool,
    /// Change nothing; print what a rebuild would change.
    #[arg(long)]
    dry_run: bool,
    /// The sale's id.
    #[arg(value_parser = sale::sale_id)]
    sale_id: Uuid,
}

pub fn run(args: &Args) -> Result<(), Failure> {
    let operator = args.connection.operator_within(REBUILD_LIMIT)?;
    if args.dry_run {
        let path = sale_path(&args.sale_id, "/rebuild?dry_run=true");
        let progress = Progress::of("comparing both sides");
        let answer = operator.post(&path, &[], "");
        drop(progress);
        let body = answer?.body;
        return match args.json {
            true => output::print_json(&body),
            false => output::print(&changes(&body)?),
        };
    }
    let looking = args.connection.operator()?;
    let stats = sale_path(&args.sale_id, "/stats");
    // A rebuild needs no stats. Without them, the progress line has no counts.
    let before = looking.get(&stats).map(|answer| answer.body).unwrap_or_default();
    let progress = Progress::looking("rebuilding the sale's stock", move || {
        stage(&before, &looking.get(&stats).ok()?.body)
    });
    let answer = operator.post(&sale_path(&args.sale_id, "/rebuild"), &[], "");
    drop(progress);
    let body = answer?.body;
    if args.json {
        return output::print_json(&body);
    }
    let number = |name: &str| body.get(name).and_then(Value::as_i64).unwrap_or(0);
    output::print(&format!(
        "rebuilt {} shards with {} orders; {} orders that Redis had accepted are lost\n",
        number("shards"),
        number("orders"),
        number("lost_orders")
    ))
}

/// A table of the shards and items that a rebuild would change, with their units before and after.
fn changes(body: &Value) -> Result<String, Failure> {
    let preview: Preview = answer::read(body)?;
    let mut table = Table::new(["SHARD", "SKU", "AVAILABLE", "HELD", "SOLD"]);
    let mut rows = 0;
    for shard in &preview.shards {
        for item in shard
            .items
            .iter()
            .filter(|item| item.before.as_ref() != Some(&item.after))
        {
            let cell = |of: fn(&Units) -> i64| {
                let before = item
                    .before
                    .as_ref()
                    .map_or_else(|| "lost".to_owned(), |it| of(it).to_string());
                format!("{before} -> {}", of(&item.after))
            };
            table.row([
                shard.shard.to_string(),
                item.sku.clone(),
                cell(|it| it.available),
                cell(|it| it.held),
                cell(|it| it.sold),
            ]);
            rows += 1;
        }
    }
    let events: i64 = preview.shards.iter().map(|shard| shard.undrained_events).sum();
    let first = match rows {
        0 => "a rebuild would change no units\n".to_owned(),
        _ => table.render(),
    };
    Ok(format!(
        "{first}nothing was changed; a rebuild would first drain {events} events into Postgres\n"
    ))
}

/// The server's reply to a dry run.
#[derive(Deserialize)]
struct Preview {
    shards: Vec<ShardPreview>,
}

#[derive(Deserialize)]
struct ShardPreview {
    shard: u16,
    undrained_events: i64,
    items: Vec<ItemPreview>,
}

#[derive(Deserialize)]
struct ItemPreview {
    sku: String,
    before: Option<Units>,
    after: Units,
}

#[derive(Deserialize, PartialEq, Eq)]
struct Units {
    available: i64,
    held: i64,
    sold: i64,
}

/// The generation of each shard.
fn epochs(stats: &Value) -> BTreeMap<u64, i64> {
    let shards = stats.get("shards").and_then(Value::as_array).into_iter().flatten();
    let epochs = shards.filter_map(|shard| Some((shard.get("shard")?.as_u64()?, shard.get("epoch")?.as_i64()?)));
    epochs.collect()
}

fn undrained(stats: &Value) -> u64 {
    stats.get("undrained_events").and_then(Value::as_u64).unwrap_or(0)
}

/// How far a rebuild is, from the stats `before` it and the stats now. The server first drains the shards' events.
/// Then it starts each shard with a new epoch. Then it restores the orders; the stats show nothing of that last step.
fn stage(before: &Value, stats: &Value) -> Option<Stage> {
    let (was, now) = (epochs(before), epochs(stats));
    if was.is_empty() || now.is_empty() {
        return None;
    }
    let is_begun = |(shard, epoch): &(&u64, &i64)| was.get(shard).is_some_and(|was| *epoch > was);
    let begun = now.iter().filter(is_begun).count();
    let (left, events) = (undrained(stats), undrained(before).max(undrained(stats)));
    match (begun, left) {
        (0, 0) => None,
        (0, left) => Some(Stage {
            done: events - left,
            of: events,
            what: "events taken in",
        }),
        (begun, _) => Some(Stage {
            done: u64::try_from(begun).unwrap_or(u64::MAX),
            of: u64::try_from(now.len()).unwrap_or(u64::MAX),
            what: "shards begun anew",
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn how_far_a_rebuilding_is_follows_from_the_shards_epochs() {
        let stats = |epochs: [i64; 3], left: u64| {
            let shards: Vec<Value> = (0..)
                .zip(epochs)
                .map(|(shard, epoch)| json!({"shard": shard, "epoch": epoch}))
                .collect();
            json!({"shards": shards, "undrained_events": left})
        };
        let before = stats([1, 4, 2], 9);
        let said = |now: [i64; 3], left: u64| stage(&before, &stats(now, left)).map(|it| (it.done, it.of, it.what));
        assert_eq!(said([1, 4, 2], 9), Some((0, 9, "events taken in")));
        assert_eq!(said([1, 4, 2], 2), Some((7, 9, "events taken in")));
        // Events arrived between the first stats and the moment the shards were halted.
        assert_eq!(said([1, 4, 2], 12), Some((0, 12, "events taken in")));
        assert_eq!(said([1, 4, 2], 0), None);
        assert_eq!(said([2, 4, 2], 1), Some((1, 3, "shards begun anew")));
        assert_eq!(said([2, 5, 3], 0), Some((3, 3, "shards begun anew")));
        // Without epochs there is no stage.
        assert_eq!(stage(&Value::Null, &stats([2, 5, 3], 0)), None);
        assert_eq!(stage(&before, &json!({})), None);
    }
}
