//! Alerts: what guards tell the operators of, and how a webhook is told of it.

use super::ids::UserId;
use super::{time, webhook};
use chrono::{DateTime, Utc};
use schemars::JsonSchema;
use serde::Serialize;
use std::time::Duration;
use uuid::Uuid;

/// For so long after an alert was raised, it is tried to deliver it.
pub const DELIVER_FOR: Duration = Duration::from_secs(24 * 3600);
/// How long the second try waits for after the first.
const RETRY_FIRST: Duration = Duration::from_secs(1);
/// How long a try waits at the most.
const RETRY_MAX: Duration = Duration::from_secs(3600);

/// What has happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum AlertKind {
    /// An account looks at sales very often.
    Browsing,
    /// One that looked far too often was banned.
    BrowsingBan,
}

impl AlertKind {
    /// As it is stored and shown.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Browsing => "browsing",
            Self::BrowsingBan => "browsing_ban",
        }
    }

    /// What `as_str` says.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        [Self::Browsing, Self::BrowsingBan]
            .into_iter()
            .find(|kind| kind.as_str() == name)
    }
}

/// An alert.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Alert {
    /// Its number: later ones have greater ones.
    pub id: i64,
    /// When it was raised.
    #[serde(serialize_with = "time::serialize")]
    pub raised_at: DateTime<Utc>,
    /// What has happened.
    pub kind: AlertKind,
    /// Whose account it is about.
    pub user: UserId,
    /// What there is to say about it.
    pub detail: String,
}

/// An alert, and what has become of telling a webhook of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct ListedAlert {
    /// The alert.
    #[serde(flatten)]
    pub alert: Alert,
    /// When the webhook took it.
    #[serde(serialize_with = "time::serialize_option")]
    pub delivered_at: Option<DateTime<Utc>>,
    /// Since when nobody tries to deliver it any more.
    #[serde(serialize_with = "time::serialize_option")]
    pub given_up_at: Option<DateTime<Utc>>,
}

/// Whom to tell of alerts, and with which key. Both are secret: an address may carry a token.
#[derive(Clone)]
pub struct AlertWebhook {
    /// Where to: http or https.
    pub url: String,
    /// Signs what is sent.
    pub key: Vec<u8>,
}

/// What a webhook is sent, as in Standard Webhooks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Delivery {
    /// `webhook-id`, the same with every try.
    pub id: String,
    /// `webhook-timestamp`: when this try was made, in seconds since 1970.
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
    /// What is sent of an alert at this moment.
    #[must_use]
    pub fn delivery(&self, alert: &Alert, webhook_id: Uuid, now: DateTime<Utc>) -> Delivery {
        let message = Message {
            r#type: format!("alert.{}", alert.kind.as_str()),
            timestamp: alert.raised_at,
            data: alert,
        };
        // An alert has nothing that JSON cannot say.
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

/// How long to wait after so many tries that failed: a second, doubled with every further one up to an hour.
#[must_use]
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
