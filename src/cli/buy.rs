//! `flashsale buy`: a purchase as a shopper makes it. It passes the guards of the sale: it waits in the waiting room,
//! does a proof of work, and fetches a purchase token. Its one key makes sure that repeating it makes no second order.

use super::answer::{read, show, text};
use super::client::{Answer, ApiArgs, Client};
use super::sale_ref::SaleRef;
use super::{Failure, output, setting, token};
use crate::config::JWT_SECRET;
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
/// The wait before the same purchase is sent again. The server has given up the attempt before by then.
const RETRY: Duration = Duration::from_secs(3);
/// The wait before asking for the place again, if the server names none.
const ASK_AGAIN_SECONDS: u64 = 5;
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
    #[arg(long, value_name = "N", default_value_t = 1)]
    quantity: u32,
    /// The shopper's id, 1 to 128 bytes.
    #[arg(long, value_name = "ID", value_parser = token::user_id)]
    user: String,
    /// Idempotency key; to retry after an unknown outcome, repeat the printed key, so that units are bought only once.
    #[arg(long)]
    key: Option<String>,
}

/// # Errors
/// `Usage` when `FLASHSALE_JWT_SECRET` is missing or the SKU must be named, `No` when the server refuses, `Fault` when
/// the outcome is unknown.
pub fn run(args: &Args) -> Result<(), Failure> {
    let token = token::issue(&setting::jwt_secret()?, &args.user, TOKEN_TTL, Utc::now())?;
    let shopper = args.api.client(Some(token))?.proven_by(JWT_SECRET);
    let key = args.key.clone().unwrap_or_else(|| Uuid::new_v4().to_string());
    let sale = args.sale.whole_of(&shopper, SALES)?;
    let order = buy(&shopper, sale, args.sku.as_deref(), args.quantity, &key)?.body;
    show(&order, args.api.json, |order: Value| describe(&order))
}

/// A sale, as far as a purchase needs it.
#[derive(Deserialize)]
struct Shown {
    items: Vec<Item>,
    guards: Guards,
}

#[derive(Deserialize)]
struct Item {
    sku: String,
    availability: String,
}

#[derive(Deserialize)]
struct Guards {
    waiting_room: bool,
    purchase_token: bool,
    challenge: String,
    captcha_proof: bool,
}

impl Shown {
    /// The SKU to buy: the given one, else that of the only item.
    fn chosen(&self, sku: Option<&str>) -> Result<String, Failure> {
        let known = |sku: &str| self.items.iter().any(|item| item.sku == sku);
        let named = match (sku, self.items.as_slice()) {
            (Some(sku), _) if known(sku) => return Ok(sku.to_owned()),
            (None, [only]) => return Ok(only.sku.clone()),
            (Some(sku), _) => format!("the sale has no item {}", output::one_line(sku)),
            (None, _) => "the sale has several items: name one".to_owned(),
        };
        let free = |item: &Item| format!("{} ({})", item.sku, item.availability.replace('_', " "));
        let items: Vec<String> = self.items.iter().map(free).collect();
        Err(Failure::Usage(format!("{named}; its items: {}", items.join(", "))))
    }
}

fn buy(shopper: &Client, sale: Uuid, sku: Option<&str>, quantity: u32, key: &str) -> Result<Answer, Failure> {
    let path = format!("{SALES}/{sale}");
    let shown: Shown = read(&shopper.get(&path)?.body)?;
    let body = json!({"sku": shown.chosen(sku)?, "quantity": quantity}).to_string();
    let mut headers = Vec::new();
    if shown.guards.waiting_room {
        headers.push(("x-admission", admission(shopper, &path)?));
    }
    if shown.guards.purchase_token {
        let answer = match shown.guards.challenge.as_str() {
            "none" => None,
            "captcha" if !shown.guards.captcha_proof => {
                return Err(Failure::No(
                    "the sale asks for a captcha, which needs a person: buy on the sale's page".to_owned(),
                ));
            }
            _ => Some(proof(shopper, sale)?),
        };
        let request = json!({"idempotency_key": key, "challenge": answer}).to_string();
        let issued = shopper.post(&format!("{path}/tokens"), &request)?.body;
        headers.push(("x-purchase-token", text(&issued["token"])));
    }
    let headers: Vec<(&str, &str)> = headers.iter().map(|(name, value)| (*name, value.as_str())).collect();
    let bought = shopper.post_once(&format!("{path}/orders"), key, &headers, &body, RETRY);
    let advice = format!("to retry, repeat the command with --key {}", output::one_line(key));
    bought.map_err(|error| error.with_advice(&advice))
}

/// Waits until the shopper is admitted. It ends at the latest with the sale.
fn admission(shopper: &Client, path: &str) -> Result<String, Failure> {
    let (mut ticket, mut said) = (Value::Null, String::new());
    loop {
        let place = shopper
            .post(&format!("{path}/waiting-room"), &json!({"ticket": ticket}).to_string())?
            .body;
        match place["state"].as_str() {
            Some("admitted") => return Ok(text(&place["admission"])),
            Some("closed") => return Err(Failure::No("the sale is over".to_owned())),
            _ => {}
        }
        let now = waits(&place);
        if now != said {
            stderr::line(format_args!("flashsale: {now}"));
            said = now;
        }
        if place["ticket"].is_string() {
            ticket = place["ticket"].clone();
        }
        thread::sleep(Duration::from_secs(
            place["ask_again_seconds"].as_u64().unwrap_or(ASK_AGAIN_SECONDS),
        ));
    }
}

/// A place in the waiting room, in words.
fn waits(place: &Value) -> String {
    let number = |member: &str| place[member].as_u64();
    let sold_out = if place["state"] == "sold_out" {
        "nothing is free now; "
    } else {
        ""
    };
    let at = match (number("position"), number("waiting")) {
        (Some(position), Some(waiting)) => format!("place {position} of {waiting} in the waiting room"),
        _ => "in the waiting room".to_owned(),
    };
    let wait = number("estimated_wait_seconds").map(|seconds| format!(", about {seconds} s"));
    format!("{sold_out}{at}{}", wait.unwrap_or_default())
}

/// Does a proof of work of the sale, and returns the answer to it.
fn proof(shopper: &Client, sale: Uuid) -> Result<Value, Failure> {
    let request = json!({"sale_id": sale, "without_picture": true}).to_string();
    let challenge = shopper.post("/v1/challenges", &request)?.body;
    let posed: altcha::Challenge = read(&challenge["altcha"])?;
    let solved = solve_challenge(SolveChallengeOptions {
        timeout_ms: u64::try_from(PROOF_MAX.as_millis()).unwrap_or(u64::MAX),
        ..SolveChallengeOptions::new(&posed)
    });
    let solution = solved
        .ok()
        .flatten()
        .context("the proof of work has no solution: try again")?;
    let payload =
        json!({"challenge": posed, "solution": {"counter": solution.counter, "derivedKey": solution.derived_key}});
    Ok(json!({"id": challenge["id"], "answer": STANDARD.encode(payload.to_string())}))
}

fn describe(order: &Value) -> String {
    let of = |member: &str| text(&order[member]);
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

    const SALE: &str = r#"{"items":[{"sku":"phone","availability":"low"},{"sku":"case","availability":"sold_out"}],
        "guards":{"waiting_room":true,"purchase_token":true,"challenge":"none","captcha_proof":false}}"#;
    const ORDER: &str = r#"{"id":"o","state":"reserved","quantity":1,"sku":"phone","amount_minor":499,"currency":"EUR",
        "expires_at":"2026-11-27T20:15:00.000Z"}"#;

    #[test]
    fn a_purchase_passes_the_guards_of_the_sale_with_one_key() {
        let server = MockServer::answering(&[
            (200, SALE),
            (
                200,
                r#"{"state":"waiting","position":2,"waiting":9,"ticket":"t1","ask_again_seconds":0}"#,
            ),
            (200, r#"{"state":"admitted","admission":"a1"}"#),
            (201, r#"{"token":"p1"}"#),
            (201, ORDER),
        ]);
        let order = buy(&server.client(), Uuid::nil(), Some("phone"), 1, "k").unwrap();
        assert!(describe(&order.body).contains("order o is reserved: 1 x phone, 499 EUR\nnext: flashsale pay o"));
        let asked = server.requests();
        assert!(asked[2].contains(r#""ticket":"t1""#), "{asked:?}");
        assert!(asked[3].contains(r#""idempotency_key":"k""#), "{asked:?}");
        let purchase = asked[4].to_lowercase();
        for header in ["x-admission: a1", "x-purchase-token: p1", "idempotency-key: k"] {
            assert!(purchase.contains(header), "{purchase}");
        }
    }

    #[test]
    fn the_item_is_named_where_there_are_several() {
        let shown: Shown = serde_json::from_str(SALE).unwrap();
        assert_eq!(shown.chosen(Some("case")).unwrap(), "case");
        for (sku, said) in [(None, "several items"), (Some("pad"), "no item pad")] {
            let wrong = shown.chosen(sku).unwrap_err().to_string();
            assert!(
                wrong.contains(said) && wrong.contains("phone (low), case (sold out)"),
                "{wrong}"
            );
        }
    }

    #[test]
    fn a_captcha_needs_a_person() {
        let sale = SALE
            .replace("none", "captcha")
            .replace(r#""waiting_room":true"#, r#""waiting_room":false"#);
        let server = MockServer::answering(&[(200, &sale)]);
        let refused = buy(&server.client(), Uuid::nil(), Some("phone"), 1, "k");
        assert!(matches!(refused, Err(Failure::No(said)) if said.contains("sale's page")));
    }
}
