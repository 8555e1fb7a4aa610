//! `flashsale rebuild`: rebuilds a sale's stock in Redis from Postgres.

use super::sale::SaleArg;
use crate::cli::Failure;
use crate::cli::shared::answer::{read, show};
use crate::cli::shared::client::{ApiArgs, sale_path};
use crate::cli::shared::output::Table;
use crate::cli::shared::progress::{Progress, WorkStage};
use crate::domain::operator::report::{RebuildPreview, Rebuilt, Stats, Units};
use std::collections::BTreeMap;
use std::time::Duration;

/// The limit of the request: a little longer than the server may take.
const REBUILD_LIMIT: Duration = Duration::from_secs(1810);

#[derive(clap::Args)]
#[command(after_help = "\
The server rebuilds a shard that lost data by itself. This command rebuilds all shards on demand, even while the sale
sells. Until the rebuild is done, purchases of the sale are answered with 503. Needs FLASHSALE_ADMIN_KEY.

Examples:
  flashsale rebuild 3f2c… --dry-run
  flashsale rebuild 3f2c… && flashsale audit 3f2c…")]
pub struct Args {
    #[command(flatten)]
    api: ApiArgs,
    /// Change nothing; print what a rebuild would change.
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    sale: SaleArg,
}

pub fn run(args: &Args) -> Result<(), Failure> {
    let operator = args.api.operator_within(REBUILD_LIMIT)?;
    let sale = args.sale.id.whole(&operator)?;
    if args.dry_run {
        let progress = Progress::of("comparing both sides");
        let answer = operator.post(&sale_path(sale, "/rebuild?dry_run=true"), "");
        drop(progress);
        return show(&answer?.body, args.api.form(), |preview: RebuildPreview| {
            changes(&preview)
        });
    }
    let (client, stats) = (args.api.operator()?, sale_path(sale, "/stats"));
    let read_stats = move || read::<Stats>(&client.get(&stats).ok()?.body).ok();
    // A rebuild needs no stats. Without them, the progress line has no counts.
    let before = read_stats();
    let progress = Progress::reading("rebuilding the sale's stock", move || {
        stage(before.as_ref()?, &read_stats()?)
    });
    let answer = operator.post(&sale_path(sale, "/rebuild"), "");
    drop(progress);
    show(&answer?.body, args.api.form(), |rebuilt: Rebuilt| {
        format!(
            "rebuilt {} shards with {} orders; {} orders that Redis had accepted are lost\n",
            rebuilt.shards, rebuilt.orders, rebuilt.lost_orders
        )
    })
}

/// A table of the shards and items that a rebuild would change, with their units before and after.
fn changes(preview: &RebuildPreview) -> String {
    let mut table = Table::new(["SHARD", "SKU", "AVAILABLE", "HELD", "SOLD"]);
    let mut is_changed = false;
    for shard in &preview.shards {
        for item in shard.items.iter().filter(|item| item.before != Some(item.after)) {
            let cell = |of: fn(&Units) -> i64| {
                let before = item.before.as_ref().map_or("lost".to_owned(), |it| of(it).to_string());
                format!("{before} -> {}", of(&item.after))
            };
            table.row([
                shard.shard.to_string(),
                item.sku.to_string(),
                cell(|it| it.available),
                cell(|it| it.held),
                cell(|it| it.sold),
            ]);
            is_changed = true;
        }
    }
    let events: i64 = preview.shards.iter().map(|shard| shard.undrained_events).sum();
    let first = if is_changed {
        table.render()
    } else {
        "a rebuild would change no units\n".to_owned()
    };
    format!("{first}nothing was changed; a rebuild would first drain {events} events into Postgres\n")
}

/// How far a rebuild is, from the stats `before` it and the stats `now`. The server first drains the shards' events.
/// Then it starts each shard with a new epoch. Then it restores the orders; the stats show nothing of that last step.
fn stage(before: &Stats, now: &Stats) -> Option<WorkStage> {
    let was: BTreeMap<u16, i64> = before.shards.iter().map(|it| (it.shard, it.epoch)).collect();
    let is_begun = |epoch: i64, shard| was.get(shard).is_some_and(|was| epoch > *was);
    let begun = now.shards.iter().filter(|it| is_begun(it.epoch, &it.shard)).count();
    let (left, events) = (now.undrained_events, before.undrained_events.max(now.undrained_events));
    let (done, of, what) = match (begun, left) {
        (0, 0) => return None,
        (0, left) => (u64::try_from(events - left), u64::try_from(events), "events drained"),
        (begun, _) => (u64::try_from(begun), u64::try_from(now.shards.len()), "shards begun"),
    };
    let (done, of) = (done.ok()?, of.ok()?);
    Some(WorkStage { done, of, what })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::ids::SaleId;
    use crate::domain::operator::report::{Alerts, OrderCounts, ShardStats};
    use crate::domain::sale::SaleState;

    fn stats(epochs: [i64; 3], undrained_events: i64) -> Stats {
        let shards = (0..).zip(epochs).map(|(shard, epoch)| ShardStats {
            shard,
            epoch,
            available: BTreeMap::new(),
            held: BTreeMap::new(),
            sold: BTreeMap::new(),
            sent: BTreeMap::new(),
            received: BTreeMap::new(),
            in_transit: BTreeMap::new(),
            undrained_events: 0,
        });
        Stats {
            sale_id: SaleId(uuid::Uuid::nil()),
            state: SaleState::Open,
            server_time: chrono::DateTime::default(),
            items: Vec::new(),
            shards: shards.collect(),
            undrained_events,
            orders: OrderCounts::default(),
            waiting_room: None,
            alerts: Alerts::default(),
            refusal_counts: BTreeMap::new(),
            would_stop: BTreeMap::new(),
        }
    }

    #[test]
    fn the_stage_of_a_rebuild_follows_from_the_shards_epochs() {
        let before = stats([1, 4, 2], 9);
        for (epochs, left, expected) in [
            ([1, 4, 2], 9, Some((0, 9, "events drained"))),
            ([1, 4, 2], 2, Some((7, 9, "events drained"))),
            // Events arrived between the first stats and the moment the shards were halted.
            ([1, 4, 2], 12, Some((0, 12, "events drained"))),
            ([1, 4, 2], 0, None),
            ([2, 4, 2], 1, Some((1, 3, "shards begun"))),
            ([2, 5, 3], 0, Some((3, 3, "shards begun"))),
        ] {
            let said = stage(&before, &stats(epochs, left)).map(|it| (it.done, it.of, it.what));
            assert_eq!(said, expected, "{epochs:?}, {left}");
        }
    }
}
