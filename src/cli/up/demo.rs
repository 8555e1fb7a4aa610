//! The demo sale of a new instance, made over its own HTTP API as an operator would.

use crate::cli::client::trusting_anybody;
use crate::embedded::secrets;
use anyhow::{Context as _, bail};
use chrono::{SecondsFormat, TimeDelta, Utc};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::fs;
use std::path::Path;
use std::time::Duration;

const NAME: &str = "Demo sale";
const SKU: &str = "DEMO-PHONE";
const REQUEST_LIMIT: Duration = Duration::from_secs(10);

/// The sale to try things on, as the folder remembers it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DemoSale {
    /// The sale.
    pub id: String,
    /// One of its items.
    pub sku: String,
}

/// The demo sale of this folder. An instance without any sale gets one; each step can be repeated, so a crash in
/// between is made good by the next start. An instance with sales of its own gets none.
pub fn ensure(dir: &Path, url: &str, admin_key: &str) -> anyhow::Result<Option<DemoSale>> {
    let path = dir.join("demo-sale.json");
    if let Ok(text) = fs::read_to_string(&path) {
        return serde_json::from_str(&text).with_context(|| format!("{} is damaged; remove it", path.display()));
    }
    let api = Api::new(url, admin_key);
    let sales = api.get("/v1/admin/sales")?;
    let sales = list(&sales);
    let id = match sales.iter().find(|sale| sale["name"] == NAME) {
        Some(begun) => id_of(begun)?,
        None if sales.is_empty() => id_of(&api.post("/v1/admin/sales", Some(&sale()))?)?,
        None => return Ok(None),
    };
    api.post(&format!("/v1/admin/sales/{id}/preload"), None)?;
    // Preloading opens a sale whose time has come.
    if api.get(&format!("/v1/admin/sales/{id}"))?["state"] != "open" {
        api.post(&format!("/v1/admin/sales/{id}/open"), None)?;
    }
    let sale = DemoSale {
        id,
        sku: SKU.to_owned(),
    };
    secrets::write_private(&path, &serde_json::to_string(&sale)?)?;
    Ok(Some(sale))
}

fn sale() -> Value {
    let now = Utc::now();
    let time = |time: chrono::DateTime<Utc>| time.to_rfc3339_opts(SecondsFormat::Millis, true);
    let item = |sku: &str, name: &str, price: u32, stock: u32, limit: u32| json!({"sku": sku, "name": name, "price_minor": price, "currency": "USD", "stock": stock, "per_user_limit": limit});
    json!({
        "name": NAME,
        "starts_at": time(now),
        "ends_at": time(now + TimeDelta::hours(24)),
        "shards": 4,
        "items": [
            item(SKU, "Demo phone", 49_900, 100, 2),
            item("DEMO-CASE", "Demo case", 1_900, 1_000, 5),
        ],
    })
}

/// The sales in an answer: a list, alone or as a member.
fn list(answer: &Value) -> Vec<Value> {
    let members = answer.as_object().into_iter().flat_map(|object| object.values());
    std::iter::once(answer)
        .chain(members)
        .find_map(Value::as_array)
        .cloned()
        .unwrap_or_default()
}

fn id_of(sale: &Value) -> anyhow::Result<String> {
    Ok(sale["id"]
        .as_str()
        .context("the sale that was answered has no id")?
        .to_owned())
}

/// The operators' API.
struct Api {
    agent: ureq::Agent,
    url: String,
    authorization: String,
}

impl Api {
    fn new(url: &str, admin_key: &str) -> Self {
        let config = ureq::Agent::config_builder()
            .timeout_global(Some(REQUEST_LIMIT))
            .http_status_as_error(false)
            // The instance is on this machine, whatever proxy the environment names.
            .proxy(None)
            // It is this very process that listens there.
            .tls_config(trusting_anybody())
            .build();
        Self {
            agent: config.into(),
            url: url.to_owned(),
            authorization: format!("Bearer {admin_key}"),
        }
    }

    fn get(&self, path: &str) -> anyhow::Result<Value> {
        let request = self
            .agent
            .get(format!("{}{path}", self.url))
            .header("Authorization", &self.authorization);
        answer(path, request.call())
    }

    fn post(&self, path: &str, body: Option<&Value>) -> anyhow::Result<Value> {
        let request = self
            .agent
            .post(format!("{}{path}", self.url))
            .header("Authorization", &self.authorization);
        answer(
            path,
            match body {
                Some(body) => request.send_json(body),
                None => request.send_empty(),
            },
        )
    }
}

fn answer(path: &str, outcome: Result<ureq::http::Response<ureq::Body>, ureq::Error>) -> anyhow::Result<Value> {
    let mut response = outcome.with_context(|| format!("{path} does not answer"))?;
    let status = response.status();
    let text = response
        .body_mut()
        .read_to_string()
        .with_context(|| format!("{path} answers with half a body"))?;
    if !status.is_success() {
        bail!("{path} answers {status}: {}", text.trim());
    }
    serde_json::from_str(&text).with_context(|| format!("{path} answers with something that is not JSON"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_is_found_alone_or_as_a_member() {
        assert_eq!(list(&json!([1])).len(), 1);
        assert_eq!(list(&json!({"total": 2, "sales": [1, 2]})).len(), 2);
        assert!(list(&json!({})).is_empty());
    }

    #[test]
    fn a_remembered_sale_needs_no_request() {
        let dir = tempfile::tempdir().unwrap();
        let sale = DemoSale {
            id: "i".to_owned(),
            sku: "s".to_owned(),
        };
        fs::write(dir.path().join("demo-sale.json"), serde_json::to_string(&sale).unwrap()).unwrap();
        assert_eq!(ensure(dir.path(), "http://127.0.0.1:1", "k").unwrap(), Some(sale));
    }
}
