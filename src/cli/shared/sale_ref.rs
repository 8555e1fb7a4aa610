//! A sale's id as operators type it: whole, its first or last characters, or `@latest`.

use super::answer::{Column, read, table};
use super::client::{Client, SEE_SALES};
use super::pages;
use crate::cli::Failure;
use serde_json::Value;
use std::str::FromStr;
use uuid::Uuid;

/// Stands for the id of the newest sale or order.
pub const LATEST: &str = "@latest";
/// The fewest characters of a prefix.
const CHARACTERS_MIN: usize = 4;
/// The characters at the end of an id that name what has it: they are random.
pub const NUMBER: usize = 8;
/// How many entries a message lists.
const LISTED_MAX: usize = 10;
const COLUMNS: [Column; 4] = [
    ("SALE", "id"),
    ("STATE", "state"),
    ("STARTS", "starts_at"),
    ("NAME", "name"),
];

/// A sale's id, a part of it, or the newest sale.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SaleRef {
    Id(Uuid),
    /// The first characters, at least four, or the last eight. In lower case, with dashes.
    Part(String),
    Latest,
}

/// The text in lower case, if it is a prefix of an id that is long enough.
pub fn prefix(text: &str) -> Option<String> {
    let text = text.to_ascii_lowercase();
    let pattern = "00000000-0000-0000-0000-000000000000";
    let fits =
        |(given, place): (char, char)| (given == '-') == (place == '-') && (given == '-' || given.is_ascii_hexdigit());
    let is_prefix =
        (CHARACTERS_MIN..pattern.len()).contains(&text.len()) && text.chars().zip(pattern.chars()).all(fits);
    is_prefix.then_some(text)
}

/// The error for several matches: how many, the first of them as a table, and what to type next.
pub fn several(found: &[Value], what: &str, columns: &[Column], next: &str) -> Failure {
    let listed = table(&found[..found.len().min(LISTED_MAX)], columns, |_, _| None);
    let more = if found.len() > LISTED_MAX { "…\n" } else { "" };
    Failure::No(format!("{} {what}:\n{listed}{more}{next}", found.len()))
}

impl FromStr for SaleRef {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == LATEST {
            return Ok(Self::Latest);
        }
        if let Ok(id) = text.parse() {
            return Ok(Self::Id(id));
        }
        prefix(text).map(Self::Part).ok_or_else(|| {
            format!(
                "a sale's id is a UUID such as 0190a5c8-2f3c-7d11-9c5b-6a1f0e7d4b21, its first characters (at \
                 least four) or the last {NUMBER}, or {LATEST}: {SEE_SALES}"
            )
        })
    }
}

impl SaleRef {
    /// The whole id. A part costs a list of all sales.
    pub fn whole(&self, client: &Client) -> Result<Uuid, Failure> {
        self.among(client, "/v1/admin/sales", SEE_SALES)
    }

    /// The whole id of a sale in the list at `path`; `advice` says where to find ids.
    pub fn among(&self, client: &Client, path: &str, advice: &str) -> Result<Uuid, Failure> {
        let sales = match self {
            Self::Id(id) => return Ok(*id),
            Self::Part(_) => pages::all(client, path, "id")?,
            Self::Latest => pages::newest(client, &format!("{path}?limit=1"), "id", 1)?,
        };
        self.of(sales, advice)
    }

    /// The whole id of one of these sales, newest first.
    pub fn of(&self, mut sales: Vec<Value>, advice: &str) -> Result<Uuid, Failure> {
        match self {
            Self::Id(id) => return Ok(*id),
            Self::Latest => sales.truncate(1),
            Self::Part(text) => sales.retain(|sale| {
                let id = sale["id"].as_str().unwrap_or_default();
                id.starts_with(text) || text.len() == NUMBER && id.ends_with(text)
            }),
        }
        match (sales.as_slice(), self) {
            ([sale], _) => read(&sale["id"]),
            ([], Self::Part(text)) => Err(Failure::No(format!("no sale has the id {text}: {advice}"))),
            ([], _) => Err(Failure::No(format!("there is no sale: {advice}"))),
            (found, _) => Err(several(
                found,
                "sales match",
                &COLUMNS,
                "type more of the id, or all of it",
            )),
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
            assert_eq!(read, SaleRef::Part(prefix.to_lowercase()));
        }
        assert_eq!(LATEST.parse(), Ok(SaleRef::Latest));
        for wrong in [
            "",
            "019",
            "@last",
            "nope",
            "0190a5c82-f",
            "0190-a5c8",
            &format!("{ID}0"),
        ] {
            let said = wrong.parse::<SaleRef>().unwrap_err();
            assert!(said.contains("flashsale sale list"), "{wrong}: {said}");
        }
    }

    #[test]
    fn a_list_that_is_cut_ends_with_dots() {
        let said = |count: usize| {
            let found = vec![json!({"id": ID}); count];
            several(&found, "sales match", &COLUMNS, "type more").to_string()
        };
        assert!(!said(LISTED_MAX).contains('…'));
        let cut = said(LISTED_MAX + 1);
        assert!(
            cut.starts_with("11 sales match:") && cut.ends_with("\n…\ntype more"),
            "{cut}"
        );
    }

    #[test]
    fn a_part_stands_for_the_one_sale_that_has_it() {
        let other = "0190a5c8-2f3d-7d11-9c5b-6a1f0e7d4b22";
        let page = json!({"data": [{"id": ID, "name": "Winter"}, {"id": other, "state": "open"}], "has_more": false});
        let whole = |prefix: &str| {
            let server = MockServer::answering(&[(200, &page.to_string())]);
            let client = server.client();
            prefix.parse::<SaleRef>().unwrap().whole(&client)
        };
        for part in ["0190a5c8-2f3d", "0E7D4B22"] {
            assert_eq!(whole(part).unwrap().to_string(), other);
        }
        assert!(whole("e7d4b22").is_err());
        let several = whole("0190").unwrap_err().to_string();
        for part in ["2 sales", other, "open", "Winter", "type more"] {
            assert!(several.contains(part), "{part}: {several}");
        }
        assert_eq!(
            whole(LATEST).unwrap().to_string(),
            ID,
            "the list begins with the newest"
        );
        assert!(
            whole("0191")
                .unwrap_err()
                .to_string()
                .contains("no sale has the id 0191")
        );
    }
}
