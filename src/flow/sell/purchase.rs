//! Purchase: ask the shopper's home shard, and bring it units from other shards while it is short.
//!
//! A crash after the script leaves an order that its key finds again. So does a crash while the answer waits for the
//! sale's durability ([`crate::flow::sell::await_durability`]). A crash while units move leaves them in transit, and the
//! scheduler finishes the transfer.

use crate::domain::deployment::server::ReplicationId;
use crate::domain::fault::Fault;
use crate::domain::ids::{OrderId, SaleId, UserId};
use crate::domain::order::Order;
use crate::domain::order::purchase::{PurchaseOutcome, PurchaseRequest, Refusal};
use crate::domain::sale::{Durability, Item, Lifecycle, Sale, SaleState};
use crate::domain::time::Millis;
use crate::flow::App;
use crate::flow::sell::await_durability::{Acceptance, Expected, kept, upheld};
use crate::flow::sell::shortage::{Arrival, Cover, Shortage, cover};
use crate::flow::sell::sold_out::{LateRequest, refuse};
use crate::flow::sell::waiting_room::leave;
use crate::stock::keys::ShardKey;
use crate::stock::record::OrderRecord;
use crate::stock::sell::purchase::{PurchaseArguments, ShardAnswer};
use crate::{bugs, crash, telemetry};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Attempts at the home shard. Other shoppers may take the units that were brought.
const TRIES_MAX: u32 = 16;
/// How long a purchase waits for a shard that is being reconciled, which mostly takes a moment.
const PATIENCE: Duration = Duration::from_secs(1);
/// How long after its arrival a purchase may still ask its shard. Soon after, the shopper gets the answer that the
/// outcome is unknown. From then on the shopper may trust a refusal of another request under the same key.
const ASKED_MAX: Duration = Duration::from_millis(1500);

/// Decides one request for units. `refused_by` returns a refusal if the request lacks what the sale asks for. Rare
/// paths are boxed, so that the future of the common case stays small. After a fault the outcome is unknown; the same
/// key finds it.
pub async fn purchase(
    app: &App,
    sale_id: SaleId,
    request: &PurchaseRequest,
    refused_by: impl FnOnce(&Sale) -> Option<Refusal>,
) -> Result<PurchaseOutcome, Fault> {
    let began = Instant::now();
    let Some(sale) = app.sales.fixed(sale_id).await? else {
        return Ok(PurchaseOutcome::Refused(Refusal::SaleNotFound));
    };
    if let Some(refusal) = refused_by(&sale)
        && let Some(outcome) = refuse_unless_known(app, &sale, request, refusal).await?
    {
        return Ok(outcome);
    }
    let Some((position, item)) = sale.item(&request.sku) else {
        return Box::pin(without_item(app, &sale, request)).await;
    };
    if matches!(sale.lifecycle, Lifecycle::Draft | Lifecycle::Loading) {
        return Ok(PurchaseOutcome::Refused(not_open(SaleState::Draft)));
    }
    let order = sale.order_id(&request.user, &request.key);
    let mut purchase = Purchase {
        app,
        sale: &sale,
        position,
        item,
        request,
        order,
        home: ShardKey::home(&sale, &request.user),
        arguments: arguments(&sale, &request.user),
        expected: None,
        has_waited: false,
    };
    if let Some(refusal) = refuse(app, &purchase.late()).await {
        return Ok(PurchaseOutcome::Refused(refusal));
    }
    // Not before: no late request may make the ledger be asked for its order.
    purchase.expected = (sale.durability == Durability::Postgres).then(|| app.arrivals.anticipate(order));
    crash::point("purchase.before_script");
    // While the sale rested, its Redis may have lost something that no process has noticed.
    if app.permits.is_resting(sale.id) {
        purchase.wait_for_permit().await;
    }
    purchase.decide(began, app.shortages.arrival()).await
}

/// The arguments of a shopper's purchase at the first attempt.
fn arguments(sale: &Sale, user: &UserId) -> PurchaseArguments {
    PurchaseArguments {
        named: sale.durability != Durability::Redis,
        holds_max: sale.holds_max_for(user),
        cooldown_ms: sale.cooldown_ms_for(user),
        origin: telemetry::origin(),
        ..PurchaseArguments::default()
    }
}

/// A purchase at its home shard.
struct Purchase<'a> {
    app: &'a App,
    sale: &'a Arc<Sale>,
    /// The item's position in the sale.
    position: u16,
    item: &'a Item,
    request: &'a PurchaseRequest,
    order: OrderId,
    home: ShardKey,
    /// The arguments of the next attempt.
    arguments: PurchaseArguments,
    /// The registration for the ledger's answer, until the order is reserved.
    expected: Option<Expected>,
    /// Whether the purchase has waited for a permit of its shard.
    has_waited: bool,
}

impl Purchase<'_> {
    fn late(&self) -> LateRequest<'_> {
        LateRequest {
            sale: self.sale,
            item: self.position,
            sku: &self.item.sku,
            quantity: self.request.quantity,
            user: &self.request.user,
            order: self.order,
            home: self.home,
        }
    }

    /// Asks the home shard until it decides.
    async fn decide(&mut self, began: Instant, arrival: Arrival) -> Result<PurchaseOutcome, Fault> {
        let Self { app, sale, request, .. } = *self;
        for _ in 0..TRIES_MAX {
            if began.elapsed() >= ASKED_MAX {
                return Err(Fault::Unavailable("the stock could not be asked in time".to_owned()));
            }
            let asked = app.stock.purchase(self.home, self.order, request, self.arguments);
            let answer = match asked.await {
                // The shard is not missing: its sale ended long ago, and leaves Redis.
                Ok(ShardAnswer::Halted) | Err(Fault::Incomplete(_)) if sale.leaving => {
                    return Ok(PurchaseOutcome::Unprobed(not_open(SaleState::Closed)));
                }
                Ok(ShardAnswer::Halted) | Err(Fault::Incomplete(_)) if !self.has_waited => {
                    self.wait_for_permit().await;
                    continue;
                }
                Err(Fault::Unavailable(_)) if bugs::has("an unknown outcome is a refusal") => {
                    return Ok(PurchaseOutcome::Refused(Refusal::SoldOut));
                }
                answer => answer?,
            };
            crash::point("purchase.after_script");
            if let ControlFlow::Break(outcome) = self.conclude(answer, arrival).await? {
                return Ok(outcome);
            }
        }
        Err(Fault::Unavailable(
            "the last units are in transit; try again".to_owned(),
        ))
    }

    /// Waits, once, until the home shard sells.
    async fn wait_for_permit(&mut self) {
        self.has_waited = true;
        // The number is of the old epoch and means nothing in a new one.
        self.arguments.ledger_asked = None;
        Box::pin(self.app.permits.sells_again(self.home, PATIENCE)).await;
    }

    /// The outcome by the shard's answer. `Continue` if the shard has to be asked again.
    async fn conclude(&mut self, answer: ShardAnswer, arrival: Arrival) -> Result<ControlFlow<PurchaseOutcome>, Fault> {
        Ok(ControlFlow::Break(match answer {
            ShardAnswer::Reserved { record, by } => {
                let expected = self.expected.take();
                self.reserved(record, by, expected).await?
            }
            ShardAnswer::Replayed { record, drained } => self.replayed(record, drained).await?,
            ShardAnswer::AskLedger { number } => match Box::pin(self.replay_from_ledger()).await? {
                Some(outcome) => outcome,
                None => {
                    self.arguments.ledger_asked = Some(number);
                    return Ok(ControlFlow::Continue(()));
                }
            },
            ShardAnswer::Halted => return Err(Fault::Incomplete("the shard has no permit to sell".to_owned())),
            ShardAnswer::Overloaded => {
                return Err(Fault::Overloaded("too many orders wait for the ledger".to_owned()));
            }
            ShardAnswer::Refused(refusal) => {
                if refusal == not_open(SaleState::Closed) {
                    self.app.permits.need(self.sale.id);
                }
                PurchaseOutcome::Refused(refusal)
            }
            ShardAnswer::LimitReached => PurchaseOutcome::Refused(Refusal::LimitReached {
                limit: self.item.per_user_limit,
            }),
            ShardAnswer::Short { .. } if bugs::has("no shard borrows") => PurchaseOutcome::Refused(Refusal::SoldOut),
            ShardAnswer::Short { .. } => match Box::pin(self.is_sold_out(arrival)).await? {
                true => PurchaseOutcome::Refused(Refusal::SoldOut),
                false => return Ok(ControlFlow::Continue(())),
            },
        }))
    }

    /// The answer to a new order, once the sale's durability covers it.
    async fn reserved(
        &self,
        record: OrderRecord,
        by: Option<ReplicationId>,
        expected: Option<Expected>,
    ) -> Result<PurchaseOutcome, Fault> {
        let Self { app, sale, request, .. } = *self;
        app.drains.want(sale.durability);
        if sale.shown_guards().waiting_room {
            Box::pin(leave(app, sale, &request.user)).await;
        }
        let accepted = Acceptance {
            event: record.event,
            by,
        };
        let order = record.into_order(self.order, sale, request.user.clone(), false)?;
        if sale.durability == Durability::Redis {
            return Ok(PurchaseOutcome::Reserved(order));
        }
        let kept = Box::pin(kept(app, sale, self.home, order, Some(accepted), expected)).await?;
        Ok(match kept {
            Some((order, true)) => PurchaseOutcome::Reserved(order),
            Some((order, false)) => again(sale, order, request),
            None => revoked(),
        })
    }

    /// The answer to a known key. The first answer may have been that the outcome is unknown, so this one waits as the
    /// first did.
    async fn replayed(&self, record: OrderRecord, drained: bool) -> Result<PurchaseOutcome, Fault> {
        let Self { app, sale, request, .. } = *self;
        let order = record.into_order(self.order, sale, request.user.clone(), drained)?;
        match sale.durability {
            Durability::Redis => Ok(PurchaseOutcome::Replayed(order)),
            // The drain takes an order in only once a replica has its event.
            Durability::Replica if drained => Ok(PurchaseOutcome::Replayed(order)),
            Durability::Replica | Durability::Postgres => {
                let kept = Box::pin(kept(app, sale, self.home, order, None, None)).await?;
                Ok(kept.map_or_else(revoked, |(order, _)| again(sale, order, request)))
            }
        }
    }

    /// Brings units from other shards. `false` if the script has to decide again.
    async fn is_sold_out(&self, arrival: Arrival) -> Result<bool, Fault> {
        let shortage = Shortage {
            sale: self.sale,
            item: self.position,
            sku: &self.item.sku,
            home: self.home.shard,
            quantity: self.request.quantity,
            arrival,
        };
        match cover(self.app, &shortage).await? {
            Cover::Brought => Ok(false),
            Cover::SoldOut => Ok(!self.has_changed().await?),
        }
    }

    /// Whether the shopper's row has changed since the script refused the request, so that the script must decide
    /// again. A copy of the request may have got the order, or an operator may have banned the account.
    ///
    /// Call this after the proof that nothing is free. It then finds a copy that got an order before the proof. A copy
    /// that gets an order later buys units that came back.
    async fn has_changed(&self) -> Result<bool, Fault> {
        let stock = &self.app.stock;
        match stock.buyer_standing(self.home, &self.request.user, self.order).await {
            Ok(standing) => {
                Ok(standing.has_order || standing.ban.is_some() || standing.left != self.arguments.ledger_asked)
            }
            // The next call waits until the shard sells again.
            Err(Fault::Incomplete(_)) => Ok(true),
            Err(fault) => Err(fault),
        }
    }

    /// The answer if the key has an order in the ledger.
    async fn replay_from_ledger(&self) -> Result<Option<PurchaseOutcome>, Fault> {
        let order = self.app.ledger.order(self.order).await?;
        Ok(order.map(|order| again(self.sale, order, self.request)))
    }
}

/// Refuses a request that lacks what its sale asks for. `None` if its key has an order: then the refusal does not
/// hold.
async fn refuse_unless_known(
    app: &App,
    sale: &Sale,
    request: &PurchaseRequest,
    refusal: Refusal,
) -> Result<Option<PurchaseOutcome>, Fault> {
    if let Some(wait) = app.replay_probes.take(&request.user) {
        let wait_ms = Millis::try_from(wait.as_millis()).unwrap_or(Millis::MAX).max(1);
        return Ok(Some(PurchaseOutcome::Unprobed(Refusal::RateLimited { wait_ms })));
    }
    Ok(match Box::pin(is_known(app, sale, request)).await? {
        Some(true) => None,
        Some(false) => Some(PurchaseOutcome::Refused(refusal)),
        None => Some(PurchaseOutcome::Unprobed(refusal)),
    })
}

/// Whether a request's key has an order. Then the request needs neither token nor admission, which may have expired
/// since. `None` when Redis no longer has the sale.
async fn is_known(app: &App, sale: &Sale, request: &PurchaseRequest) -> Result<Option<bool>, Fault> {
    let order = sale.order_id(&request.user, &request.key);
    if sale.retired || sale.leaving {
        return Ok(None);
    }
    if !sale.is_in_stock() {
        return Ok(Some(false));
    }
    let home = ShardKey::home(sale, &request.user);
    let mut standing = app.stock.buyer_standing(home, &request.user, order).await;
    if matches!(standing, Err(Fault::Incomplete(_))) {
        // Redis may have forgotten the order; a rebuild brings it back.
        app.permits.sells_again(home, PATIENCE).await;
        standing = app.stock.buyer_standing(home, &request.user, order).await;
    }
    let standing = standing?;
    if standing.has_order || standing.left.is_none() {
        return Ok(Some(standing.has_order));
    }
    if !app.sales.may_ask_ledger() {
        return Err(Fault::Unavailable(
            "too many requests ask the ledger for old orders; try again".to_owned(),
        ));
    }
    Ok(Some(app.ledger.order(order).await?.is_some()))
}

/// The answer to a request for an item that the sale does not have. Its key is checked first here, too. A flood of
/// such requests is answered without a probe.
async fn without_item(app: &App, sale: &Sale, request: &PurchaseRequest) -> Result<PurchaseOutcome, Fault> {
    if !app.sales.may_ask_ledger() {
        return Ok(PurchaseOutcome::Unprobed(Refusal::ItemNotFound));
    }
    Ok(match is_known(app, sale, request).await? {
        Some(true) => PurchaseOutcome::Refused(Refusal::KeyReused),
        Some(false) => PurchaseOutcome::Refused(Refusal::ItemNotFound),
        None => PurchaseOutcome::Unprobed(Refusal::ItemNotFound),
    })
}

const fn not_open(state: SaleState) -> Refusal {
    Refusal::NotOpen { state }
}

/// The answer to a request whose key has a revoked order: it got no unit, and the key stays used.
fn revoked() -> PurchaseOutcome {
    PurchaseOutcome::Unprobed(Refusal::SoldOut)
}

/// The answer to a request whose key has this order in the ledger.
fn again(sale: &Sale, order: Order, request: &PurchaseRequest) -> PurchaseOutcome {
    if (&order.sku, order.quantity) == (&request.sku, request.quantity) {
        upheld(sale, order).map_or_else(revoked, PurchaseOutcome::Replayed)
    } else {
        PurchaseOutcome::Refused(Refusal::KeyReused)
    }
}
