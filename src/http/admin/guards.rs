//! The limits on shoppers, changed while instances run.

use crate::domain::guard::{
    GuardChanges, GuardOverrides, GuardSettings, GuardStages, Layer, SHADOW_REFUSALS_MAX, Sender, ShadowRefusal,
};
use crate::domain::ids::{SaleId, UserId};
use crate::domain::sale::guards::SaleGuards;
use crate::domain::stage::{Stage, members_may_lack};
use crate::domain::time::{self, Millis, from_millis};
use crate::flow::operate::guards;
use crate::flow::sell::shadow_refusals;
use crate::http::Api;
use crate::http::endpoint::{Endpoint, handler};
use crate::http::explain::parse_value;
use crate::http::extract::{Json, Operator, Query};
use crate::http::openapi::SALE_ID;
use crate::http::problem::Problem;
use crate::http::views::{Page, PageSize};
use actix_web::HttpResponse;
use actix_web::web::Data;
use chrono::{DateTime, Utc};
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use std::borrow::Cow;

pub const ROUTES: &[Endpoint] = &[
    Endpoint::get("/v1/admin/guards", handler!(show_guards), |it| {
        it.of_operators("showGuards", "Show the guards of an instance")
            .says("`changed` is the same on every instance; `rate` and `in_flight` are those of the one that answers.")
            .answers::<Guards>(200, "The guards.", example())
    }),
    Endpoint::patch("/v1/admin/guards", handler!(change_guards), |it| {
        it.of_operators("changeGuards", "Change the guards of all instances")
            .says(
                "A JSON merge patch (RFC 7396): `null` restores the configured value, an absent member stays. The \
                 settings must fit together: the least rate of an adaptive instance must not exceed its greatest. \
                 An object is a stage: a value for a part of the shoppers, picked by a keyed hash of the account or \
                 address, the same ones at every instance. The others keep the value that they have. A plain value \
                 ends the stage. Every instance follows within a second.",
            )
            .reads::<GuardPatch>(
                json!({"address_rate": {"value": 20, "percent": 10, "shadow": true}, "shared_rate": null}),
            )
            .answers::<Guards>(200, "The guards of the instance that answers.", example())
    }),
    Endpoint::get("/v1/admin/guards/shadow", handler!(list_shadow_refusals), |it| {
        it.of_operators("listShadowRefusals", "List whom guards in shadow would have refused")
            .says(
                "Each shopper once for each guard and sale, the latest first: the last 1,000 of a day, at any instance.",
            )
            .query::<ShadowQuery>(&[("sale_id", SALE_ID.into()), ("limit", 10.into())])
            .answers_page::<ListedShadowRefusal>(
                "The latest of them.",
                json!({"last_at": "2026-11-22T09:00:10.000Z", "layer": "purchase_token", "sale_id": SALE_ID, "user": "ada"}),
            )
    }),
];

/// The guards of the instance that answers.
#[derive(Serialize, JsonSchema)]
pub(in crate::http) struct Guards {
    /// The settings from the instance's configuration.
    configured: GuardSettings,
    /// The settings that operators have changed, for all instances.
    changed: GuardChanges,
    /// The settings that have another value for a part of the shoppers, for all instances.
    staged: GuardStages,
    /// The settings in force: the configuration with the changes, without the stages.
    effective: GuardSettings,
    /// The guards of a new sale that states none, from the instance's configuration.
    new_sales: SaleGuards,
    /// Requests per second that this instance accepts now; 0 is no limit.
    rate: u32,
    /// Purchases that this instance is answering now.
    in_flight: u32,
}

impl Guards {
    fn of(api: &Api, GuardOverrides { changed, staged }: GuardOverrides) -> Self {
        Self {
            configured: api.guards,
            changed,
            staged,
            effective: api.guards.with(&changed),
            new_sales: api.sale_guards,
            rate: api.gate.rate(),
            in_flight: api.gate.in_flight(),
        }
    }
}

async fn show_guards(api: Data<Api>, _: Operator) -> Result<HttpResponse, Problem> {
    let overrides = api.for_operator(|app| async move { guards::overrides(&app).await });
    Ok(HttpResponse::Ok().json(Guards::of(&api, overrides.await?)))
}

/// A change of the guards. Kept as it came, because `null` and an absent member differ.
#[derive(Deserialize)]
#[serde(transparent)]
pub struct GuardPatch(Map<String, Value>);

impl JsonSchema for GuardPatch {
    fn schema_name() -> Cow<'static, str> {
        "GuardPatch".into()
    }
    /// The settings, and in the place of some also a stage.
    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let mut schema = GuardChanges::json_schema(generator);
        schema.insert("description".to_owned(), "A change of the guards.".into());
        let mut stage = generator.subschema_for::<Stage<u32>>();
        members_may_lack(&mut stage);
        let stage = stage.to_value();
        let settings = schema.get_mut("properties").and_then(Value::as_object_mut);
        for (name, setting) in settings.into_iter().flatten() {
            if GuardStages::NAMES.contains(&name.as_str()) {
                let (mut stage, value) = (stage.clone(), setting.take());
                stage["properties"]["value"]["maximum"] = value["maximum"].clone();
                *setting = json!({"description": value["description"], "anyOf": [stage, value]});
            }
        }
        schema
    }
}

/// Sets the members of the body, and removes those that are `null` (RFC 7396)
async fn change_guards(
    api: Data<Api>,
    _: Operator,
    Json(GuardPatch(patch)): Json<GuardPatch>,
) -> Result<HttpResponse, Problem> {
    let configured = api.guards;
    let is_right = move |settings, stages: Value| {
        let changed: GuardChanges = parse_value(settings)?;
        let settings = configured.with(&changed);
        settings.check().map_err(|wrong| wrong.to_string())?;
        let mut names = stages.as_object().into_iter().flat_map(Map::keys);
        if let Some(name) = names.find(|name| !GuardStages::NAMES.contains(&name.as_str())) {
            let all = GuardStages::NAMES.join(", ");
            return Err(format!("no guard {name} has stages; these do: {all}"));
        }
        let staged: GuardStages = parse_value(stages)?;
        staged.check(&settings).map_err(|wrong| wrong.to_string())?;
        Ok(GuardOverrides { changed, staged })
    };
    let changed = api.for_operator(move |app| async move { guards::change(&app, patch, is_right).await });
    let changed = changed.await?.map_err(|wrong: String| Problem::invalid(wrong))?;
    Ok(HttpResponse::Ok().json(Guards::of(&api, changed)))
}

/// Which shadow refusals to list.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ShadowQuery {
    /// Lists only the refusals of requests for this sale.
    sale_id: Option<SaleId>,
    /// At most so many shoppers; 1,000 by default.
    #[serde(default)]
    limit: PageSize<SHADOW_REFUSALS_MAX>,
}

/// Whom a guard in shadow would have refused.
#[derive(Serialize, JsonSchema)]
pub(in crate::http) struct ListedShadowRefusal {
    /// When it would have refused the shopper's last request.
    #[serde(serialize_with = "time::serialize")]
    last_at: DateTime<Utc>,
    /// The guard, by its name in `would_stop`.
    #[schemars(extend("enum" = Layer::NAMES))]
    layer: &'static str,
    /// The sale that the request named; absent if it named none.
    #[serde(skip_serializing_if = "Option::is_none")]
    sale_id: Option<SaleId>,
    /// The account; absent if the guard goes by addresses.
    #[serde(skip_serializing_if = "Option::is_none")]
    user: Option<UserId>,
    /// The client's address, of IPv6 its /64; absent if the guard goes by accounts.
    #[serde(skip_serializing_if = "Option::is_none")]
    address: Option<String>,
}

impl From<(ShadowRefusal, Millis)> for ListedShadowRefusal {
    fn from((refusal, at): (ShadowRefusal, Millis)) -> Self {
        let (user, address) = match refusal.sender {
            Sender::Account(user) => (Some(user), None),
            Sender::Address(address) => (None, Some(address)),
        };
        Self {
            last_at: from_millis(at),
            layer: refusal.layer.as_str(),
            sale_id: refusal.sale,
            user,
            address,
        }
    }
}

async fn list_shadow_refusals(
    api: Data<Api>,
    _: Operator,
    Query(ShadowQuery { sale_id, limit }): Query<ShadowQuery>,
) -> Result<HttpResponse, Problem> {
    let refusals = api.for_operator(move |app| async move { shadow_refusals::list(&app, sale_id).await });
    let refusals: Vec<ListedShadowRefusal> = refusals.await?.into_iter().map(Into::into).collect();
    Ok(HttpResponse::Ok().json(Page::of(refusals, limit.get())))
}

fn example() -> Value {
    let set = |address_rate: u32| {
        json!({"address_rate": address_rate, "account_rate": 20, "instance_rate": 0, "shared_rate": 0, "adaptive_min_rate": 10,
            "adaptive_max_rate": 0, "adaptive_latency_ms": 200, "adaptive_in_flight": 64, "browsing_alert_above": 0,
            "browsing_ban_above": 0, "browsing_ban_seconds": 86400})
    };
    json!({"configured": set(0), "changed": {"address_rate": 50},
        "staged": {"address_rate": {"value": 20, "percent": 10, "shadow": true}}, "effective": set(50),
        "new_sales": SaleGuards::default(), "rate": 0, "in_flight": 0})
}
