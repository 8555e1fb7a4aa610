//! Bans: accounts that may not buy. What they hold already, they keep.

use super::ids::UserId;
use super::time;
use chrono::{DateTime, Utc};
use schemars::JsonSchema;
use serde::Serialize;

/// Who banned an account.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum BannedBy {
    /// An operator.
    Operator,
    /// The guard that counts how often an account looks at sales.
    Browsing,
}

impl BannedBy {
    /// As it is stored and shown.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Operator => "operator",
            Self::Browsing => "browsing",
        }
    }

    /// What `as_str` says.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        [Self::Operator, Self::Browsing]
            .into_iter()
            .find(|by| by.as_str() == name)
    }
}

/// An account that is or was banned.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Ban {
    /// Whose.
    pub user: UserId,
    /// Why, in the words of whoever did it.
    pub reason: String,
    /// Who did it.
    pub banned_by: BannedBy,
    /// Since when.
    #[serde(serialize_with = "time::serialize")]
    pub banned_at: DateTime<Utc>,
    /// Until when; `None` is for ever.
    #[serde(serialize_with = "time::serialize_option")]
    pub banned_until: Option<DateTime<Utc>>,
    /// When it was lifted, if it was.
    #[serde(serialize_with = "time::serialize_option")]
    pub lifted_at: Option<DateTime<Utc>>,
    /// Tokens of the account that were issued before are no longer taken.
    #[serde(serialize_with = "time::serialize_option")]
    pub sessions_from: Option<DateTime<Utc>>,
    /// Counts the decisions about this account, 1 to 32767 and then from 1 again.
    #[serde(skip)]
    pub revision: u16,
    /// Counts the decisions about all accounts.
    #[serde(skip)]
    pub change: i64,
}

/// For ever, in seconds since the epoch, as a shard has it.
pub const FOR_EVER: u32 = u32::MAX;

impl Ban {
    /// Until when the account may not buy, in whole seconds since the epoch, rounded up; 0 when it may.
    #[must_use]
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

    /// Whether the account may not buy at this moment.
    #[must_use]
    pub fn holds(&self, now: DateTime<Utc>) -> bool {
        self.lifted_at.is_none() && self.banned_until.is_none_or(|until| until > now)
    }

    /// What the decision says of the account's tokens, if it ended sessions.
    #[must_use]
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

/// Which tokens of an account are no longer taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EndedSessions {
    /// Those that were issued before, in seconds since the epoch.
    from: i64,
    /// Those that do not say when, until then, in microseconds since the epoch.
    until: i64,
}

impl EndedSessions {
    /// Whether a token that was issued then is no longer taken. One that does not say when is not taken while the account is
    /// banned.
    #[must_use]
    pub fn has_ended(self, issued_at: Option<i64>, now: DateTime<Utc>) -> bool {
        match issued_at {
            Some(issued_at) => issued_at < self.from,
            None => self.until > now.timestamp_micros(),
        }
    }
}

/// A ban that is to be.
#[derive(Debug, Clone)]
pub struct NewBan {
    /// Whose.
    pub user: UserId,
    /// Why: 1 to 500 characters.
    pub reason: String,
    /// Who does it.
    pub banned_by: BannedBy,
    /// Until when; `None` is for ever.
    pub until: Option<DateTime<Utc>>,
    /// Whether the account's tokens are no longer taken.
    pub end_sessions: bool,
}

/// Characters that a reason may have.
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
        // Whoever does not say since when: as long as the ban holds.
        assert!(has_ended(&ban, None, now));
        ban.banned_until = Some(now);
        assert!(!has_ended(&ban, None, now) && has_ended(&ban, None, now - TimeDelta::milliseconds(1)));
        (ban.banned_until, ban.lifted_at) = (None, Some(now));
        assert!(!has_ended(&ban, None, now) && has_ended(&ban, Some(0), now));
    }
}
