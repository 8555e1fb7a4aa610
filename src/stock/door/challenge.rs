//! Calls `lua/door/solve_challenge.lua`, and stores the right answers.

use crate::domain::fault::Fault;
use crate::domain::ids::IdempotencyKey;
use crate::domain::shopper::challenge::{Challenge, Solving};
use crate::stock::script::SOLVE_CHALLENGE;
use crate::stock::{Stock, millis};
use std::time::Duration;

/// The key of a challenge. It begins with a hash tag, as every key does.
fn key(challenge: &Challenge<'_>) -> String {
    format!("{{challenge:{}}}:answer", challenge.name().simple())
}

impl Stock {
    /// Stores the right answer to a challenge for `lasts`, which is at least a millisecond. An id is never posed twice.
    /// After a fault the answer may be missing, so the caller must not hand out the challenge.
    pub async fn pose_challenge(&self, challenge: &Challenge<'_>, answer: &str, lasts: Duration) -> Result<(), Fault> {
        let mut command = redis::cmd("SET");
        command.arg(key(challenge)).arg(&challenge.digest(answer));
        command.arg("PX").arg(millis(lasts));
        self.command(&command).await
    }

    /// Checks the one answer to a challenge. A right answer stays right for this request until the challenge expires.
    /// After a fault, it is unknown whether the answer was taken. The caller may send it again.
    pub async fn solve_challenge(
        &self,
        challenge: &Challenge<'_>,
        answer: &str,
        request: &IdempotencyKey,
    ) -> Result<Solving, Fault> {
        let mut call = SOLVE_CHALLENGE.prepare_invoke();
        call.key(key(challenge));
        call.arg(&challenge.digest(answer)).arg(request.as_str());
        match self.status(&SOLVE_CHALLENGE, &call).await?.as_str() {
            "SOLVED" => Ok(Solving::Solved),
            "WRONG" => Ok(Solving::Wrong),
            "UNKNOWN" => Ok(Solving::Unknown),
            "USED" => Ok(Solving::Used),
            other => Err(SOLVE_CHALLENGE.unknown(other)),
        }
    }
}
