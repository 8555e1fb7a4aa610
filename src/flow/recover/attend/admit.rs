//! Admit: give a server of Redis the scripts that sell, once none of its shards has an old permit.

use crate::domain::deployment::server::Server;
use crate::domain::fault::Fault;
use crate::flow::App;
use crate::flow::recover::renew::AT_ONCE;
use crate::stock::keys::ShardKey;
use futures_util::StreamExt as _;
use tokio::sync::OnceCell;

/// Redis servers that this process remembers as admitted.
const ADMITTED_MAX: usize = 1000;

/// Loads the scripts that sell onto the server of this shard. Before that, it takes away the permits of all shards
/// there that were not reconciled on that server.
pub(super) async fn admit(app: &App, via: ShardKey, server: &Server) -> Result<(), Fault> {
    if !app.permits.state().admitted.contains(server) {
        // The caller's list does not suffice. A sale that was loaded since may have a permit there from before the
        // server's start.
        let standings = app.ledger.standings_in_stock().await?;
        let unknown = standings.iter().filter(|(_, it)| !it.noted.is_reconciled_on(server));
        let unknown: Vec<ShardKey> = unknown.map(|((sale, shard), _)| ShardKey::new(*sale, *shard)).collect();
        let here = &OnceCell::new();
        let mut halted = futures_util::stream::iter(unknown)
            .map(|shard| async move {
                match app.stock.server(shard).await {
                    Ok(of) if of == *server => app.stock.stop(shard).await,
                    Ok(_) => Ok(()),
                    // The shard may be on this server, which was slow to answer.
                    Err(fault) => {
                        let here = here.get_or_try_init(|| app.stock.beside(via)).await?;
                        if here.has(shard) { Err(fault) } else { Ok(()) }
                    }
                }
            })
            .buffer_unordered(AT_ONCE);
        while let Some(outcome) = halted.next().await {
            outcome?;
        }
        let mut state = app.permits.state();
        if state.admitted.len() >= ADMITTED_MAX {
            state.admitted.clear();
        }
        // All sales that are attended to at the same time get here; it is logged once.
        if state.admitted.insert(server.clone()) {
            tracing::info!(run_id = %server, "admitted a Redis server; reconciling its shards one by one");
        }
    }
    // Also after a `SCRIPT FLUSH`, which removes nothing else.
    app.stock.admit(via, server).await?;
    let now = app.stock.server(via).await?;
    if now == *server {
        return Ok(());
    }
    // The process was demoted and promoted in between, and its shards are unverified. Another process did not get the
    // scripts from here.
    if now.run_id() == server.run_id() {
        app.stock.dismiss(via).await?;
    }
    Err(Fault::Unavailable("the Redis server changed again".to_owned()))
}
