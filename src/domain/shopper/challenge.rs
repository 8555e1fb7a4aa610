//! Challenges: what a shopper must solve for a purchase token, each posed to one shopper for one sale. Redis stores
//! only a digest of the answer, under a name that is derived from the challenge's id, shopper and sale.

use crate::domain::ids::{SaleId, UserId};
use sha2::{Digest as _, Sha256};
use std::time::Duration;
use uuid::Uuid;

/// How long a challenge can be answered.
pub const LASTS: Duration = Duration::from_secs(300);
/// The most challenges that one account may ask for in a minute. The page names this number in its text `lettersLimit`.
pub const MINUTE_MAX: u32 = 5;

/// A challenge, with its shopper and sale.
#[derive(Debug, Clone, Copy)]
pub struct Challenge<'a> {
    /// The id that the shopper received.
    pub id: Uuid,
    pub sale: SaleId,
    pub user: &'a UserId,
}

impl Challenge<'_> {
    /// The name in Redis. With another shopper or sale, the same id gives another name, under which nothing is stored.
    pub fn name(&self) -> Uuid {
        let [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p, ..] = self.hash(b"challenge name", "");
        Uuid::from_bytes([a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p])
    }

    /// The digest of an answer, as it is stored. It hides the answer from a glance, not from a search: the letters of a
    /// captcha are few.
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
            // Each length first, so that no two lists of parts give the same bytes.
            hasher.update((part.len() as u64).to_be_bytes());
            hasher.update(part);
        }
        hasher.finalize().into()
    }
}

/// The outcome of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Solving {
    /// The answer is right, for this request.
    Solved,
    /// The answer is wrong, and the challenge is deleted.
    Wrong,
    /// No such challenge waits for an answer: it was never posed to this shopper for this sale, has expired, or is
    /// deleted.
    Unknown,
    /// The challenge was solved before, for another request or with another answer.
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
            // A byte at the end of one part moves to the beginning of the next.
            for answer in ["KEY", "EY", ""] {
                digests.insert(challenge.digest(answer));
            }
        }
        assert_eq!((names.len(), digests.len()), (5, 15));
    }
}
