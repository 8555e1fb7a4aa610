//! The events of a shard that the ledger lacks.

use crate::domain::fault::Fault;
use crate::domain::ids::Sku;
use crate::domain::order::event::{Event, Position};
use crate::domain::sale::Sale;
use crate::flow::App;
use crate::stock::keys::ShardKey;
use crate::stock::operate::read_shard::{EVENTS_MAX, ShardReading};
use std::collections::BTreeMap;

/// Reads a shard, and adds up the first `events` events after this position, which the ledger lacks.
pub(in crate::flow) async fn read(
    app: &App,
    sale: &Sale,
    shard: u16,
    drained: Option<Position>,
    events: usize,
) -> Result<(ShardReading, Backlog), Fault> {
    let mut reading = app.stock.read_shard(sale, shard, events).await?;
    let mut backlog = Backlog::of(shard, drained, reading.undrained);
    backlog.add(sale, &std::mem::take(&mut reading.events));
    Ok((reading, backlog))
}

/// The events of a shard that the ledger lacks, added up page by page.
pub(in crate::flow) struct Backlog {
    pub(super) shard: u16,
    /// The ledger has the events up to here.
    drained: Position,
    /// The last event that was read.
    read_to: Position,
    /// Events of the reading that were not read yet.
    pub(super) left: i64,
    added: usize,
    pub(in crate::flow) units: BTreeMap<Sku, i64>,
    /// The first and the last event of each gap.
    pub(in crate::flow) gaps: Vec<(i64, i64)>,
    /// The first and the last event of each run of events that cannot be read.
    pub(super) unreadable: Vec<(i64, i64)>,
}

impl Backlog {
    /// A shard's backlog of `left` events. The ledger has those up to `drained`.
    pub(in crate::flow) fn of(shard: u16, drained: Option<Position>, left: i64) -> Self {
        Self {
            shard,
            drained: drained.unwrap_or(Position { epoch: 0, seq: 0 }),
            read_to: Position { epoch: 0, seq: 0 },
            left,
            added: 0,
            units: BTreeMap::new(),
            gaps: Vec::new(),
            unreadable: Vec::new(),
        }
    }

    /// Adds the rest, up to about `events_max` events in all.
    pub(in crate::flow) async fn read_on(mut self, app: &App, sale: &Sale, events_max: usize) -> Result<Self, Fault> {
        let key = ShardKey::new(sale.id, self.shard);
        while self.left > 0 && self.added < events_max {
            let page = app.stock.events_after(key, self.read_to, EVENTS_MAX).await?;
            if page.is_empty() {
                break;
            }
            self.add(sale, &page);
        }
        Ok(self)
    }

    /// Adds those events of a page that belong to the reading; later purchases are left out.
    pub(super) fn add(&mut self, sale: &Sale, page: &[Event]) {
        let left = usize::try_from(self.left).unwrap_or_default();
        for event in page.iter().take(left) {
            self.left -= 1;
            self.added += 1;
            // Events that the ledger has, and that are not trimmed yet, go first.
            let (before, position) = (self.read_to.max(self.drained), event.position);
            self.read_to = position;
            if position <= self.drained {
                continue;
            }
            if position.epoch == before.epoch && position.seq != before.seq + 1 {
                self.gaps.push((before.seq + 1, position.seq - 1));
            }
            let reserved = event.reserved.as_ref().ok();
            match reserved.and_then(|it| Some((sale.items.get(usize::from(it.item))?, it.quantity))) {
                Some((item, quantity)) => *self.units.entry(item.sku.clone()).or_default() += i64::from(quantity),
                None => match self.unreadable.last_mut() {
                    Some((_, last)) if *last + 1 == position.seq => *last = position.seq,
                    _ => self.unreadable.push((position.seq, position.seq)),
                },
            }
        }
    }
}
