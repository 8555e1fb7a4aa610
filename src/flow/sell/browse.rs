//! Browse: count how often an account views sales, warn the operators of very many views, and ban an account at far
//! too many.
//!
//! A crash before a ban leaves it to the account's next page view. A crash before a warning leaves it to the next
//! minute with as many views. The same holds while too many accounts wait. Shoppers' actions reach the ledger a few at
//! a time, because the drain may need the connections. Each warning and each ban waits for the one before.

use crate::domain::fault::Fault;
use crate::domain::guard::{Layer, PageViewLimits, Sender};
use crate::domain::ids::{SaleId, UserId};
use crate::domain::operator::alert::AlertKind;
use crate::domain::shopper::ban::{BanEnd, BannedBy, NewBan};
use crate::flow::App;
use crate::flow::operate::bans;
use crate::flow::sell::refusal_counts;
use crate::stock::door::limit::{Limit, LimitedRequest, Verdict};
use std::time::Duration;

/// The window in which page views are counted.
const WINDOW: Duration = Duration::from_secs(60);
/// A limit that no account reaches.
const NONE: u32 = 1_000_000_000;

/// Counts a page view, of this sale or of all. After a fault the view may not be counted; it is no reason to refuse the
/// shopper.
pub async fn count_page_view(
    app: &App,
    user: &UserId,
    sale: Option<SaleId>,
    limits: &PageViewLimits,
) -> Result<(), Fault> {
    if !limits.are_on() {
        return Ok(());
    }
    let (alert_above, ban_above) = (limits.alert_above, limits.ban_above);
    let limit = Limit::FixedWindow {
        limit: if ban_above == 0 { NONE } else { ban_above.min(NONE) },
        window: WINDOW,
    };
    let limited = LimitedRequest {
        id: &format!("browsing:{}", user.as_str()),
        request: [0; 16],
        now: None,
    };
    let verdict = app.stock.pass(&limit, &limited).await?;
    // Once a window, as the account would be banned once. An account that the value in force bans is not counted.
    let shadow_above = limits.shadow_ban_above;
    if matches!(verdict, Verdict::Passed { count } if shadow_above > 0 && count == i64::from(shadow_above) + 1) {
        refusal_counts::would_stop(app, sale, Layer::Ban, Some(Sender::Account(user.clone())));
    }
    match verdict {
        Verdict::Passed { count } if alert_above > 0 && count == i64::from(alert_above) + 1 => {
            let place = app.bans.place()?;
            let _turn = place.turn().await?;
            let detail = format!("more than {alert_above} page views within a minute");
            app.ledger.raise_alert(AlertKind::Browsing, user, &detail).await
        }
        Verdict::Passed { .. } => Ok(()),
        Verdict::Limited { .. } => {
            let place = app.bans.place()?;
            // Of many views at once, one is enough. More follow until the tokens have ended.
            if !app.bans.begins(user) {
                return Ok(());
            }
            let _turn = place.turn().await?;
            let reason = format!("more than {ban_above} page views within a minute");
            let new = NewBan {
                user: user.clone(),
                reason: reason.clone(),
                banned_by: BannedBy::Browsing,
                operator: None,
                end: BanEnd::After(limits.ban_seconds),
                end_sessions: true,
            };
            // End the account's tokens here at once; the other instances follow.
            // Boxed, so that the future of a counted view stays small.
            if Box::pin(bans::ban(app, &new)).await?.is_none() {
                return Ok(());
            }
            bans::learn(app).await?;
            app.ledger.raise_alert(AlertKind::BrowsingBan, user, &reason).await
        }
    }
}
