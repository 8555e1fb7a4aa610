//! The problems in the document. They are made as the routes make them, so they have the same details and members.

use super::{Group, Operation};
use crate::domain::code::Code;
use crate::domain::fault::Fault;
use crate::domain::mistake::listed;
use crate::domain::operator::keys::OperatorRole;
use crate::domain::order::OrderState;
use crate::domain::order::purchase::Refusal;
use crate::domain::order::webhook::SignatureError;
use crate::domain::sale::SaleState;
use crate::flow::watch::readiness::Cause;
use crate::guard::gate::{self, Limit};
use crate::http::admin::operator::{NO_KEY, TOO_MANY_REFUSED, without_request_token};
use crate::http::explain::parse_json;
use crate::http::extract::{BODY_MAX, NO_TOKEN, key_missing, too_large, unauthenticated};
use crate::http::gateway;
use crate::http::problem::Problem;
use serde_json::Value;
use std::time::Duration;

/// How long the limits of the examples last.
const WAIT: Duration = Duration::from_secs(1);

impl Operation {
    /// A problem with this code, as the route answers it.
    pub(super) fn example(&self, code: Code) -> Problem {
        let is_purchase = self.id == "buy";
        let limited = |limit: Limit| gateway::problem(gate::Refusal { limit, wait: WAIT });
        match code {
            Code::InvalidRequest => self.invalid(),
            Code::IdempotencyKeyMissing => key_missing(),
            Code::Unauthenticated => match self.group {
                Group::Provider => Problem::new(code, SignatureError::NoMatch.to_string()),
                Group::Operators => unauthenticated(NO_KEY),
                Group::Shoppers | Group::Machines => unauthenticated(NO_TOKEN),
            },
            Code::Forbidden => Problem::forbidden(OperatorRole::View, "sales.pause"),
            Code::ChallengeRequired => Problem::challenge_required(),
            Code::ChallengeFailed => Problem::challenge_failed(),
            Code::ConsoleTokenRequired => without_request_token(),
            Code::NotFound if self.path.ends_with("/orders/{id}") => Problem::not_found("such order"),
            Code::OrderNotCancellable => Problem::order_not_cancellable(OrderState::Paid),
            Code::InvalidTransition => match self.id {
                "changeSale" | "deleteSale" => Problem::not_a_draft(SaleState::Open),
                "settlePayment" => Problem::wrong_state("this payment was paid back already, as re_1"),
                "settleDeadLetter" => Problem::wrong_state("this event was dealt with already: refunded"),
                _ => Problem::invalid_transition(SaleState::Closed),
            },
            Code::InsufficientStock => Problem::too_few_free("TSHIRT-M", 26, 99),
            Code::PayloadTooLarge => too_large(BODY_MAX),
            Code::IdempotencyKeyReused if self.path.ends_with("/restock") => Problem::key_reused("another restock"),
            Code::IdempotencyKeyReused if !is_purchase => {
                Problem::key_reused("a sale that was created with another body")
            }
            Code::RateLimited if self.group == Group::Operators => Problem::wait(code, TOO_MANY_REFUSED, WAIT),
            Code::RateLimited if !is_purchase => limited(Limit::Address),
            Code::Overloaded if self.group == Group::Shoppers => limited(Limit::Instance),
            Code::Overloaded => Problem::from(Fault::Overloaded(String::new())),
            Code::Unavailable if self.group == Group::Machines => Problem::not_ready(Cause::Redis.as_str()),
            Code::Unavailable => Problem::from(Fault::Unavailable(String::new())),
            _ => match Refusal::each().iter().find(|it| it.code() == code).map(Problem::from) {
                Some(refusal) if is_purchase => refusal,
                Some(refusal) => refusal.of_key(false),
                None => Problem::new(code, code.title()),
            },
        }
    }

    fn invalid(&self) -> Problem {
        if self.body.is_some()
            && let Err(broken) = parse_json::<Value>(b"{\"sku\":")
        {
            return broken;
        }
        let named = |place| self.parameters.iter().filter(move |it| it.place == place);
        let query: Vec<&str> = named("query").map(|it| it.name.as_str()).collect();
        match named("header").next() {
            _ if !query.is_empty() => {
                Problem::invalid(format!("offset is unknown; known are {}", listed(&query, "and")))
            }
            Some(header) => Problem::invalid(format!("the header {} is there twice", header.name)),
            None => Problem::no_session(),
        }
    }
}
