//! Stock audits. One counts every unit of a sale, which may take a minute and a connection to Postgres that operators'
//! pages also need. So at most one audit per sale runs at a time on an instance. Requests that arrive during a run
//! share the next run, so a result is never older than its request.

use crate::domain::fault::Fault;
use crate::domain::ids::SaleId;
use crate::domain::report::Audit;
use futures_util::FutureExt as _;
use futures_util::future::{BoxFuture, Shared, WeakShared};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::{Mutex as Turn, Semaphore};

/// How many audits run at once on an instance, over all sales: half of the connections for reports.
const RUNNING_MAX: usize = 2;

/// The result of an audit; `None` if there is no such sale.
pub type Counted = Result<Option<Audit>, Fault>;

/// The running and the waiting audits of an instance.
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
    /// Locked by the audit that runs.
    turn: Arc<Turn<()>>,
    /// The audit that has not begun yet. It is dropped when no request waits for it any more.
    next: Option<WeakShared<BoxFuture<'static, Counted>>>,
}

impl Line {
    fn next(&self) -> Option<Shared<BoxFuture<'static, Counted>>> {
        self.next.as_ref().and_then(WeakShared::upgrade)
    }
}

impl Audits {
    /// The next audit of a sale: the waiting one, or a new one that calls `begin` when it may run.
    pub fn next<F>(
        &self,
        sale: SaleId,
        begin: impl FnOnce() -> F + Send + 'static,
    ) -> Shared<BoxFuture<'static, Counted>>
    where
        F: Future<Output = Counted> + Send + 'static,
    {
        let mut lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
        // Removes the sales that have neither a running nor a waiting audit.
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
            // The semaphore is never closed.
            let _place = places.acquire().await.ok();
            forget_next(&all, sale);
            begin().await
        };
        let audit = audit.boxed().shared();
        line.next = audit.downgrade();
        audit
    }
}

/// Requests from now on wait for another audit than the one that begins.
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

    /// Audits that count how many have begun, and that end when the test notifies them.
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

    /// Polls the audit once.
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
        // A request that comes when no other waits for the audit gets a new one.
        drop(counting.ask(&audits, sale(100)));
        let last = counting.ask(&audits, sale(100));
        drop(other);
        assert!(poll(&last).is_none());
        assert_eq!(counting.begun(), RUNNING_MAX + 2);
        assert_eq!(audits.lines.lock().unwrap().len(), 1, "the others are forgotten");
    }
}
