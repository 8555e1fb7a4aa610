//! Shards that a promoted replica has taken over from the server that this process asks.

use super::Permits;
use crate::domain::deployment::server::Server;
use crate::domain::fault::Fault;
use crate::domain::ids::SaleId;
use crate::flow::App;
use crate::ledger::settle::drain::DrainClaim;
use crate::stock::keys::ShardKey;

impl Permits {
    /// The shards that another server has taken over from the one that this process asks.
    pub(in crate::flow) fn superseded(&self) -> Vec<ShardKey> {
        self.state().superseded.iter().copied().collect()
    }

    /// Whether another server has taken over a shard of this sale. Then this process may not see all of the sale.
    pub(in crate::flow) fn is_superseded(&self, sale: SaleId) -> bool {
        self.state().superseded.iter().any(|shard| shard.sale == sale)
    }

    /// Notes that a promoted replica has taken a shard over.
    pub(in crate::flow::recover) fn supersede(&self, shard: ShardKey) {
        let mut state = self.state();
        state.held.remove(&shard);
        if state.superseded.insert(shard) {
            let (sale, number) = (shard.sale, shard.shard);
            tracing::error!(
                %sale, shard = number,
                "a promoted replica has taken this shard over; this process still asks the old Redis"
            );
        }
    }

    /// Whether another server has taken this shard over from the one that this process asks.
    pub(in crate::flow) fn has_lost(&self, shard: ShardKey) -> bool {
        self.state().superseded.contains(&shard)
    }
}

/// The fault of a process whose Redis server has been superseded.
pub(in crate::flow) fn superseded() -> Fault {
    Fault::Unavailable(
        "a promoted replica has taken over from this Redis; connect to that one, or if it is gone restart this one"
            .to_owned(),
    )
}

/// Refuses events from a server other than the one that the ledger lists. No process can list another server while the
/// claim stands.
pub(in crate::flow) fn check_server(app: &App, claim: &DrainClaim, server: &Server) -> Result<(), Fault> {
    let Some(noted) = claim.noted.server() else {
        return Ok(());
    };
    if noted.has_taken_over_from(server) {
        Err(superseded())
    } else if noted == *server {
        Ok(())
    } else {
        // This server may lack events that the ledger has stored.
        app.permits.need(claim.sale);
        Err(Fault::Unavailable(
            "the shard has not been reconciled on the server that has it now".to_owned(),
        ))
    }
}
