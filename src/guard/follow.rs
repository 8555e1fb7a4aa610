//! Keeps a process up to date with Postgres: the operators' settings of its gate, the list of sales, and bans. Postgres
//! notifies every instance of a change at once. In case a notification is lost, each also polls.

use super::adaptive::STEP;
use super::gate::{FORGET, Gate};
use crate::domain::guard::GuardSettings;
use crate::flow::App;
use crate::flow::operate::{bans, guards};
use crate::flow::sell::refusal_counts;
use crate::flow::watch::{fairness, history};
use crate::metrics::Metrics;
use std::time::Duration;
use tokio::time::{MissedTickBehavior, interval, timeout};

/// Settings are read after so long even without a notification; the second is while Postgres cannot notify this process.
const NEWS_MAX: Duration = Duration::from_secs(3);
const UNHEARD_MAX: Duration = Duration::from_millis(800);
/// The longest that one read may take.
const ANSWER_MAX: Duration = Duration::from_secs(2);
/// How often the refusal counts are added to those in Postgres.
const ADD_UP_EVERY: Duration = Duration::from_secs(1);

/// Keeps a gate for as long as the process runs. Its settings are `configured`, with the operators' changes.
pub async fn follow(app: &App, gate: &Gate, metrics: &Metrics, configured: GuardSettings) {
    tokio::join!(
        follow_changes(app, gate, configured),
        adapt(gate, metrics),
        forget(gate),
        count(app)
    );
}

async fn follow_changes(app: &App, gate: &Gate, configured: GuardSettings) {
    loop {
        // First, because a stage that ends must not wait for a slow answer to the others. While Postgres is away, the
        // last settings stay in force.
        if let Ok(Ok(overrides)) = timeout(ANSWER_MAX, guards::overrides(app)).await {
            let settings = configured.with(&overrides.changed);
            let stages = overrides.staged.in_force();
            if (settings, stages) != (gate.settings(), gate.stages()) {
                tracing::info!(?settings, ?stages, "the guards have changed");
                gate.follow(settings, stages);
            }
        }
        // Notes amended sales, whose guards may have another stage.
        let _as_before = timeout(ANSWER_MAX, app.sales.live()).await;
        let _as_before = timeout(ANSWER_MAX, app.sales.learn()).await;
        let _as_before = timeout(ANSWER_MAX, bans::learn(app)).await;
        let most = if app.arrivals.hears() { NEWS_MAX } else { UNHEARD_MAX };
        if timeout(most, app.settings_changed.notified()).await.is_ok() {
            app.sales.outdate().await;
        }
    }
}

async fn adapt(gate: &Gate, metrics: &Metrics) {
    let mut steps = interval(STEP);
    steps.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        steps.tick().await;
        gate.adapt();
        metrics.gateway_rate.set(gate.rate().into());
        metrics.purchases_in_flight.set(gate.in_flight().into());
    }
}

async fn forget(gate: &Gate) {
    loop {
        tokio::time::sleep(FORGET).await;
        gate.forget();
    }
}

async fn count(app: &App) {
    loop {
        tokio::time::sleep(ADD_UP_EVERY).await;
        // Counts that could not be added stay for the next time.
        let _later = refusal_counts::add_up(app).await;
        let _later = history::add_up(app).await;
        let _later = fairness::add_up(app).await;
    }
}
