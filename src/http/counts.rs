//! Counts purchases and refusals: in the metrics, in the pulse of a sale that an operator watches, in the sale's history,
//! and in its refusal counts.

use crate::domain::code::Code;
use crate::domain::guard::{Effect, Layer};
use crate::domain::ids::{SaleId, UserId};
use crate::domain::sale::fairness::AccountHash;
use crate::http::Api;
use crate::http::problem::Problem;
use actix_web::HttpRequest;
use actix_web::http::{Method, StatusCode};
use std::time::Duration;

/// The account limit's name in the pulse. The shopper's window, which is checked later, has the same code
/// and another name.
pub const ACCOUNT_LIMIT: &str = "account_limit";

/// Counts the answer to a purchase whose sale was read.
pub fn answered(api: &Api, sale: SaleId, answer: Result<StatusCode, &Problem>, took: Duration) {
    let answer = match answer {
        Ok(StatusCode::CREATED) => "reserved",
        Ok(_) => "replayed",
        Err(problem) => problem.code().as_str(),
    };
    measure(api, answer, took);
    count(api, sale, answer, Some(took));
}

/// Counts a purchase that was refused before its sale was read, because of its token, key or body. Many of them may
/// show a fault of ours, such as an instance with the wrong secret.
pub fn unread(api: &Api, sale: Option<SaleId>, code: Code, took: Duration) {
    measure(api, code.as_str(), took);
    if let Some(sale) = sale.filter(|sale| api.app.sales.knows(*sale)) {
        let is_account_limit = code == Code::RateLimited;
        let answer = if is_account_limit { ACCOUNT_LIMIT } else { code.as_str() };
        count(api, sale, answer, None);
    }
}

fn count(api: &Api, sale: SaleId, answer: &'static str, took: Option<Duration>) {
    api.app.pulse.count(sale, answer, took);
    api.app.history.count(sale, answer, took);
}

fn measure(api: &Api, answer: &'static str, took: Duration) {
    api.metrics.purchases.of([answer]).inc();
    api.metrics.purchase_duration.observe(took);
}

/// Counts a request that a guard refused.
pub fn refused_by_guard(api: &Api, sale: Option<SaleId>, layer: Layer) {
    api.metrics.guard_refusals.of([layer.as_str()]).inc();
    if let Some(sale) = sale.filter(|sale| api.app.sales.knows(*sale)) {
        api.app.refusal_counts.count(sale, layer, Effect::Refused);
    }
}

/// Counts a request that the gateway refused. A purchase also counts in the pulse, under the limit's name.
pub fn refused_at_gateway(api: &Api, request: &HttpRequest, layer: Layer, name: &'static str) {
    refused_by_guard(api, sale_of(request), layer);
    if let Some(sale) = sale_of_purchase(api, request) {
        count(api, sale, name, None);
    }
}

/// Counts a request that the limit of its account refused. A purchase also counts as one that its account sent.
pub fn refused_by_account_limit(api: &Api, request: &HttpRequest, user: &UserId) {
    refused_by_guard(api, sale_of(request), Layer::Account);
    if let Some(sale) = sale_of_purchase(api, request) {
        api.app.fairness.attempted(AccountHash::of(sale, user));
    }
}

/// The sale of a purchase, if there is such a sale.
fn sale_of_purchase(api: &Api, request: &HttpRequest) -> Option<SaleId> {
    let is_purchase = request.method() == Method::POST && request.match_info().as_str().ends_with("/orders");
    sale_of(request).filter(|sale| is_purchase && api.app.sales.knows(*sale))
}

/// The sale that a request names in its path.
pub fn sale_of(request: &HttpRequest) -> Option<SaleId> {
    let rest = request.match_info().as_str().strip_prefix("/v1/sales/")?;
    rest.split('/').next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::fault::Fault;
    use crate::domain::order::purchase::Refusal;
    use crate::metrics::Metrics;

    #[test]
    fn every_refusal_and_fault_of_a_purchase_is_counted_under_its_code() {
        let metrics = Metrics::default();
        let faults = [
            Fault::Unavailable,
            Fault::Incomplete,
            Fault::Overloaded,
            Fault::Newer,
            Fault::Bug,
        ];
        let faults = faults.map(|fault| Problem::from(fault(String::new())).code());
        let refusals = Refusal::each();
        for code in refusals.iter().map(|it| Problem::from(it).code()).chain(faults) {
            assert!(metrics.purchases.knows([code.as_str()]), "{code:?}");
        }
    }
}
