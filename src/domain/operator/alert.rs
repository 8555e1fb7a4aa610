//! Guard warnings to operators, and their delivery to a webhook.

use crate::domain::ids::UserId;
use crate::domain::names::names;
use crate::domain::order::webhook;
use crate::domain::time;
use chrono::{DateTime, Utc};
use schemars::JsonSchema;
use serde::Serialize;
use std::time::Duration;
use uuid::Uuid;

/// How long after a guard warning its delivery is attempted.
pub const DELIVER_FOR: Duration = Duration::from_secs(24 * 3600);
/// How long after the first attempt the second one comes.
const RETRY_FIRST: Duration = Duration::from_secs(1);
/// The longest wait between two attempts.
const RETRY_MAX: Duration = Duration::from_secs(3600);

/// What a guard has noticed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum AlertKind {
    /// An account views sales very often.
    Browsing,
    /// An account viewed sales far too often and was banned.
    BrowsingBan,
}

names! { AlertKind: Browsing "browsing", BrowsingBan "browsing_ban" }

/// A guard warning.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Alert {
    /// The warning's number. Later warnings have higher numbers.
    pub id: i64,
    /// When the guard raised the warning.
    #[serde(serialize_with = "time::serialize")]
    pub raised_at: DateTime<Utc>,
    /// What the guard has noticed.
    pub kind: AlertKind,
    /// The account.
    pub user: UserId,
    /// A sentence about the case.
    pub detail: String,
}

/// A guard warning, with the state of its delivery to the webhook.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct ListedAlert {
    /// The guard warning.
    #[serde(flatten)]
    pub alert: Alert,
    /// When the webhook accepted the warning.
    #[serde(serialize_with = "time::serialize_option")]
    pub delivered_at: Option<DateTime<Utc>>,
    /// When its delivery was given up.
    #[serde(serialize_with = "time::serialize_option")]
    pub given_up_at: Option<DateTime<Utc>>,
}

/// The webhook for guard warnings. Its address is secret, too, because it may contain a token.
#[derive(Clone)]
pub struct AlertWebhook {
    /// The address, http or https.
    pub url: String,
    /// The key that signs deliveries.
    pub key: Vec<u8>,
}

/// The request to a webhook, as in Standard Webhooks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Delivery {
    /// `webhook-id`, the same on every attempt.
    pub id: String,
    /// `webhook-timestamp`: when this attempt was made, in Unix seconds.
    pub timestamp: i64,
    /// `webhook-signature`
    pub signature: String,
    /// The body, JSON.
    pub body: Vec<u8>,
}

#[derive(Serialize)]
struct Message<'a> {
    r#type: String,
    #[serde(serialize_with = "time::serialize")]
    timestamp: DateTime<Utc>,
    data: &'a Alert,
}

impl AlertWebhook {
    /// The request that delivers a guard warning now.
    pub fn delivery(&self, alert: &Alert, webhook_id: Uuid, now: DateTime<Utc>) -> Delivery {
        let message = Message {
            r#type: format!("alert.{}", alert.kind.as_str()),
            timestamp: alert.raised_at,
            data: alert,
        };
        // Infallible: all fields of a warning have a form in JSON.
        let body = serde_json::to_vec(&message).unwrap_or_default();
        let (id, timestamp) = (format!("msg_{}", webhook_id.simple()), now.timestamp());
        Delivery {
            signature: webhook::sign(&self.key, &id, timestamp, &body),
            id,
            timestamp,
            body,
        }
    }
}

/// The wait after so many failed attempts: a second, doubled with each further one, up to an hour.
pub fn retry_after(failed: u32) -> Duration {
    let doubled = 2_u32.saturating_pow(failed.saturating_sub(1));
    RETRY_FIRST.saturating_mul(doubled).min(RETRY_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    #[test]
    fn tries_are_ever_further_apart_up_to_an_hour() {
        let seconds: Vec<u64> = (1..=14).map(|failed| retry_after(failed).as_secs()).collect();
        let doubled = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 3600, 3600];
        assert_eq!(seconds, doubled);
        assert_eq!(retry_after(0), RETRY_FIRST);
        assert_eq!(retry_after(u32::MAX), RETRY_MAX);
    }

    #[test]
    fn a_day_has_room_for_few_tries() {
        let mut at = Duration::ZERO;
        let tries = (1..).take_while(|failed| {
            at += retry_after(*failed);
            at < DELIVER_FOR
        });
        assert!((20..50).contains(&tries.count()));
    }

    #[test]
    fn what_is_sent_is_signed_and_says_the_same_with_every_try() {
        let hook = AlertWebhook {
            url: "http://h".to_owned(),
            key: vec![7; 32],
        };
        let alert = Alert {
            id: 5,
            raised_at: time::from_millis(1_700_000_000_123),
            kind: AlertKind::BrowsingBan,
            user: "bot".parse().unwrap(),
            detail: "a \"detail\"\nof two lines".to_owned(),
        };
        let (now, id) = (time::from_millis(1_700_000_009_000), Uuid::from_u128(7));
        let sent = hook.delivery(&alert, id, now);
        let timestamp = sent.timestamp.to_string();
        webhook::verify(
            &hook.key,
            &sent.id,
            &timestamp,
            &sent.signature,
            &sent.body,
            now.timestamp(),
        )
        .unwrap();
        let again = hook.delivery(&alert, id, time::from_millis(1_700_000_019_000));
        assert_eq!((&again.id, &again.body), (&sent.id, &sent.body));
        assert_ne!(again.signature, sent.signature);
        let body: Value = serde_json::from_slice(&sent.body).unwrap();
        let data = json!({"id": 5, "raised_at": "2023-11-14T22:13:20.123Z", "kind": "browsing_ban", "user": "bot",
            "detail": "a \"detail\"\nof two lines"});
        let expected = json!({"type": "alert.browsing_ban", "timestamp": "2023-11-14T22:13:20.123Z", "data": data});
        assert_eq!(body, expected);
    }
}
