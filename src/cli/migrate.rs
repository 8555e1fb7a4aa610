//! `flashsale migrate`: applies the migrations that the database lacks.

use super::progress::Progress;
use super::{Failure, output};
use crate::config::{DATABASE_URL, Settings};
use crate::server;
use anyhow::Context as _;

#[derive(clap::Args)]
#[command(after_help = "\
`flashsale up` migrates by itself; `serve` refuses to start if the schema is behind. Needs FLASHSALE_DATABASE_URL.

Example:
  FLASHSALE_DATABASE_URL=postgres://… flashsale migrate")]
pub struct Args {
    /// Print the result as JSON.
    #[arg(long)]
    json: bool,
}

pub fn run(args: &Args) -> Result<(), Failure> {
    let settings = Settings::load()?;
    let Some(url) = settings.get(DATABASE_URL) else {
        return Err(Failure::Usage(format!(
            "{DATABASE_URL} is not set: name the database, as postgres://…"
        )));
    };
    let runtime = tokio::runtime::Runtime::new().context("cannot start the runtime")?;
    let progress = Progress::of("migrating the schema");
    let migrated = runtime.block_on(server::migrate(url));
    drop(progress);
    migrated?;
    if args.json {
        return output::print_json(&serde_json::json!({"schema": "current"}));
    }
    output::print("The schema is current.\n")
}
