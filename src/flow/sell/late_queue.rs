//! The requests for one item that wait for its next proof of sold out, oldest first. Each gets one answer, or none if its
//! turn ends early. A crash forgets them.

use crate::stock::operate::read_shard::AskedPurchase;
use crate::stock::record::BuyerStanding;
use parking_lot::{Mutex, MutexGuard};
use std::collections::VecDeque;
use tokio::sync::oneshot;

/// Requests that wait for one item. Further ones ask the script.
const WAITING_MAX: usize = 20_000;

#[derive(Default)]
pub(in crate::flow) struct LateQueue(Mutex<VecDeque<Waiting>>);

pub(in crate::flow) struct Waiting {
    pub(in crate::flow) asking: AskedPurchase,
    pub(in crate::flow) quantity: i64,
    pub(in crate::flow) answer: oneshot::Sender<Found>,
}

/// What a turn found for a request.
pub(in crate::flow) enum Found {
    /// Too few units were free, and then the row said this.
    Nothing(BuyerStanding),
    /// Nothing is certain: the script decides.
    Unsure,
}

impl LateQueue {
    /// Waits for the next turn's answer. `None` when too many wait.
    pub(in crate::flow) fn join(&self, asking: AskedPurchase, quantity: u32) -> Option<oneshot::Receiver<Found>> {
        let (answer, answered) = oneshot::channel();
        let mut waiting = self.waiting();
        // While Redis stands still, nobody takes the turn, and requests that have left fill the queue. Each newcomer
        // takes the place of the oldest one. A search for all of them would hold up the others.
        if waiting.len() >= WAITING_MAX && waiting.front().is_some_and(|oldest| oldest.answer.is_closed()) {
            waiting.pop_front();
        }
        let has_room = waiting.len() < WAITING_MAX;
        has_room.then(|| {
            waiting.push_back(Waiting {
                asking,
                quantity: quantity.into(),
                answer,
            });
            answered
        })
    }

    /// Takes out all that wait.
    pub(in crate::flow) fn take(&self) -> VecDeque<Waiting> {
        std::mem::take(&mut *self.waiting())
    }

    fn waiting(&self) -> MutexGuard<'_, VecDeque<Waiting>> {
        // No step under this lock can leave the list half changed.
        self.0.lock()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::ids::{OrderId, SaleId};
    use crate::stock::keys::ShardKey;
    use uuid::Uuid;

    fn join(queue: &LateQueue) -> Option<oneshot::Receiver<Found>> {
        let asking = AskedPurchase {
            home: ShardKey::new(SaleId(Uuid::nil()), 0),
            user: "ada".parse().unwrap(),
            order: OrderId(Uuid::nil()),
        };
        queue.join(asking, 1)
    }

    #[test]
    fn requests_that_have_left_make_room_though_nobody_takes_the_turn() {
        let queue = LateQueue::default();
        let oldest = join(&queue).unwrap();
        for _ in 1..WAITING_MAX {
            drop(join(&queue).unwrap());
        }
        assert!(join(&queue).is_none(), "the oldest one still waits");
        drop(oldest);
        let newest = join(&queue).unwrap();
        assert_eq!(queue.take().len(), WAITING_MAX);
        drop(newest);
    }
}
