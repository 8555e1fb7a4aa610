//! Bans: an account may not buy, in any sale, until an operator lifts the ban or it ends. The account keeps its
//! orders.
//!
//! The ledger decides and leaves a message for the account's home shard in every sale. The shards get it before the
//! operator is answered. A crash in between leaves the messages. Sales that are loaded or rebuilt later get all bans
//! that hold then.

use crate::cache::Cache;
use crate::domain::fault::Fault;
use crate::domain::ids::UserId;
use crate::domain::sale::Sale;
use crate::domain::shopper::ban::{Ban, EndedSessions, NewBan};
use crate::flow::settle::release::release_of;
use crate::flow::{App, whole};
use crate::ledger::recover::rebuild::RebuildClaim;
use crate::stock::keys::ShardKey;
use chrono::Utc;
use futures_util::future::try_join_all;
use parking_lot::RwLock;
use std::collections::{BTreeMap, HashMap};
use std::time::Duration;
use tokio::sync::{Semaphore, SemaphorePermit};

/// Accounts read in one step.
const PAGE_MAX: i64 = 1000;
/// After a guard has begun to ban an account, no guard begins again for this long.
const BANNING: Duration = Duration::from_secs(10);

/// Accounts that guards have the ledger act on at once, and those that may wait for it or be in progress.
const TURNS_MAX: usize = 2;
const PLACES_MAX: usize = 100;

/// The account bans that this process knows.
pub struct Bans {
    heard: RwLock<Heard>,
    places: Semaphore,
    turns: Semaphore,
    /// Accounts that a guard of this process has begun to ban a moment ago.
    banning: Cache<UserId, ()>,
}

impl Default for Bans {
    fn default() -> Self {
        Self {
            heard: RwLock::default(),
            places: Semaphore::new(PLACES_MAX),
            turns: Semaphore::new(TURNS_MAX),
            banning: Cache::fresh_for(BANNING, 100_000),
        }
    }
}

#[derive(Default)]
struct Heard {
    /// Accounts whose sessions were ended. None is ever forgotten: a token must not become valid again. Each takes
    /// some hundred bytes, and there are no more of them than the ledger has.
    ended: HashMap<UserId, EndedSessions>,
    /// The number of the last decision.
    change: i64,
}

impl Heard {
    fn note(&mut self, decisions: Vec<Ban>) {
        let ended = decisions
            .into_iter()
            .filter_map(|ban| Some((ban.ended_sessions()?, ban.user)));
        self.ended.extend(ended.map(|(ended, user)| (user, ended)));
    }
}

/// A place among the accounts that the ledger acts on.
pub(in crate::flow) struct Place<'a> {
    turns: &'a Semaphore,
    _held: SemaphorePermit<'a>,
}

impl Place<'_> {
    /// Waits for its turn.
    pub(in crate::flow) async fn turn(&self) -> Result<SemaphorePermit<'_>, Fault> {
        let turn = self.turns.acquire().await;
        turn.map_err(|closed| Fault::Bug(closed.to_string()))
    }
}

impl Bans {
    /// A place for an account that a guard of this process warns of or bans. Fails with `Overloaded` when all places
    /// are taken.
    pub(in crate::flow) fn place(&self) -> Result<Place<'_>, Fault> {
        let full = |_full| Fault::Overloaded("this process checks too many accounts at once".to_owned());
        Ok(Place {
            turns: &self.turns,
            _held: self.places.try_acquire().map_err(full)?,
        })
    }

    /// Whether a guard of this process may ban an account: not if one has begun to a moment ago.
    pub(in crate::flow) fn begins(&self, user: &UserId) -> bool {
        let mut begins = false;
        self.banning.get_or_make(user, || begins = true);
        begins
    }

    /// Whether a token of this account that was issued then is refused.
    pub fn have_ended(&self, user: &UserId, issued_at: Option<i64>) -> bool {
        let heard = self.heard.read();
        let ended = heard.ended.get(user);
        ended.is_some_and(|ended| ended.has_ended(issued_at, Utc::now()))
    }
}

/// Reads the decisions since the last time; returns how many.
pub async fn learn(app: &App) -> Result<usize, Fault> {
    let mut learned = 0;
    loop {
        let change = app.bans.heard.read().change;
        let decisions = app.ledger.bans_since(change, PAGE_MAX).await?;
        let Some(last) = decisions.last().map(|ban| ban.change) else {
            return Ok(learned);
        };
        learned += decisions.len();
        let mut heard = app.bans.heard.write();
        heard.change = last;
        heard.note(decisions);
    }
}

/// Bans an account; `None` when a guard asks and its ban is decided already, or when the end has passed. After a fault
/// the ban may be decided or not; if it is, its messages are delivered.
pub async fn ban(app: &App, new: &NewBan) -> Result<Option<Ban>, Fault> {
    let ban = app.ledger.ban(new).await?;
    if ban.is_some() {
        deliver_now(app).await;
    }
    Ok(ban)
}

/// Up to `max` bans in force after the account given, by account or the newest first. Only the ban of `only` if it is
/// given.
pub async fn list(
    app: &App,
    only: Option<&UserId>,
    newest_first: bool,
    after: Option<&UserId>,
    max: usize,
) -> Result<Vec<Ban>, Fault> {
    match only {
        Some(only) => Ok(app.ledger.ban_in_force(only).await?.into_iter().collect()),
        None if newest_first => app.ledger.banned_newest_first(after, whole(max)).await,
        None => app.ledger.banned(after, whole(max)).await,
    }
}

/// Lifts a ban; `None` when the account is not banned.
pub async fn lift(app: &App, user: &UserId) -> Result<Option<Ban>, Fault> {
    let lifted = app.ledger.lift_ban(user).await?;
    if lifted.is_some() {
        deliver_now(app).await;
    }
    Ok(lifted)
}

/// Delivers to the shards of every sale at once; the job `release` delivers what fails here.
async fn deliver_now(app: &App) {
    let Ok(sales) = app.sales.live().await else {
        return;
    };
    for sale in sales.iter() {
        if let Err(fault) = release_of(app, sale.id).await {
            tracing::debug!(%fault, sale = %sale.id, "the job `release` delivers this ban");
        }
    }
}

/// Delivers every current ban to shards that are being written, in these epochs. A caller with a claim reads by its
/// own connection: if each needed a second one, all could wait for each other.
pub(in crate::flow) async fn deliver_all(
    app: &App,
    sale: &Sale,
    epochs: &BTreeMap<u16, i64>,
    mut claim: Option<&mut RebuildClaim>,
) -> Result<(), Fault> {
    let epoch = |shard: u16| epochs.get(&shard).map(|epoch| Some(*epoch));
    // Also bans that were lifted: a shard may still have rows of shoppers without orders from an earlier generation.
    let recent = match &mut claim {
        Some(claim) => claim.recent_bans().await?,
        None => app.ledger.recent_bans().await?,
    };
    deliver_decisions(app, sale, &recent, epoch).await?;
    let mut after: Option<UserId> = None;
    loop {
        let page = match &mut claim {
            Some(claim) => claim.banned(after.as_ref(), PAGE_MAX).await?,
            None => app.ledger.banned(after.as_ref(), PAGE_MAX).await?,
        };
        let Some(last) = page.last() else {
            return Ok(());
        };
        after = Some(last.user.clone());
        deliver_decisions(app, sale, &page, epoch).await?;
    }
}

/// Delivers the last minutes' decisions to shards that were found intact on another server: if they lost one, no
/// counter shows it.
pub(in crate::flow) async fn deliver_recent(app: &App, sale: &Sale, shards: &[u16]) -> Result<(), Fault> {
    let recent = app.ledger.recent_bans().await?;
    deliver_decisions(app, sale, &recent, |shard| shards.contains(&shard).then_some(None)).await
}

/// Delivers to a shard, in any epoch, those of these decisions that concern it.
pub(in crate::flow) async fn deliver_waiting(app: &App, sale: &Sale, shard: u16, waiting: &[Ban]) -> Result<(), Fault> {
    deliver_decisions(app, sale, waiting, |home| (home == shard).then_some(None)).await
}

/// Delivers to the home shards of these accounts, in the epochs that `epoch` returns; shards without one are left out.
async fn deliver_decisions(
    app: &App,
    sale: &Sale,
    bans: &[Ban],
    epoch: impl Fn(u16) -> Option<Option<i64>>,
) -> Result<(), Fault> {
    let calls = bans.iter().filter_map(|ban| {
        let shard = sale.home_shard(&ban.user);
        let epoch = epoch(shard)?;
        Some(app.stock.ban(ShardKey::new(sale.id, shard), ban, epoch))
    });
    try_join_all(calls).await?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::shopper::ban::BannedBy;

    #[test]
    fn a_session_that_was_ended_stays_ended_however_many_are() {
        let mut heard = Heard::default();
        let user = |number: i64| -> UserId { number.to_string().parse().unwrap() };
        let now = Utc::now();
        let ban = |number: i64| Ban {
            user: user(number),
            reason: "a bot".to_owned(),
            banned_by: BannedBy::Browsing,
            operator: None,
            banned_at: now,
            banned_until: None,
            lifted_at: None,
            sessions_from: Some(now),
            revision: 1,
            change: number,
        };
        for page in 0..1_010 {
            heard.note((page * 1_000..(page + 1) * 1_000).map(ban).collect());
        }
        let bans = Bans {
            heard: RwLock::new(heard),
            ..Bans::default()
        };
        for number in [0, 1, 1_009_999] {
            assert!(bans.have_ended(&user(number), Some(now.timestamp() - 60)), "{number}");
        }
        assert!(!bans.have_ended(&user(0), Some(now.timestamp() + 1)));
        assert!(!bans.have_ended(&user(1_010_000), Some(0)));
    }
}
