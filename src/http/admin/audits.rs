//! Stock audits. One counts every unit of a sale, which may take a minute and a connection to Postgres that operators'
//! pages also need. So at most one audit per sale runs at a time on an instance. Requests that arrive during a run
//! share the next run, so a result is never older than its request.

use crate::domain::fault::Fault;
use crate::domain::ids::SaleId;
use crate::domain::operator::report::Audit;
use crate::flow;
use crate::http::endpoint::{Endpoint, handler};
use crate::http::extract::{Operator, Query, SalePath};
use crate::http::openapi::SALE_ID;
use crate::http::problem::Problem;
use crate::http::views::{Page, PageSize};
use crate::http::{AUDIT_WAIT, Api, found};
use actix_web::HttpResponse;
use actix_web::web::Data;
use futures_util::FutureExt as _;
use futures_util::future::{BoxFuture, Shared, WeakShared};
use parking_lot::Mutex;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;
use std::collections::HashMap;
use std::sync::Arc;
use tokio::sync::{Mutex as Turn, Semaphore};

pub const ROUTES: &[Endpoint] = &[Endpoint::get("/v1/admin/sales/{id}/audit", handler!(audit), |it| {
    let audit = json!({
        "sale_id": SALE_ID, "balanced": true, "ledger_only": false, "differences": [], "differences_total": 0, "has_more": false,
        "items": [{
            "sku": "TSHIRT-M", "total": 100,
            "stock": {"available": 69, "held": 30, "sold": 1, "revoked": 0, "in_transit": 0, "undrained": 0},
            "ledger": {"held": 30, "sold": 1, "free": 69, "unreleased": 0},
        }],
    });
    it.of_operators("auditSale", "Count every unit on both sides")
        .says(
            "Counts in Redis and in Postgres, while the sale goes on, with any backlog. `differences` lists what does \
             not balance, sorted by text; each page counts again. One audit of a sale runs at a time on an instance. \
             Requests that arrive meanwhile share the next one, so an answer may take twice as long.",
        )
        .query::<AuditQuery>(&[("limit", 1000.into())])
        .answers::<AuditPage>(200, "The count.", audit)
})];

/// How many audits run at once on an instance, over all sales: half of the connections for reports.
const RUNNING_MAX: usize = 2;

/// The result of an audit; `None` if there is no such sale.
pub type Counted = Result<Option<Audit>, Fault>;

/// The running and the waiting audits of an instance.
pub struct Audits {
    queues: Arc<Mutex<HashMap<SaleId, AuditQueue>>>,
    places: Arc<Semaphore>,
}

impl Default for Audits {
    fn default() -> Self {
        Self {
            queues: Arc::default(),
            places: Arc::new(Semaphore::new(RUNNING_MAX)),
        }
    }
}

/// The audits of one sale.
#[derive(Default)]
struct AuditQueue {
    /// Locked by the audit that runs.
    turn: Arc<Turn<()>>,
    /// The audit that has not begun yet. It is dropped when no request waits for it any more.
    next: Option<WeakShared<BoxFuture<'static, Counted>>>,
}

impl AuditQueue {
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
        let mut queues = self.queues.lock();
        // Removes the sales that have neither a running nor a waiting audit.
        queues.retain(|_, queue| Arc::strong_count(&queue.turn) > 1);
        let queue = queues.entry(sale).or_default();
        if let Some(waiting) = queue.next() {
            return waiting;
        }
        let (turn, places, all) = (
            Arc::clone(&queue.turn),
            Arc::clone(&self.places),
            Arc::clone(&self.queues),
        );
        let audit = async move {
            let _turn = turn.lock().await;
            // The semaphore is never closed.
            let _place = places.acquire().await.ok();
            forget_next(&all, sale);
            begin().await
        };
        let audit = audit.boxed().shared();
        queue.next = audit.downgrade();
        audit
    }
}

/// Requests from now on wait for another audit than the one that begins.
fn forget_next(queues: &Mutex<HashMap<SaleId, AuditQueue>>, sale: SaleId) {
    let mut queues = queues.lock();
    if let Some(queue) = queues.get_mut(&sale) {
        queue.next = None;
    }
}

/// The most differences in one answer.
const DIFFERENCES_MAX: u32 = 1000;

/// Which differences of an audit to return.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AuditQuery {
    /// At most so many differences; 1000 by default.
    #[serde(default)]
    limit: PageSize<DIFFERENCES_MAX>,
    /// Lists only the differences after this text: the last difference of the page before.
    starting_after: Option<String>,
}

/// A stock audit with one page of its differences.
#[derive(Serialize, JsonSchema)]
pub(in crate::http) struct AuditPage {
    #[serde(flatten)]
    audit: Audit,
    /// How many differences there are in total.
    differences_total: usize,
    /// Whether more differences follow. Ask for them with `starting_after` and the last difference.
    has_more: bool,
}

impl AuditPage {
    fn of(mut audit: Audit, query: &AuditQuery) -> Self {
        let differences_total = audit.differences.len();
        if let Some(after) = &query.starting_after {
            audit.differences.retain(|difference| difference > after);
        }
        let Page { data, has_more } = Page::of(std::mem::take(&mut audit.differences), query.limit.get());
        audit.differences = data;
        Self {
            audit,
            differences_total,
            has_more,
        }
    }
}

/// Each page counts again. The differences are sorted by their text, so a lasting
/// difference is on exactly one page.
async fn audit(
    api: Data<Api>,
    _: Operator,
    SalePath(id): SalePath,
    Query(query): Query<AuditQuery>,
) -> Result<HttpResponse, Problem> {
    let app = Arc::clone(&api.operators);
    let next = api
        .audits
        .next(id, move || async move { flow::watch::audit::audit(&app, id).await });
    let audit = found(api.run(AUDIT_WAIT, next).await?, "such sale")?;
    Ok(HttpResponse::Ok().json(AuditPage::of(audit, &query)))
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
        assert_eq!(audits.queues.lock().len(), 1, "the others are forgotten");
    }
}
