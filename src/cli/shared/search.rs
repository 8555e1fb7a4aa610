//! The options by which orders, payments and actions are found, and the query that they make.

use super::client::Client;
use super::sale_ref::SaleRef;
use crate::cli::Failure;
use chrono::{DateTime, Utc};

#[derive(clap::Args)]
pub struct SearchArgs {
    /// Only those of this sale.
    #[arg(long, value_name = "SALE_ID")]
    sale: Option<SaleRef>,
    /// Only those of this account: the `sub` of its tokens.
    #[arg(long, value_name = "ACCOUNT")]
    user: Option<String>,
    #[command(flatten)]
    period: PeriodArgs,
}

#[derive(clap::Args)]
pub struct PeriodArgs {
    /// Only those from this time on, such as 2026-11-22T09:00:00Z.
    #[arg(long, value_name = "TIME", value_parser = time, allow_hyphen_values = true)]
    from: Option<DateTime<Utc>>,
    /// Only those before this time.
    #[arg(long, value_name = "TIME", value_parser = time, allow_hyphen_values = true)]
    to: Option<DateTime<Utc>>,
}

fn time(text: &str) -> Result<DateTime<Utc>, String> {
    let time = DateTime::parse_from_rfc3339(text);
    let time = time.map_err(|_wrong| "must be a time such as 2026-11-22T09:00:00Z or 2026-11-22T10:00:00+01:00")?;
    Ok(time.to_utc())
}

impl SearchArgs {
    /// The query of the list, with a further parameter. A part of a sale's id costs a list of all sales.
    pub fn query(&self, client: &Client, other: (&str, Option<String>)) -> Result<String, Failure> {
        let sale = self.sale.as_ref().map(|sale| sale.whole(client)).transpose()?;
        let [from, to] = self.period.parameters();
        Ok(query([
            ("sale_id", sale.map(|sale| sale.to_string())),
            ("user", self.user.clone()),
            other,
            from,
            to,
        ]))
    }
}

impl PeriodArgs {
    /// The two parameters of a query.
    pub fn parameters(&self) -> [(&'static str, Option<String>); 2] {
        let text = |time: &DateTime<Utc>| time.to_rfc3339();
        [
            ("from", self.from.as_ref().map(text)),
            ("to", self.to.as_ref().map(text)),
        ]
    }
}

/// The query with the parameters that have a value.
pub fn query<const N: usize>(asked: [(&str, Option<String>); N]) -> String {
    let asked = asked.into_iter().filter_map(|(name, value)| Some((name, value?)));
    form_urlencoded::Serializer::new(String::new())
        .extend_pairs(asked)
        .finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_query_has_what_was_asked_for_whatever_the_account_is_called() {
        let asked = [
            ("sale_id", None),
            ("user", Some("a&b".to_owned())),
            ("from", Some("2026-11-22T09:00:00+00:00".to_owned())),
        ];
        assert_eq!(query(asked), "user=a%26b&from=2026-11-22T09%3A00%3A00%2B00%3A00");
    }

    #[test]
    fn a_time_needs_a_zone() {
        let same = ["2026-11-22T09:00:00Z", "2026-11-22T10:00:00+01:00"].map(time);
        assert_eq!(same[0], same[1]);
        for wrong in ["2026-11-22", "2026-11-22T09:00:00", "now"] {
            assert!(time(wrong).unwrap_err().contains("2026-11-22T09:00:00Z"), "{wrong}");
        }
    }
}
