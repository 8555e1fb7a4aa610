//! The table of codes: each with its status of HTTP, its title and its explanation.

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Serialize, Serializer};
use std::borrow::Cow;

macro_rules! codes {
    ($($code:ident $name:literal $status:literal $title:literal $cause:literal $advice:literal)*) => {
        /// What went wrong, for programs.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Code {
            $(#[doc = $title] $code,)*
        }

        impl Code {
            pub const ALL: &[Self] = &[$(Self::$code),*];

            /// The code as it is sent.
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$code => $name,)* }
            }

            pub const fn status(self) -> u16 {
                match self { $(Self::$code => $status,)* }
            }

            /// What the code means.
            pub const fn title(self) -> &'static str {
                match self { $(Self::$code => $title,)* }
            }

            /// What happened, on the code's page. Words in backticks are code.
            pub const fn cause(self) -> &'static str {
                match self { $(Self::$code => $cause,)* }
            }

            /// What a client does about it, on the code's page. Words in backticks are code.
            pub const fn advice(self) -> &'static str {
                match self { $(Self::$code => $advice,)* }
            }
        }
    };
}

codes! {
    InvalidRequest "invalid_request" 400 "The request is not valid"
        "The JSON, a field, a parameter or a header is wrong. `detail` names it."
        "Correct the request. The same request fails again."
    IdempotencyKeyMissing "idempotency_key_missing" 400 "The header Idempotency-Key is missing"
        "A purchase or a restock came without `Idempotency-Key`."
        "Send the header: one new key for each wish, and the same key on every retry."
    Unauthenticated "unauthenticated" 401 "Authentication is needed"
        "The token, key or signature is missing, wrong or expired."
        "Sign in again, then send the request with the same `Idempotency-Key`."
    Banned "banned" 403 "The account is banned"
        "An operator or a guard has banned the account. It cannot buy."
        "Do not retry before `banned_until`; without it, never. Orders can still be read, paid and cancelled."
    Forbidden "forbidden" 403 "The operator's role does not allow it"
        "The named key of the operator has the role `view` or `run`, which lacks this action."
        "Ask an operator whose key has the role `all`, or `run` for a sale that is published."
    AdmissionRequired "admission_required" 403 "The sale has a waiting room"
        "The request has no valid `X-Admission`."
        "Take a place in the waiting room, then send the same key with the `X-Admission` that it gives."
    ChallengeRequired "challenge_required" 403 "A challenge has to be solved"
        "The request has no answer to a challenge, or one to an unknown, expired or used challenge."
        "Ask for a challenge, solve it, and send the answer with the request for the token."
    ChallengeFailed "challenge_failed" 403 "The challenge is not solved"
        "The answer is wrong. It has used the challenge up."
        "Ask for a new challenge and solve that one."
    PurchaseTokenRequired "purchase_token_required" 403 "A purchase token is needed"
        "The request has no valid `X-Purchase-Token` for its `Idempotency-Key`."
        "Get a purchase token for this key, then send the same request with it."
    ConsoleTokenRequired "console_token_required" 403 "The console's token is needed"
        "A session of the console changes something only with its `X-Console-Token`."
        "Pages send the token of their session. Programs send the operators' key instead of a cookie."
    NotFound "not_found" 404 "There is no such thing"
        "The path, sale, item or order does not exist, or it belongs to another shopper."
        "Check the id. The same request fails again."
    MethodNotAllowed "method_not_allowed" 405 "The path does not answer this method"
        "The path exists and answers other methods."
        "Use one of the methods that the header `Allow` names."
    SaleNotOpen "sale_not_open" 409 "The sale does not sell now"
        "The sale is in the state that `sale_state` names: draft, scheduled, paused or closed."
        "Wait for `starts_at` of a scheduled sale or for the end of a pause. A closed sale stays closed."
    SoldOut "sold_out" 409 "Sold out"
        "No shard had enough free units at that moment."
        "Show it to the shopper. Units come back when orders expire or are cancelled; do not poll."
    PurchaseLimitReached "purchase_limit_reached" 409 "The limit for one shopper is reached"
        "The shopper's reserved and paid units and the new ones exceed the item's `per_user_limit`."
        "Ask for fewer units. Cancelled and expired orders no longer count."
    OrderNotCancellable "order_not_cancellable" 409 "The order cannot be cancelled"
        "The order is paid, expired or revoked."
        "Read the order and show its state."
    InvalidTransition "invalid_transition" 409 "Its state does not allow it"
        "The sale, payment or dead letter is in a state that does not allow the action, or it changed meanwhile."
        "Read it again. Repeat the action only where its state allows that."
    InsufficientStock "insufficient_stock" 409 "There are not that many free units"
        "A restock takes back more units than are free, or exceeds the most that an item can have."
        "`detail` has the free units. Choose another quantity, with a new key."
    PayloadTooLarge "payload_too_large" 413 "The body is too large"
        "A body has at most 16 KiB. A sale that an operator creates or changes has at most 1 MiB."
        "Send a smaller body."
    IdempotencyKeyReused "idempotency_key_reused" 422 "The idempotency key belongs to another request"
        "An earlier request with this `Idempotency-Key` had another body."
        "Use a new key for a new wish."
    TooManyHolds "too_many_holds" 409 "There are too many unpaid orders"
        "The shopper has as many unpaid orders in this sale as it allows."
        "Let the shopper pay or cancel an order first."
    CoolingDown "cooling_down" 429 "Orders were not paid"
        "The shopper's last orders in this sale were not paid."
        "Show the shopper when `Retry-After` is over. It may be hours, so do not wait in a loop."
    RateLimited "rate_limited" 429 "Too many requests"
        "The shopper, the address or the operator has asked too often."
        "Wait `Retry-After` seconds, then send the request with the same key."
    Overloaded "overloaded" 503 "Too much at once"
        "The instance has too many requests, or too many orders wait for the ledger. Nothing was reserved."
        "Wait `Retry-After` seconds, then send the request with the same key."
    Unavailable "unavailable" 503 "Not available now"
        "Redis or Postgres did not answer, or the sale's stock is being rebuilt. The outcome is not known."
        "Wait `Retry-After` seconds, then send the request with the same key: it returns the order if there is one."
}

impl Serialize for Code {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

impl JsonSchema for Code {
    fn schema_name() -> Cow<'static, str> {
        "Code".into()
    }
    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "type": "string",
            "description": "What went wrong, for programs.",
            "enum": Self::ALL,
        })
    }
}
