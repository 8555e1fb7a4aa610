//! Bans: accounts that cannot buy. They keep the orders that they have.

use crate::domain::ids::UserId;
use crate::domain::names::names;
use crate::domain::operator::console::OperatorName;
use crate::domain::time;
use chrono::{DateTime, Utc};
use schemars::JsonSchema;
use serde::Serialize;

/// Who banned an account.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum BannedBy {
    /// An operator.
    Operator,
    /// The guard that counts an account's page views.
    Browsing,
}

names! { BannedBy: Operator "operator", Browsing "browsing" }

/// The ban of an account, in force or not.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Ban {
    /// The banned account.
    pub user: UserId,
    /// The reason, in the words of the operator or the guard.
    pub reason: String,
    /// Who banned the account.
    pub banned_by: BannedBy,
    /// The name of the operator who banned the account, as in the audit log; null if there is none.
    pub operator: Option<String>,
    /// When the ban began.
    #[serde(serialize_with = "time::serialize")]
    pub banned_at: DateTime<Utc>,
    /// When the ban ends; null if never.
    #[serde(serialize_with = "time::serialize_option")]
    pub banned_until: Option<DateTime<Utc>>,
    /// When the ban was lifted, if it was.
    #[serde(serialize_with = "time::serialize_option")]
    pub lifted_at: Option<DateTime<Utc>>,
    /// Tokens of the account that were issued before this time are not accepted.
    #[serde(serialize_with = "time::serialize_option")]
    pub sessions_from: Option<DateTime<Utc>>,
    /// Counts the decisions about this account, 1 to 32767 and then from 1 again.
    #[serde(skip)]
    pub revision: u16,
    /// Counts the decisions about all accounts.
    #[serde(skip)]
    pub change: i64,
}

/// A ban without an end, in the form of a shard (Unix seconds).
pub const FOR_EVER: u32 = u32::MAX;

impl Ban {
    /// The end of the ban in Unix seconds, rounded up; 0 if the account may buy.
    pub fn until_seconds(&self) -> u32 {
        match (self.lifted_at, self.banned_until) {
            (Some(_), _) => 0,
            (None, None) => FOR_EVER,
            (None, Some(until)) => {
                let seconds = until.timestamp() + i64::from(until.timestamp_subsec_nanos() > 0);
                u32::try_from(seconds.clamp(0, i64::from(FOR_EVER - 1))).unwrap_or(0)
            }
        }
    }

    /// The tokens that the ban has invalidated, if it ended sessions.
    pub fn ended_sessions(&self) -> Option<EndedSessions> {
        let from = self.sessions_from?;
        Some(EndedSessions {
            from: from.timestamp() + i64::from(from.timestamp_subsec_nanos() > 0),
            until: match (self.lifted_at, self.banned_until) {
                (Some(_), _) => i64::MIN,
                (None, None) => i64::MAX,
                (None, Some(until)) => until.timestamp_micros(),
            },
        })
    }
}

/// The tokens of an account that are not accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EndedSessions {
    /// Those that were issued before this time (Unix seconds).
    from: i64,
    /// Those without a time of issue, until this time (Unix microseconds).
    until: i64,
}

impl EndedSessions {
    /// Whether a token that was issued at this time is invalid. A token without a time of issue is invalid while the
    /// ban is in force.
    pub fn has_ended(self, issued_at: Option<i64>, now: DateTime<Utc>) -> bool {
        match issued_at {
            Some(issued_at) => issued_at < self.from,
            None => self.until > now.timestamp_micros(),
        }
    }
}

/// When a new ban ends, by Postgres's clock.
#[derive(Debug, Clone, Copy)]
pub enum BanEnd {
    Never,
    At(DateTime<Utc>),
    /// After these seconds.
    After(u32),
}

/// A ban to record.
#[derive(Debug, Clone)]
pub struct NewBan {
    pub user: UserId,
    /// The reason: 1 to 500 characters.
    pub reason: String,
    pub banned_by: BannedBy,
    /// The name of the operator, if an operator bans and has one.
    pub operator: Option<OperatorName>,
    pub end: BanEnd,
    /// Whether the account's tokens become invalid.
    pub end_sessions: bool,
}

/// The most characters of a reason.
pub const REASON_MAX: usize = 500;

#[cfg(test)]
mod tests {
    use super::*;

    fn has_ended(ban: &Ban, issued_at: Option<i64>, now: DateTime<Utc>) -> bool {
        ban.ended_sessions().is_some_and(|it| it.has_ended(issued_at, now))
    }
    use chrono::TimeDelta;

    fn ban(until: Option<DateTime<Utc>>, lifted: bool) -> Ban {
        let now = DateTime::from_timestamp(1_900_000_000, 0).unwrap();
        Ban {
            user: "ada".parse().unwrap(),
            reason: "a reason".to_owned(),
            banned_by: BannedBy::Operator,
            operator: None,
            banned_at: now,
            banned_until: until,
            lifted_at: lifted.then_some(now),
            sessions_from: None,
            revision: 1,
            change: 1,
        }
    }

    #[test]
    fn a_ban_lasts_for_whole_seconds_and_never_less_than_it_should() {
        let at = |millis: i64| DateTime::from_timestamp_millis(1_900_000_000_000 + millis);
        assert_eq!(ban(at(0), false).until_seconds(), 1_900_000_000);
        assert_eq!(ban(at(1), false).until_seconds(), 1_900_000_001);
        assert_eq!(ban(None, false).until_seconds(), FOR_EVER);
        assert_eq!(ban(at(1), true).until_seconds(), 0);
        assert_eq!(ban(None, true).until_seconds(), 0);
        let late = DateTime::from_timestamp(i64::from(u32::MAX) + 5, 0);
        assert_eq!(ban(late, false).until_seconds(), FOR_EVER - 1);
    }

    #[test]
    fn tokens_from_before_the_end_of_the_sessions_are_over() {
        let mut ban = ban(None, false);
        let now = ban.banned_at;
        assert!(!has_ended(&ban, None, now) && !has_ended(&ban, Some(0), now));
        let from = now + TimeDelta::milliseconds(1);
        ban.sessions_from = Some(from);
        assert!(has_ended(&ban, Some(from.timestamp()), now));
        assert!(!has_ended(&ban, Some(from.timestamp() + 1), now));
        // A token without a time of issue is invalid as long as the ban is in force.
        assert!(has_ended(&ban, None, now));
        ban.banned_until = Some(now);
        assert!(!has_ended(&ban, None, now) && has_ended(&ban, None, now - TimeDelta::milliseconds(1)));
        (ban.banned_until, ban.lifted_at) = (None, Some(now));
        assert!(!has_ended(&ban, None, now) && has_ended(&ban, Some(0), now));
    }
}
