//! The settings that the operator's commands need, from the environment or from `flashsale.toml` in the working
//! folder. The environment wins.

use crate::cli::Failure;
use crate::config::{DATABASE_URL, JWT_SECRET, Settings, WEBHOOK_SECRET};
use crate::domain::order::webhook;
use anyhow::Context as _;
use serde_json::Value;
use std::path::Path;

/// RFC 7518 requires an HS256 key to be at least as long as the hash.
const JWT_SECRET_BYTES_MIN: usize = 32;

/// The advice on where to find a missing or right value.
pub const EXPORT: &str = "export the server's value (`flashsale up` keeps its own in DIR/secrets.env: \
                          set -a; . data/secrets.env; set +a)";

pub fn required(name: &str) -> Result<String, Failure> {
    or_else(name, EXPORT)
}

/// A URL of the running `flashsale up` whose data folder this is.
pub fn url_of_up(dir: &Path, name: &str) -> Result<String, Failure> {
    let path = dir.join("run.json");
    let text = std::fs::read_to_string(&path)
        .with_context(|| format!("cannot read {}: is `flashsale up` running there?", path.display()))?;
    let run: Value = serde_json::from_str(&text).with_context(|| format!("{} is no JSON", path.display()))?;
    Ok(run[name].as_str().unwrap_or_default().to_owned())
}

/// The URL of Postgres.
pub fn database_url() -> Result<String, Failure> {
    or_else(DATABASE_URL, "name the database, as postgres://…")
}

/// The URL of a server, for a command that may find it in a data folder, too.
pub fn url_of_server(name: &str) -> Result<String, Failure> {
    or_else(
        name,
        "set it, or name the folder of a running `flashsale up` with --data",
    )
}

fn or_else(name: &str, advice: &str) -> Result<String, Failure> {
    let found = Settings::load()?.get(name).map(str::to_owned);
    found.ok_or_else(|| Failure::Usage(format!("{name} is not set: {advice}")))
}

/// The HS256 secret of shoppers' tokens.
pub fn jwt_secret() -> Result<String, Failure> {
    let secret = required(JWT_SECRET)?;
    if secret.len() < JWT_SECRET_BYTES_MIN {
        return Err(Failure::Usage(format!(
            "{JWT_SECRET} is too short: it needs at least 32 bytes"
        )));
    }
    Ok(secret)
}

/// The decoded webhook secret.
pub fn webhook_secret() -> Result<Vec<u8>, Failure> {
    webhook::decode_secret(&required(WEBHOOK_SECRET)?)
        .map_err(|error| Failure::Usage(format!("{WEBHOOK_SECRET}: {error}")))
}
