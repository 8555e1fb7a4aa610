//! Computes the needs of many more purchases from the cost of one. These are sums, not measurements.

use super::cluster::OnCluster;
use super::holds::Many;
use super::stage::Cost;
use crate::cost::{Micros, WHO, part};
use crate::load::real;
use crate::numbers::{cell, grouped, ratio};
use crate::report::Table;

/// Purchases a second that the sums assume.
const WANTED: f64 = 1_000_000.0;
/// The seconds that this rate lasts in a sale; the next constant is the seconds to drain all its orders.
const BURST_SECONDS: f64 = 10.0;
const DRAIN_SECONDS: f64 = 600.0;
/// The highest planned load of a processor.
const BUSY_MAX: f64 = 0.7;
/// Shards of a sale on each Redis, so that shards can move between them.
const SHARDS_A_NODE: f64 = 4.0;
/// The highest ratio of the cost on more nodes to the cost on one that still counts as equal.
const DEARER_MAX: f64 = 1.1;
const INSTANCE_CORES: f64 = 2.0;
/// Orders of a sale; the next constants are the rate of their drain, and the orders that wait for it when the last is
/// sold.
const ORDERS: f64 = WANTED * BURST_SECONDS;
const DRAIN_RATE: f64 = ORDERS / DRAIN_SECONDS;
const WAITING: f64 = ORDERS - DRAIN_RATE * BURST_SECONDS;

/// The cost of a purchase in one place, and the figures that all places share.
struct Sums<'a> {
    cost: Option<&'a Cost>,
    many: &'a Many,
    upkeep: &'a Micros,
}

impl Sums<'_> {
    /// Cores for this rate of purchases.
    fn cores(&self, who: usize, rate: f64) -> Option<f64> {
        Some((rate * part(&self.cost?.micros, who)? / 1e6 / BUSY_MAX).ceil())
    }

    /// Redis primaries; each has one core.
    fn nodes(&self) -> Option<f64> {
        self.cores(0, WANTED)
    }

    fn shards(&self) -> Option<f64> {
        Some(self.nodes()? * SHARDS_A_NODE)
    }

    fn instances(&self) -> Option<f64> {
        Some((self.cores(1, WANTED)? / INSTANCE_CORES).ceil())
    }

    /// Cores that one instance keeps busy for one idle shard.
    fn upkeep(&self, who: usize) -> Option<f64> {
        Some(part(self.upkeep, who)? / 1e6)
    }

    fn workers(&self, rate: f64) -> Option<f64> {
        self.cost
            .and(ratio(Some(rate), self.many.drain_a_second).map(f64::ceil))
    }

    /// Redis memory in GiB, with so many events that wait for the ledger.
    fn memory(&self, waiting: f64) -> Option<f64> {
        self.cost?;
        let mut bytes = self.many.bytes_a_purchase? * ORDERS;
        if waiting > 0.0 {
            bytes += self.many.bytes_an_event? * waiting;
        }
        Some(bytes / f64::from(1 << 30))
    }
}

/// The table and its assumptions. `upkeep` is the idle cost of a shard on one instance, for each second.
pub(super) fn grow(one: &Cost, many: &Many, on_cluster: Option<&OnCluster>, upkeep: &Micros) -> (Table, Vec<String>) {
    let mut table = Table::new(
        "A million purchases a second",
        "Sums from the figures above, not a measurement; once with what a purchase costs on one Redis, once with what it \
         costs on the cluster.",
        &["what", "from one Redis", "from three primaries"],
    );
    let places = [Some(one), on_cluster.map(|it| &it.cost)].map(|cost| Sums { cost, many, upkeep });
    let mut row = |what: &str, digits: usize, of: fn(&Sums<'_>) -> Option<f64>| {
        let [first, second] = places.each_ref().map(|it| cell(of(it), digits));
        table.row([what.to_owned(), first, second]);
    };
    row("Redis primaries (one busy core each)", 0, |it| it.nodes());
    row("shards", 0, |it| it.shards());
    row("sales of at most 256 shards for that", 0, |it| {
        Some((it.shards()? / 256.0).ceil())
    });
    row("cores of the application", 0, |it| it.cores(1, WANTED));
    row("instances of two cores for that", 0, |it| it.instances());
    row(
        "of each Redis core, what all of them take to keep its shards selling, %",
        1,
        |it| Some(SHARDS_A_NODE * it.instances()? * it.upkeep(0)? * 100.0),
    );
    row(
        "of each instance's cores, what it takes to keep all shards selling, %",
        1,
        |it| Some(it.shards()? * it.upkeep(1)? * 100.0 / INSTANCE_CORES),
    );
    row("cores of Postgres that all of them take for that", 1, |it| {
        Some(it.shards()? * it.instances()? * it.upkeep(2)?)
    });
    let waiting = "Redis memory when the ten seconds end, with the events that wait for the ledger, GiB";
    row(waiting, 1, |it| it.memory(WAITING));
    let stored = "Redis memory for the same orders once the ledger has them, GiB";
    row(stored, 1, |it| it.memory(0.0));
    let drained = "orders a second that the ledger takes in, in ten minutes";
    row(drained, 0, |it| it.cost.map(|_| DRAIN_RATE));
    let workers = "drain workers for that, each with a Postgres as measured";
    row(workers, 0, |it| it.workers(DRAIN_RATE));
    row("cores of Postgres for that", 0, |it| it.cores(2, DRAIN_RATE));
    row("drain workers to keep up all the while", 0, |it| it.workers(WANTED));
    row("cores of Postgres to keep up all the while", 0, |it| {
        it.cores(2, WANTED)
    });
    let check = on_cluster.map_or_else(
        || {
            "The sums were not checked against a cluster, so that nobody knows how far what they assume holds."
                .to_owned()
        },
        |it| checked(one, it),
    );
    (table, vec![assumptions(many), check])
}

fn assumptions(many: &Many) -> String {
    format!(
        "The sums for a million a second assume: no core is busier than {:.0} %; what a purchase costs does not depend on how \
         many shards, nodes and instances there are (the next note says how far that holds, and the sums are made with either \
         cost), but for what every instance does for every shard whether anybody buys or not: it renews the shard's right to \
         sell and looks for its events. That was measured on one instance with a sale of 256 shards, grows with both, and stands \
         beside the cores, not in them; a sale's ten seconds are {} orders, which the ledger has within ten minutes, so that {} of \
         them wait for it when the ten seconds end, each with an event in Redis (bytes of it: {}); shards are spread evenly, {SHARDS_A_NODE} on each Redis; networks, TLS, replicas and the cores of the kernel's network are not in \
         them. Costs were taken where all share two processors and their caches, which makes them higher than on machines of \
         their own.",
        BUSY_MAX * 100.0,
        grouped(ORDERS),
        grouped(WAITING),
        cell(many.bytes_an_event, 0),
    )
}

/// Compares the sums with the cluster's figures.
fn checked(one: &Cost, it: &OnCluster) -> String {
    let share = |who: usize| ratio(part(&it.cost.micros, who), part(&one.micros, who));
    // The sums use the times of all three parts, so one dearer part is enough to refute them.
    let parts = [share(0), share(1), share(2)];
    let known = parts.iter().zip(WHO).filter_map(|(share, who)| Some(((*share)?, who)));
    let dearest = known.max_by(|(one, _), (other, _)| one.total_cmp(other));
    let holds = match dearest {
        Some((share, who)) if share > DEARER_MAX => {
            let why = if who == WHO[0] {
                "As far as is known, because the \
                 same purchases come in more and smaller pipelines: what a server does once for all commands that it finds on a \
                 connection (it wakes up, reads, answers, writes its file and waits for the disk) is shared by fewer. More load \
                 on each node makes its pipelines longer again; that was not measured, nor more nodes."
            } else {
                "Why, and what more nodes make of it, was not measured."
            };
            format!(
                "So what the sums assume does not hold: with {} nodes, a purchase takes {:.0} % more of the {who} time. {why}",
                it.primaries,
                (share - 1.0) * 100.0,
            )
        }
        Some(_) if parts.iter().all(Option::is_some) => "So far, what the sums assume holds.".to_owned(),
        Some(_) | None => "Whether the sums may assume what they do is not known.".to_owned(),
    };
    format!(
        "Checked against {} primaries on this machine, with as many shards and as far as its cores go: a purchase there costs {} \
         times the Redis time, {} times the application time and {} times the Postgres time of one on a single Redis; {} times \
         the purchases a second with the same processors. Redis read {} times for each purchase there, and {} times for each on a \
         single one. {holds} The busiest primary had {} of what an even spread gives it.",
        it.primaries,
        cell(share(0), 2),
        cell(share(1), 2),
        cell(share(2), 2),
        cell(ratio(it.cost.a_second, one.a_second), 2),
        cell(it.cost.reads, 2),
        cell(one.reads, 2),
        cell(it.busiest.map(|share| share * real(it.primaries)), 2),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    const UPKEEP: Micros = [Some(50.0), Some(100.0), Some(10.0), None];

    fn cost(rate: f64, redis: f64) -> Cost {
        Cost {
            a_second: Some(rate),
            micros: [Some(redis), Some(70.0), Some(35.0), None],
            reads: Some(redis / 100.0),
        }
    }

    fn many() -> Many {
        Many {
            bytes_a_purchase: Some(240.0),
            bytes_an_event: Some(300.0),
            drain_a_second: Some(10_000.0),
            ..Many::default()
        }
    }

    #[test]
    fn the_sums_follow_from_what_one_costs() {
        let one = Cost::typical(&[cost(1.0, 10.0), cost(3.0, 14.0), cost(2.0, 21.0)]);
        assert_eq!(
            (one.a_second, one.micros[0], one.micros[3]),
            (Some(2.0), Some(14.0), None)
        );
        let (table, notes) = grow(&one, &many(), None, &UPKEEP);
        for (what, wanted) in [
            ("Redis primaries", "20"),
            ("shards", "80"),
            ("cores of the application", "100"),
            ("instances", "50"),
            ("of each Redis core", "1.0"),
            ("of each instance's", "0.4"),
            ("cores of Postgres that", "0.0"),
            // Ten million rows, and events for all but a sixtieth of them.
            ("Redis memory when the ten seconds end", "5.0"),
            ("Redis memory for the same orders once", "2.2"),
            ("drain workers for that", "2"),
            ("drain workers to keep up", "100"),
            ("cores of Postgres to keep up", "50"),
        ] {
            let row = table.rows.iter().find(|row| row[0].starts_with(what)).unwrap();
            assert_eq!(row[1], wanted, "{what}");
        }
        assert!(notes[0].contains("so that 9,833,333 of them wait for it"), "{notes:?}");
        assert!(notes[0].contains("(bytes of it: 300)"), "{notes:?}");
        assert!(notes[1].contains("not checked"));
        let (table, _) = grow(&Cost::default(), &Many::default(), None, &[None; 4]);
        let missing = table.rows.iter().filter(|row| row[1] == "not measured").count();
        assert!(missing >= 12, "{table:?}");
    }

    #[test]
    fn a_dearer_part_on_the_cluster_refutes_the_sums() {
        let check = |micros: Micros| {
            let on_cluster = OnCluster {
                primaries: 3,
                cost: Cost {
                    micros,
                    reads: Some(0.28),
                    ..cost(2.0, 0.0)
                },
                busiest: Some(0.5),
            };
            let (_, notes) = grow(&cost(2.0, 14.0), &many(), Some(&on_cluster), &UPKEEP);
            notes[1].clone()
        };
        for (micros, wanted) in [
            (
                [Some(28.0), Some(70.0), Some(35.0), None],
                "costs 2.00 times the Redis time",
            ),
            (
                [Some(28.0), Some(70.0), Some(35.0), None],
                "read 0.28 times for each purchase there, and 0.14 times",
            ),
            (
                [Some(28.0), Some(70.0), Some(35.0), None],
                "does not hold: with 3 nodes, a purchase takes 100 % more of the Redis time. As far",
            ),
            ([Some(15.0), Some(70.0), Some(35.0), None], "what the sums assume holds"),
            (
                [Some(15.0), Some(84.0), Some(35.0), None],
                "does not hold: with 3 nodes, a purchase takes 20 % more of the application time. Why",
            ),
            ([Some(14.0), None, Some(35.0), None], "is not known"),
        ] {
            let note = check(micros);
            assert!(note.contains(wanted), "{note}");
        }
    }
}
