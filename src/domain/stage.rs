//! Stages: a guard's value for a part of the shoppers.
//!
//! A keyed hash of the account, or of the address where no account is known, gives each shopper a place from 0 to 99 at
//! each guard. A stage picks the places below its percentage. So instances with the same key pick the same shoppers,
//! and a stage that grows keeps those that it has.

use super::keyed_hash;
use schemars::transform::transform_subschemas;
use schemars::{JsonSchema, Schema};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

const PERCENT_MAX: u32 = 100;

/// A guard's value for a part of the shoppers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(inline)]
pub struct Stage<T> {
    /// The guard's value for the shoppers that the stage picks.
    pub value: T,
    /// How many of a hundred shoppers the stage picks, 0 to 100.
    #[schemars(range(max = PERCENT_MAX))]
    pub percent: u32,
    /// Whether the value refuses nobody, and only counts the requests that it would have refused.
    #[serde(default)]
    pub shadow: bool,
}

impl<T> Stage<T> {
    /// Whether the percentage is valid.
    pub const fn has_percent(&self) -> bool {
        self.percent <= PERCENT_MAX
    }

    /// Whether the stage may pick anybody.
    pub const fn picks_some(&self) -> bool {
        self.percent > 0
    }

    /// The value that the stage gives every shopper, if it does.
    pub fn of_all(self) -> Option<T> {
        (self.percent == PERCENT_MAX && !self.shadow).then_some(self.value)
    }

    /// The same stage of another value.
    pub fn with<U>(self, value: U) -> Stage<U> {
        Stage {
            value,
            percent: self.percent,
            shadow: self.shadow,
        }
    }
}

/// Makes the members of all objects in a schema optional, as in a merge patch.
pub fn members_may_lack(schema: &mut Schema) {
    schema.remove("required");
    transform_subschemas(&mut members_may_lack, schema);
}

/// A stage in JSON after a merge patch (RFC 7396) of its members.
pub fn merged(before: Option<&Value>, changes: Map<String, Value>) -> Value {
    let mut stage = before.and_then(Value::as_object).cloned().unwrap_or_default();
    stage.extend(changes);
    stage.retain(|_, value| !value.is_null());
    Value::Object(stage)
}

/// What a guard applies to one shopper.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Applied<T> {
    /// The value in force.
    pub value: T,
    /// The value against which requests are only counted.
    pub shadow: Option<T>,
}

/// The key that places shoppers. Each instance derives the same key from a secret that all share.
#[derive(Clone, Copy)]
pub struct StageKey([u8; 32]);

impl StageKey {
    pub fn derived(secret: &[u8]) -> Self {
        Self(keyed_hash::of(secret, &[b"flashsale staged guards"]))
    }

    /// What a guard with this value and this stage applies to a shopper. A shopper without an account and an address is
    /// picked only by a stage of all.
    pub fn apply<T>(&self, guard: &str, shopper: Option<&[u8]>, value: T, stage: Option<Stage<T>>) -> Applied<T> {
        match stage.filter(|stage| self.picks(guard, shopper, stage.percent)) {
            None => Applied { value, shadow: None },
            Some(stage) if stage.shadow => Applied {
                value,
                shadow: Some(stage.value),
            },
            Some(stage) => Applied {
                value: stage.value,
                shadow: None,
            },
        }
    }

    fn picks(&self, guard: &str, shopper: Option<&[u8]>, percent: u32) -> bool {
        match percent {
            0 => false,
            PERCENT_MAX.. => true,
            _ => shopper.is_some_and(|shopper| self.place(guard, shopper) < u64::from(percent)),
        }
    }

    fn place(&self, guard: &str, shopper: &[u8]) -> u64 {
        let hash = keyed_hash::of(&self.0, &[guard.as_bytes(), b"\n", shopper]);
        let mut start = [0; 8];
        start.copy_from_slice(&hash[..8]);
        u64::from_be_bytes(start) % u64::from(PERCENT_MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The shoppers, of a thousand, that a stage of a guard picks.
    fn picked(key: &StageKey, guard: &str, percent: u32) -> Vec<u32> {
        let is_picked = |shopper: &u32| key.picks(guard, Some(&shopper.to_be_bytes()), percent);
        (0..1000).filter(is_picked).collect()
    }

    #[test]
    fn a_stage_that_grows_keeps_the_shoppers_that_it_has() {
        let key = StageKey::derived(&[1; 32]);
        let mut before = Vec::new();
        for percent in 0..=100 {
            let now = picked(&key, "account_rate", percent);
            assert!(before.iter().all(|shopper| now.contains(shopper)), "{percent}");
            let share = usize::try_from(percent).unwrap() * 10;
            assert!(now.len().abs_diff(share) < 60, "{percent}: {}", now.len());
            before = now;
        }
        assert_eq!(before.len(), 1000);
    }

    #[test]
    fn instances_with_one_secret_pick_the_same_shoppers_and_each_guard_picks_its_own() {
        let one = picked(&StageKey::derived(&[1; 32]), "account_rate", 50);
        assert_eq!(picked(&StageKey::derived(&[1; 32]), "account_rate", 50), one);
        assert_ne!(picked(&StageKey::derived(&[2; 32]), "account_rate", 50), one);
        assert_ne!(picked(&StageKey::derived(&[1; 32]), "address_rate", 50), one);
    }

    #[test]
    fn a_stage_replaces_the_value_of_those_that_it_picks_and_in_shadow_stands_beside_it() {
        let key = StageKey::derived(&[1; 32]);
        let stage = |percent, shadow| {
            Some(Stage {
                value: 7,
                percent,
                shadow,
            })
        };
        let of = |stage| {
            let applied = key.apply("account_rate", None, 3, stage);
            (applied.value, applied.shadow)
        };
        assert_eq!(of(None), (3, None));
        assert_eq!(of(stage(0, false)), (3, None));
        assert_eq!(of(stage(99, false)), (3, None), "nobody knows who it is");
        assert_eq!(of(stage(100, false)), (7, None));
        assert_eq!(of(stage(100, true)), (3, Some(7)));
    }
}
