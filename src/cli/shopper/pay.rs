//! `flashsale pay`: acts as the payment provider, which notifies the shop of a payment by a signed webhook.

use super::token;
use crate::cli::Failure;
use crate::cli::shared::client::{ApiArgs, Client};
use crate::cli::shared::order_ref::{Lists, OPERATORS, OrderRef, SHOPPERS};
use crate::cli::shared::{answer, output, setting};
use crate::config::{JWT_SECRET, WEBHOOK_SECRET};
use crate::domain::order::payment::PaymentOutcome;
use crate::domain::order::webhook;
use crate::domain::shop::currency;
use crate::domain::time;
use crate::http::shop::webhooks::PaymentAnswer;
use anyhow::Context as _;
use chrono::{DateTime, Utc};
use serde_json::{Value, json};
use std::time::Duration;
use uuid::Uuid;

/// The variable of a shopper's token.
const TOKEN: &str = "FLASHSALE_TOKEN";
/// The lifetime of a token that is made only to read one order.
const LOOK_UP_TTL: Duration = Duration::from_secs(60);

#[derive(clap::Args)]
#[command(after_help = "\
Without --amount or --currency, the command reads the order: as its shopper with --token or --user, else as the
operator (FLASHSALE_ADMIN_KEY). Needs FLASHSALE_WEBHOOK_SECRET.

Exit code 0 for applied, pending and duplicate, 1 for refund_due and unmatched.

An id in part, and @latest, are searched in the newest 1,000 orders of each of the newest ten sales that have been
preloaded.

Examples:
  flashsale pay 4c6f1a37
  flashsale pay @latest --amount 49900 --currency EUR --payment-id pay_1")]
pub struct Args {
    #[command(flatten)]
    api: ApiArgs,
    /// The last eight characters of the order's id, which pages show. Or all of it (the `id` in the answer to its
    /// purchase), its first characters (the orders of a sale share the first eight), or @latest for the newest order.
    order_id: OrderRef,
    /// The amount in the currency's minor unit; default: the order's amount.
    #[arg(long, value_name = "MINOR", allow_negative_numbers = true, value_parser = minor)]
    amount: Option<u64>,
    /// The currency of the payment; default: the order's currency.
    #[arg(long, value_name = "CODE")]
    currency: Option<String>,
    /// Read the order as this shopper.
    #[arg(long, value_name = "ID", value_parser = token::user_id, conflicts_with = "token")]
    user: Option<String>,
    /// Read the order with the shopper's token in FLASHSALE_TOKEN, else in the first line of standard input. The
    /// token is no argument, since all users of this machine can read arguments.
    #[arg(long)]
    token: bool,
    /// The payment's id; repeat it to deliver the same payment again. Default: a new id.
    #[arg(long, value_name = "ID")]
    payment_id: Option<String>,
}

fn minor(text: &str) -> Result<u64, String> {
    let wrong = "write the amount in the currency's minor unit: 49900 for 499.00 EUR";
    text.parse().map_err(|_wrong| wrong.to_owned())
}

/// Sends the webhook and prints the outcome.
pub fn run(args: &Args) -> Result<(), Failure> {
    let secret = setting::webhook_secret()?;
    let (order_id, known) = match &args.order_id {
        OrderRef::Id(id) => (*id, None),
        part => {
            let (client, lists) = reader(args)?;
            let order = part.find(&client, lists)?;
            (answer::read(&order["id"])?, Some(order))
        }
    };
    let (amount_minor, currency) = price(args, order_id, known)?;
    let payment = Payment {
        id: args
            .payment_id
            .clone()
            .unwrap_or_else(|| format!("pay_{}", Uuid::new_v4())),
        order_id,
        amount_minor,
        currency,
    };
    let provider = args.api.client(None)?.proven_by(WEBHOOK_SECRET);
    let answer = deliver(&provider, &secret, &payment, Utc::now())?;
    answer::show(&answer, args.api.form(), |answer: PaymentAnswer| {
        format!("{}  payment {}\n", answer.outcome.as_str(), payment.id)
    })?;
    let PaymentAnswer { outcome } = answer::read(&answer)?;
    // Without a key to read the order, the message lists the possible reasons.
    verdict(outcome, || {
        look_up(args, order_id).ok().and_then(|order| why_due(&order, &payment))
    })
}

struct Payment {
    id: String,
    order_id: Uuid,
    amount_minor: u64,
    currency: String,
}

/// The amount and the currency to pay: from the arguments, else from the order, which may be known.
fn price(args: &Args, order_id: Uuid, known: Option<Value>) -> Result<(u64, String), Failure> {
    let order = match (known, args.amount, &args.currency) {
        (Some(order), _, _) => order,
        (None, Some(_), Some(_)) => Value::Null,
        (None, _, _) => look_up(args, order_id)?,
    };
    let amount = args.amount.or_else(|| order["amount_minor"].as_u64());
    let currency = args.currency.as_deref().or_else(|| order["currency"].as_str());
    let price = amount.zip(currency.map(str::to_ascii_uppercase));
    Ok(price.context("the order has no price: name it with --amount and --currency")?)
}

fn look_up(args: &Args, id: Uuid) -> Result<Value, Failure> {
    let (client, lists) = reader(args)?;
    Ok(client.get(&format!("{}/{id}", lists.orders))?.body)
}

/// A client that may read the order, and its lists.
fn reader(args: &Args) -> Result<(Client, Lists), Failure> {
    Ok(match (args.token, &args.user) {
        (true, _) => (args.api.client(Some(given_token()?))?, SHOPPERS),
        (false, Some(user)) => {
            let token = token::issue(&setting::jwt_secret()?, user, LOOK_UP_TTL, Utc::now())?;
            (args.api.client(Some(token))?.proven_by(JWT_SECRET), SHOPPERS)
        }
        (false, None) => (args.api.operator()?, OPERATORS),
    })
}

/// The shopper's token from the environment, else from standard input.
fn given_token() -> Result<String, Failure> {
    let token = match std::env::var(TOKEN) {
        Ok(token) if !token.is_empty() => token,
        _ => {
            let mut line = String::new();
            let read = std::io::stdin().read_line(&mut line);
            read.context("standard input cannot be read")?;
            line
        }
    };
    match token.trim() {
        "" => Err(Failure::Usage(format!(
            "there is no token: set {TOKEN}, or write it to standard input"
        ))),
        token => Ok(token.to_owned()),
    }
}

/// Why the order cannot take this payment, as far as the order shows it.
fn why_due(order: &Value, payment: &Payment) -> Option<String> {
    let amount = order["amount_minor"].as_u64()?;
    let currency = order["currency"].as_str()?;
    if (amount, currency) != (payment.amount_minor, payment.currency.as_str()) {
        return Some(format!(
            "the order costs {} and {} were paid",
            output::one_line(&currency::money(amount, currency)),
            output::one_line(&currency::money(payment.amount_minor, &payment.currency))
        ));
    }
    match order["state"].as_str()? {
        "paid" => Some("the order has been paid before, by another payment".to_owned()),
        "reserved" => None,
        state => Some(format!("the order is {}", output::one_line(state))),
    }
}

fn deliver(client: &Client, secret: &[u8], payment: &Payment, now: DateTime<Utc>) -> Result<Value, Failure> {
    let body = json!({
        "type": "payment.succeeded",
        "timestamp": time::format(&now),
        "data": {
            "payment_id": payment.id,
            "order_id": payment.order_id,
            "amount_minor": payment.amount_minor,
            "currency": payment.currency,
        },
    })
    .to_string();
    let id = format!("msg_{}", Uuid::new_v4().simple());
    let seconds = now.timestamp();
    let signature = webhook::sign(secret, &id, seconds, body.as_bytes());
    let headers = [
        ("webhook-id", id.as_str()),
        ("webhook-timestamp", &seconds.to_string()),
        ("webhook-signature", &signature),
    ];
    // A real provider delivers again by itself. The same payment id makes a repetition safe here too.
    let again = format!(
        "to deliver it again, add --payment-id {}",
        output::one_line(&payment.id)
    );
    let answer = client.send("POST", "/v1/webhooks/payments", &headers, &body);
    Ok(answer.map_err(|error| error.with_advice(&again))?.body)
}

/// Turns the outcome into success or failure. `why` is called only for `refund_due`.
fn verdict(outcome: PaymentOutcome, why: impl FnOnce() -> Option<String>) -> Result<(), Failure> {
    Err(Failure::No(match outcome {
        PaymentOutcome::Applied | PaymentOutcome::Pending | PaymentOutcome::Duplicate => return Ok(()),
        PaymentOutcome::RefundDue => {
            let why = why().unwrap_or_else(|| {
                "the order has been paid before, is cancelled or expired, or costs something else".to_owned()
            });
            format!("refund_due: {why}; this money is recorded as owed back")
        }
        PaymentOutcome::Unmatched => "unmatched: there is no such order, the money is recorded as owed back".to_owned(),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::shared::mock_server::MockServer;
    use clap::Parser as _;

    const ORDER: Uuid = Uuid::from_u128(7);
    const SECRET: &[u8] = &[3; 32];

    #[derive(clap::Parser)]
    struct Line {
        #[command(flatten)]
        args: Args,
    }

    fn args(server: &MockServer, more: &[&str]) -> Args {
        let order = ORDER.to_string();
        let line = ["pay", order.as_str(), "--url", server.url()]
            .into_iter()
            .chain(more.iter().copied());
        Line::try_parse_from(line)
            .unwrap_or_else(|error| panic!("{error}"))
            .args
    }

    fn payment() -> Payment {
        Payment {
            id: "pay_1".to_owned(),
            order_id: ORDER,
            amount_minor: 49_900,
            currency: "EUR".to_owned(),
        }
    }

    #[test]
    fn the_delivery_is_signed_so_that_the_server_believes_it() {
        let server = MockServer::answering(&[(200, r#"{"outcome":"applied"}"#)]);
        let now = Utc::now();
        let provider = args(&server, &[]).api.client(None).unwrap();
        let answer = deliver(&provider, SECRET, &payment(), now).unwrap();
        assert_eq!(answer, json!({"outcome": "applied"}));
        let request = server.requests().remove(0);
        let (head, body) = request.split_once("\r\n\r\n").unwrap();
        let header = |name: &str| {
            let line = head
                .lines()
                .find(|line| line.starts_with(&format!("{name}: ")))
                .unwrap();
            line.split_once(": ").unwrap().1.to_owned()
        };
        let (id, at, signature) = (
            header("webhook-id"),
            header("webhook-timestamp"),
            header("webhook-signature"),
        );
        webhook::verify(SECRET, &id, &at, &signature, body.as_bytes(), now.timestamp()).unwrap();
        let body: Value = serde_json::from_str(body).unwrap();
        let data = json!({"payment_id": "pay_1", "order_id": ORDER, "amount_minor": 49_900, "currency": "EUR"});
        assert_eq!((&body["type"], &body["data"]), (&json!("payment.succeeded"), &data));
        assert!(!head.to_lowercase().contains("authorization"), "a provider has no key");
    }

    #[test]
    fn an_amount_with_a_point_is_explained() {
        assert!(minor("499.00").is_err_and(|said| said.contains("49900 for 499.00")));
    }

    #[test]
    fn a_price_that_is_given_needs_no_order() {
        let server = MockServer::answering(&[(200, "{}")]);
        let given = price(&args(&server, &["--amount", "1", "--currency", "usd"]), ORDER, None).unwrap();
        assert_eq!(given, (1, "USD".to_owned()));
        assert_eq!(server.requests().len(), 0, "nothing to look up");
    }

    #[test]
    fn a_delivery_that_may_be_repeated_says_how() {
        let server = MockServer::answering(&[(503, r#"{"code":"unavailable","detail":"Postgres does not answer"}"#)]);
        let message = deliver(&server.client(), SECRET, &payment(), Utc::now())
            .unwrap_err()
            .to_string();
        assert_eq!(
            message,
            "unavailable: Postgres does not answer; to deliver it again, add --payment-id pay_1"
        );
    }

    #[test]
    fn money_that_finds_no_order_is_a_no() {
        use PaymentOutcome::{Applied, Duplicate, Pending, RefundDue, Unmatched};
        for (outcome, is_done) in [
            (Applied, true),
            (Pending, true),
            (Duplicate, true),
            (RefundDue, false),
            (Unmatched, false),
        ] {
            let said = verdict(outcome, || None);
            assert_eq!(said.is_ok(), is_done, "{outcome:?}");
            assert!(is_done || matches!(said, Err(Failure::No(_))), "{outcome:?}");
        }
    }

    #[test]
    fn money_that_is_owed_back_has_a_reason() {
        let why = |order: Value| why_due(&order, &payment());
        let order = |state: &str| json!({"amount_minor": 49_900, "currency": "EUR", "state": state});
        assert_eq!(
            why(order("paid")).as_deref(),
            Some("the order has been paid before, by another payment")
        );
        for state in ["cancelled", "expired", "revoked"] {
            assert_eq!(why(order(state)), Some(format!("the order is {state}")));
        }
        assert_eq!(
            why(json!({"amount_minor": 100, "currency": "EUR", "state": "reserved"})).as_deref(),
            Some("the order costs 1.00 EUR and 499.00 EUR were paid")
        );
        assert_eq!((why(order("reserved")), why(json!({}))), (None, None));
        let line = |why: Option<&str>| {
            verdict(PaymentOutcome::RefundDue, || why.map(str::to_owned))
                .unwrap_err()
                .to_string()
        };
        assert_eq!(
            line(Some("the order is expired")),
            "refund_due: the order is expired; this money is recorded as owed back"
        );
        assert!(line(None).contains("paid before, is cancelled or expired, or costs something else"));
    }
}
