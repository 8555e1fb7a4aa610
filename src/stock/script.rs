//! Runs the Lua scripts: by hash, within the time limit. A server lacks scripts after a restart, a failover or a flush,
//! and gets a missing script with its first call. The two scripts that sell and lend are an exception: only
//! [`Stock::admit`] loads them. So a server cannot sell before its stock is reconciled with the ledger.

use super::{Stock, bounded};
use crate::bugs;
use crate::domain::fault::Fault;
use redis::{Cmd, ErrorKind, RedisError, Script, ScriptInvocation, Value};
use std::ops::Deref;
use std::sync::LazyLock;
use std::time::Instant;
use std::vec::IntoIter;
use tracing::{Instrument as _, Span};

/// A script, and the name of its file, under which its calls are timed.
pub struct Named {
    name: &'static str,
    script: LazyLock<Script>,
}

impl Deref for Named {
    type Target = Script;

    fn deref(&self) -> &Script {
        &self.script
    }
}

impl Named {
    /// The fault for a status that the caller does not know.
    pub(super) fn unknown(&self, status: &str) -> Fault {
        Fault::Bug(format!("{} answered {status}", self.name))
    }
}

macro_rules! scripts {
    ($($name:ident $folder:literal $file:literal)*) => {$(
        #[doc = concat!("`lua/", $folder, "/", $file, ".lua`")]
        pub static $name: Named = Named {
            name: $file,
            script: LazyLock::new(|| {
                Script::new(&bugs::script($file, include_str!(concat!("../../lua/", $folder, "/", $file, ".lua"))))
            }),
        };
    )*
        #[cfg(test)]
        const NAMES: &[&str] = &[$($file),*];
    };
}

scripts! {
    BAN "operate" "ban"
    BARRIER "permit" "barrier"
    BEGIN_RESTORE "rebuild" "begin_restore"
    END_RESTORE "rebuild" "end_restore"
    FENCE "rebuild" "fence"
    FIXED_WINDOW "limit" "fixed_window"
    FORGET_BUYERS "rebuild" "forget_buyers"
    LEAVE_ROOM "door" "leave_room"
    PERMIT "permit" "permit"
    PRELOAD "operate" "preload"
    PURCHASE "sell" "purchase"
    READ_SHARD "operate" "read_shard"
    RESOLVE "settle" "resolve"
    RESTOCK "operate" "restock"
    RESTORE_BUYERS "rebuild" "restore_buyers"
    SET_STATE "operate" "set_state"
    SLIDING_WINDOW "limit" "sliding_window"
    SOLVE_CHALLENGE "door" "solve_challenge"
    STOP "permit" "stop"
    TOKEN_BUCKET "limit" "token_bucket"
    TRANSFER_DONE "move" "transfer_done"
    TRANSFER_IN "move" "transfer_in"
    TRANSFER_OUT "move" "transfer_out"
    TRIM "settle" "trim"
    WAITING_ROOM "door" "waiting_room"
    WITHDRAW_DONE "operate" "withdraw_done"
}

/// The scripts that only [`Stock::admit`] loads.
pub(super) const GUARDED: [(&str, &str); 2] = [
    ("purchase", include_str!("../../lua/sell/purchase.lua")),
    ("transfer_out", include_str!("../../lua/move/transfer_out.lua")),
];

impl Stock {
    /// Runs a script and returns what it returned.
    pub(super) async fn run(&self, script: &Named, call: &ScriptInvocation<'_>) -> Result<Value, Fault> {
        let mut link = self.link.clone();
        let answer = async {
            // The script was loaded, and removed before it ran. That says nothing about the shard.
            let removed = |error: RedisError| match error.code() {
                Some("NOSCRIPT") => (ErrorKind::Io, "a script was removed while it was called").into(),
                _ => error,
            };
            call.invoke_async(&mut link).await.map_err(removed)
        };
        self.timed(script, bounded(answer)).await
    }

    /// Runs a script whose answer is a status and other fields.
    pub(super) async fn answer(
        &self,
        script: &Named,
        call: &ScriptInvocation<'_>,
    ) -> Result<(String, IntoIter<Value>), Fault> {
        outcome(self.run(script, call).await?)
    }

    /// Runs a script of whose answer only the status counts.
    pub(super) async fn status(&self, script: &Named, call: &ScriptInvocation<'_>) -> Result<String, Fault> {
        Ok(self.answer(script, call).await?.0)
    }

    /// Runs a script whose known statuses are all `good`. Any other status is a fault.
    pub(super) async fn finish(&self, script: &Named, call: &ScriptInvocation<'_>, good: &[&str]) -> Result<(), Fault> {
        match self.status(script, call).await? {
            status if good.contains(&status.as_str()) => Ok(()),
            other => Err(script.unknown(&other)),
        }
    }

    /// Runs a script that only an admitted server has; see [`admitted`].
    pub(super) async fn run_admitted(&self, script: &Named, call: &Cmd) -> Result<Value, Fault> {
        let mut link = self.link.clone();
        self.timed(script, bounded(call.query_async(&mut link))).await
    }

    /// Waits for a script's answer, and records how long that took, also after a time-out.
    async fn timed(&self, script: &Named, answer: impl Future<Output = Result<Value, Fault>>) -> Result<Value, Fault> {
        let began = Instant::now();
        // A script that a job runs belongs to no request. It would start a trace of its own, several a second for each
        // shard.
        let span = if Span::current().is_none() {
            Span::none()
        } else {
            tracing::debug_span!("script", script = script.name, otel.kind = "client")
        };
        let answer = answer.instrument(span).await;
        self.metrics.scripts.of([script.name]).observe(began.elapsed());
        self.noted(answer)
    }
}

/// Room for the arguments of a purchase with names of usual lengths.
const ARGUMENTS: usize = 16;
const ARGUMENT_BYTES: usize = 512;

/// A call of a script that only an admitted server has. The caller adds the arguments.
pub(super) fn admitted(script: &Script, keys: &[String]) -> Cmd {
    let mut call = Cmd::with_capacity(ARGUMENTS, ARGUMENT_BYTES);
    call.arg("EVALSHA");
    call.arg(script.get_hash()).arg(keys.len()).arg(keys);
    call
}

/// Splits a script's answer into its status and its other fields.
pub(super) fn outcome(value: Value) -> Result<(String, IntoIter<Value>), Fault> {
    let Value::Array(fields) = value else {
        return Err(Fault::Bug(format!("a script answered {value:?}")));
    };
    let mut fields = fields.into_iter();
    let status = fields.next();
    let status = status.ok_or_else(|| Fault::Bug("a script answered nothing".to_owned()))?;
    Ok((text(status)?, fields))
}

/// A field of an answer as text.
pub(super) fn text(value: Value) -> Result<String, Fault> {
    String::from_utf8(bytes(value)?).map_err(|error| Fault::Bug(format!("a script answered no text: {error}")))
}

/// A field of an answer as bytes.
pub(super) fn bytes(value: Value) -> Result<Vec<u8>, Fault> {
    match value {
        Value::BulkString(bytes) => Ok(bytes),
        Value::SimpleString(text) => Ok(text.into_bytes()),
        other => Err(Fault::Bug(format!("a script answered {other:?} where bytes belong"))),
    }
}

/// The next field of an answer as a number.
pub(super) fn number(fields: &mut impl Iterator<Item = Value>) -> Result<i64, Fault> {
    match fields.next() {
        Some(Value::Int(number)) => Ok(number),
        other => Err(Fault::Bug(format!(
            "a script answered {other:?} where a number belongs"
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::StockMetrics;

    #[test]
    fn the_calls_of_every_script_are_timed_under_its_name() {
        let metrics = StockMetrics::default();
        let untold: Vec<_> = NAMES.iter().filter(|name| !metrics.scripts.knows([name])).collect();
        assert!(untold.is_empty(), "{untold:?}");
        for fault in [
            Fault::Unavailable,
            Fault::Incomplete,
            Fault::Overloaded,
            Fault::Newer,
            Fault::Bug,
        ] {
            assert!(metrics.faults.knows([fault(String::new()).kind()]));
        }
    }
}
