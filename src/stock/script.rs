//! Running the Lua scripts: by hash, loaded where the server does not have them (after a restart, a failover or a
//! flush), within the time limit.

use super::{Stock, bounded};
use crate::domain::fault::Fault;
use redis::{Script, ScriptInvocation, Value};
use std::sync::LazyLock;

macro_rules! scripts {
    ($($name:ident $file:literal)*) => {$(
        #[doc = concat!("`lua/", $file, ".lua`")]
        pub static $name: LazyLock<Script> =
            LazyLock::new(|| Script::new(include_str!(concat!("../../lua/", $file, ".lua"))));
    )*};
}

scripts! {
    BARRIER "barrier"
    PRELOAD "preload"
    PURCHASE "purchase"
    READ_SHARD "read_shard"
    RESOLVE "resolve"
    RESTOCK "restock"
    SET_STATE "set_state"
    TRANSFER_DONE "transfer_done"
    TRANSFER_IN "transfer_in"
    TRANSFER_OUT "transfer_out"
    WITHDRAW_DONE "withdraw_done"
}

impl Stock {
    /// Runs a script and returns what it returned.
    pub(super) async fn run(&self, call: &ScriptInvocation<'_>) -> Result<Value, Fault> {
        let mut connection = self.connection.clone();
        bounded(call.invoke_async(&mut connection)).await
    }
}

/// A script's answer: its first element and the rest.
pub(super) fn outcome(value: Value) -> Result<(String, Vec<Value>), Fault> {
    let Value::Array(mut fields) = value else {
        return Err(Fault::Bug(format!("a script answered {value:?}")));
    };
    if fields.is_empty() {
        return Err(Fault::Bug("a script answered nothing".to_owned()));
    }
    let status = text(fields.remove(0))?;
    Ok((status, fields))
}

/// An answer that no caller knows.
pub(super) fn unknown(script: &str, status: &str) -> Fault {
    Fault::Bug(format!("{script} answered {status}"))
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
