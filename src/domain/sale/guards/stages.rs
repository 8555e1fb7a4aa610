//! The stages of a sale's guards: another value for a part of the shoppers.

use super::{ChallengeKind, SaleGuards, WrongGuards};
use crate::domain::mistake;
use crate::domain::stage::{Stage, merged};
use schemars::JsonSchema;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// The member of the stored guards that has their stages.
pub(super) const STAGED: &str = "staged";

macro_rules! stages {
    ($($(#[doc = $doc:literal])+ $name:ident: $type:ty;)*) => {
        /// The guards of a sale that have another value for a part of its shoppers.
        #[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
        #[serde(deny_unknown_fields, default)]
        #[schemars(inline)]
        pub struct SaleStages {
            $(
                $(#[doc = $doc])+
                #[serde(skip_serializing_if = "Option::is_none")]
                pub $name: Option<Stage<$type>>,
            )*
        }

        impl SaleStages {
            const NAMES: &[&str] = &[$(stringify!($name)),*];

            /// The stages in the stored guards. A stage that only a later version can read picks nobody.
            pub fn from_stored(stored: &Value) -> Self {
                Self { $($name: read(&stored[STAGED][stringify!($name)]),)* }
            }

            fn has_percents(&self) -> bool {
                [$(self.$name.is_none_or(|stage| stage.has_percent())),*].iter().all(|is_right| *is_right)
            }
        }
    };
}

stages! {
    /// Whether the picked accounts wait in a waiting room before they may buy.
    waiting_room: bool;
    /// Whether a purchase of the picked accounts needs a purchase token.
    purchase_token: bool;
    /// What the picked accounts must solve for a purchase token, in a sale without a challenge for all.
    challenge: ChallengeKind;
    /// The most unpaid holds of a picked account at a time. It has no shadow.
    holds_max: u32;
    /// How long a picked account may not buy after a hold that it did not pay for, in seconds. It has no shadow.
    unpaid_cooldown_seconds: u32;
}

fn read<T: DeserializeOwned>(stored: &Value) -> Option<Stage<T>> {
    serde_json::from_value(stored.clone()).ok()
}

impl SaleStages {
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// These stages after a merge patch (RFC 7396), for a sale with these guards. The error names the first invalid
    /// stage.
    pub fn with(self, patch: &Map<String, Value>, guards: &SaleGuards) -> Result<Self, WrongGuards> {
        let mut stages = self;
        for (name, value) in patch {
            if !Self::NAMES.contains(&name.as_str()) {
                let all = Self::NAMES.join(", ");
                return Err(WrongGuards(format!("no guard {name} has stages; these do: {all}")));
            }
            let mut all = serde_json::to_value(stages).unwrap_or_default();
            all[name.as_str()] = match value {
                Value::Null => Value::Null,
                Value::Object(changes) => merged(all.get(name), changes.clone()),
                _ => {
                    return Err(WrongGuards(format!(
                        "{name} must be an object with value, percent and shadow, not {value}"
                    )));
                }
            };
            stages = serde_path_to_error::deserialize::<_, Self>(all)
                .map_err(|error| WrongGuards(mistake::plain(&error.path().to_string(), &error.inner().to_string())))?;
        }
        stages.check(guards)?;
        Ok(stages)
    }

    fn check(&self, guards: &SaleGuards) -> Result<(), WrongGuards> {
        let wrong = |text: &str| Err(WrongGuards(text.to_owned()));
        if !self.has_percents() {
            return wrong("percent must be 0 to 100");
        }
        // The script of a purchase decides these two, and it can only refuse.
        for (name, stage) in [
            ("holds_max", self.holds_max),
            ("unpaid_cooldown_seconds", self.unpaid_cooldown_seconds),
        ] {
            if stage.is_some_and(|stage| stage.shadow) {
                return Err(WrongGuards(format!("{name} has no shadow")));
            }
        }
        if self.challenge.is_some() && guards.challenge != ChallengeKind::None {
            return wrong("challenge can have a stage only in a sale without a challenge");
        }
        let staged = SaleGuards {
            challenge: self.challenge.map_or(guards.challenge, |stage| stage.value),
            holds_max: self.holds_max.map_or(guards.holds_max, |stage| stage.value),
            unpaid_cooldown_seconds: self
                .unpaid_cooldown_seconds
                .map_or(guards.unpaid_cooldown_seconds, |stage| stage.value),
            ..*guards
        };
        staged.check()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn stages_are_stored_beside_the_guards_that_a_version_without_them_reads() {
        let guards = SaleGuards::default();
        let patched = |stages: SaleStages, patch: Value| stages.with(patch.as_object().unwrap(), &guards).unwrap();
        let stages = patched(
            SaleStages::default(),
            json!({
                "waiting_room": {"value": true, "percent": 10, "shadow": true},
                "holds_max": {"value": 2, "percent": 5},
            }),
        );
        let mut stored = guards.stored_with(&stages);
        assert_eq!(SaleGuards::from_stored(stored.clone()).unwrap(), guards);
        assert_eq!(SaleStages::from_stored(&stored), stages);
        assert_eq!(SaleStages::from_stored(&guards.stored()), SaleStages::default());
        stored[STAGED]["holds_max"] = json!("of a later version");
        assert_eq!(SaleStages::from_stored(&stored).holds_max, None);

        assert!(!guards.with_stages(&stages).waiting_room, "a shadow asks for nothing");
        let stages = patched(stages, json!({"waiting_room": {"shadow": false}, "holds_max": null}));
        assert!(guards.with_stages(&stages).waiting_room && stages.holds_max.is_none());
        let stages = patched(stages, json!({"waiting_room": {"percent": 0}}));
        assert!(!guards.with_stages(&stages).waiting_room);
    }

    #[test]
    fn a_stage_that_cannot_be_is_refused_by_its_name() {
        let captcha = SaleGuards {
            purchase_token: true,
            challenge: ChallengeKind::Captcha,
            ..SaleGuards::default()
        };
        for (guards, patch, named) in [
            (
                SaleGuards::default(),
                json!({"proof_cost": {"value": 1, "percent": 1}}),
                "no guard proof_cost has stages",
            ),
            (
                SaleGuards::default(),
                json!({"waiting_room": true}),
                "waiting_room must be",
            ),
            (
                SaleGuards::default(),
                json!({"waiting_room": {"percent": 1}}),
                "waiting_room.value is missing",
            ),
            (
                SaleGuards::default(),
                json!({"waiting_room": {"value": "yes", "percent": 1}}),
                "waiting_room.value must be true or false",
            ),
            (
                SaleGuards::default(),
                json!({"waiting_room": {"value": true, "percent": 1, "shade": true}}),
                "waiting_room.shade is unknown; known are value, percent and shadow",
            ),
            (
                SaleGuards::default(),
                json!({"waiting_room": {"value": true, "percent": 101}}),
                "percent",
            ),
            (
                SaleGuards::default(),
                json!({"holds_max": {"value": 100_001, "percent": 1}}),
                "holds_max",
            ),
            (
                SaleGuards::default(),
                json!({"holds_max": {"value": 1, "percent": 1, "shadow": true}}),
                "holds_max has no shadow",
            ),
            (
                SaleGuards::default(),
                json!({"challenge": {"value": "captcha", "percent": 1}}),
                "challenge needs",
            ),
            (
                captcha,
                json!({"challenge": {"value": "none", "percent": 1}}),
                "challenge can have",
            ),
        ] {
            let error = SaleStages::default()
                .with(patch.as_object().unwrap(), &guards)
                .unwrap_err();
            assert!(error.to_string().starts_with(named), "{error}");
        }
    }
}
