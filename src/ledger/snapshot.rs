//! The ledger at one moment, for lists that are read in parts. Reads only.

use crate::domain::fault::Fault;
use crate::ledger::{Ledger, Tx, begin_with};

/// The ledger as it was at the first read. Each module adds the lists that it can read.
pub struct Snapshot(pub(super) Tx);

impl Ledger {
    /// The ledger as it is at the first read.
    pub async fn snapshot(&self) -> Result<Snapshot, Fault> {
        let begin = "begin isolation level repeatable read read only; \
                     set local idle_in_transaction_session_timeout = '1min'";
        begin_with(&self.reports, begin).await.map(Snapshot)
    }
}
