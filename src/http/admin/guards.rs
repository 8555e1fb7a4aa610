//! The limits on shoppers, changed while instances run.

use crate::domain::guard::{GuardChanges, GuardSettings};
use crate::flow::operate::guards;
use crate::http::Api;
use crate::http::endpoint::{Endpoint, handler};
use crate::http::explain::parse_value;
use crate::http::extract::{Json, Operator};
use crate::http::problem::Problem;
use actix_web::HttpResponse;
use actix_web::web::Data;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

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
                 Every instance follows within seconds.",
            )
            .reads::<GuardChanges>(json!({"address_rate": 50, "shared_rate": null}))
            .answers::<Guards>(200, "The guards of the instance that answers.", example())
    }),
];

/// The guards of the instance that answers.
#[derive(Serialize, JsonSchema)]
pub(in crate::http) struct Guards {
    /// The settings from the instance's configuration.
    configured: GuardSettings,
    /// The settings that operators have changed, for all instances.
    changed: GuardChanges,
    /// The settings in force: the configuration with the changes.
    effective: GuardSettings,
    /// Requests per second that this instance accepts now; 0 is no limit.
    rate: u32,
    /// Purchases that this instance is answering now.
    in_flight: u32,
}

impl Guards {
    fn of(api: &Api, changed: GuardChanges) -> Self {
        Self {
            configured: api.guards,
            changed,
            effective: api.guards.with(&changed),
            rate: api.gate.rate(),
            in_flight: api.gate.in_flight(),
        }
    }
}

async fn show_guards(api: Data<Api>, _: Operator) -> Result<HttpResponse, Problem> {
    let changed = api.for_operator(|app| async move { guards::changes(&app).await });
    Ok(HttpResponse::Ok().json(Guards::of(&api, changed.await?)))
}

/// A change of the guards. Kept as it came, because `null` and an absent member differ.
#[derive(Deserialize, JsonSchema)]
#[serde(transparent)]
#[schemars(with = "GuardChanges")]
pub struct GuardPatch(Map<String, Value>);

/// Sets the members of the body, and removes those that are `null` (RFC 7396)
async fn change_guards(
    api: Data<Api>,
    _: Operator,
    Json(GuardPatch(changes)): Json<GuardPatch>,
) -> Result<HttpResponse, Problem> {
    let configured = api.guards;
    let is_right = move |settings| {
        let changes: GuardChanges = parse_value(settings)?;
        configured.with(&changes).check().map_err(|wrong| wrong.to_string())?;
        Ok(changes)
    };
    let changed = api.for_operator(move |app| async move { guards::change(&app, changes, is_right).await });
    let changed = changed.await?.map_err(|wrong: String| Problem::invalid(wrong))?;
    Ok(HttpResponse::Ok().json(Guards::of(&api, changed)))
}

fn example() -> Value {
    let set = |address_rate: u32| {
        json!({"address_rate": address_rate, "account_rate": 20, "instance_rate": 0, "shared_rate": 0, "adaptive_min_rate": 10,
            "adaptive_max_rate": 0, "adaptive_latency_ms": 200, "adaptive_in_flight": 64, "browsing_alert_above": 0,
            "browsing_ban_above": 0, "browsing_ban_seconds": 86400})
    };
    json!({"configured": set(0), "changed": {"address_rate": 50}, "effective": set(50), "rate": 0, "in_flight": 0})
}
