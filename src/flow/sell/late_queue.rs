//! The requests for one item that wait for its next proof of sold out, in no order. Each gets one answer, or none if its
//! turn ends early. A crash forgets them.

use crate::stock::read_shard::Asking;
use crate::stock::record::BuyerStanding;
use std::sync::{Mutex, MutexGuard, PoisonError};
use tokio::sync::oneshot;

/// Requests that wait for one item. Further ones ask the script.
const WAITING_MAX: usize = 20_000;

#[derive(Default)]
pub(in crate::flow) struct LateQueue(Mutex<Vec<Waiting>>);

pub(in crate::flow) struct Waiting {
    pub(in crate::flow) asking: Asking,
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
    pub(in crate::flow) fn join(&self, asking: Asking, quantity: u32) -> Option<oneshot::Receiver<Found>> {
        let (answer, answered) = oneshot::channel();
        let mut waiting = self.waiting();
        let has_room = waiting.len() < WAITING_MAX;
        has_room.then(|| {
            waiting.push(Waiting {
                asking,
                quantity: quantity.into(),
                answer,
            });
            answered
        })
    }

    /// Takes out all that wait.
    pub(in crate::flow) fn take(&self) -> Vec<Waiting> {
        std::mem::take(&mut *self.waiting())
    }

    fn waiting(&self) -> MutexGuard<'_, Vec<Waiting>> {
        // No step under this lock can leave the list half changed.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
