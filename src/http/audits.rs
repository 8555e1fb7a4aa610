//! Audits: each counts every unit of a sale, which may take a minute and a connection to Postgres that the pages of operators
//! want too. So of one sale no more than one runs on an instance. Who asks while it does gets the next one, together with all
//! others who ask until that begins: an answer is never older than its question.

use crate::domain::fault::Fault;
use crate::domain::ids::SaleId;
use crate::domain::report::Audit;
use futures_util::FutureExt as _;
use futures_util::future::{BoxFuture, Shared, WeakShared};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::{Mutex as Turn, Semaphore};

/// How many run at once on an instance, of whichever sales: half of the connections that reports have.
const RUNNING_MAX: usize = 2;

/// What an audit comes to; `None` when there is no such sale.
pub type Counted = Result<Option<Audit>, Fault>;

/// The audits of an instance that run, and those that wait.
pub struct Audits {
    lines: Arc<Mutex<HashMap<SaleId, Line>>>,
    places: Arc<Semaphore>,
}

impl Default for Audits {
    fn default() -> Self {
        Self {
            lines: Arc::default(),
            places: Arc::new(Semaphore::new(RUNNING_MAX)),
        }
    }
}

/// The audits of one sale.
#[derive(Default)]
struct Line {
    /// Whoever has it runs.
    turn: Arc<Turn<()>>,
    /// The one that has not begun yet. It is let go of when nobody waits for it any more.
    next: Option<WeakShared<BoxFuture<'static, Counted>>>,
}

impl Line {
    fn next(&self) -> Option<Shared<BoxFuture<'static, Counted>>> {
        self.next.as_ref().and_then(WeakShared::upgrade)
    }
}

impl Audits {
    /// The next audit of a sale: the one that others wait for, or else `begin`, once its turn has come.
    pub fn next<F>(
        &self,
        sale: SaleId,
        begin: impl FnOnce() -> F + Send + 'static,
    ) -> Shared<BoxFuture<'static, Counted>>
    where
        F: Future<Output = Counted> + Send + 'static,
    {
        let mut lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
        // Those of which nobody has anything any more.
        lines.retain(|_, line| Arc::strong_count(&line.turn) > 1);
        let line = lines.entry(sale).or_default();
        if let Some(waiting) = line.next() {
            return waiting;
        }
        let (turn, places, all) = (
            Arc::clone(&line.turn),
            Arc::clone(&self.places),
            Arc::clone(&self.lines),
        );
        let audit = async move {
            let _turn = turn.lock().await;
            // It is never closed.
            let _place = places.acquire().await.ok();
            forget_next(&all, sale);
            begin().await
        };
        let audit = audit.boxed().shared();
        line.next = audit.downgrade();
        audit
    }
}

/// From now on, whoever asks has to wait for another one than that which begins.
fn forget_next(lines: &Mutex<HashMap<SaleId, Line>>, sale: SaleId) {
    let mut lines = lines.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(line) = lines.get_mut(&sale) {
        line.next = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use tokio::sync::Notify;
    use uuid::Uuid;

    fn sale(number: u128) -> SaleId {
        SaleId(Uuid::from_u128(number))
    }

    /// Audits that count how many have begun, and end when they are told.
    #[derive(Clone, Default)]
    struct Counting {
        begun: Arc<AtomicUsize>,
        may_end: Arc<Notify>,
    }

    impl Counting {
        fn ask(&self, audits: &Audits, of: SaleId) -> Shared<BoxFuture<'static, Counted>> {
            let Self { begun, may_end } = self.clone();
            audits.next(of, move || async move {
                begun.fetch_add(1, Ordering::Relaxed);
                may_end.notified().await;
                Err(Fault::Bug(begun.load(Ordering::Relaxed).to_string()))
            })
        }

        fn begun(&self) -> usize {
            self.begun.load(Ordering::Relaxed)
        }
    }

    /// Lets it go on as far as it can.
    fn poll(audit: &Shared<BoxFuture<'static, Counted>>) -> Option<Counted> {
        audit.clone().now_or_never()
    }

    #[tokio::test]
    async fn one_audit_of_a_sale_runs_and_all_who_ask_meanwhile_share_the_next() {
        let (audits, counting) = (Audits::default(), Counting::default());
        let first = counting.ask(&audits, sale(1));
        assert!(poll(&first).is_none() && counting.begun() == 1);
        let second = counting.ask(&audits, sale(1));
        let third = counting.ask(&audits, sale(1));
        assert!(poll(&second).is_none() && poll(&third).is_none());
        assert_eq!(counting.begun(), 1, "the first still runs");
        counting.may_end.notify_one();
        assert!(poll(&first).is_some());
        assert!(poll(&second).is_none());
        assert_eq!(counting.begun(), 2, "one for both, begun after both had asked");
        let fourth = counting.ask(&audits, sale(1));
        counting.may_end.notify_one();
        assert!(poll(&second).is_some() && poll(&third).is_some());
        assert!(poll(&fourth).is_none());
        assert_eq!(counting.begun(), 3);
    }

    #[tokio::test]
    async fn no_audit_runs_that_nobody_waits_for_and_no_more_than_some_at_once() {
        let (audits, counting) = (Audits::default(), Counting::default());
        let running: Vec<_> = (1..=RUNNING_MAX as u128)
            .map(|it| counting.ask(&audits, sale(it)))
            .collect();
        assert!(running.iter().all(|it| poll(it).is_none()));
        let other = counting.ask(&audits, sale(100));
        assert!(poll(&other).is_none());
        assert_eq!(counting.begun(), RUNNING_MAX, "it waits for a place");
        drop(running);
        assert!(poll(&other).is_none());
        assert_eq!(counting.begun(), RUNNING_MAX + 1);
        // Whoever asks while nobody has the one that waited is given one of his own.
        drop(counting.ask(&audits, sale(100)));
        let last = counting.ask(&audits, sale(100));
        drop(other);
        assert!(poll(&last).is_none());
        assert_eq!(counting.begun(), RUNNING_MAX + 2);
        assert_eq!(audits.lines.lock().unwrap().len(), 1, "the others are forgotten");
    }
}
