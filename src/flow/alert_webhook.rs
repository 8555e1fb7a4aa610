//! Alert webhook: send each alert to the operators' own address, at least once.
//!
//! An alert is claimed, sent, and noted as delivered, or to be sent again later. A crash in between leaves a claim that
//! ends by itself; then it is sent once more, with the same id. One is sent after the other over all processes, so they
//! arrive in their order as long as none fails.

use super::App;
use crate::domain::alert::{AlertWebhook, Delivery, retry_after};
use crate::domain::fault::Fault;
use crate::domain::host::is_this_machine;
use chrono::Utc;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::oneshot;
use ureq::http::Uri;

/// How long a delivery may take in all.
const DELIVERY_MAX: Duration = Duration::from_secs(10);
/// How long finding the other side and shaking hands may take.
const CONNECT_MAX: Duration = Duration::from_secs(5);
/// So much of an answer is read, so that its connection can be used again; nobody looks at it.
const ANSWER_BYTES_MAX: u64 = 4096;

/// Sends alerts to one address.
pub struct Sender {
    hook: AlertWebhook,
    agent: ureq::Agent,
}

/// What a round came to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Sent {
    /// There is nothing to send now, or another process is at it.
    Nothing,
    Delivered,
    /// One was not, for this reason; it is sent again later.
    Failed(String),
}

impl Sender {
    /// A sender to this address. Redirects are not followed: what is signed for one is not for another.
    #[must_use]
    pub fn new(hook: AlertWebhook) -> Self {
        let uri = hook.url.parse::<Uri>().unwrap_or_default();
        let host = uri.host().unwrap_or_default();
        let mut config = ureq::Agent::config_builder()
            .http_status_as_error(false)
            .max_redirects(0)
            .max_redirects_will_error(false)
            .timeout_connect(Some(CONNECT_MAX))
            .timeout_global(Some(DELIVERY_MAX))
            .user_agent(concat!("flashsale/", env!("CARGO_PKG_VERSION")));
        if is_this_machine(host) {
            config = config.proxy(None);
        }
        Self {
            hook,
            agent: config.build().new_agent(),
        }
    }

    /// Sends one; says why it was not taken.
    fn send(&self, delivery: &Delivery) -> Result<(), String> {
        let request = self
            .agent
            .post(&self.hook.url)
            .header("content-type", "application/json")
            .header("webhook-id", &delivery.id)
            .header("webhook-timestamp", delivery.timestamp.to_string())
            .header("webhook-signature", &delivery.signature);
        let mut response = request.send(delivery.body.as_slice()).map_err(|error| reason(&error))?;
        // What it says does not matter, and neither does that it says too much.
        let _rest = response.body_mut().with_config().limit(ANSWER_BYTES_MAX).read_to_vec();
        match response.status() {
            status if status.is_success() => Ok(()),
            status => Err(format!("it answered {}", status.as_u16())),
        }
    }
}

/// Why there was no answer, without the address.
fn reason(error: &ureq::Error) -> String {
    match error {
        ureq::Error::Io(error) => error.kind().to_string(),
        ureq::Error::Timeout(_) => "no answer in time".to_owned(),
        ureq::Error::HostNotFound => "there is no host of that name".to_owned(),
        ureq::Error::Tls(_) | ureq::Error::Rustls(_) => "no TLS connection comes about".to_owned(),
        _ => "no answer that can be understood".to_owned(),
    }
}

/// Delivers the alert whose turn it is, and gives up those that were not delivered within a day.
///
/// # Errors
/// `Unavailable` when Postgres does not answer. What was sent by then is sent once more.
pub async fn deliver_next(app: &App, sender: &Arc<Sender>) -> Result<Sent, Fault> {
    let Some(claimed) = app.ledger.claim_alert().await? else {
        let alerts = app.ledger.give_alerts_up().await?;
        if alerts > 0 {
            tracing::warn!(
                alerts,
                "alerts were not delivered within a day, and are given up; the list still has them"
            );
        }
        return Ok(Sent::Nothing);
    };
    let delivery = sender.hook.delivery(&claimed.alert, claimed.webhook_id, Utc::now());
    let (answered, answer) = oneshot::channel();
    let sending = Arc::clone(sender);
    // A thread of its own: the end of the process does not wait for it, as it would for a pool's.
    std::thread::Builder::new()
        .name("alert-webhook".to_owned())
        .spawn(move || {
            // Nobody may wait for it any more.
            let _gone = answered.send(sending.send(&delivery));
        })
        .map_err(|error| Fault::Unavailable(format!("no thread to send with: {error}")))?;
    let outcome = answer
        .await
        .unwrap_or_else(|_gone| Err("sending it broke off".to_owned()));
    match outcome {
        Ok(()) => {
            app.ledger.alert_delivered(&claimed).await?;
            Ok(Sent::Delivered)
        }
        Err(reason) => {
            let again_after = retry_after(claimed.attempts.saturating_add(1));
            app.ledger.alert_failed(&claimed, again_after).await?;
            Ok(Sent::Failed(reason))
        }
    }
}
