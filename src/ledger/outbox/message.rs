//! The messages of the outbox, as they are stored.

use crate::domain::ids::{Sku, UserId};
use crate::domain::order::OrderState;
use crate::domain::time::Millis;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

/// A message to a shard. Earlier versions ignore a new member, and postpone a new kind. They do not count its units, so
/// a version writes a new kind that moves units only if the version before it reads that kind.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Message {
    /// The sale's state or times have changed: follow them.
    State,
    /// An order has left `reserved`.
    Resolve {
        order: Uuid,
        user: String,
        sku: String,
        quantity: i64,
        /// Its new state, by name.
        state: String,
        at: Millis,
    },
    /// There is a decision about whether an account may buy. The job `release` reads the last one from the ledger.
    Ban {
        user: String,
    },
    Restock {
        id: Uuid,
        sku: String,
        units: i64,
    },
    /// Units that were taken out have left the sale's books.
    Withdrawn {
        /// The transfer that took them.
        transfer: Uuid,
    },
    /// Units that were taken out go back: the withdrawal was refused.
    GiveBack {
        /// The transfer that took them.
        transfer: Uuid,
        sku: String,
        units: i64,
        /// The shard's epoch when the units were taken out: a later generation has them already.
        #[serde(default = "first_epoch")]
        epoch: i64,
    },
}

/// The epoch of a shard that was never rebuilt.
const fn first_epoch() -> i64 {
    1
}

impl Message {
    /// Reads a stored message, or says why it is none. Counts of waiting messages leave such a message out: the job
    /// `release` reports it to the operators.
    pub(in crate::ledger) fn read(stored: serde_json::Value) -> Result<Self, String> {
        let message: Self = serde_json::from_value(stored).map_err(|error| format!("no message: {error}"))?;
        message.check_names().map_err(|error| format!("no message: {error}"))?;
        Ok(message)
    }

    /// Checks that this version knows every name in it.
    fn check_names(&self) -> Result<(), String> {
        let user = |it: &str| it.parse::<UserId>().map_err(|error| error.to_string());
        let sku = |it: &str| it.parse::<Sku>().map_err(|error| error.to_string());
        match self {
            Self::State | Self::Withdrawn { .. } => {}
            Self::Resolve {
                user: its_user,
                sku: its_sku,
                state,
                ..
            } => {
                user(its_user)?;
                sku(its_sku)?;
                state.parse::<OrderState>()?;
            }
            Self::Ban { user: its_user } => _ = user(its_user)?,
            Self::Restock { sku: its_sku, .. } | Self::GiveBack { sku: its_sku, .. } => _ = sku(its_sku)?,
        }
        Ok(())
    }

    /// An order has left `reserved`; `units` are its SKU and quantity.
    pub(in crate::ledger) fn resolve(
        order: Uuid,
        user: &str,
        units: (String, i64),
        state: OrderState,
        at: Millis,
    ) -> Self {
        let (sku, quantity) = units;
        Self::Resolve {
            order,
            user: user.to_owned(),
            sku,
            quantity,
            state: state.as_str().to_owned(),
            at,
        }
    }
}
