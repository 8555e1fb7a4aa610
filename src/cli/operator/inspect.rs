//! `flashsale inspect`: decodes a sale's keys in Redis, for an operator who searches for a fault.

use crate::cli::Failure;
use crate::cli::shared::client::SEE_SALES;
use crate::cli::shared::sale_ref::SaleRef;
use crate::cli::shared::{output, setting};
use crate::config::{self, DATABASE_URL, REDIS_URL, Settings};
use crate::domain::deployment::redis_certificates::RedisCertificates;
use crate::domain::ids::SaleId;
use crate::flow::operate::inspect::Inspected;
use crate::server;
use std::path::PathBuf;

/// How many sales a part of an id is searched in, newest first.
const SALES_MAX: i64 = 1_000;

#[derive(clap::Args)]
#[command(
    verbatim_doc_comment,
    after_help = "\
Needs FLASHSALE_REDIS_URL and FLASHSALE_DATABASE_URL, or --data with the folder of a running `flashsale up`.

Examples:
  flashsale inspect 3f2c…
  flashsale inspect 3f2c… --user alice --data data | jq .buyer"
)]
pub struct Args {
    /// The sale's id, its first (at least four) or last eight characters, or @latest for the newest sale.
    #[arg(value_name = "SALE_ID")]
    id: SaleRef,
    /// Also print this shopper's rate window and orders.
    #[arg(long, value_name = "ID")]
    user: Option<String>,
    /// The data folder of a running `flashsale up`, whose servers to read.
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    /// Print the JSON on one line, for programs.
    #[arg(long)]
    json: bool,
}

pub fn run(args: &Args) -> Result<(), Failure> {
    let (redis_url, redis_certificates, database_url) = servers(args)?;
    let id = SaleId(match &args.id {
        SaleRef::Id(id) => *id,
        part => {
            let sales = server::newest_sales(&database_url, SALES_MAX)?;
            let sales = sales
                .iter()
                .map(serde_json::to_value)
                .collect::<serde_json::Result<Vec<_>>>();
            part.of(sales.map_err(anyhow::Error::from)?, SEE_SALES)?
        }
    });
    let user = args.user.as_ref().map(|user| user.parse()).transpose();
    let user = user.map_err(|wrong| Failure::Usage(format!("--user: {wrong}")))?;
    match server::inspect(&redis_url, &redis_certificates, &database_url, id, user.as_ref())? {
        Inspected::Found(found) => {
            let found = serde_json::to_value(&found).map_err(anyhow::Error::from)?;
            if args.json {
                return output::print(&format!("{found}\n"));
            }
            output::print_json(&found)
        }
        Inspected::Draft => Err(Failure::No(
            "the sale is a draft: Redis has nothing of it yet".to_owned(),
        )),
        Inspected::NotFound => Err(Failure::No(format!("there is no sale {id}"))),
    }
}

/// The URL of Redis, the certificates for Redis, and the URL of Postgres.
fn servers(args: &Args) -> Result<(String, RedisCertificates, String), Failure> {
    if let Some(dir) = &args.data {
        let redis_url = setting::url_of_up(dir, "redis_url")?;
        return Ok((
            redis_url,
            RedisCertificates::default(),
            setting::url_of_up(dir, "database_url")?,
        ));
    }
    Ok((
        setting::url_of_server(REDIS_URL)?,
        config::redis_certificates(&Settings::load()?)?.expose().clone(),
        setting::url_of_server(DATABASE_URL)?,
    ))
}
