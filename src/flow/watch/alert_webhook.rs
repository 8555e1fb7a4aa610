//! Alert webhook: send each guard warning to the operators' own address, at least once.
//!
//! A process claims a warning, sends it, and notes it as delivered or as due again later. A crash in between leaves a
//! claim that ends by itself. The warning is then sent once more, with the same id. Over all processes, one warning is
//! sent after the other, so they arrive in order as long as none fails.

use crate::domain::deployment::host::is_this_machine;
use crate::domain::fault::Fault;
use crate::domain::operator::alert::{AlertWebhook, Delivery, retry_after};
use crate::flow::App;
use chrono::Utc;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::oneshot;
use ureq::http::Uri;

/// How long a delivery may take in all.
const DELIVERY_MAX: Duration = Duration::from_secs(10);
/// How long connecting may take, with the TLS handshake and without the name lookup.
const CONNECT_MAX: Duration = Duration::from_secs(5);
/// Bytes of a reply that are read, so that its connection can be used again. Their content is ignored.
const ANSWER_BYTES_MAX: u64 = 4096;

/// Sends guard warnings to one address.
pub struct Sender {
    hook: AlertWebhook,
    agent: ureq::Agent,
}

/// The outcome of an attempt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Sent {
    /// There is nothing to send now, or another process is sending.
    Nothing,
    Delivered,
    /// The delivery failed for this reason; it is repeated later.
    Failed(String),
}

impl Sender {
    /// A sender to this address. It follows no redirects: a signed message is meant for this address alone.
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

    /// Sends one delivery; returns why it was not accepted.
    fn send(&self, delivery: &Delivery) -> Result<(), String> {
        let request = self
            .agent
            .post(&self.hook.url)
            .header("content-type", "application/json")
            .header("webhook-id", &delivery.id)
            .header("webhook-timestamp", delivery.timestamp.to_string())
            .header("webhook-signature", &delivery.signature);
        let mut response = request.send(delivery.body.as_slice()).map_err(|error| reason(&error))?;
        // The content of the reply does not matter, and neither does a reply that is too long.
        let _rest = response.body_mut().with_config().limit(ANSWER_BYTES_MAX).read_to_vec();
        match response.status() {
            status if status.is_success() => Ok(()),
            status => Err(format!("it answered {}", status.as_u16())),
        }
    }
}

/// Why there was no reply, without the address.
fn reason(error: &ureq::Error) -> String {
    match error {
        ureq::Error::Io(error) => error.kind().to_string(),
        ureq::Error::Timeout(_) => "no answer in time".to_owned(),
        ureq::Error::HostNotFound => "there is no host of that name".to_owned(),
        ureq::Error::Tls(_) | ureq::Error::Rustls(_) => "no TLS connection comes about".to_owned(),
        _ => "no answer that can be understood".to_owned(),
    }
}

/// Delivers the next warning, or gives up those that were not delivered within a day. Fails with `Unavailable` when
/// Postgres does not answer. A warning that was sent by then is sent once more.
pub async fn deliver_next(app: &App, sender: &Arc<Sender>) -> Result<Sent, Fault> {
    let Some(claimed) = app.ledger.claim_alert().await? else {
        let alerts = app.ledger.give_alerts_up().await?;
        if alerts > 0 {
            tracing::warn!(
                alerts,
                "guard warnings were not delivered within a day and are given up; the list still has them"
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
            // The receiver may be gone.
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
