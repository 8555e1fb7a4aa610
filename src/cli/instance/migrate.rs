//! `flashsale migrate`: applies the migrations that the database lacks.

use crate::cli::Failure;
use crate::cli::shared::progress::Progress;
use crate::cli::shared::{output, setting};
use crate::server;

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
    let url = setting::database_url()?;
    let progress = Progress::of("migrating the schema");
    let migrated = server::migrate(&url);
    drop(progress);
    migrated?;
    if args.json {
        return output::print_json(&serde_json::json!({"schema": "current"}));
    }
    output::print("The schema is current.\n")
}
