//! Challenges: what has to be solved before a purchase token is handed out, each posed to one shopper for one sale. All
//! that is kept of one is a name that follows from whom it was posed to and what for, and a digest of its answer.

use super::ids::{SaleId, UserId};
use sha2::{Digest as _, Sha256};
use std::time::Duration;
use uuid::Uuid;

/// How long a challenge may be answered.
pub const LASTS: Duration = Duration::from_secs(300);
/// Challenges that one account may ask for within a minute.
pub const MINUTE_MAX: u32 = 5;

/// A challenge by whom it was posed to, and what for.
#[derive(Debug, Clone, Copy)]
pub struct Challenge<'a> {
    /// The id that the shopper was told.
    pub id: Uuid,
    /// The sale.
    pub sale: SaleId,
    /// The shopper.
    pub user: &'a UserId,
}

impl Challenge<'_> {
    /// The name that it is kept under. To another shopper, or for another sale, the same id is another challenge, and
    /// one that was never posed.
    #[must_use]
    pub fn name(&self) -> Uuid {
        let [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p, ..] = self.hash(b"challenge name", "");
        Uuid::from_bytes([a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p])
    }

    /// What is kept of this answer to it, if it is the right one. Whoever reads it still has to find the answer, and
    /// can: letters of a captcha are few.
    #[must_use]
    pub fn digest(&self, answer: &str) -> [u8; 32] {
        self.hash(b"challenge answer", answer)
    }

    fn hash(&self, what: &[u8], answer: &str) -> [u8; 32] {
        let parts = [
            what,
            self.id.as_bytes(),
            self.sale.0.as_bytes(),
            self.user.as_str().as_bytes(),
            answer.as_bytes(),
        ];
        let mut hasher = Sha256::new();
        for part in parts {
            // Lengths first, so that nothing can be taken for something else.
            hasher.update((part.len() as u64).to_be_bytes());
            hasher.update(part);
        }
        hasher.finalize().into()
    }
}

/// What came of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Solving {
    /// It is right, for this request.
    Solved,
    /// It is wrong, and the challenge is gone.
    Wrong,
    /// No such challenge waits for an answer: it was never posed to this shopper for this sale, it has expired, or it
    /// is gone.
    Unknown,
    /// It was solved before, for another request or by other words.
    Used,
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn what_is_kept_is_another_for_another_id_sale_shopper_or_answer() {
        let mut names = HashSet::new();
        let mut digests = HashSet::new();
        for (id, sale, user) in [
            (1, 1, "ada"),
            (2, 1, "ada"),
            (1, 2, "ada"),
            (1, 1, "bob"),
            (1, 1, "adaK"),
        ] {
            let user: UserId = user.parse().unwrap();
            let challenge = Challenge {
                id: Uuid::from_u128(id),
                sale: SaleId(Uuid::from_u128(sale)),
                user: &user,
            };
            assert_eq!(challenge.name(), challenge.name());
            names.insert(challenge.name());
            // What one pair has at its end, another has at its beginning.
            for answer in ["KEY", "EY", ""] {
                digests.insert(challenge.digest(answer));
            }
        }
        assert_eq!((names.len(), digests.len()), (5, 15));
    }
}
