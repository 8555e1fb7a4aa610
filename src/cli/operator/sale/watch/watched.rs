//! What is known of a watched sale: its units, its history, and what its samples lack.

use super::frame::Frame;
use super::history::History;
use crate::cli::shared::output;
use crate::domain::sale::SaleState;
use crate::http::admin::live_sample::LiveSample;

/// What is known of the sale so far.
#[derive(Default)]
pub(super) struct Watched {
    /// The view; `None` until the sale has been read.
    pub(super) frame: Option<Frame>,
    pub(super) history: History,
    pub(super) samples: u64,
}

impl Watched {
    /// Adds a sample; returns whether the sale is over. While Postgres is away, the units are those of Redis alone.
    pub(super) fn take(&mut self, sample: LiveSample) -> bool {
        self.samples += 1;
        self.history.note(&sample);
        let Some(frame) = &mut self.frame else { return false };
        frame.troubles = troubles(&sample);
        frame.point = sample.point;
        match (sample.sale, sample.stock) {
            (Some(sale), _) => {
                (frame.state, frame.starts_at, frame.ends_at) = (sale.state, sale.starts_at, sale.ends_at);
                (frame.items, frame.shards) = (sale.items, sale.shards);
                frame.undrained_events = sale.undrained_events;
                frame.findings = Some((sale.orders, sale.alerts));
                sale.state == SaleState::Closed && sale.undrained_events == 0
            }
            (None, Some(stock)) => {
                (frame.items, frame.shards) = (stock.items, stock.shards);
                frame.undrained_events = stock.undrained_events;
                false
            }
            (None, None) => false,
        }
    }
}

/// What a sample lacks, and why.
fn troubles(sample: &LiveSample) -> Vec<(String, String)> {
    let mut all = Vec::new();
    let mut add = |what: String, why: Option<&String>| {
        if let Some(why) = why {
            all.push((what, why.clone()));
        }
    };
    add("Redis does not answer".to_owned(), sample.health.redis.fault.as_ref());
    add(
        "Postgres does not answer".to_owned(),
        sample.health.postgres.fault.as_ref(),
    );
    let what = match (&sample.sale, &sample.stock) {
        (Some(_), _) => None,
        (None, Some(_)) => Some("the units are from Redis alone, the orders are old"),
        (None, None) => Some("units and orders are old"),
    };
    if let Some(what) = what {
        let unknown = "no reason given".to_owned();
        add(what.to_owned(), Some(sample.fault.as_ref().unwrap_or(&unknown)));
    }
    add(
        "refusals and times are of one instance alone".to_owned(),
        sample.others_fault.as_ref(),
    );
    for instance in &sample.instances {
        let why = instance.silent_seconds.map(|silent| format!("for {silent:.0} s"));
        add(format!("{} is silent", output::one_line(&instance.name)), why.as_ref());
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::shared::answer::{self, ShownSale};
    use crate::cli::shared::mock_server::live_sample;
    use serde_json::{Value, json};

    #[test]
    fn while_postgres_is_away_the_units_are_those_of_redis() {
        let sale: ShownSale = answer::read(&crate::http::admin::sales::example("open")).unwrap();
        let mut watched = Watched {
            frame: Some(Frame::of(sale)),
            ..Watched::default()
        };
        let mut take = |changes: &[(&str, Value)]| {
            let is_over = watched.take(answer::read(&live_sample(changes)).unwrap());
            let frame = watched.frame.as_ref().unwrap();
            (is_over, frame.line(), frame.warnings())
        };
        let (state, undrained) = (("/sale/state", json!("closed")), "/sale/undrained_events");
        let (is_over, line, _) = take(&[state.clone(), (undrained, json!(1))]);
        assert!(!is_over && !line.contains("TROUBLE"), "{line}");
        let stock = json!({"undrained_events": 0, "shards": [],
            "items": [{"sku": "a", "total": 9, "available": 4, "held": 0, "sold": 0, "in_transit": 0}]});
        // The state in Postgres is unknown, so the sale is not over.
        let (is_over, line, _) = take(&[
            ("/sale", Value::Null),
            ("/stock", stock),
            ("/fault", json!("no answer in time")),
            ("/health/postgres/fault", json!("refused")),
            ("/others_fault", json!("the same")),
            (
                "/instances",
                json!([{"name": "a:1", "silent_seconds": null}, {"name": "b:1", "silent_seconds": 4.2}]),
            ),
        ]);
        assert!(!is_over);
        for part in [
            "closed undrained 0",
            "available 4",
            "orders reserved 30",
            "| TROUBLE Postgres does not answer | TROUBLE the units are from Redis alone, the orders are old",
            "| TROUBLE refusals and times are of one instance alone | TROUBLE b:1 is silent",
        ] {
            assert!(line.contains(part), "no {part:?} in {line}");
        }
        assert!(!line.contains("a:1"), "{line}");
        let (is_over, _, warnings) = take(&[("/sale", Value::Null), ("/fault", json!("nothing answers"))]);
        assert!(!is_over);
        let expected = "TROUBLE units and orders are old: nothing answers";
        assert!(warnings.iter().any(|it| it == expected), "{warnings:?}");
        assert!(take(&[state, (undrained, json!(0))]).0);
    }
}
