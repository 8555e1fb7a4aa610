//! Challenges: posed to an account within its limit, and solved for one request. A crash after the limit was counted
//! costs the account one of its challenges. A challenge that was stored but not sent expires.

use super::accounts::Accounts;
use super::challenge_image;
use crate::domain::fault::Fault;
use crate::domain::guard::{Layer, Sender};
use crate::domain::ids::{IdempotencyKey, SaleId, UserId};
use crate::domain::sale::Sale;
use crate::domain::sale::guards::{ChallengeKind, SaleGuards};
use crate::domain::shopper::challenge::{Challenge, LASTS, MINUTE_MAX, Solving};
use crate::domain::time::Millis;
use crate::flow::App;
use crate::flow::sell::refusal_counts;
use crate::stock::door::limit::{Limit, LimitedRequest, Verdict};
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
pub enum PosedForm {
    Captcha(Vec<u8>),
    /// A proof of work, in the form that ALTCHA's widget takes.
    ProofOfWork(Box<altcha::Challenge>),
}

/// The form of challenge that a sale asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ChallengeForm {
    Captcha,
    ProofOfWork {
        /// About how many hashes the shopper's browser computes.
        cost: u32,
    },
}

impl ChallengeForm {
    /// The form that these guards of a sale ask for; else why a shopper gets none.
    fn of(guards: &SaleGuards, without_picture: bool) -> Result<Self, Posing> {
        match guards.challenge {
            ChallengeKind::None => Err(Posing::NoneAsked),
            ChallengeKind::ProofOfWork => Ok(Self::ProofOfWork {
                cost: guards.proof_cost,
            }),
            ChallengeKind::Captcha if !without_picture => Ok(Self::Captcha),
            ChallengeKind::Captcha if guards.take_proof_for_captcha() => Ok(Self::ProofOfWork {
                cost: guards.captcha_proof_cost,
            }),
            ChallengeKind::Captcha => Err(Posing::PictureOnly),
        }
    }

    /// Whether the challenge is drawn at a place.
    const fn needs_place(self) -> bool {
        match self {
            Self::Captcha => true,
            Self::ProofOfWork { cost } => cost > CHEAP,
        }
    }

    /// Draws the challenge; returns the answer and what the shopper gets.
    async fn draw(self, place: Option<OwnedSemaphorePermit>, expires_at: i64) -> Result<(String, PosedForm), Fault> {
        Ok(match self {
            Self::Captcha => {
                let (answer, png) = draw(place, challenge_image::captcha).await?;
                (answer, PosedForm::Captcha(png))
            }
            Self::ProofOfWork { cost } => {
                let proof = move || challenge_image::proof_of_work(cost, expires_at);
                let (answer, challenge) = draw(place, proof).await?;
                (answer, PosedForm::ProofOfWork(Box::new(challenge)))
            }
        })
    }
}

/// The outcome of a request for a challenge.
#[derive(Debug, Clone)]
pub enum Posing {
    Posed {
        id: Uuid,
        shown: PosedForm,
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
    drawer: &ChallengeDrawer,
    sale: SaleId,
    user: &UserId,
    without_picture: bool,
) -> Result<Posing, Fault> {
    let Some(sale) = app.sales.fixed(sale).await? else {
        return Ok(Posing::SaleNotFound);
    };
    let form = match ChallengeForm::of(&sale.shown_guards(), without_picture) {
        Ok(form) => form,
        Err(none) => return Ok(none),
    };
    let challenge = Challenge {
        id: Uuid::new_v4(),
        sale: sale.id,
        user,
    };
    let limited = LimitedRequest {
        id: &format!("challenge:{}", user.as_str()),
        request: *challenge.id.as_bytes(),
        now: None,
    };
    if let Some(wait_ms) = wait_for_limit(app, drawer, user, &limited).await? {
        return Ok(Posing::Limited { wait_ms });
    }
    let place = if form.needs_place() {
        match drawer.place().await {
            Ok(place) => Some(place),
            Err(overloaded) => {
                // The account gets this one back, because it is asked to try again.
                app.stock.give_back(&limited).await?;
                return Err(overloaded);
            }
        }
    } else {
        None
    };
    // Taken before the challenge is stored, so that it does not promise more time than Redis gives.
    let expires_at = Utc::now().timestamp() + i64::try_from(LASTS.as_secs()).unwrap_or_default();
    let (answer, shown) = form.draw(place, expires_at).await?;
    app.stock.pose_challenge(&challenge, &answer, LASTS).await?;
    Ok(Posing::Posed {
        id: challenge.id,
        shown,
        expires_at,
    })
}

/// Counts a challenge of an account; if the account is over its limit, how long it has to wait.
async fn wait_for_limit(
    app: &App,
    drawer: &ChallengeDrawer,
    user: &UserId,
    limited: &LimitedRequest<'_>,
) -> Result<Option<Millis>, Fault> {
    // The limit of this process comes first, so that an account over it takes no place from others.
    if let Err(wait) = drawer.accounts.pass(user, NonZeroU32::MIN) {
        return Ok(Some(Millis::try_from(wait.as_millis()).unwrap_or(Millis::MAX)));
    }
    let limit = Limit::SlidingWindow {
        limit: MINUTE_MAX,
        window: WINDOW,
    };
    Ok(match app.stock.pass(&limit, limited).await? {
        Verdict::Passed { .. } => None,
        Verdict::Limited { wait_ms } => Some(wait_ms),
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
    let asked = sale.challenge_for(user);
    let kind = asked.value;
    if kind == ChallengeKind::None {
        // In shadow nothing is posed, so an answer cannot be right or wrong.
        if given.is_none() && asked.shadow.is_some_and(|kind| kind != ChallengeKind::None) {
            let sender = Sender::Account(user.clone());
            refusal_counts::would_stop(app, Some(sale.id), Layer::Challenge, Some(sender));
        }
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
    if sale.shown_guards().take_proof_for_captcha() {
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
        drawer: &ChallengeDrawer,
        drawing: impl FnOnce() -> Option<T> + Send + 'static,
    ) -> Result<T, Fault> {
        draw(Some(drawer.place().await?), drawing).await
    }
    use std::sync::mpsc;

    #[tokio::test]
    async fn while_too_many_are_being_drawn_the_next_waits_and_is_then_refused() {
        let drawer = Arc::new(ChallengeDrawer::new(1));
        let (end, ended) = mpsc::channel::<()>();
        let first = {
            let drawer = Arc::clone(&drawer);
            tokio::spawn(async move { drawn(&drawer, move || ended.recv().ok()).await })
        };
        while drawer.places.available_permits() > 0 {
            tokio::task::yield_now().await;
        }
        let refused = drawn(&drawer, || Some(2)).await;
        assert!(matches!(refused, Err(Fault::Overloaded(_))), "{refused:?}");
        // The waiting client may go; the place stays taken until the drawing ends.
        first.abort();
        assert!(first.await.unwrap_err().is_cancelled());
        assert!(matches!(drawn(&drawer, || Some(2)).await, Err(Fault::Overloaded(_))));
        end.send(()).unwrap();
        assert_eq!(drawn(&drawer, || Some(2)).await.unwrap(), 2);
        let nothing = drawn(&drawer, || None::<u8>).await;
        assert!(matches!(nothing, Err(Fault::Bug(_))), "{nothing:?}");
    }

    #[tokio::test]
    async fn a_cheap_proof_of_work_waits_for_nobody() {
        assert!(!ChallengeForm::ProofOfWork { cost: CHEAP }.needs_place());
        assert!(ChallengeForm::ProofOfWork { cost: CHEAP + 1 }.needs_place() && ChallengeForm::Captcha.needs_place());
        let proof = draw(None, || challenge_image::proof_of_work(CHEAP, 2_000_000_000)).await;
        assert!(proof.is_ok());
    }
}
