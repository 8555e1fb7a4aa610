//! `flashsale migrate`: brings the schema up to this binary.

use super::Failure;
use crate::config::{DATABASE_URL, Settings};
use crate::server;
use anyhow::Context as _;

/// Applies the migrations that are missing.
///
/// # Errors
/// `Usage` when no database is named, `Fault` when it cannot be reached or a migration fails.
pub fn run() -> Result<(), Failure> {
    let settings = Settings::load()?;
    let Some(url) = settings.get(DATABASE_URL) else {
        return Err(Failure::Usage(format!(
            "{DATABASE_URL} is not set: name the database, as postgres://…"
        )));
    };
    let runtime = tokio::runtime::Runtime::new().context("cannot start the runtime")?;
    runtime.block_on(server::migrate(url))?;
    println!("The schema is current.");
    Ok(())
}
