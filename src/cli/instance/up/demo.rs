//! The demo sale of a new instance, created over the instance's own HTTP API, as an operator would do it.

use crate::cli::shared::client::{CallError, Client, sale_path, trusting_anybody};
use crate::cli::shared::pages;
use crate::domain::time;
use crate::embedded::secrets;
use anyhow::Context as _;
use chrono::{TimeDelta, Utc};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::fs;
use std::path::Path;
use std::time::Duration;

const NAME: &str = "Demo sale";
const SKU: &str = "DEMO-PHONE";
const REQUEST_LIMIT: Duration = Duration::from_secs(10);

/// The demo sale, as the file in the folder remembers it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DemoSale {
    pub id: String,
    /// The SKU of one of its items.
    pub sku: String,
}

/// Returns the demo sale of this folder, and creates one if needed:
///
/// - An instance without any sale gets a demo sale.
/// - A folder whose demo sale is over gets a new one, since the printed guide must work.
/// - An instance with other sales that never had a demo sale gets none.
///
/// Each step can be repeated, so the next start completes what a crash interrupted.
pub fn ensure(dir: &Path, url: &str, admin_key: &str) -> anyhow::Result<Option<DemoSale>> {
    let path = dir.join("demo-sale.json");
    let remembered: Option<DemoSale> = match fs::read_to_string(&path) {
        Ok(text) => {
            Some(serde_json::from_str(&text).with_context(|| format!("{} is damaged; remove it", path.display()))?)
        }
        Err(_) => None,
    };
    // This process has bound the address, so no other process can answer there.
    let api = Client::new(trusting_anybody(), url, Some(admin_key.to_owned()), REQUEST_LIMIT)?;
    // If the stats cannot be read, because Redis or Postgres does not answer yet, the remembered sale stays.
    if let Some(sale) = &remembered
        && sells(&api, &sale.id, &sale.sku).unwrap_or(true)
    {
        return Ok(remembered);
    }
    let sales = pages::all(&api, "/v1/admin/sales", "id")?;
    let begun = begun(&api, &sales)?;
    let has_own = sales.iter().any(|sale| sale["name"] != NAME);
    let id = match begun {
        Some(id) => id,
        None if has_own && remembered.is_none() => return Ok(None),
        None => id_of(&api.post("/v1/admin/sales", &sale().to_string())?.body)?,
    };
    api.post(&sale_path(&id, "/preload"), "")?;
    // The preload opens a sale whose start has passed.
    if api.get(&sale_path(&id, ""))?.body["state"] != "open" {
        api.post(&sale_path(&id, "/open"), "")?;
    }
    let sale = DemoSale {
        id,
        sku: SKU.to_owned(),
    };
    secrets::write_private(&path, &serde_json::to_string(&sale)?)?;
    Ok(Some(sale))
}

/// A demo sale that an earlier start created and that is not over, if there is one.
fn begun(api: &Client, sales: &[Value]) -> anyhow::Result<Option<String>> {
    for sale in sales.iter().filter(|sale| sale["name"] == NAME) {
        let id = id_of(sale)?;
        if sale["state"] == "draft" || sells(api, &id, SKU)? {
            return Ok(Some(id));
        }
    }
    Ok(None)
}

/// Whether a demo sale has free units to sell, now or after an operator opens or resumes it. A sale that is gone, has
/// ended or is sold out has none.
fn sells(api: &Client, id: &str, sku: &str) -> anyhow::Result<bool> {
    let stats = match api.get(&sale_path(id, "/stats")) {
        Err(CallError::Refused(refusal)) if refusal.status == 404 => return Ok(false),
        answer => answer?.body,
    };
    // The stats follow Redis's clock: a sale past its end is `closed` there.
    let items = stats["items"].as_array().into_iter().flatten();
    let is_free = |item: &Value| {
        ["available", "in_transit"]
            .iter()
            .any(|units| item[units].as_i64() > Some(0))
    };
    Ok(stats["state"] != "closed" && items.filter(|item| item["sku"] == sku).any(is_free))
}

fn sale() -> Value {
    let now = Utc::now();
    let item = |sku: &str, name: &str, price: u32, stock: u32, limit: u32| json!({"sku": sku, "name": name, "price_minor": price, "currency": "USD", "stock": stock, "per_user_limit": limit});
    json!({
        "name": NAME,
        "starts_at": time::format(&now),
        "ends_at": time::format(&(now + TimeDelta::hours(24))),
        "shards": 4,
        "items": [
            item(SKU, "Demo phone", 49_900, 100, 2),
            item("DEMO-CASE", "Demo case", 1_900, 1_000, 5),
        ],
    })
}

fn id_of(sale: &Value) -> anyhow::Result<String> {
    Ok(sale["id"]
        .as_str()
        .context("the sale in the server's answer has no id")?
        .to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::shared::mock_server::MockServer;
    use std::io::ErrorKind;
    use std::net::TcpListener;

    /// This is why the key may be sent there without a check of the certificate.
    #[test]
    fn nobody_else_can_answer_at_an_address_that_this_process_has_bound() {
        let own = TcpListener::bind("0.0.0.0:0").unwrap();
        let port = own.local_addr().unwrap().port();
        for host in ["0.0.0.0", "127.0.0.1"] {
            let taken = TcpListener::bind((host, port)).unwrap_err();
            assert_eq!(taken.kind(), ErrorKind::AddrInUse, "{host}");
        }
    }

    const SELLS: (u16, &str) = (
        200,
        r#"{"state":"open","items":[{"sku":"DEMO-PHONE","available":5,"in_transit":0}]}"#,
    );
    const SOLD_OUT: (u16, &str) = (
        200,
        r#"{"state":"open","items":[{"sku":"DEMO-PHONE","available":0,"in_transit":0},{"sku":"DEMO-CASE","available":9}]}"#,
    );
    const OVER: (u16, &str) = (
        200,
        r#"{"state":"closed","items":[{"sku":"DEMO-PHONE","available":5,"in_transit":0}]}"#,
    );
    const MADE: [(u16, &str); 3] = [(201, r#"{"id":"new"}"#), (200, "{}"), (200, r#"{"state":"open"}"#)];

    /// Starts in a folder that remembers the sale `old`, or none. Returns the demo sale's id and the requests.
    fn start(remembers: bool, answers: &[(u16, &str)]) -> (Option<String>, Vec<String>) {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("demo-sale.json");
        if remembers {
            fs::write(&file, r#"{"id":"old","sku":"DEMO-PHONE"}"#).unwrap();
        }
        let server = MockServer::answering(answers);
        let sale = ensure(dir.path(), server.url(), "k").unwrap();
        if let Some(sale) = &sale {
            let kept: DemoSale = serde_json::from_str(&fs::read_to_string(&file).unwrap()).unwrap();
            assert_eq!(kept, *sale);
        }
        let asked = server.requests().into_iter();
        let asked = asked.map(|it| it.split(" HTTP").next().unwrap().to_owned());
        (sale.map(|sale| sale.id), asked.collect())
    }

    #[test]
    fn a_remembered_sale_is_kept_while_there_is_something_to_buy() {
        let (id, asked) = start(true, &[SELLS]);
        assert_eq!(id.as_deref(), Some("old"));
        assert_eq!(asked, ["GET /v1/admin/sales/old/stats"]);
    }

    #[test]
    fn a_remembered_sale_that_is_over_is_followed_by_a_new_one() {
        let own = (200, r#"{"data":[{"id":"mine","name":"Launch","state":"open"}]}"#);
        let old = (200, r#"{"data":[{"id":"old","name":"Demo sale","state":"open"}]}"#);
        for over in [OVER, SOLD_OUT, (404, r#"{"code":"not_found"}"#)] {
            // This holds beside other sales too, since the printed guide must work.
            for (list, looks) in [(own, &[][..]), (old, &[over][..])] {
                let answers: Vec<_> = [over, list]
                    .into_iter()
                    .chain(looks.iter().copied())
                    .chain(MADE)
                    .collect();
                let (id, asked) = start(true, &answers);
                assert_eq!(id.as_deref(), Some("new"), "{over:?} {asked:?}");
            }
        }
    }

    #[test]
    fn a_remembered_sale_of_which_nothing_can_be_told_is_kept() {
        assert_eq!(
            start(true, &[(503, r#"{"code":"unavailable"}"#)]).0.as_deref(),
            Some("old")
        );
    }

    #[test]
    fn a_start_goes_on_with_the_sale_that_another_has_begun() {
        let list = r#"{"data":[{"id":"x","name":"Demo sale","state":"closed"},{"id":"y","name":"Demo sale","state":"draft"}]}"#;
        let (id, asked) = start(false, &[(200, list), OVER, (200, "{}"), (200, r#"{"state":"open"}"#)]);
        assert_eq!(id.as_deref(), Some("y"), "{asked:?}");
    }

    #[test]
    fn an_instance_with_sales_of_its_own_gets_no_demo_sale() {
        let (id, _) = start(
            false,
            &[(200, r#"{"data":[{"id":"mine","name":"Launch","state":"closed"}]}"#)],
        );
        assert_eq!(id, None);
        let answers: Vec<_> = [(200, r#"{"data":[]}"#)].into_iter().chain(MADE).collect();
        assert_eq!(start(false, &answers).0.as_deref(), Some("new"));
    }
}
