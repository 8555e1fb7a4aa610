//! Redis without the production code in between: the content of a key, and the exact reply of a script.

use flashsale::stock::record::OrderRecord;
use redis::{ErrorKind, FromRedisValue, RedisError, Script, ToRedisArgs, Value};
use std::cell::RefCell;
use std::collections::BTreeMap;

/// A connection of the test's own.
pub struct Raw(RefCell<redis::Connection>);

/// Keys with their contents as Redis dumps them, and the moment when they expire.
pub type Dump = BTreeMap<Vec<u8>, (Vec<u8>, i64)>;

impl Raw {
    pub fn connect(url: &str) -> Self {
        Self(RefCell::new(
            redis::Client::open(url).unwrap().get_connection().unwrap(),
        ))
    }

    /// Runs one command.
    pub fn call<T: FromRedisValue>(&self, command: &mut redis::Cmd) -> T {
        command.query(&mut *self.0.borrow_mut()).unwrap()
    }

    /// Runs one command that may be refused.
    pub fn try_call<T: FromRedisValue>(&self, command: &mut redis::Cmd) -> Result<T, RedisError> {
        command.query(&mut *self.0.borrow_mut())
    }

    /// Changes a number of an item's record: at 0 the free units, at 6 the held ones, at 42 those ever granted.
    pub fn tamper(&self, item: &str, offset: usize, by: i64) {
        let record: Vec<u8> = self.call(redis::cmd("GET").arg(item));
        let bytes = record[offset..offset + 6].iter();
        let number = bytes.fold(0, |sum, byte| sum << 8 | i64::from(*byte));
        let bytes = &(number + by).to_be_bytes()[2..];
        let _length: i64 = self.call(redis::cmd("SETRANGE").arg(item).arg(offset).arg(bytes));
    }

    /// How often each command has run on the server, except for this call itself.
    pub fn command_counts(&self) -> BTreeMap<String, i64> {
        let stats: String = self.call(redis::cmd("INFO").arg("commandstats"));
        let line = |line: &str| {
            let (name, rest) = line.strip_prefix("cmdstat_")?.split_once(":calls=")?;
            Some((name.to_owned(), rest.split(',').next()?.parse().unwrap()))
        };
        let mut counts: BTreeMap<String, i64> = stats.lines().filter_map(line).collect();
        counts.remove("info");
        counts
    }

    /// Every key that matches, byte for byte.
    pub fn dump(&self, pattern: &str) -> Dump {
        let keys: Vec<Vec<u8>> = self.call(redis::cmd("KEYS").arg(pattern));
        let dump = |key: Vec<u8>| {
            let content: Vec<u8> = self.call(redis::cmd("DUMP").arg(&key));
            let expires: i64 = self.call(redis::cmd("PEXPIRETIME").arg(&key));
            (key, (content, expires))
        };
        keys.into_iter().map(dump).collect()
    }

    /// Runs a script and writes its answer out: `SHORT 3`, `RESERVED …`, `ERR MISSING stock`.
    pub fn script(&self, script: &Script, keys: &[String], args: &[Vec<u8>]) -> String {
        let mut call = script.prepare_invoke();
        for key in keys {
            call.key(key);
        }
        for arg in args {
            call.arg(arg);
        }
        match call.invoke::<Value>(&mut *self.0.borrow_mut()) {
            Ok(Value::BulkString(record)) => format!("RESERVED {}", written(&record)),
            Ok(Value::Array(fields)) => fields.iter().map(field).collect::<Vec<_>>().join(" "),
            Ok(other) => format!("{other:?}"),
            Err(error) => refusal(&error),
        }
    }
}

/// An argument as it goes over the wire.
pub fn arg(value: impl ToRedisArgs) -> Vec<u8> {
    value.to_redis_args().concat()
}

fn field(value: &Value) -> String {
    match value {
        Value::Int(number) => number.to_string(),
        Value::BulkString(bytes) if bytes.len() > 19 => written(bytes),
        Value::BulkString(bytes) => String::from_utf8_lossy(bytes).into_owned(),
        other => format!("{other:?}"),
    }
}

/// An order's record in words.
pub fn written(record: &[u8]) -> String {
    let order = OrderRecord::decode(record).unwrap();
    let event = String::from_utf8_lossy(&record[19..]).into_owned();
    format!(
        "[{} item {} x{} at {} resolved {} event {event}]",
        order.state, order.item, order.quantity, order.created_at, order.resolved_at
    )
}

fn refusal(error: &RedisError) -> String {
    assert!(error.kind() != ErrorKind::Io, "Redis is gone: {error}");
    format!("ERR {} {}", error.code().unwrap_or("-"), error.detail().unwrap_or("-"))
}
