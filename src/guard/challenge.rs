//! Challenges: posed to an account within its limit, and solved for one request. A crash after the limit was counted
//! costs the account one of its challenges. A challenge that was stored but not sent expires.

use super::accounts::Accounts;
use super::challenge_image;
use crate::domain::challenge::{Challenge, LASTS, MINUTE_MAX, Solving};
use crate::domain::fault::Fault;
use crate::domain::ids::{IdempotencyKey, SaleId, UserId};
use crate::domain::sale::Sale;
use crate::domain::sale_guards::ChallengeKind;
use crate::domain::time::Millis;
use crate::flow::App;
use crate::stock::limit::{Asking, Limit, Verdict};
use chrono::Utc;
use governor::Quota;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use uuid::Uuid;

/// The window in which an account's challenges are counted.
const WINDOW: Duration = Duration::from_secs(60);
/// How long a challenge waits for its drawing to begin.
const DRAWING_WAIT: Duration = Duration::from_millis(500);
/// A proof of work of at most so many hashes is drawn at once, in about 0.13 ms. A place would cost more. Serving
/// threads hand the places on, so a busy instance posed only some dozens a second, and refused the others.
const CHEAP: u32 = 1000;

/// Challenges that an account may ask one process for, per minute and at once. This is more than its limit in Redis, so
/// that an account that got none for lack of a place may try again.
const ASKED_A_MINUTE: NonZeroU32 = NonZeroU32::MIN.saturating_add(2 * MINUTE_MAX - 1);

/// Draws challenges on threads of their own, so that purchases do not wait for them. At once, it draws at most one for
/// every two processors.
pub struct ChallengeDrawer {
    places: Arc<Semaphore>,
    accounts: Accounts,
}

impl Default for ChallengeDrawer {
    fn default() -> Self {
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        Self::new(processors.div_ceil(2))
    }
}

impl ChallengeDrawer {
    /// With places for so many drawings at once.
    #[must_use]
    pub fn new(places: usize) -> Self {
        Self {
            places: Arc::new(Semaphore::new(places)),
            accounts: Accounts::new(Quota::per_minute(ASKED_A_MINUTE)),
        }
    }

    /// A place for one drawing. `Overloaded` if none is free in time.
    async fn place(&self) -> Result<OwnedSemaphorePermit, Fault> {
        let place = tokio::time::timeout(DRAWING_WAIT, Arc::clone(&self.places).acquire_owned());
        match place.await {
            Ok(Ok(place)) => Ok(place),
            _ => Err(Fault::Overloaded("too many challenges are being drawn".to_owned())),
        }
    }
}

/// Whether a challenge of this kind and cost is drawn at a place.
const fn needs_place(kind: ChallengeKind, cost: u32) -> bool {
    !matches!(kind, ChallengeKind::ProofOfWork) || cost > CHEAP
}

fn cannot_be_drawn() -> Fault {
    Fault::Bug("a challenge cannot be drawn".to_owned())
}

/// Draws a challenge: on a thread of its own if it has a place, else at once. `Bug` if that fails.
async fn draw<T: Send + 'static>(
    place: Option<OwnedSemaphorePermit>,
    draw: impl FnOnce() -> Option<T> + Send + 'static,
) -> Result<T, Fault> {
    let Some(place) = place else {
        return draw().ok_or_else(cannot_be_drawn);
    };
    let drawn = tokio::task::spawn_blocking(move || {
        let drawn = draw();
        // Only now: even if the client has gone, the thread was busy until here.
        drop(place);
        drawn
    });
    let drawn = drawn
        .await
        .map_err(|error| Fault::Bug(format!("a challenge: {error}")))?;
    drawn.ok_or_else(cannot_be_drawn)
}

/// What the shopper gets to solve.
#[derive(Debug, Clone)]
pub enum Shown {
    Captcha(Vec<u8>),
    /// A proof of work, in the form that ALTCHA's widget takes.
    ProofOfWork(Box<altcha::Challenge>),
}

/// The outcome of a request for a challenge.
#[derive(Debug, Clone)]
pub enum Posing {
    Posed {
        id: Uuid,
        shown: Shown,
        /// When the challenge expires (Unix seconds).
        expires_at: i64,
    },
    /// The account has asked for too many challenges.
    Limited {
        /// How long the account has to wait for the next one.
        wait_ms: Millis,
    },
    /// The sale has no challenge.
    NoneAsked,
    /// The sale accepts only its picture, no proof of work instead.
    PictureOnly,
    SaleNotFound,
}

/// Poses the challenge of a sale; with `without_picture`, for a shopper who cannot see a picture. `Overloaded` if too
/// many are being drawn. After any other fault there is no challenge to solve.
pub async fn pose(
    app: &App,
    easel: &ChallengeDrawer,
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
    // The limit of this process comes first, so that an account over it takes no place from others.
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
                // The account gets this one back, because it is asked to try again.
                app.stock.give_back(&asking).await?;
                return Err(overloaded);
            }
        }
    } else {
        None
    };
    // Taken before the challenge is stored, so that it does not promise more time than Redis gives.
    let expires_at = Utc::now().timestamp() + i64::try_from(LASTS.as_secs()).unwrap_or_default();
    let (answer, shown) = match kind {
        ChallengeKind::ProofOfWork => {
            let proof = move || challenge_image::proof_of_work(cost, expires_at);
            let (answer, challenge) = draw(place, proof).await?;
            (answer, Shown::ProofOfWork(Box::new(challenge)))
        }
        ChallengeKind::Captcha | ChallengeKind::None => {
            let (answer, png) = draw(place, challenge_image::captcha).await?;
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

/// Whether a shopper has solved the sale's challenge for this request. `given` is the challenge's id and the answer. A
/// fault leaves that unknown; the same answer may be sent again.
pub async fn solve(
    app: &App,
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
        // The letters of a picture never decode as the widget's payload.
        read = challenge_image::read_answer(ChallengeKind::ProofOfWork, answer);
    }
    if read.is_empty() {
        read = challenge_image::read_answer(kind, answer);
    }
    app.stock.solve_challenge(&challenge, &read, request).await
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn drawn<T: Send + 'static>(
        easel: &ChallengeDrawer,
        drawing: impl FnOnce() -> Option<T> + Send + 'static,
    ) -> Result<T, Fault> {
        draw(Some(easel.place().await?), drawing).await
    }
    use std::sync::mpsc;

    #[tokio::test]
    async fn while_too_many_are_being_drawn_the_next_waits_and_is_then_refused() {
        let easel = Arc::new(ChallengeDrawer::new(1));
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
        // The waiting client may go; the place stays taken until the drawing ends.
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
        let proof = draw(None, || challenge_image::proof_of_work(CHEAP, 2_000_000_000)).await;
        assert!(proof.is_ok());
    }
}
