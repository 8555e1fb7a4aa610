//! Computes the needs of many more purchases from the cost of one. These are sums, not measurements.

use super::cluster::OnCluster;
use super::{Cost, Many};
use crate::load::real;
use crate::numbers::{cell, grouped, ratio};
use crate::report::Table;
use crate::world::{Micros, Used};

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

/// The table and its assumptions. `upkeep` is the idle cost of a shard on one instance, for each second.
pub(super) fn grow(one: &Cost, many: &Many, on_cluster: Option<&OnCluster>, upkeep: &Micros) -> (Table, Vec<String>) {
    let micros = |cost: Option<&Cost>, part: usize| cost.and_then(|it| it.micros.get(part).copied().flatten());
    let orders = WANTED * BURST_SECONDS;
    let drain_rate = orders / DRAIN_SECONDS;
    let mut table = Table::new(
        "A million purchases a second",
        "Sums from the figures above, not a measurement; once with what a purchase costs on one Redis, once with what it \
         costs on the cluster.",
        &["what", "from one Redis", "from three primaries"],
    );
    let costs = [Some(one), on_cluster.map(|it| &it.cost)];
    let mut row = |what: &str, figure: &dyn Fn(Option<&Cost>) -> Option<f64>, digits: usize| {
        let [first, second] = costs.map(|cost| cell(figure(cost), digits));
        table.row([what.to_owned(), first, second]);
    };
    let cores =
        |cost: Option<&Cost>, part: usize, rate: f64| Some((rate * micros(cost, part)? / 1e6 / BUSY_MAX).ceil());
    let nodes = |cost: Option<&Cost>| cores(cost, 0, WANTED);
    let workers = |rate: f64| ratio(Some(rate), many.drain_a_second).map(f64::ceil);
    row("Redis primaries (one busy core each)", &nodes, 0);
    row("shards", &|cost| Some(nodes(cost)? * SHARDS_A_NODE), 0);
    row(
        "sales of at most 256 shards for that",
        &|cost| Some((nodes(cost)? * SHARDS_A_NODE / 256.0).ceil()),
        0,
    );
    row("cores of the application", &|cost| cores(cost, 1, WANTED), 0);
    let instances = |cost: Option<&Cost>| Some((cores(cost, 1, WANTED)? / INSTANCE_CORES).ceil());
    let each = |part: usize| upkeep.get(part).copied().flatten();
    row("instances of two cores for that", &instances, 0);
    row(
        "of each Redis core, what all of them take to keep its shards selling, %",
        &|cost| Some(SHARDS_A_NODE * instances(cost)? * each(0)? / 1e4),
        1,
    );
    row(
        "of each instance's cores, what it takes to keep all shards selling, %",
        &|cost| Some(nodes(cost)? * SHARDS_A_NODE * each(1)? / 1e4 / INSTANCE_CORES),
        1,
    );
    row(
        "cores of Postgres that all of them take for that",
        &|cost| Some(nodes(cost)? * SHARDS_A_NODE * instances(cost)? * each(2)? / 1e6),
        1,
    );
    let gib = |bytes: f64| bytes / f64::from(1 << 30);
    let waiting = orders - drain_rate * BURST_SECONDS;
    let kept = many.bytes_a_purchase.map(|it| it * orders);
    let most = kept.zip(many.bytes_an_event).map(|(kept, it)| kept + it * waiting);
    row(
        "Redis memory when the ten seconds end, with the events that wait for the ledger, GiB",
        &|cost| cost.and(most.map(gib)),
        1,
    );
    row(
        "Redis memory for the same orders once the ledger has them, GiB",
        &|cost| cost.and(kept.map(gib)),
        1,
    );
    row(
        "orders a second that the ledger takes in, in ten minutes",
        &|cost| cost.map(|_| drain_rate),
        0,
    );
    row(
        "drain workers for that, each with a Postgres as measured",
        &|cost| cost.and(workers(drain_rate)),
        0,
    );
    row("cores of Postgres for that", &|cost| cores(cost, 2, drain_rate), 0);
    row(
        "drain workers to keep up all the while",
        &|cost| cost.and(workers(WANTED)),
        0,
    );
    row(
        "cores of Postgres to keep up all the while",
        &|cost| cores(cost, 2, WANTED),
        0,
    );
    let mut notes = vec![format!(
        "The sums for a million a second assume: no core is busier than {:.0} %; what a purchase costs does not depend on how \
         many shards, nodes and instances there are (the next note says how far that holds, and the sums are made with either \
         cost), but for what every instance does for every shard whether anybody buys or not: it renews the shard's right to \
         sell and looks for its events. That was measured on one instance with a sale of 256 shards, grows with both, and stands \
         beside the cores, not in them; a sale's ten seconds are {} orders, which the ledger has within ten minutes, so that {} of \
         them wait for it when the ten seconds end, each with an event in Redis (bytes of it: {}); shards are spread evenly, {SHARDS_A_NODE} on each Redis; networks, TLS, replicas and the cores of the kernel's network are not in \
         them. Costs were taken where all share two processors and their caches, which makes them higher than on machines of \
         their own.",
        BUSY_MAX * 100.0,
        grouped(orders),
        grouped(waiting),
        cell(many.bytes_an_event, 0),
    )];
    notes.push(match on_cluster {
        None => "The sums were not checked against a cluster, so that nobody knows how far what they assume holds."
            .to_owned(),
        Some(it) => checked(one, it),
    });
    (table, notes)
}

/// Compares the sums with the cluster's figures.
fn checked(one: &Cost, it: &OnCluster) -> String {
    let share = |part: usize| {
        let of = |cost: &Cost| cost.micros.get(part).copied().flatten();
        ratio(of(&it.cost), of(one))
    };
    // The sums use the times of all three parts, so one dearer part is enough to refute them.
    let parts = [share(0), share(1), share(2)];
    let known = parts
        .iter()
        .zip(Used::WHO)
        .filter_map(|(share, who)| Some(((*share)?, who)));
    let dearest = known.max_by(|(one, _), (other, _)| one.total_cmp(other));
    let holds = match dearest {
        Some((share, who)) if share > DEARER_MAX => {
            let why = if who == Used::WHO[0] {
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
        _ => "Whether the sums may assume what they do is not known.".to_owned(),
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
    use crate::scale::typical;

    #[test]
    fn the_sums_follow_from_what_one_costs() {
        let cost = |rate, redis| Cost {
            a_second: Some(rate),
            micros: [Some(redis), Some(70.0), Some(35.0), None],
            reads: Some(redis / 100.0),
        };
        let one = typical(&[cost(1.0, 10.0), cost(3.0, 14.0), cost(2.0, 21.0)]);
        assert_eq!(
            (one.a_second, one.micros[0], one.micros[3]),
            (Some(2.0), Some(14.0), None)
        );
        let many = Many {
            bytes_a_purchase: Some(240.0),
            bytes_an_event: Some(300.0),
            drain_a_second: Some(10_000.0),
            ..Many::default()
        };
        let upkeep = [Some(50.0), Some(100.0), Some(10.0), None];
        let (table, notes) = grow(&one, &many, None, &upkeep);
        let find = |what: &str| table.rows.iter().find(|row| row[0].starts_with(what)).unwrap()[1].clone();
        assert_eq!(find("Redis primaries"), "20");
        assert_eq!(find("shards"), "80");
        assert_eq!(find("cores of the application"), "100");
        assert_eq!(find("instances"), "50");
        assert_eq!(find("of each Redis core"), "1.0");
        assert_eq!(find("of each instance's"), "0.4");
        assert_eq!(find("cores of Postgres that"), "0.0");
        // Ten million rows, and events for all but a sixtieth of them.
        assert_eq!(find("Redis memory when the ten seconds end"), "5.0");
        assert_eq!(find("Redis memory for the same orders once"), "2.2");
        assert!(notes[0].contains("so that 9,833,333 of them wait for it"), "{notes:?}");
        assert!(notes[0].contains("(bytes of it: 300)"), "{notes:?}");
        assert_eq!(find("drain workers for that"), "2");
        assert_eq!(find("drain workers to keep up"), "100");
        assert_eq!(find("cores of Postgres to keep up"), "50");
        assert!(notes[1].contains("not checked"));
        let on_cluster = OnCluster {
            primaries: 3,
            cost: cost(2.0, 28.0),
            busiest: Some(0.5),
        };
        let (_, notes) = grow(&one, &many, Some(&on_cluster), &upkeep);
        assert!(notes[1].contains("costs 2.00 times the Redis time"), "{notes:?}");
        assert!(
            notes[1].contains("read 0.28 times for each purchase there, and 0.14 times"),
            "{notes:?}"
        );
        assert!(
            notes[1].contains("does not hold: with 3 nodes, a purchase takes 100 % more of the Redis time. As far"),
            "{notes:?}"
        );
        let alike = OnCluster {
            cost: cost(2.0, 15.0),
            ..on_cluster
        };
        let (_, notes) = grow(&one, &many, Some(&alike), &upkeep);
        assert!(notes[1].contains("what the sums assume holds"), "{notes:?}");
        // A dearer part other than Redis also refutes the sums.
        let mut elsewhere = alike.clone();
        elsewhere.cost.micros[1] = Some(84.0);
        let (_, notes) = grow(&one, &many, Some(&elsewhere), &upkeep);
        assert!(
            notes[1].contains("does not hold: with 3 nodes, a purchase takes 20 % more of the application time. Why"),
            "{notes:?}"
        );
        elsewhere.cost.micros = [Some(14.0), None, Some(35.0), None];
        let (_, notes) = grow(&one, &many, Some(&elsewhere), &upkeep);
        assert!(notes[1].contains("is not known"), "{notes:?}");
        let (table, _) = grow(&Cost::default(), &Many::default(), None, &[None; 4]);
        assert!(
            table.rows.iter().filter(|row| row[1] == "not measured").count() >= 12,
            "{table:?}"
        );
    }
}
