//! How long the ledger keeps what it need not keep for ever.

/// The fewest days of the audit log: a trigger of the ledger refuses earlier deletes.
pub const AUDIT_LOG_LEAST: u16 = 90;
/// The most days: a hundred years.
pub const DAYS_MAX: u16 = 36_500;

/// Days; `None` is for ever.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Retention {
    /// Of the accounts in orders, from the end of their sale.
    pub accounts: Option<u16>,
    pub audit_log: Option<u16>,
    pub warnings: Option<u16>,
    /// Of a sale's history, from the sale's end.
    pub history: Option<u16>,
}

impl Default for Retention {
    fn default() -> Self {
        Self {
            accounts: None,
            audit_log: Some(AUDIT_LOG_LEAST),
            warnings: Some(30),
            history: None,
        }
    }
}
