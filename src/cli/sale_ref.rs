//! A sale's id as operators type it: whole, or a prefix of it.

use super::client::Client;
use super::{Failure, pages};
use std::str::FromStr;
use uuid::Uuid;

/// The fewest characters of a prefix.
const CHARACTERS_MIN: usize = 4;
/// How many ids a message lists.
const LISTED_MAX: usize = 3;

/// A sale's id, or a prefix of it with at least four characters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SaleRef {
    Id(Uuid),
    /// In lower case, with dashes.
    Prefix(String),
}

/// Reads a whole id, for a command that cannot look up others.
///
/// # Errors
/// Says what a sale's id is and where to find it.
pub fn whole_id(text: &str) -> Result<Uuid, String> {
    text.parse().map_err(|_| {
        "a sale's id is a UUID such as 0190a5c8-2f3c-7d11-9c5b-6a1f0e7d4b21; `flashsale sale list` prints all"
            .to_owned()
    })
}

impl FromStr for SaleRef {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Ok(id) = text.parse() {
            return Ok(Self::Id(id));
        }
        let text = text.to_ascii_lowercase();
        let pattern = "00000000-0000-0000-0000-000000000000";
        let fits = |(given, place): (char, char)| {
            (given == '-') == (place == '-') && (given == '-' || given.is_ascii_hexdigit())
        };
        if (CHARACTERS_MIN..pattern.len()).contains(&text.len()) && text.chars().zip(pattern.chars()).all(fits) {
            return Ok(Self::Prefix(text));
        }
        Err(
            "a sale's id is a UUID such as 0190a5c8-2f3c-7d11-9c5b-6a1f0e7d4b21, or its first characters, at least four: \
             the `id` that `flashsale sale create` prints, and `flashsale sale list`"
                .to_owned(),
        )
    }
}

impl SaleRef {
    /// The whole id. A prefix costs a list of all sales.
    ///
    /// # Errors
    /// `No` if no sale's id has this prefix, or several have it.
    pub fn whole(&self, client: &Client) -> Result<Uuid, Failure> {
        self.among(client, "/v1/admin/sales", "see `flashsale sale list`")
    }

    /// The whole id of a sale in the list at `path`; `advice` says where to find ids.
    ///
    /// # Errors
    /// As [`SaleRef::whole`].
    pub fn among(&self, client: &Client, path: &str, advice: &str) -> Result<Uuid, Failure> {
        let text = match self {
            Self::Id(id) => return Ok(*id),
            Self::Prefix(text) => text,
        };
        let sales = pages::all(client, path, "id")?;
        let ids = sales.iter().filter_map(|sale| sale["id"].as_str());
        let fitting: Vec<&str> = ids.filter(|id| id.starts_with(text.as_str())).collect();
        match fitting.as_slice() {
            [id] => id.parse().map_err(|error| Failure::Fault(anyhow::Error::new(error))),
            [] => Err(Failure::No(format!("no sale's id begins with {text}: {advice}"))),
            several => Err(Failure::No(format!(
                "{} sales' ids begin with {text}, such as {}: type more of it",
                several.len(),
                several[..several.len().min(LISTED_MAX)].join(", ")
            ))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::mock_server::MockServer;
    use super::*;
    use serde_json::json;

    const ID: &str = "0190a5c8-2f3c-7d11-9c5b-6a1f0e7d4b21";

    #[test]
    fn an_id_is_whole_or_begins_with_four_characters() {
        assert_eq!(ID.parse(), Ok(SaleRef::Id(ID.parse().unwrap())));
        for prefix in ["0190", "0190A5C8-", "0190a5c8-2f3c-7d11-9c5b-6a1f0e7d4b2"] {
            let read: SaleRef = prefix.parse().unwrap();
            assert_eq!(read, SaleRef::Prefix(prefix.to_lowercase()));
        }
        for wrong in ["", "019", "nope", "0190a5c82-f", "0190-a5c8", &format!("{ID}0")] {
            let said = wrong.parse::<SaleRef>().unwrap_err();
            assert!(said.contains("flashsale sale list"), "{wrong}: {said}");
        }
    }

    #[test]
    fn a_prefix_stands_for_the_one_sale_that_has_it() {
        let other = "0190a5c8-2f3d-7d11-9c5b-6a1f0e7d4b21";
        let page = json!({"data": [{"id": ID}, {"id": other}], "has_more": false});
        let whole = |prefix: &str| {
            let server = MockServer::answering(&[(200, &page.to_string())]);
            let client = server.client();
            prefix.parse::<SaleRef>().unwrap().whole(&client)
        };
        assert_eq!(whole("0190a5c8-2f3d").unwrap().to_string(), other);
        let several = whole("0190").unwrap_err().to_string();
        assert!(several.contains("2 sales") && several.contains(other), "{several}");
        assert!(
            whole("0191")
                .unwrap_err()
                .to_string()
                .contains("no sale's id begins with 0191")
        );
    }
}
