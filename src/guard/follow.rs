//! Keeps a process up to date with Postgres: the operators' settings of its gate, the list of sales, and bans. Postgres
//! notifies every instance of a change at once. In case a notification is lost, bulletins report the change; without
//! them, each process polls.

use super::adaptive::STEP;
use super::gate::{FORGET, Gate};
use crate::domain::fault::Fault;
use crate::domain::guard::GuardSettings;
use crate::flow::App;
use crate::flow::operate::{bans, guards};
use crate::flow::recover::bulletin::wait_for_news;
use crate::flow::sell::{refusal_counts, shadow_refusals};
use crate::flow::watch::{fairness, history};
use crate::metrics::Metrics;
use std::time::Duration;
use tokio::time::{MissedTickBehavior, interval, timeout};

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
        let overrides = timeout(ANSWER_MAX, guards::overrides(app)).await;
        let mut is_read = matches!(overrides, Ok(Ok(_)));
        if let Ok(Ok(overrides)) = overrides {
            let settings = configured.with(&overrides.changed);
            let stages = overrides.staged.in_force();
            if (settings, stages) != (gate.settings(), gate.stages()) {
                tracing::info!(?settings, ?stages, "the guards have changed");
                gate.follow(settings, stages);
            }
        }
        // Notes amended sales, whose guards may have another stage.
        is_read &= answers(Box::pin(app.sales.live())).await;
        is_read &= answers(app.sales.learn()).await;
        is_read &= answers(bans::learn(app)).await;
        if wait_for_news(app, &app.settings_changed, is_read).await {
            app.sales.outdate();
        }
    }
}

/// Whether Postgres answers this in time.
async fn answers<T>(question: impl Future<Output = Result<T, Fault>>) -> bool {
    matches!(timeout(ANSWER_MAX, question).await, Ok(Ok(_)))
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
        let _lost = shadow_refusals::publish(app).await;
    }
}
