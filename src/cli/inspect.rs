//! `flashsale inspect`: decodes what Redis holds of a sale, for a human who looks for a mistake.

use super::Failure;
use crate::config::Config;
use crate::server;

/// Arguments of `inspect`.
#[derive(clap::Args)]
pub struct Args {
    /// The sale's id.
    #[arg(value_name = "SALE_ID")]
    id: String,
    /// Also this shopper's window and orders.
    #[arg(long, value_name = "ID")]
    user: Option<String>,
}

/// Prints JSON.
///
/// # Errors
/// `Usage` when the configuration or an id is wrong, `No` when there is no such sale, `Fault` when a server does not
/// answer.
pub fn run(args: &Args) -> Result<(), Failure> {
    let config = Config::load()?;
    let id = args
        .id
        .parse()
        .map_err(|wrong| Failure::Usage(format!("{}: {wrong}", args.id)))?;
    let user = args.user.as_ref().map(|user| user.parse()).transpose();
    let user = user.map_err(|wrong| Failure::Usage(format!("--user: {wrong}")))?;
    match server::inspect(&config, id, user.as_ref())? {
        Some(found) => {
            println!("{}", serde_json::to_string_pretty(&found).map_err(anyhow::Error::from)?);
            Ok(())
        }
        None => Err(Failure::No(format!("there is no sale {id}"))),
    }
}
