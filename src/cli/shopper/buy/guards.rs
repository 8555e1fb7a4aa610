//! The guards of a sale, as a shopper passes them: the waiting room, the challenge and the purchase token.

use super::{FOLLOWED, SALES, Wish, member};
use crate::cli::Failure;
use crate::cli::shared::answer::read;
use crate::cli::shared::client::{CallError, Client, retry_with};
use crate::cli::shared::duration;
use crate::domain::code::Code;
use crate::stderr;
use altcha::{SolveChallengeOptions, solve_challenge};
use anyhow::Context as _;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use std::thread;
use std::time::{Duration, Instant};

/// The wait before asking for the place again, in seconds: the least, the usual and the most.
const ASK_AGAIN: (u64, u64, u64) = (1, 5, 60);
const BY_HAND: &str = "the sale asks for a captcha, which needs a person: buy on the sale's page";
/// Stands for the state of a place where there is no line yet, and the sale will sell.
const WILL_SELL: &str = "will_sell";
/// The longest that a proof of work may take.
const PROOF_MAX: Duration = Duration::from_secs(240);

impl Wish {
    /// Waits until the shopper is admitted. Returns the admission; none if the shopper needs none, or no longer.
    pub(super) fn admission(&self, shopper: &Client, until: Instant) -> Result<Option<String>, Failure> {
        let (mut ticket, mut said) = (Value::Null, String::new());
        while Instant::now() < until {
            let place = match self.post(shopper, "waiting-room", &json!({"ticket": ticket})) {
                Err(error) if error.code() == Code::NotFound.as_str() => return Ok(None),
                Err(error) if will_sell(&error) => json!({"state": WILL_SELL, "ask_again_seconds": 2}),
                place => place.map_err(|error| self.unknown(error))?,
            };
            match place["state"].as_str() {
                Some("admitted") => return member(&place, "admission").map(Some),
                Some("closed") => return Err(Failure::No("the sale is over".to_owned())),
                Some("sold_out") => {
                    return Err(Failure::No(
                        "sold_out: nothing is free now; held units may come back later".to_owned(),
                    ));
                }
                _ => {}
            }
            let now = describe_place(&place);
            if now != said {
                stderr::line(format_args!("flashsale: {now}"));
                said = now;
            }
            if place["ticket"].is_string() {
                ticket = place["ticket"].clone();
            }
            let (least, usual, most) = ASK_AGAIN;
            let wait = place["ask_again_seconds"].as_u64().unwrap_or(usual);
            thread::sleep(Duration::from_secs(wait.clamp(least, most)));
        }
        Err(Failure::No(format!(
            "it was not this shopper's turn for 12 hours; {}",
            retry_with(&self.key)
        )))
    }

    /// A purchase token, for the answer to a challenge if the sale asks for one.
    pub(super) fn token(&self, shopper: &Client) -> Result<String, Failure> {
        let ask = |challenge: Option<Value>| {
            let request = json!({"idempotency_key": self.key, "challenge": challenge});
            self.post(shopper, "tokens", &request)
        };
        let mut issued = ask(None);
        if is_challenged(&issued) {
            issued = match self.proof(shopper)? {
                Some(proof) => ask(Some(proof)),
                // The sale asks for a picture, or for nothing any more.
                None => {
                    thread::sleep(FOLLOWED);
                    let again = ask(None);
                    if is_challenged(&again) {
                        return Err(Failure::No(BY_HAND.to_owned()));
                    }
                    again
                }
            };
        }
        member(&issued?, "token")
    }

    /// Does a proof of work of the sale, and returns the answer to it; none if the sale poses none.
    fn proof(&self, shopper: &Client) -> Result<Option<Value>, Failure> {
        let request = json!({"sale_id": self.sale, "without_picture": true}).to_string();
        let posed = match shopper.post("/v1/challenges", &request) {
            Err(error) if error.code() == Code::NotFound.as_str() => return Ok(None),
            posed => posed?.body,
        };
        if posed["kind"] != "proof_of_work" {
            return Err(Failure::No(BY_HAND.to_owned()));
        }
        let challenge: altcha::Challenge = read(&posed["altcha"])?;
        let solved = solve_challenge(SolveChallengeOptions {
            timeout_ms: u64::try_from(PROOF_MAX.as_millis()).unwrap_or(u64::MAX),
            ..SolveChallengeOptions::new(&challenge)
        });
        let solution = solved.ok().flatten();
        let solution = solution.context("the proof of work has no solution: repeat the command")?;
        let payload = json!({"challenge": challenge, "solution": solution});
        let answer = STANDARD.encode(payload.to_string());
        Ok(Some(json!({"id": member(&posed, "id")?, "answer": answer})))
    }

    fn post(&self, shopper: &Client, what: &str, body: &Value) -> Result<Value, CallError> {
        let path = format!("{SALES}/{}/{what}", self.sale);
        Ok(shopper.post(&path, &body.to_string())?.body)
    }
}

/// Whether operators have taken the room back, or not opened it yet, while the sale does not sell.
fn will_sell(error: &CallError) -> bool {
    let CallError::Refused(refusal) = error else {
        return false;
    };
    refusal.code == Code::SaleNotOpen.as_str()
        && matches!(refusal.problem["sale_state"].as_str(), Some("scheduled" | "paused"))
}

fn is_challenged(issued: &Result<Value, CallError>) -> bool {
    matches!(issued, Err(error) if error.code() == Code::ChallengeRequired.as_str())
}

/// A place in the waiting room, in words.
fn describe_place(place: &Value) -> String {
    if place["state"] == WILL_SELL {
        return "the sale does not sell now: waiting until it does".to_owned();
    }
    let number = |name: &str| place[name].as_u64();
    let at = match (number("position"), number("waiting")) {
        (Some(position), Some(waiting)) => format!("place {position} of {waiting} in the waiting room"),
        _ => "in the waiting room".to_owned(),
    };
    let wait = number("estimated_wait_seconds").map(Duration::from_secs);
    let wait = wait.map(|wait| format!(", about {}", duration::text(wait)));
    at + &wait.unwrap_or_default()
}
