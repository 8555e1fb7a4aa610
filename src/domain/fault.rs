//! Faults: why an operation has no outcome. A refusal is an outcome, not a fault.

/// Why an operation has no outcome.
#[derive(Debug, Clone, thiserror::Error)]
pub enum Fault {
    /// A server did not answer in time, or could not be reached. The operation may or may not have happened.
    #[error("{0}")]
    Unavailable(String),
    /// A shard's state is incomplete or unverified. It must be reconciled or rebuilt before it can answer.
    #[error("the stock of this sale is not complete: {0}")]
    Incomplete(String),
    /// Too many accepted orders are not in Postgres yet.
    #[error("{0}")]
    Overloaded(String),
    /// A newer version of the program wrote this data, and only its instances can read it. Nothing was done.
    #[error("{0}")]
    Newer(String),
    /// An impossible answer: a defect of this program.
    #[error("unexpected: {0}")]
    Bug(String),
}

impl Fault {
    /// The fault's kind, as a metric label.
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::Unavailable(_) => "unavailable",
            Self::Incomplete(_) => "incomplete",
            Self::Overloaded(_) => "overloaded",
            Self::Newer(_) => "newer",
            Self::Bug(_) => "bug",
        }
    }

    /// Whether a later attempt may succeed without any repair by a person.
    pub const fn is_passing(&self) -> bool {
        // The process that finds an incomplete shard has it rebuilt.
        !matches!(self, Self::Bug(_))
    }
}
