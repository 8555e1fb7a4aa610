//! `flashsale buy`: a purchase as a shopper makes it. The command sends the purchase, and passes each guard that the
//! refusal names: it waits in the waiting room, does a proof of work, and fetches a purchase token. All of it has one
//! key, so that repeating it makes no second order.

mod guards;
mod offer;

use super::token;
use crate::cli::Failure;
use crate::cli::shared::answer::{cell, show};
use crate::cli::shared::client::{Answer, ApiArgs, CallError, Client, PAUSE, retry_with};
use crate::cli::shared::sale_ref::SaleRef;
use crate::cli::shared::{number, output, setting};
use crate::config::JWT_SECRET;
use crate::domain::code::Code;
use crate::domain::ids::IdempotencyKey;
use crate::domain::order::purchase::QUANTITY_MAX;
use crate::domain::sale::SaleState;
use crate::stderr;
use anyhow::Context as _;
use chrono::Utc;
use offer::{items, list, newest_open, only_sku};
use serde_json::{Value, json};
use std::thread;
use std::time::{Duration, Instant};
use uuid::Uuid;

/// How long an answer is waited for: the server answers within two seconds.
const ANSWER_MAX: Duration = Duration::from_secs(5);
/// Every instance follows a change of the guards within this time.
const FOLLOWED: Duration = Duration::from_secs(1);
/// How many guards are passed for one purchase: an admission may end while a proof is computed.
const GUARDS_MAX: usize = 5;
/// The longest wait in the waiting room, in all.
const WAIT_MAX: Duration = Duration::from_secs(12 * 3_600);
/// How long the shopper's token is valid: longer than the wait and all that follows it.
const TOKEN_TTL: Duration = Duration::from_secs(13 * 3_600);
/// The sales that shoppers see.
const SALES: &str = "/v1/sales";

#[derive(clap::Args)]
#[command(after_help = "\
The command waits in the waiting room, and does a proof of work, if the sale has them. It cannot read a captcha. Needs
FLASHSALE_JWT_SECRET, to sign the shopper's token, and the shoppers' address in FLASHSALE_URL.

Examples:
  flashsale buy 3f2c… --user ada
  flashsale buy 3f2c… phone-black --quantity 2 --user ada --json | jq -r .id")]
pub struct Args {
    #[command(flatten)]
    api: ApiArgs,
    /// The sale's id, its first (at least four) or last eight characters, or @latest for the newest open sale.
    #[arg(value_name = "SALE_ID")]
    sale: SaleRef,
    /// The item's SKU; default: the sale's only item.
    sku: Option<String>,
    /// How many units to buy.
    #[arg(
        long,
        value_name = "N",
        default_value_t = 1,
        allow_negative_numbers = true,
        value_parser = number::whole(1, QUANTITY_MAX)
    )]
    quantity: u32,
    /// The shopper's id, 1 to 128 bytes.
    #[arg(long, value_name = "ID", value_parser = token::user_id)]
    user: String,
    /// Idempotency key; to retry after an unknown outcome, repeat the printed key, so that units are bought only once.
    #[arg(long, value_parser = key)]
    key: Option<IdempotencyKey>,
}

fn key(text: &str) -> Result<IdempotencyKey, String> {
    if text.trim() != text {
        return Err("HTTP drops spaces around a key: leave them out".to_owned());
    }
    text.parse().map_err(|wrong| format!("{wrong}"))
}

pub fn run(args: &Args) -> Result<(), Failure> {
    let token = token::issue(&setting::jwt_secret()?, &args.user, TOKEN_TTL, Utc::now())?;
    let shopper = args.api.client_within(Some(token), ANSWER_MAX)?;
    let shopper = shopper.proven_by(JWT_SECRET).patient(PAUSE);
    // Reads with a token count as page views, of which a shopper may not have too many.
    let reader = args.api.client(None)?.patient(PAUSE);
    let sale = match &args.sale {
        SaleRef::Latest => newest_open(&reader)?,
        named => named.among(&reader, SALES, "shoppers see no such sale")?,
    };
    let wish = Wish {
        sale,
        sku: args.sku.clone().map_or_else(|| only_sku(&reader, sale), Ok)?,
        quantity: args.quantity,
        key: match &args.key {
            Some(key) => key.as_str().to_owned(),
            None => Uuid::new_v4().to_string(),
        },
    };
    // Also a purchase that is broken off can be repeated.
    if args.key.is_none() {
        stderr::line(format_args!("key {}", wish.key));
    }
    let order = wish.buy(&shopper, &reader)?.body;
    show(&order, args.api.form(), |order: Value| describe(&order))
}

/// What a shopper wants to buy.
struct Wish {
    sale: Uuid,
    sku: String,
    quantity: u32,
    key: String,
}

impl Wish {
    /// A failure after which only the key shows whether there is an order.
    fn unknown(&self, error: CallError) -> Failure {
        let text = match &error {
            CallError::Refused(refusal) if refusal.problem["key_has_order"] == false => error.to_string(),
            _ if error.code() == Code::IdempotencyKeyReused.as_str() => {
                "this key has an order of another item or quantity: ask for the original one, or use a new key"
                    .to_owned()
            }
            _ => format!("{error}; {}", retry_with(&self.key)),
        };
        error.failure(text)
    }

    /// What makes the sale sell, by the state that a refusal names.
    fn next_step(&self, reader: &Client, problem: &Value) -> Option<String> {
        let sale = self.sale;
        let state: SaleState = problem["sale_state"].as_str()?.parse().ok()?;
        match state {
            SaleState::Draft => Some(format!("an operator publishes it with `flashsale sale preload {sale}`")),
            SaleState::Scheduled => {
                let shown = reader.get(&format!("{SALES}/{sale}")).ok()?.body;
                Some(format!(
                    "it starts at {}, or when an operator runs `flashsale sale open {sale}`",
                    cell(&shown, "starts_at")
                ))
            }
            SaleState::Paused => Some(format!("an operator resumes it with `flashsale sale resume {sale}`")),
            SaleState::Open | SaleState::Closed => None,
        }
    }

    /// Buys. A repeated key with an order gets that order, whatever its sale asks for meanwhile.
    fn buy(&self, shopper: &Client, reader: &Client) -> Result<Answer, Failure> {
        let path = format!("{SALES}/{}/orders", self.sale);
        let body = json!({"sku": self.sku, "quantity": self.quantity}).to_string();
        let until = Instant::now() + WAIT_MAX;
        let (mut admission, mut token) = (None, None);
        let mut passed = 0;
        loop {
            let proofs = [
                ("idempotency-key", Some(self.key.as_str())),
                ("x-admission", admission.as_deref()),
                ("x-purchase-token", token.as_deref()),
            ];
            let headers: Vec<(&str, &str)> = proofs
                .iter()
                .filter_map(|(name, proof)| Some((*name, (*proof)?)))
                .collect();
            let mut error = match shopper.send("POST", &path, &headers, &body) {
                Ok(answer) => return bought(answer),
                Err(error) => error,
            };
            if let CallError::Refused(refusal) = &mut error
                && refusal.code == Code::SaleNotOpen.as_str()
            {
                refusal.advice = self.next_step(reader, &refusal.problem);
            }
            match error.code() {
                _ if passed == GUARDS_MAX => return Err(self.unknown(error)),
                "admission_required" => {
                    admission = self.admission(shopper, until)?;
                    if admission.is_none() {
                        thread::sleep(FOLLOWED);
                    }
                }
                "purchase_token_required" => token = Some(self.token(shopper)?),
                "not_found" => {
                    let items = list(&items(reader, self.sale)?);
                    let text = format!("{error}; the sale's items: {items}");
                    return Err(error.failure(text));
                }
                _ => return Err(self.unknown(error)),
            }
            passed += 1;
        }
    }
}

/// The answer, if it is an order that a shopper can have: held or paid.
fn bought(answer: Answer) -> Result<Answer, Failure> {
    let id = member(&answer.body, "id")?;
    match answer.body["state"].as_str() {
        Some("reserved" | "paid") => Ok(answer),
        state => Err(Failure::No(format!(
            "the key's order {} is {}: a new key buys again",
            output::one_line(&id),
            output::one_line(state.unwrap_or("in no state"))
        ))),
    }
}

fn member(of: &Value, name: &str) -> Result<String, Failure> {
    let found = of[name].as_str().map(str::to_owned);
    Ok(found.with_context(|| format!("the server's answer has no {name}: is it of the same version?"))?)
}

fn describe(order: &Value) -> String {
    let of = |name: &str| output::one_line(&cell(order, name));
    let next = match order["state"].as_str() {
        Some("reserved") => format!("next: flashsale pay {}, before {}\n", of("id"), of("expires_at")),
        _ => String::new(),
    };
    format!(
        "order {} is {}: {} x {}, {}\n{next}",
        of("id"),
        of("state"),
        of("quantity"),
        of("sku"),
        of("amount_minor")
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::shared::human;
    use crate::cli::shared::mock_server::MockServer;

    const ORDER: &str = r#"{"id":"o","state":"reserved","quantity":1,"sku":"phone","amount_minor":499,"currency":"EUR",
        "expires_at":"2026-11-27T20:15:00.000Z"}"#;

    fn refused(code: &str) -> String {
        json!({"code": code, "detail": "why", "key_has_order": false}).to_string()
    }

    fn buy(answers: &[(u16, &str)]) -> (Result<Answer, Failure>, Vec<String>) {
        let server = MockServer::answering(answers);
        let wish = Wish {
            sale: Uuid::nil(),
            sku: "phone".to_owned(),
            quantity: 1,
            key: "k".to_owned(),
        };
        (wish.buy(&server.client(), &server.client()), server.requests())
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
            said.contains("order o is reserved: 1 x phone, 4.99 EUR\nnext: flashsale pay o"),
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
    fn a_waiting_room_that_ends_lets_its_shoppers_buy() {
        let waiting = json!({"state": "waiting", "ask_again_seconds": 0}).to_string();
        let (bought, asked) = buy(&[
            (403, &refused("admission_required")),
            (200, &waiting),
            // Operators take the room back in a pause.
            (409, r#"{"code":"sale_not_open","detail":"why","sale_state":"paused"}"#),
            (404, &refused("not_found")),
            // Another instance does not know it yet.
            (403, &refused("admission_required")),
            (404, &refused("not_found")),
            (201, ORDER),
        ]);
        assert_eq!((bought.is_ok(), asked.len()), (true, 7), "{asked:?}");
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
        for order in [r#"{"id":"o","state":"expired"}"#, "{}"] {
            let (outcome, _) = buy(&[(200, order)]);
            assert!(outcome.is_err(), "{order}: {outcome:?}");
        }
        let admitted = (200, r#"{"state":"admitted","admission":"a1"}"#);
        let again = refused("admission_required");
        let rounds: Vec<(u16, &str)> = [(403, again.as_str()), admitted].repeat(GUARDS_MAX + 1);
        let (outcome, asked) = buy(&rounds);
        assert!(matches!(outcome, Err(Failure::Refused { .. })), "{outcome:?}");
        assert_eq!(asked.len(), 2 * GUARDS_MAX + 1, "no guard is passed in vain");
    }

    #[test]
    fn the_key_is_printed_unless_it_certainly_has_no_order() {
        let prints_key = |status, body: &str| buy(&[(status, body)]).0.unwrap_err().to_string().contains("--key 'k'");
        assert!(prints_key(403, "<html>"));
        assert!(prints_key(429, r#"{"code":"cooling_down","detail":"later"}"#));
        assert!(!prints_key(409, &refused("sold_out")));
        let reused = r#"{"code":"idempotency_key_reused","detail":"it belongs to another request"}"#;
        assert!(!prints_key(422, reused));
    }

    #[test]
    fn a_sale_that_is_not_open_says_how_it_comes_to_sell() {
        let starts_at = "2026-11-27T20:00:00.000Z";
        let sale = json!({"starts_at": starts_at}).to_string();
        for (state, part) in [
            ("draft", "`flashsale sale preload 0"),
            ("scheduled", human::moment(starts_at).unwrap().as_str()),
            ("scheduled", "`flashsale sale open 0"),
            ("paused", "`flashsale sale resume 0"),
            ("closed", "sale_not_open: why"),
        ] {
            let refused =
                json!({"code": "sale_not_open", "detail": "why", "sale_state": state, "key_has_order": false});
            let said = buy(&[(409, &refused.to_string()), (200, &sale)])
                .0
                .unwrap_err()
                .to_string();
            assert!(
                said.starts_with("sale_not_open: why") && said.contains(part),
                "{part}: {said}"
            );
        }
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
                (403, &refused("challenge_required")),
            ]);
            assert!(matches!(outcome, Err(Failure::No(said)) if said.contains("sale's page")));
        }
    }

    #[test]
    fn the_items_are_listed_where_one_has_to_be_named() {
        let sale = r#"{"items":[{"sku":"phone","availability":"low"},{"sku":"case","availability":"sold_out"}]}"#;
        let unnamed = only_sku(&MockServer::answering(&[(200, sale)]).client(), Uuid::nil());
        let unknown = buy(&[(404, &refused("not_found")), (200, sale)]).0;
        for wrong in [unnamed.unwrap_err(), unknown.unwrap_err()] {
            assert!(wrong.to_string().contains("phone (low), case (sold out)"), "{wrong:?}");
        }
    }

    #[test]
    fn a_key_has_no_spaces_around_it() {
        assert!(key("click 1").is_ok());
        assert!(key(" click").is_err());
    }
}
