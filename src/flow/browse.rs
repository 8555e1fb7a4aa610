//! Browse: count how often an account looks at sales, tell the operators of one that does so very often, and ban one that
//! does so far too often.
//!
//! A crash between the count and what follows from it lets the account look once more; the next look finds the same. So it
//! does where too many accounts are to be seen to at once: what shoppers cause comes to the ledger a few at a time, because
//! each alert and each ban waits for the one before, on a connection that the drain may need. An alert that has no place is
//! raised in the next minute in which the account looks as often.

use super::{App, bans};
use crate::domain::alert::AlertKind;
use crate::domain::ban::{BannedBy, NewBan};
use crate::domain::fault::Fault;
use crate::domain::guard::GuardSettings;
use crate::domain::ids::UserId;
use crate::stock::limit::{Asking, Limit, Verdict};
use chrono::{TimeDelta, Utc};
use std::time::Duration;

/// The time in which looks are counted.
const WINDOW: Duration = Duration::from_secs(60);
/// A limit that nobody comes to.
const NONE: u32 = 1_000_000_000;

/// Counts a look.
///
/// # Errors
/// A fault says that it may not have been counted: whoever looked is not to blame.
pub async fn looked(app: &App, user: &UserId, settings: &GuardSettings) -> Result<(), Fault> {
    let (alert_above, ban_above) = (settings.browsing_alert_above, settings.browsing_ban_above);
    if alert_above == 0 && ban_above == 0 {
        return Ok(());
    }
    let limit = Limit::FixedWindow {
        limit: if ban_above == 0 { NONE } else { ban_above.min(NONE) },
        window: WINDOW,
    };
    let asking = Asking {
        id: &format!("browsing:{}", user.as_str()),
        request: [0; 16],
        now: None,
    };
    match app.stock.pass(&limit, &asking).await? {
        Verdict::Passed { count } if alert_above > 0 && count == i64::from(alert_above) + 1 => {
            let place = app.bans.place()?;
            let _turn = place.turn().await?;
            let detail = format!("more than {alert_above} looks within a minute");
            app.ledger.raise_alert(AlertKind::Browsing, user, &detail).await
        }
        Verdict::Passed { .. } => Ok(()),
        Verdict::Limited { .. } => {
            let place = app.bans.place()?;
            // Of many looks that come at once, one is enough; until the tokens are over, there are more.
            if !app.bans.begins(user).await {
                return Ok(());
            }
            let _turn = place.turn().await?;
            let reason = format!("more than {ban_above} looks within a minute");
            let new = NewBan {
                user: user.clone(),
                reason: reason.clone(),
                banned_by: BannedBy::Browsing,
                until: Some(Utc::now() + TimeDelta::seconds(settings.browsing_ban_seconds.into())),
                end_sessions: true,
            };
            // It must not look on with the same token, here at least from now on.
            if bans::ban(app, &new).await?.is_none() {
                return Ok(());
            }
            bans::learn(app).await?;
            app.ledger.raise_alert(AlertKind::BrowsingBan, user, &reason).await
        }
    }
}
