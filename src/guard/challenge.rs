//! Challenges: posed to an account that has not asked for too many, solved for one request. A crash between the limit
//! and what follows costs the account one of those that it may ask for; a challenge that was kept and not told expires.

use super::accounts::Accounts;
use super::riddle;
use crate::domain::challenge::{Challenge, LASTS, MINUTE_MAX, Solving};
use crate::domain::fault::Fault;
use crate::domain::ids::{IdempotencyKey, SaleId, UserId};
use crate::domain::sale::Sale;
use crate::domain::sale_guards::ChallengeKind;
use crate::domain::time::Millis;
use crate::flow::App;
use crate::stock::Stock;
use crate::stock::limit::{Asking, Limit, Verdict};
use chrono::Utc;
use governor::Quota;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use uuid::Uuid;

/// The time in which challenges are counted.
const WINDOW: Duration = Duration::from_secs(60);
/// How long a challenge waits to be drawn.
const DRAWING_WAIT: Duration = Duration::from_millis(500);
/// A proof of work that costs at most so many hashes is posed at once, in about 0.13 ms. A thread of its own would be
/// dearer: every place there is handed on by a thread that serves, so a busy instance posed some dozens a second,
/// whatever they cost, and refused the others who asked.
const CHEAP: u32 = 1000;

/// Challenges that an account may ask this process for in a minute and at once. This is more than the window lets through,
/// so that an account that got none for want of a place may try again.
const ASKED_A_MINUTE: NonZeroU32 = NonZeroU32::MIN.saturating_add(2 * MINUTE_MAX - 1);

/// Draws challenges, not more at once than there are processors for half of them: on threads of their own, so that whoever
/// buys does not wait for them.
pub struct Easel {
    places: Arc<Semaphore>,
    accounts: Accounts,
}

impl Default for Easel {
    fn default() -> Self {
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        Self::new(processors.div_ceil(2))
    }
}

impl Easel {
    /// With places to draw so many at once.
    #[must_use]
    pub fn new(places: usize) -> Self {
        Self {
            places: Arc::new(Semaphore::new(places)),
            accounts: Accounts::new(Quota::per_minute(ASKED_A_MINUTE)),
        }
    }

    /// A place to draw one.
    ///
    /// # Errors
    /// `Overloaded` when others are being drawn for too long.
    async fn place(&self) -> Result<OwnedSemaphorePermit, Fault> {
        let place = tokio::time::timeout(DRAWING_WAIT, Arc::clone(&self.places).acquire_owned());
        match place.await {
            Ok(Ok(place)) => Ok(place),
            _ => Err(Fault::Overloaded("too many challenges are being drawn".to_owned())),
        }
    }
}

/// Whether a challenge of this kind and cost is drawn where there is a place for it.
const fn needs_place(kind: ChallengeKind, cost: u32) -> bool {
    !matches!(kind, ChallengeKind::ProofOfWork) || cost > CHEAP
}

fn cannot_be_drawn() -> Fault {
    Fault::Bug("a challenge cannot be drawn".to_owned())
}

/// Draws one, at a place for it or, without one, at once.
///
/// # Errors
/// `Bug` when it cannot be drawn.
async fn draw<T: Send + 'static>(
    place: Option<OwnedSemaphorePermit>,
    draw: impl FnOnce() -> Option<T> + Send + 'static,
) -> Result<T, Fault> {
    let Some(place) = place else {
        return draw().ok_or_else(cannot_be_drawn);
    };
    let drawn = tokio::task::spawn_blocking(move || {
        let drawn = draw();
        // Not before: whoever asked may have gone, and the thread is as busy as if he had not.
        drop(place);
        drawn
    });
    let drawn = drawn
        .await
        .map_err(|error| Fault::Bug(format!("a challenge: {error}")))?;
    drawn.ok_or_else(cannot_be_drawn)
}

/// What a shopper is shown.
#[derive(Debug, Clone)]
pub enum Shown {
    Captcha(Vec<u8>),
    /// A proof of work, as ALTCHA's widget takes it.
    ProofOfWork(Box<altcha::Challenge>),
}

/// What became of the wish for a challenge.
#[derive(Debug, Clone)]
pub enum Posing {
    Posed {
        id: Uuid,
        /// What there is to solve.
        shown: Shown,
        /// Until when, in seconds since the epoch.
        expires_at: i64,
    },
    /// The account has asked for too many.
    Limited {
        /// After so long it may ask for one more.
        wait_ms: Millis,
    },
    /// The sale asks for none.
    NoneAsked,
    /// The sale takes nothing in place of its picture.
    PictureOnly,
    /// There is no such sale.
    SaleNotFound,
}

/// Poses a challenge as this sale asks for one; `without_picture` to whoever does not see one.
///
/// # Errors
/// `Overloaded` when too many are being drawn; another fault says that there is none that could be solved.
pub async fn pose(
    app: &App,
    easel: &Easel,
    sale: SaleId,
    user: &UserId,
    without_picture: bool,
) -> Result<Posing, Fault> {
    let Some(sale) = app.sales.fixed(sale).await? else {
        return Ok(Posing::SaleNotFound);
    };
    let guards = sale.guards;
    let (kind, cost) = match guards.challenge {
        ChallengeKind::None => return Ok(Posing::NoneAsked),
        ChallengeKind::Captcha if without_picture => {
            if !guards.take_proof_for_captcha() {
                return Ok(Posing::PictureOnly);
            }
            (ChallengeKind::ProofOfWork, guards.captcha_proof_cost)
        }
        kind => (kind, guards.proof_cost),
    };
    let limit = Limit::SlidingWindow {
        limit: MINUTE_MAX,
        window: WINDOW,
    };
    let challenge = Challenge {
        id: Uuid::new_v4(),
        sale: sale.id,
        user,
    };
    let asking = Asking {
        id: &format!("challenge:{}", user.as_str()),
        request: *challenge.id.as_bytes(),
        now: None,
    };
    // First here and then in Redis, so that an account that has had its challenges takes no place from others.
    if let Err(wait) = easel.accounts.pass(user, NonZeroU32::MIN) {
        return Ok(Posing::Limited {
            wait_ms: Millis::try_from(wait.as_millis()).unwrap_or(Millis::MAX),
        });
    }
    if let Verdict::Limited { wait_ms } = app.stock.pass(&limit, &asking).await? {
        return Ok(Posing::Limited { wait_ms });
    }
    let place = if needs_place(kind, cost) {
        match easel.place().await {
            Ok(place) => Some(place),
            Err(overloaded) => {
                // An account that is told to try again has used up nothing.
                app.stock.give_back(&asking).await?;
                return Err(overloaded);
            }
        }
    } else {
        None
    };
    // Told before it is kept, so that what is told is not too long.
    let expires_at = Utc::now().timestamp() + i64::try_from(LASTS.as_secs()).unwrap_or_default();
    let (answer, shown) = match kind {
        ChallengeKind::ProofOfWork => {
            let proof = move || riddle::proof_of_work(cost, expires_at);
            let (answer, challenge) = draw(place, proof).await?;
            (answer, Shown::ProofOfWork(Box::new(challenge)))
        }
        ChallengeKind::Captcha | ChallengeKind::None => {
            let (answer, png) = draw(place, riddle::captcha).await?;
            (answer, Shown::Captcha(png))
        }
    };
    app.stock.pose_challenge(&challenge, &answer, LASTS).await?;
    Ok(Posing::Posed {
        id: challenge.id,
        shown,
        expires_at,
    })
}

/// Whether a shopper has solved what this sale asks for, for this request: `given` is a challenge's id and his answer.
///
/// # Errors
/// A fault says that it is not known; the same may be sent again.
pub async fn solve(
    stock: &Stock,
    sale: &Sale,
    user: &UserId,
    request: &IdempotencyKey,
    given: Option<(Uuid, &str)>,
) -> Result<Solving, Fault> {
    let kind = sale.guards.challenge;
    if kind == ChallengeKind::None {
        return Ok(Solving::Solved);
    }
    let Some((id, answer)) = given else {
        return Ok(Solving::Unknown);
    };
    let challenge = Challenge {
        id,
        sale: sale.id,
        user,
    };
    let mut read = String::new();
    if sale.guards.take_proof_for_captcha() {
        // No letters of a picture are what the widget submits.
        read = riddle::read_answer(ChallengeKind::ProofOfWork, answer);
    }
    if read.is_empty() {
        read = riddle::read_answer(kind, answer);
    }
    stock.solve_challenge(&challenge, &read, request).await
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn drawn<T: Send + 'static>(
        easel: &Easel,
        drawing: impl FnOnce() -> Option<T> + Send + 'static,
    ) -> Result<T, Fault> {
        draw(Some(easel.place().await?), drawing).await
    }
    use std::sync::mpsc;

    #[tokio::test]
    async fn while_too_many_are_being_drawn_the_next_waits_and_is_then_refused() {
        let easel = Arc::new(Easel::new(1));
        let (end, ended) = mpsc::channel::<()>();
        let first = {
            let easel = Arc::clone(&easel);
            tokio::spawn(async move { drawn(&easel, move || ended.recv().ok()).await })
        };
        while easel.places.available_permits() > 0 {
            tokio::task::yield_now().await;
        }
        let refused = drawn(&easel, || Some(2)).await;
        assert!(matches!(refused, Err(Fault::Overloaded(_))), "{refused:?}");
        // Whoever waits for it may go; the place is taken until it is drawn.
        first.abort();
        assert!(first.await.unwrap_err().is_cancelled());
        assert!(matches!(drawn(&easel, || Some(2)).await, Err(Fault::Overloaded(_))));
        end.send(()).unwrap();
        assert_eq!(drawn(&easel, || Some(2)).await.unwrap(), 2);
        let nothing = drawn(&easel, || None::<u8>).await;
        assert!(matches!(nothing, Err(Fault::Bug(_))), "{nothing:?}");
    }

    #[tokio::test]
    async fn a_cheap_proof_of_work_waits_for_nobody() {
        assert!(!needs_place(ChallengeKind::ProofOfWork, CHEAP));
        assert!(needs_place(ChallengeKind::ProofOfWork, CHEAP + 1) && needs_place(ChallengeKind::Captcha, 1));
        let proof = draw(None, || riddle::proof_of_work(CHEAP, 2_000_000_000)).await;
        assert!(proof.is_ok());
    }
}
