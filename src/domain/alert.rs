//! Alerts: what guards tell the operators of.

use super::ids::UserId;
use super::time;
use chrono::{DateTime, Utc};
use serde::Serialize;

/// What has happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
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
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
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
