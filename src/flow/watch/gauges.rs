//! Gauges: values that are known only by reading them. A task reads them at intervals, so that a scrape of the metrics
//! waits for no server. A crash leaves nothing.

use crate::domain::fault::Fault;
use crate::domain::time::from_millis;
use crate::flow::settle::expire;
use crate::flow::watch::readiness::health;
use crate::flow::watch::stats;
use crate::flow::{App, whole};
use crate::telemetry;

/// Sales with series of their own; those with a difference or a drift, or without a recent check, come first.
const SALES_MAX: i64 = 40;

/// Measures this process's own values: whether its servers answer, its connections, the shards that it lets sell.
pub async fn measure_process(app: &App) {
    telemetry::report_dropped();
    let metrics = &app.metrics;
    let health = health(app, app.instances.took()).await;
    app.instances.note_ledger(health.postgres.milliseconds.is_some());
    for (server, health) in [("redis", health.redis), ("postgres", health.postgres)] {
        metrics.up.of([server]).set(health.milliseconds.is_some().into());
        if let Some(milliseconds) = health.milliseconds {
            metrics.ping_duration.of([server]).set(milliseconds / 1000.0);
        }
    }
    for pool in app.ledger.pools() {
        metrics.connections.of([pool.name, "idle"]).set(whole(pool.idle));
        metrics.connections.of([pool.name, "busy"]).set(whole(pool.busy));
        metrics.connections_max.of([pool.name]).set(pool.max.into());
    }
    let shards = app.permits.count_shards();
    metrics.shards.of(["selling"]).set(whole(shards.selling));
    metrics.shards.of(["braked"]).set(whole(shards.braked));
    metrics.shards.of(["stopped"]).set(whole(shards.halted));
    metrics.shards.of(["superseded"]).set(whole(shards.superseded));
    metrics.epoch_max.set(shards.epoch_max);
}

/// Measures values that are the same for all processes, so only processes with jobs report them.
pub async fn measure_sales(app: &App) -> Result<usize, Fault> {
    // One after another, on one connection: each further one would plan the same statements again.
    let ledger = async {
        let (alerts, waiting) = (count_alerts(app).await, measure_ledger(app).await);
        let (conservation, expiry) = (measure_conservation(app).await, measure_expiry(app).await);
        (alerts.and(waiting).and(conservation), expiry)
    };
    // Side by side: neither waits for the server of the other.
    let ((ledger, expiry), memory, backlog) = tokio::join!(
        Box::pin(ledger),
        Box::pin(measure_stock(app)),
        Box::pin(measure_backlog(app))
    );
    if let Err(fault) = memory.and(backlog).and(expiry) {
        tracing::debug!(%fault, "could not measure the stock");
    }
    ledger
}

async fn measure_stock(app: &App) -> Result<(), Fault> {
    let servers = app.stock.memory().await?;
    app.metrics.redis_memory.set(servers.iter().map(|(used, _)| used).sum());
    app.metrics.redis_servers.set(whole(servers.len()));
    let shares = servers.iter().filter(|(_, max)| *max > 0);
    // Bytes of any memory are exact in a double.
    #[expect(clippy::cast_precision_loss, reason = "below 2^53")]
    let shares = shares.map(|(used, max)| *used as f64 / *max as f64);
    app.metrics.redis_memory_ratio.set(shares.fold(0.0, f64::max));
    Ok(())
}

async fn measure_backlog(app: &App) -> Result<(), Fault> {
    let backlog = stats::backlog(app).await?;
    app.metrics.backlog_events.set(backlog.events);
    app.metrics.backlog_age.set(backlog.oldest.as_secs_f64());
    Ok(())
}

async fn measure_ledger(app: &App) -> Result<usize, Fault> {
    let waiting = app.ledger.waiting().await?;
    app.metrics.outbox_messages.set(waiting.messages);
    app.metrics.outbox_age.set(waiting.oldest_seconds);
    Ok(0)
}

async fn measure_conservation(app: &App) -> Result<usize, Fault> {
    let known = app.ledger.conservation(SALES_MAX).await?;
    let metrics = &app.metrics;
    // A sale that was not counted has no units to show: zero would mean that all is well.
    let differences = known
        .iter()
        .filter_map(|it| Some((it.sale.to_string(), it.difference?)));
    metrics.conservation_difference.replace(differences.collect());
    let drifts = known.iter().filter_map(|it| Some((it.sale.to_string(), it.drift?)));
    metrics.ledger_drift.replace(drifts.collect());
    let ages = known.iter().map(|it| (it.sale.to_string(), it.age_seconds));
    metrics.conservation_check_age.replace(ages.collect());
    Ok(0)
}

async fn measure_expiry(app: &App) -> Result<(), Fault> {
    // The clock that the expire job uses.
    let now = app.stock.slowest_clock().await?;
    let lag = expire::lag(app, None, from_millis(now)).await?;
    app.metrics.expiry_lag.set(lag.as_secs_f64());
    Ok(())
}

async fn count_alerts(app: &App) -> Result<usize, Fault> {
    let alerts = app.ledger.alerts(None).await?;
    let revoked = app.ledger.revoked_orders().await?;
    let kinds = [
        ("dead_letters", alerts.dead_letters),
        ("failed_releases", alerts.failed_releases),
        ("refunds_due", alerts.refunds_due),
        ("unmatched_payments", alerts.unmatched_payments),
        ("lost_orders", alerts.lost_orders),
        ("revoked_orders", revoked),
    ];
    for (kind, count) in kinds {
        app.metrics.attention.of([kind]).set(count);
    }
    Ok(0)
}
