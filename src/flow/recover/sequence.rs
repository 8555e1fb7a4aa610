//! Sequence: which of a stream's next events the drain may store.
//!
//! A number out of sequence shows a gap only if a script wrote its entry. Any other entry becomes a dead letter. A crash
//! leaves the events, and the next drain finds the same.

use crate::bugs;
use crate::domain::fault::Fault;
use crate::domain::order::event::{Event, Position, Reserved, Unreadable};
use crate::domain::sale::Sale;
use crate::flow::App;
use crate::flow::recover::permits::{Finding, mark_unverified};
use crate::stock::keys::ShardKey;

/// With this bug the ledger loses events by itself, and no process notices.
pub(super) const UNSEEN: &str = "the drain trims before it commits";

/// Where these events, in order, depart from the sequence of numbers after a position. `epoch` is the ledger's. The
/// drain stores events of a newer epoch only from the position at which a recovery has put it.
fn out_of_sequence(before: Position, epoch: i64, events: &[Event]) -> Vec<usize> {
    let mut last = before;
    let mut found = Vec::new();
    for (at, event) in events.iter().enumerate().filter(|(_, event)| event.position > before) {
        let position = event.position;
        let is_known = position.epoch == last.epoch || position.epoch == epoch;
        if !is_known || position.seq != last.drained_of(position.epoch).saturating_add(1) {
            found.push(at);
        }
        last = position;
    }
    found
}

/// How many of these events the drain may store after a position: those before a gap. Foreign entries among them become
/// dead letters. The shard is marked unverified because of either. Fails with `Unavailable` when the row of an event's
/// shopper, or the ledger, cannot be read.
pub(in crate::flow) async fn follow(
    app: &App,
    sale: &Sale,
    key: ShardKey,
    (before, epoch): (Position, i64),
    events: &mut [Event],
) -> Result<usize, Fault> {
    if bugs::has(UNSEEN) {
        return Ok(events.len());
    }
    for at in out_of_sequence(before, epoch, events) {
        let Some(event) = events.get_mut(at) else { continue };
        if is_ours(app, sale, key, event).await? {
            mark_unverified(app, key, epoch, Finding::LostCommits);
            return Ok(at);
        }
        mark_unverified(app, key, epoch, Finding::ForeignEntry);
        if event.reserved.is_ok() {
            event.reserved = Err(Unreadable::Damaged(
                "a copy of an event, which no script wrote".to_owned(),
            ));
        }
    }
    Ok(events.len())
}

/// Whether a script of this shard wrote an entry that is out of sequence. The shopper's row has the position of each of
/// its orders. If neither the row nor the ledger knows the order, the entry counts as ours, so that no order is lost.
pub(super) async fn is_ours(app: &App, sale: &Sale, key: ShardKey, event: &Event) -> Result<bool, Fault> {
    let Ok(Reserved { order, user, .. }) = &event.reserved else {
        return Ok(false);
    };
    if order.sale_number() != sale.number || sale.home_shard(user) != key.shard {
        return Ok(false);
    }
    let rows = match app.stock.read_buyers(key, &[user]).await {
        // The row is damaged.
        Err(Fault::Incomplete(_) | Fault::Bug(_)) => Vec::new(),
        rows => rows?,
    };
    let noted = rows.iter().flat_map(|row| &row.orders).find(|(id, _)| id == order);
    if let Some(noted) = noted.and_then(|(_, order)| order.event) {
        return Ok(noted == event.position);
    }
    let accepted = app.ledger.accepted(&[*order]).await?;
    Ok(accepted.iter().all(|it| it.event == event.position))
}

/// The first of these events that a newer version of the program has written. An entry out of sequence is a foreign
/// one, even if it claims a newer version.
pub(in crate::flow) fn first_newer(before: Position, epoch: i64, events: &[Event]) -> Option<usize> {
    let mut last = before;
    for (at, event) in events.iter().enumerate() {
        let is_next = event.position.seq == last.drained_of(epoch).saturating_add(1);
        if event.newer().is_some() && event.position.is_of(epoch) && is_next {
            return Some(at);
        }
        last = event.position;
    }
    None
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub const fn at(epoch: i64, seq: i64) -> Position {
        Position { epoch, seq }
    }

    pub fn event(position: Position, is_ours: bool) -> Event {
        let reserved = Reserved {
            order: crate::domain::ids::OrderId(uuid::Uuid::nil()),
            user: "ada".parse().unwrap(),
            key: "k".parse().unwrap(),
            item: 0,
            quantity: 1,
            created_at: 1,
        };
        let damaged = || Unreadable::Damaged(String::new());
        Event::untraced(position, Vec::new(), is_ours.then_some(reserved).ok_or_else(damaged))
    }

    #[test]
    fn an_event_departs_from_the_sequence_by_its_number_or_by_an_epoch_that_the_ledger_does_not_list() {
        type Case<'a> = (Position, i64, &'a [(i64, i64)], &'a [usize]);
        let cases: [Case<'_>; 10] = [
            (at(2, 3), 2, &[(2, 4), (2, 5)], &[]),
            (at(2, 4), 2, &[(2, 3), (2, 4), (2, 5)], &[]),
            (at(1, 9), 2, &[(2, 1), (2, 2)], &[]),
            (at(2, 3), 2, &[(2, 5)], &[0]),
            (at(2, 3), 2, &[(2, 4), (2, 6)], &[1]),
            (at(2, 3), 2, &[(2, 4), (2, 900), (2, 901)], &[1]),
            (at(2, 3), 2, &[(2, i64::MAX)], &[0]),
            (at(2, 3), 2, &[(2, 4), (99, 1)], &[1]),
            // The ledger has lost a rebuild; then a recovery has moved its position.
            (at(1, 9), 1, &[(2, 1), (2, 2)], &[0]),
            (at(2, 0), 1, &[(2, 1), (2, 2)], &[]),
        ];
        for (before, epoch, them, expected) in cases {
            let events: Vec<Event> = them.iter().map(|(of, seq)| event(at(*of, *seq), true)).collect();
            assert_eq!(
                out_of_sequence(before, epoch, &events),
                expected,
                "{before:?} {epoch} {them:?}"
            );
        }
    }
}
