//! Dead letters: events and messages that one side could not take from the other. Operators list them, and note that
//! one is dealt with.
//!
//! One statement writes the note, once. A crash leaves it written or not, and the same request again finds which.

use crate::domain::fault::Fault;
use crate::domain::ids::SaleId;
use crate::domain::order::dead_letter::{DeadLetter, DeadLetterEvent, DeadLetterId, Note, RefusedMessage, Settled};
use crate::domain::sale::Sale;
use crate::domain::time::{Millis, from_millis};
use crate::flow::{App, whole};
use crate::ledger::settle::dead_letter::PutAside;
use crate::stock::record::decode_event;

/// Bytes that are shown of an event that cannot be read.
const BYTES_MAX: usize = 1000;
/// The year 10000. Later times have no form in RFC 3339, so an event with one counts as unreadable.
const TIMES_END: Millis = 253_402_300_800_000;

/// Up to `max` events of a sale that could not be stored, after the one given. `settled` selects those that are
/// dealt with, or the others. `None` when there is no such sale.
pub async fn dead_letters(
    app: &App,
    sale: SaleId,
    settled: Option<bool>,
    after: Option<DeadLetterId>,
    max: usize,
) -> Result<Option<Vec<DeadLetter>>, Fault> {
    let Some(sale) = app.ledger.sale(sale).await? else {
        return Ok(None);
    };
    let letters = app.ledger.dead_letters(sale.id, settled, after, whole(max)).await?;
    let letters = letters.into_iter().map(|it| read(&sale, it));
    letters.collect::<Result<_, Fault>>().map(Some)
}

/// Notes that an event which could not be stored is dealt with. Repeating the note is no error.
pub async fn settle(app: &App, sale: SaleId, id: DeadLetterId, note: &Note) -> Result<Settled, Fault> {
    let Some(sale) = app.ledger.sale(sale).await? else {
        return Ok(Settled::NoSale);
    };
    let letter = app.ledger.settle_dead_letter(sale.id, id, note).await?;
    Ok(match letter.map(|it| read(&sale, it)).transpose()? {
        None => Settled::NoLetter,
        Some(DeadLetter { note: Some(other), .. }) if other != note.as_str() => Settled::NotedAs(other),
        Some(letter) => Settled::Noted(letter),
    })
}

/// Up to `max` decisions that shards of a sale refuse, oldest first, after the one with this number. `None` when there
/// is no such sale.
pub async fn refused(
    app: &App,
    sale: SaleId,
    after: Option<i64>,
    max: usize,
) -> Result<Option<Vec<RefusedMessage>>, Fault> {
    if app.ledger.sale(sale).await?.is_none() {
        return Ok(None);
    }
    Ok(Some(app.ledger.refused_messages(sale, after, whole(max)).await?))
}

/// A dead letter, with what can be read of its event.
fn read(sale: &Sale, letter: PutAside) -> Result<DeadLetter, Fault> {
    let id = letter.id()?;
    let event = decode_event(&letter.event)
        .ok()
        .filter(|it| it.created_at < TIMES_END)
        .map(|it| DeadLetterEvent {
            order_id: it.order.0,
            user: it.user.as_str().to_owned(),
            idempotency_key: it.key.as_str().to_owned(),
            sku: sale.items.get(usize::from(it.item)).map(|item| item.sku.to_string()),
            quantity: it.quantity,
            created_at: from_millis(it.created_at),
        });
    let shown = letter.event.get(..BYTES_MAX).unwrap_or(&letter.event);
    Ok(DeadLetter {
        position: id.to_string(),
        shard: id.shard,
        epoch: id.position.epoch,
        seq: id.position.seq,
        reason: letter.reason,
        order_id: letter.order_id,
        bytes: event.is_none().then(|| shown.escape_ascii().to_string()),
        event,
        created_at: letter.created_at,
        settled_at: letter.settled_at,
        note: letter.note,
    })
}
