//! `flashsale buy`: a purchase as a shopper makes it. The command sends the purchase, and passes each guard that the
//! refusal names: it waits in the waiting room, does a proof of work, and fetches a purchase token. All of it has one
//! key, so that repeating it makes no second order.

use super::answer::{read, show, text};
use super::client::{Answer, ApiArgs, CallError, Client};
use super::sale_ref::SaleRef;
use super::{Failure, output, setting, token};
use crate::config::JWT_SECRET;
use crate::domain::ids::IdempotencyKey;
use crate::domain::purchase::QUANTITY_MAX;
use crate::stderr;
use altcha::{SolveChallengeOptions, solve_challenge};
use anyhow::Context as _;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use chrono::Utc;
use serde::Deserialize;
use serde_json::{Value, json};
use std::thread;
use std::time::Duration;
use uuid::Uuid;

/// How long the shopper's token is valid: longer than most waiting rooms.
const TOKEN_TTL: Duration = Duration::from_secs(12 * 3_600);
/// The least wait before the purchase is sent again: the server works on a lost one for up to two seconds.
const RETRY: Duration = Duration::from_secs(3);
/// The wait before asking for the place again, if the server names none.
const ASK_AGAIN: Duration = Duration::from_secs(5);
/// How many answers in a row may be missing. A restart of the server takes less.
const MISSES_MAX: usize = 30;
/// How many guards are passed for one purchase: an admission may end while a proof is computed.
const GUARDS_MAX: usize = 5;
/// The longest that a proof of work may take.
const PROOF_MAX: Duration = Duration::from_secs(240);
/// The sales that shoppers see.
const SALES: &str = "/v1/sales";

#[derive(clap::Args)]
#[command(after_help = "\
The command waits in the waiting room, and does a proof of work, if the sale has them. It cannot read a captcha. Needs
FLASHSALE_JWT_SECRET, to sign the shopper's token.

Examples:
  flashsale buy 3f2c… --user ada
  flashsale buy 3f2c… phone-black --quantity 2 --user ada --json | jq -r .id")]
pub struct Args {
    #[command(flatten)]
    api: ApiArgs,
    /// The sale's id, or its first characters.
    #[arg(value_name = "SALE_ID")]
    sale: SaleRef,
    /// The item's SKU; default: the sale's only item.
    sku: Option<String>,
    /// How many units to buy.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=i64::from(QUANTITY_MAX)))]
    quantity: u32,
    /// The shopper's id, 1 to 128 bytes.
    #[arg(long, value_name = "ID", value_parser = token::user_id)]
    user: String,
    /// Idempotency key; to retry after an unknown outcome, repeat the printed key, so that units are bought only once.
    #[arg(long, value_parser = key)]
    key: Option<IdempotencyKey>,
}

fn key(text: &str) -> Result<IdempotencyKey, String> {
    text.parse().map_err(|wrong| format!("{wrong}"))
}

/// # Errors
/// `Usage` when `FLASHSALE_JWT_SECRET` is missing or the SKU must be named, `No` when the server refuses, `Fault` when
/// the outcome is unknown.
pub fn run(args: &Args) -> Result<(), Failure> {
    let token = token::issue(&setting::jwt_secret()?, &args.user, TOKEN_TTL, Utc::now())?;
    let shopper = args.api.client(Some(token))?.proven_by(JWT_SECRET);
    let key = match &args.key {
        Some(key) => key.as_str().to_owned(),
        None => Uuid::new_v4().to_string(),
    };
    // Without a token, a list is no shopper's page view.
    let sale = args.sale.whole_of(&args.api.client(None)?, SALES)?;
    let wish = Wish {
        sale,
        sku: sku(&shopper, sale, args.sku.as_deref())?,
        quantity: args.quantity,
        key,
    };
    let order = wish.buy(&shopper)?.body;
    show(&order, args.api.form(), |order: Value| describe(&order))
}

/// An item of a sale, as shoppers see it.
#[derive(Deserialize)]
struct PublicItem {
    sku: String,
    availability: String,
}

/// The SKU to buy: the given one, else that of the sale's only item.
fn sku(shopper: &Client, sale: Uuid, given: Option<&str>) -> Result<String, Failure> {
    let items: Vec<PublicItem> = read(&shopper.get(&format!("{SALES}/{sale}"))?.body["items"])?;
    let known = |sku: &str| items.iter().any(|item| item.sku == sku);
    let named = match (given, items.as_slice()) {
        (Some(sku), _) if known(sku) => return Ok(sku.to_owned()),
        (None, [only]) => return Ok(only.sku.clone()),
        (Some(sku), _) => format!("the sale has no item {}", output::one_line(sku)),
        (None, _) => "the sale has several items: name one".to_owned(),
    };
    let with_stock = |item: &PublicItem| format!("{} ({})", item.sku, item.availability.replace('_', " "));
    let items: Vec<String> = items.iter().map(with_stock).collect();
    Err(Failure::Usage(format!(
        "{named}; its items: {}",
        output::one_line(&items.join(", "))
    )))
}

/// What a shopper wants to buy.
struct Wish {
    sale: Uuid,
    sku: String,
    quantity: u32,
    key: String,
}

impl Wish {
    /// Buys. A repeated key with an order gets that order, whatever its sale asks for meanwhile.
    fn buy(&self, shopper: &Client) -> Result<Answer, Failure> {
        let path = format!("{SALES}/{}/orders", self.sale);
        let body = json!({"sku": self.sku, "quantity": self.quantity}).to_string();
        let advice = format!("to retry, repeat the command with --key {}", self.key);
        let (mut admission, mut token) = (None, None);
        for _ in 0..=GUARDS_MAX {
            let proofs = [("x-admission", &admission), ("x-purchase-token", &token)];
            let headers: Vec<(&str, &str)> = proofs
                .iter()
                .filter_map(|(name, proof)| Some((*name, proof.as_deref()?)))
                .collect();
            let error = match shopper.post_once(&path, &self.key, &headers, &body, RETRY) {
                Ok(order) => return Ok(order),
                Err(error) => error,
            };
            match code(&error) {
                "admission_required" => admission = Some(self.admission(shopper)?),
                "purchase_token_required" => token = Some(self.token(shopper)?),
                _ => return Err(error.with_advice(&advice)),
            }
        }
        Err(Failure::No(format!(
            "admissions or tokens ended too soon, {GUARDS_MAX} times; {advice}"
        )))
    }

    /// Waits until the shopper is admitted. The wait ends at the latest with the sale.
    fn admission(&self, shopper: &Client) -> Result<String, Failure> {
        let (mut ticket, mut said) = (Value::Null, String::new());
        loop {
            let place = self.post(shopper, "waiting-room", &json!({"ticket": ticket}))?;
            match place["state"].as_str() {
                Some("admitted") => return member(&place, "admission"),
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
            let wait = place["ask_again_seconds"].as_u64();
            thread::sleep(wait.map_or(ASK_AGAIN, Duration::from_secs));
        }
    }

    /// A purchase token, for the answer to a challenge if the sale asks for one.
    fn token(&self, shopper: &Client) -> Result<String, Failure> {
        let path = format!("{SALES}/{}/tokens", self.sale);
        let ask = |challenge: Option<Value>| {
            let request = json!({"idempotency_key": self.key, "challenge": challenge}).to_string();
            patiently(|| shopper.post(&path, &request))
        };
        let issued = match ask(None) {
            Err(error) if code(&error) == "challenge_required" => ask(Some(self.proof(shopper)?)),
            issued => issued,
        };
        member(&issued?.body, "token")
    }

    /// Does a proof of work of the sale, and returns the answer to it.
    fn proof(&self, shopper: &Client) -> Result<Value, Failure> {
        let captcha = "the sale asks for a captcha, which needs a person: buy on the sale's page";
        let request = json!({"sale_id": self.sale, "without_picture": true}).to_string();
        let posed = match patiently(|| shopper.post("/v1/challenges", &request)) {
            Err(error) if code(&error) == "not_found" => return Err(Failure::No(captcha.to_owned())),
            posed => posed?.body,
        };
        if posed["kind"] != "proof_of_work" {
            return Err(Failure::No(captcha.to_owned()));
        }
        let challenge: altcha::Challenge = read(&posed["altcha"])?;
        let solved = solve_challenge(SolveChallengeOptions {
            timeout_ms: u64::try_from(PROOF_MAX.as_millis()).unwrap_or(u64::MAX),
            ..SolveChallengeOptions::new(&challenge)
        });
        let solution = solved.ok().flatten();
        let solution = solution.context("the proof of work has no solution: repeat the command")?;
        let payload = json!({"challenge": challenge, "solution": solution});
        Ok(json!({"id": member(&posed, "id")?, "answer": STANDARD.encode(payload.to_string())}))
    }

    fn post(&self, shopper: &Client, what: &str, body: &Value) -> Result<Value, CallError> {
        let (path, body) = (format!("{SALES}/{}/{what}", self.sale), body.to_string());
        Ok(patiently(|| shopper.post(&path, &body))?.body)
    }
}

/// Sends a request that changes nothing if it is repeated, until it has an answer.
fn patiently(send: impl Fn() -> Result<Answer, CallError>) -> Result<Answer, CallError> {
    let mut misses = 1..MISSES_MAX;
    loop {
        match send() {
            Err(error) if error.may_pass() && misses.next().is_some() => thread::sleep(error.pause(ASK_AGAIN)),
            outcome => return outcome,
        }
    }
}

/// The code of a refusal; empty if there is no answer.
fn code(error: &CallError) -> &str {
    match error {
        CallError::Refused(refusal) => &refusal.code,
        CallError::NoAnswer(_) => "",
    }
}

fn member(of: &Value, name: &str) -> Result<String, Failure> {
    let found = of[name].as_str().map(str::to_owned);
    Ok(found.with_context(|| format!("the server's answer has no {name}: is it of the same version?"))?)
}

/// A place in the waiting room, in words.
fn describe_place(place: &Value) -> String {
    let number = |name: &str| place[name].as_u64();
    let at = match (number("position"), number("waiting")) {
        (Some(position), Some(waiting)) => format!("place {position} of {waiting} in the waiting room"),
        _ => "in the waiting room".to_owned(),
    };
    let wait = number("estimated_wait_seconds").map(|seconds| format!(", about {seconds} s"));
    at + &wait.unwrap_or_default()
}

fn describe(order: &Value) -> String {
    let of = |name: &str| output::one_line(&text(&order[name]));
    let next = match order["state"].as_str() {
        Some("reserved") => format!("next: flashsale pay {}, before {}\n", of("id"), of("expires_at")),
        _ => String::new(),
    };
    format!(
        "order {} is {}: {} x {}, {} {}\n{next}",
        of("id"),
        of("state"),
        of("quantity"),
        of("sku"),
        of("amount_minor"),
        of("currency")
    )
}

#[cfg(test)]
mod tests {
    use super::super::mock_server::MockServer;
    use super::*;

    const ORDER: &str = r#"{"id":"o","state":"reserved","quantity":1,"sku":"phone","amount_minor":499,"currency":"EUR",
        "expires_at":"2026-11-27T20:15:00.000Z"}"#;

    fn refused(code: &str) -> String {
        json!({"code": code, "detail": "why"}).to_string()
    }

    fn buy(answers: &[(u16, &str)]) -> (Result<Answer, Failure>, Vec<String>) {
        let server = MockServer::answering(answers);
        let wish = Wish {
            sale: Uuid::nil(),
            sku: "phone".to_owned(),
            quantity: 1,
            key: "k".to_owned(),
        };
        (wish.buy(&server.client()), server.requests())
    }

    #[test]
    fn a_purchase_passes_the_guards_that_its_refusals_name() {
        let (bought, asked) = buy(&[
            (403, &refused("admission_required")),
            (
                200,
                r#"{"state":"waiting","position":2,"waiting":9,"ticket":"t1","ask_again_seconds":0}"#,
            ),
            (200, r#"{"state":"admitted","admission":"a1"}"#),
            (403, &refused("purchase_token_required")),
            (201, r#"{"token":"p1"}"#),
            (201, ORDER),
        ]);
        let said = describe(&bought.unwrap().body);
        assert!(
            said.contains("order o is reserved: 1 x phone, 499 EUR\nnext: flashsale pay o"),
            "{said}"
        );
        assert!(asked[2].contains(r#""ticket":"t1""#), "{asked:?}");
        assert!(asked[4].contains(r#""idempotency_key":"k""#), "{asked:?}");
        let purchase = asked[5].to_lowercase();
        for header in ["x-admission: a1", "x-purchase-token: p1", "idempotency-key: k"] {
            assert!(purchase.contains(header), "{purchase}");
        }
    }

    #[test]
    fn a_repeated_key_finds_its_order_without_any_guard() {
        let (bought, asked) = buy(&[(200, ORDER)]);
        assert_eq!((bought.unwrap().body["id"].as_str(), asked.len()), (Some("o"), 1));
    }

    #[test]
    fn a_wait_or_a_purchase_that_can_only_fail_ends() {
        for state in ["closed", "sold_out"] {
            let place = json!({"state": state}).to_string();
            let (outcome, _) = buy(&[(403, &refused("admission_required")), (200, &place)]);
            assert!(matches!(outcome, Err(Failure::No(_))), "{state}: {outcome:?}");
        }
        let (outcome, _) = buy(&[(409, &refused("sold_out"))]);
        assert!(
            matches!(&outcome, Err(Failure::No(said)) if !said.contains("--key")),
            "{outcome:?}"
        );
        let admitted = (200, r#"{"state":"admitted","admission":"a1"}"#);
        let again = refused("admission_required");
        let rounds: Vec<(u16, &str)> = [(403, again.as_str()), admitted].repeat(GUARDS_MAX + 1);
        let (outcome, _) = buy(&rounds);
        assert!(
            matches!(&outcome, Err(Failure::No(said)) if said.contains("--key k")),
            "{outcome:?}"
        );
    }

    #[test]
    fn a_captcha_needs_a_person() {
        for posed in [
            (404, refused("not_found")),
            (201, r#"{"kind":"captcha","id":"c"}"#.to_owned()),
        ] {
            let (outcome, _) = buy(&[
                (403, &refused("purchase_token_required")),
                (403, &refused("challenge_required")),
                (posed.0, &posed.1),
            ]);
            assert!(matches!(outcome, Err(Failure::No(said)) if said.contains("sale's page")));
        }
    }

    #[test]
    fn the_item_is_named_where_there_are_several() {
        let sale = r#"{"items":[{"sku":"phone","availability":"low"},{"sku":"case","availability":"sold_out"}]}"#;
        let chosen = |given| sku(&MockServer::answering(&[(200, sale)]).client(), Uuid::nil(), given);
        assert_eq!(chosen(Some("case")).unwrap(), "case");
        for (given, said) in [(None, "several items"), (Some("pad"), "no item pad")] {
            let wrong = chosen(given).unwrap_err().to_string();
            assert!(
                wrong.contains(said) && wrong.contains("phone (low), case (sold out)"),
                "{wrong}"
            );
        }
    }
}
