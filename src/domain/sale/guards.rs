//! The guards of a sale: what it requires of its shoppers before it sells to them. A guard that a sale leaves out takes
//! its default from the instance that creates the sale.

mod stages;

use crate::domain::mistake;
use crate::domain::stage::Stage;
use schemars::JsonSchema;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Map, Value};
use stages::STAGED;
pub use stages::SaleStages;

/// The most seconds of a guard: a day.
const DAY: u32 = 86_400;
/// The most hashes of one attempt at a proof of work.
const PROOF_COST_MAX: u32 = 1_000_000;
/// Some seconds on a telephone.
const CAPTCHA_PROOF_COST: u32 = 4000;
/// The highest limit on unpaid holds.
const HOLDS_MAX: u32 = 100_000;
/// The most shoppers per second that a waiting room admits.
pub const ADMISSIONS_MAX: u32 = 1_000_000;
const ADMISSION_SECONDS_MIN: u32 = 10;

/// What a shopper must solve for a purchase token.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ChallengeKind {
    /// No challenge.
    #[default]
    None,
    /// Recommended. A proof of work: some seconds of computing in the background (ALTCHA).
    ProofOfWork,
    /// A captcha: the letters of a picture.
    Captcha,
}

macro_rules! guards {
    ($(
        $(#[doc = $doc:literal])+
        $name:ident: $type:ty = $default:expr $(, [$low:expr, $high:expr])? $(, if $acts:expr)?;
    )*) => {
        /// The guards of one sale.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
        #[serde(deny_unknown_fields, default)]
        #[schemars(inline)]
        pub struct SaleGuards {
            $(
                $(#[doc = $doc])+
                $(#[schemars(range(min = $low, max = $high))])?
                pub $name: $type,
            )*
        }

        impl Default for SaleGuards {
            fn default() -> Self {
                Self { $($name: $default,)* }
            }
        }

        impl SaleGuards {
            /// Each number with its name and bounds.
            fn ranges(&self) -> Vec<(&'static str, u32, u32, u32)> {
                vec![$($((stringify!($name), self.$name, $low, $high),)?)*]
            }

            /// The guards that are on, and the values that they use.
            pub fn in_effect(&self) -> Map<String, Value> {
                let Value::Object(mut all) = self.stored() else {
                    return Map::new();
                };
                $($(
                    let acts: fn(&Self) -> bool = $acts;
                    if !acts(self) {
                        all.remove(stringify!($name));
                    }
                )?)*
                all
            }
        }
    };
}

// Each guard: its default, the bounds of a number, and, if that is more than not to be 0 or false, when it has an effect.
// Off is 0 or false, because `stored` drops only these. A later guard is off by default.
guards! {
    /// Whether a purchase needs a purchase token.
    purchase_token: bool = false;
    /// What a shopper must solve for a purchase token; anything but `none` needs `purchase_token`.
    challenge: ChallengeKind = ChallengeKind::None, if |it| it.challenge != ChallengeKind::None;
    /// The cost of one attempt at a proof of work in hashes, 1 to 1,000,000. Each hash is the SHA-256 of the one
    /// before. A shopper needs 1 to 256 attempts, 128 on average. Posing it costs the instance two attempts.
    proof_cost: u32 = 1000, [1, PROOF_COST_MAX], if |it| it.challenge == ChallengeKind::ProofOfWork;
    /// The cost, like `proof_cost`, of a proof of work that replaces the captcha for a shopper who cannot see its
    /// picture. 0 allows no replacement: then shoppers who cannot see cannot buy.
    captcha_proof_cost: u32 = CAPTCHA_PROOF_COST, [0, PROOF_COST_MAX], if |it| it.challenge == ChallengeKind::Captcha;
    /// The most unpaid holds of one account at a time; 0 is no limit.
    holds_max: u32 = 0, [0, HOLDS_MAX];
    /// How long an account may not buy after a hold that it did not pay for, in seconds. The pause doubles with each
    /// further such hold, up to a day, until the account pays for one. 0 is off.
    unpaid_cooldown_seconds: u32 = 0, [0, DAY];
    /// Whether shoppers wait in a waiting room before they may buy.
    waiting_room: bool = false;
    /// The most shoppers per second that are admitted, over the whole sale: 1 to 1,000,000.
    admissions_per_second: u32 = 100, [1, ADMISSIONS_MAX], if |it| it.waiting_room;
    /// How long an admission lasts, in seconds: 10 to 86,400.
    admission_seconds: u32 = 300, [ADMISSION_SECONDS_MIN, DAY], if |it| it.waiting_room;
}

/// The value that a guard has for every shopper.
fn of_all<T>(value: T, stage: Option<Stage<T>>) -> T {
    stage.and_then(Stage::of_all).unwrap_or(value)
}

/// The guards whose values a sale's digests have always had. A later one counts only where it differs from its default, so
/// that it changes no digest of an earlier sale.
const IN_EVERY_DIGEST: [&str; 9] = [
    "purchase_token",
    "challenge",
    "proof_cost",
    "captcha_proof_cost",
    "holds_max",
    "unpaid_cooldown_seconds",
    "waiting_room",
    "admissions_per_second",
    "admission_seconds",
];

/// Guards that are not valid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct WrongGuards(String);

impl SaleGuards {
    /// These guards, with the given values in place of some. The error names the first invalid guard and what it may
    /// be.
    pub fn with(self, said: Map<String, Value>) -> Result<Self, WrongGuards> {
        let mut all = match serde_json::to_value(self) {
            Ok(Value::Object(all)) => all,
            _ => Map::new(),
        };
        for (name, value) in said {
            let range = self.ranges().into_iter().find(|(ranged, ..)| *ranged == name);
            if let Some((_, _, low, high)) = range
                && !value
                    .as_u64()
                    .is_some_and(|value| (u64::from(low)..=u64::from(high)).contains(&value))
            {
                return Err(WrongGuards(format!("{name} must be {low} to {high}, not {value}")));
            }
            // Each value is parsed alone, so that the error names it.
            let alone = Value::Object(Map::from_iter([(name.clone(), value.clone())]));
            serde_json::from_value::<Self>(alone)
                .map_err(|error| WrongGuards(mistake::plain(&name, &error.to_string())))?;
            all.insert(name, value);
        }
        let guards: Self =
            serde_json::from_value(Value::Object(all)).map_err(|error| WrongGuards(error.to_string()))?;
        guards.check()?;
        Ok(guards)
    }

    /// The guards that every shopper has to pass: a stage of all counts, too.
    #[must_use]
    pub fn of_all(self, stages: &SaleStages) -> Self {
        Self {
            waiting_room: of_all(self.waiting_room, stages.waiting_room),
            purchase_token: of_all(self.purchase_token, stages.purchase_token),
            challenge: of_all(self.challenge, stages.challenge),
            holds_max: of_all(self.holds_max, stages.holds_max),
            ..self
        }
    }

    /// The guards that some shopper may have to pass: those for all, and those that a stage refuses some shoppers by.
    #[must_use]
    pub fn with_stages(self, stages: &SaleStages) -> Self {
        let adds = |stage: Option<Stage<bool>>| stage.is_some_and(|it| it.value && it.picks_some() && !it.shadow);
        let challenge = stages.challenge.filter(|stage| stage.picks_some() && !stage.shadow);
        Self {
            waiting_room: of_all(self.waiting_room, stages.waiting_room) || adds(stages.waiting_room),
            purchase_token: of_all(self.purchase_token, stages.purchase_token) || adds(stages.purchase_token),
            challenge: challenge.map_or(self.challenge, |stage| stage.value),
            ..self
        }
    }

    /// The stored form with stages. An instance without stages ignores them.
    pub fn stored_with(&self, stages: &SaleStages) -> Value {
        let mut all = self.stored();
        if !stages.is_empty() {
            all[STAGED] = serde_json::to_value(stages).unwrap_or_default();
        }
        all
    }

    /// The stored form, without guards that are off. So an instance of an earlier version can read every sale that does
    /// not use a guard that it does not know.
    pub fn stored(&self) -> Value {
        let mut all = serde_json::to_value(self).unwrap_or_default();
        if let Value::Object(all) = &mut all {
            all.retain(|_, value| value.as_u64() != Some(0) && value.as_bool() != Some(false));
        }
        all
    }

    /// Parses the stored form. Guards of a later version are ignored.
    pub fn from_stored(mut stored: Value) -> Result<Self, serde_json::Error> {
        if let (Value::Object(stored), Ok(Value::Object(known))) = (&mut stored, serde_json::to_value(Self::default()))
        {
            stored.retain(|name, _| known.contains_key(name));
            // Off, though a new sale has it.
            stored.entry("captcha_proof_cost").or_insert(Value::from(0));
        }
        serde_json::from_value(stored)
    }

    /// Reads the guards of an answer. Guards of a later version are ignored.
    pub fn known<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Self::from_stored(Value::deserialize(deserializer)?).map_err(D::Error::custom)
    }

    /// Leaves in serialized guards those that count in a digest.
    pub(super) fn retain_digested(guards: &mut Map<String, Value>) {
        let defaults = serde_json::to_value(Self::default()).unwrap_or_default();
        guards.retain(|name, value| IN_EVERY_DIGEST.contains(&name.as_str()) || defaults.get(name) != Some(value));
    }

    /// The guards as a request's digest has them. Earlier versions had `captcha_proof_cost` off by default, so off and its
    /// default change places: a request that leaves it out keeps its digest.
    pub(super) const fn as_requested(self) -> Self {
        let captcha_proof_cost = match self.captcha_proof_cost {
            0 => CAPTCHA_PROOF_COST,
            CAPTCHA_PROOF_COST => 0,
            other => other,
        };
        Self {
            captcha_proof_cost,
            ..self
        }
    }

    /// Whether a proof of work may replace the sale's captcha.
    #[must_use]
    pub const fn take_proof_for_captcha(&self) -> bool {
        matches!(self.challenge, ChallengeKind::Captcha) && self.captcha_proof_cost > 0
    }

    pub(super) fn check(&self) -> Result<(), WrongGuards> {
        if let Some((name, value, low, high)) = self
            .ranges()
            .into_iter()
            .find(|(_, value, low, high)| value < low || value > high)
        {
            return Err(WrongGuards(format!("{name} must be {low} to {high}, not {value}")));
        }
        if self.challenge != ChallengeKind::None && !self.purchase_token {
            return Err(WrongGuards(
                "challenge needs purchase_token = true: a shopper gets the token for a solved challenge".to_owned(),
            ));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn with(said: &Value) -> Result<SaleGuards, String> {
        SaleGuards::default()
            .with(said.as_object().unwrap().clone())
            .map_err(|wrong| wrong.to_string())
    }

    #[test]
    fn what_is_off_is_not_stored_and_what_a_later_version_stored_is_passed_over() {
        let guards = SaleGuards {
            purchase_token: true,
            holds_max: 3,
            captcha_proof_cost: 0,
            ..SaleGuards::default()
        };
        let stored = guards.stored();
        assert_eq!(stored.get("captcha_proof_cost"), None);
        assert_eq!(SaleGuards::from_stored(stored.clone()).unwrap(), guards);
        let mut later = stored;
        later["guard_of_tomorrow"] = Value::from(7);
        assert_eq!(SaleGuards::from_stored(later).unwrap(), guards);
        assert!(SaleGuards::from_stored(serde_json::json!({"holds_max": "three"})).is_err());
    }

    #[test]
    fn what_is_not_said_is_as_it_was() {
        assert_eq!(with(&json!({})).unwrap(), SaleGuards::default());
        let first = with(&json!({"purchase_token": true, "challenge": "captcha", "holds_max": 2})).unwrap();
        assert_eq!((first.challenge, first.holds_max), (ChallengeKind::Captcha, 2));
        let said = json!({"challenge": "none"}).as_object().unwrap().clone();
        let second = first.with(said).unwrap();
        assert_eq!(
            second,
            SaleGuards {
                challenge: ChallengeKind::None,
                ..first
            }
        );
        let stored: SaleGuards = serde_json::from_value(json!({"purchase_token": true})).unwrap();
        assert!(stored.purchase_token && stored.admission_seconds == 300);
    }

    #[test]
    fn what_cannot_be_is_refused_by_name_just_outside_its_bounds() {
        for (said, name) in [
            (json!({"colour": 1}), "colour is unknown; known are purchase_token, "),
            (json!({"purchase_token": 1}), "purchase_token must be true or false"),
            (json!({"purchase_token": null}), "purchase_token must be true or false"),
            (
                json!({"challenge": "riddle", "purchase_token": true}),
                "challenge must be none, proof_of_work or captcha",
            ),
            (json!({"challenge": "captcha"}), "challenge needs"),
            (json!({"captcha_proof_cost": 1.5}), "captcha_proof_cost"),
            (json!({"holds_max": -1}), "holds_max"),
        ] {
            let error = with(&said).unwrap_err();
            assert!(error.starts_with(name), "{said}: {error}");
        }
        for (name, _, low, high) in SaleGuards::default().ranges() {
            for wrong in [i64::from(low) - 1, i64::from(high) + 1] {
                let error = with(&json!({name: wrong})).unwrap_err();
                assert!(error.starts_with(name), "{wrong}: {error}");
            }
            assert!(
                with(&json!({name: low})).is_ok() && with(&json!({name: high})).is_ok(),
                "{name}"
            );
        }
    }

    #[test]
    fn a_guard_of_a_later_version_is_in_a_digest_only_where_it_is_not_the_default() {
        let mut guards = serde_json::to_value(SaleGuards::default()).unwrap();
        let guards = guards.as_object_mut().unwrap();
        let all = guards.clone();
        SaleGuards::retain_digested(guards);
        for (name, value) in &all {
            let is_old = IN_EVERY_DIGEST.contains(&name.as_str());
            assert_eq!(guards.get(name), is_old.then_some(value), "{name}");
        }
        guards.insert("guard_of_tomorrow".to_owned(), json!(7));
        SaleGuards::retain_digested(guards);
        assert_eq!(guards["guard_of_tomorrow"], 7);
    }
}
