//! `flashsale rebuild`: write a sale's stock in Redis anew from Postgres.

use super::client::Connection;
use super::progress::Progress;
use super::{Failure, output, sale};
use serde_json::Value;
use std::time::Duration;
use uuid::Uuid;

/// A million orders take some 15 seconds; this is for a hundred million.
const REBUILD_LIMIT: Duration = Duration::from_secs(1800);

/// Arguments of `rebuild`.
#[derive(clap::Args)]
#[command(after_help = "\
A shard that has lost something is rebuilt by itself; this does it on demand, also while the sale sells. Until it is done
its purchases are answered 503. Needs FLASHSALE_ADMIN_KEY.

Example:
  flashsale rebuild 3f2c… && flashsale audit 3f2c…")]
pub struct Args {
    #[command(flatten)]
    connection: Connection,
    /// Print the server's answer as JSON.
    #[arg(long)]
    json: bool,
    /// The sale's id.
    #[arg(value_parser = sale::sale_id)]
    sale_id: Uuid,
}

/// Rebuilds, and prints what came of it.
///
/// # Errors
/// `No` when the server refuses, `Fault` when it does not answer.
pub fn run(args: &Args) -> Result<(), Failure> {
    let operator = args.connection.operator_within(REBUILD_LIMIT)?;
    let progress = Progress::within(REBUILD_LIMIT, "rebuilding the sale's stock");
    let answer = operator.post(&sale::path(&args.sale_id, "/rebuild"), &[], "");
    drop(progress);
    let body = answer?.body;
    if args.json {
        return output::print_json(&body);
    }
    let number = |name: &str| body.get(name).and_then(Value::as_i64).unwrap_or(0);
    output::print(&format!(
        "rebuilt {} shards with {} orders; {} orders that Redis had accepted are lost\n",
        number("shards"),
        number("orders"),
        number("lost_orders")
    ))
}
