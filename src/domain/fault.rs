//! Faults: why an answer could not be had. A refusal is not a fault; it is an outcome.

/// What kept an operation from having an outcome.
#[derive(Debug, Clone, thiserror::Error)]
pub enum Fault {
    /// A server did not answer in time, or could not be reached. Whatever was asked may or may not have happened.
    #[error("{0}")]
    Unavailable(String),
    /// A shard's state is not all there, or not known to be: it is reconciled or rebuilt before it can answer.
    #[error("the stock of this sale is not complete: {0}")]
    Incomplete(String),
    /// Too much has been accepted that is not in the ledger yet.
    #[error("{0}")]
    Overloaded(String),
    /// A newer version of the program has written this: an instance of that version can read it. Nothing was done.
    #[error("{0}")]
    Newer(String),
    /// An answer that cannot be: a defect of ours.
    #[error("unexpected: {0}")]
    Bug(String),
}

impl Fault {
    /// What kind of fault this is, as it is counted.
    #[must_use]
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::Unavailable(_) => "unavailable",
            Self::Incomplete(_) => "incomplete",
            Self::Overloaded(_) => "overloaded",
            Self::Newer(_) => "newer",
            Self::Bug(_) => "bug",
        }
    }

    /// Whether trying again later may help without anybody changing anything.
    #[must_use]
    pub const fn is_passing(&self) -> bool {
        // Shards that are not complete are rebuilt by whoever notices.
        !matches!(self, Self::Bug(_))
    }
}
