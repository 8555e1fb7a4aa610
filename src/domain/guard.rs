//! Guards: the limits between a crowd and a sale, and the settings that operators may change while instances run.

use super::ids::{SaleId, UserId};
use super::stage::{Stage, merged};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::collections::BTreeMap;

/// The highest rate of a limit, in requests per second.
pub const RATE_MAX: u32 = 1_000_000;

/// The highest limit of page views in a minute. No account reaches it.
pub const PAGE_VIEWS_MAX: u32 = 1_000_000;

/// The highest goal for the latency of purchases, in milliseconds.
pub const LATENCY_MAX_MS: u32 = 60_000;

/// The longest ban that a guard gives by itself, in seconds: a year.
pub const BAN_SECONDS_MAX: u32 = 366 * 24 * 60 * 60;

macro_rules! layers {
    ($($(#[doc = $doc:literal])+ $layer:ident $name:literal,)*) => {
        /// A guard that refuses requests.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
        #[serde(rename_all = "snake_case")]
        pub enum Layer {
            $($(#[doc = $doc])+ $layer,)*
        }

        impl Layer {
            /// The names of all guards.
            pub const NAMES: &[&str] = &[$($name),*];

            /// The guard's name in counts and metrics.
            pub const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$layer => $name,)*
                }
            }

            pub fn from_name(name: &str) -> Option<Self> {
                match name {
                    $($name => Some(Self::$layer),)*
                    _ => None,
                }
            }
        }
    };
}

layers! {
    /// The limit of one client address.
    Address "address",
    /// The limit of one account at one instance.
    Account "account",
    /// The limit of one instance, fixed or adaptive.
    Instance "instance",
    /// The limit that all instances share.
    Shared "shared",
    /// A sale's waiting room, for shoppers without an admission.
    WaitingRoom "waiting_room",
    /// The challenge for a purchase token.
    Challenge "challenge",
    /// A sale that requires purchase tokens.
    PurchaseToken "purchase_token",
    /// Banned accounts.
    Ban "ban",
    /// A shopper's sliding window.
    Window "window",
    /// Accounts that did not pay for their last holds.
    Cooldown "cooldown",
    /// Accounts with the most unpaid holds that a sale allows.
    Holds "holds",
}

/// What a guard did with a request that it does not let pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Effect {
    /// It refused the request.
    Refused,
    /// It is in shadow, and only counted the request.
    Shadow,
}

/// How many shadow refusals are kept.
pub const SHADOW_REFUSALS_MAX: u32 = 1_000;

/// Whom a guard in shadow would have refused a request.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ShadowRefusal {
    pub layer: Layer,
    /// The sale that the request names, if there is such a sale.
    pub sale: Option<SaleId>,
    pub sender: Sender,
}

/// Who sent a request, as a guard tells its senders apart.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Sender {
    Account(UserId),
    /// A client's address; of IPv6, its network.
    Address(String),
}

/// How many requests for a sale each guard has refused, and would have refused if it were not in shadow.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RefusalTotals {
    pub stopped: BTreeMap<String, i64>,
    pub would_stop: BTreeMap<String, i64>,
}

macro_rules! settings {
    ($($(#[doc = $doc:literal])+ $name:ident up to $max:expr;)*) => {
        /// The guards of one instance. Rates are in requests per second; 0 is off.
        #[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, JsonSchema)]
        pub struct GuardSettings {
            $($(#[doc = $doc])+ pub $name: u32,)*
        }

        /// The settings that operators have changed for all instances. An absent one has its configured value.
        #[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
        #[serde(deny_unknown_fields, default)]
        pub struct GuardChanges {
            $(
                $(#[doc = $doc])+
                #[serde(skip_serializing_if = "Option::is_none")]
                #[schemars(range(max = $max))]
                pub $name: Option<u32>,
            )*
        }

        impl GuardSettings {
            #[must_use]
            pub fn with(self, changes: &GuardChanges) -> Self {
                Self { $($name: changes.$name.unwrap_or(self.$name),)* }
            }
        }
    };
}

settings! {
    /// The rate of one client address at an instance. A client with IPv6 is a /64.
    address_rate up to RATE_MAX;
    /// The rate of one account at an instance.
    account_rate up to RATE_MAX;
    /// The rate of an instance, unless it adapts its rate.
    instance_rate up to RATE_MAX;
    /// The rate of all instances together.
    shared_rate up to RATE_MAX;
    /// The lowest rate of an adaptive instance.
    adaptive_min_rate up to RATE_MAX;
    /// The highest rate of an adaptive instance. With 0, the instance keeps to `instance_rate`.
    adaptive_max_rate up to RATE_MAX;
    /// A purchase that takes more milliseconds is slow. An adaptive instance lowers its rate if purchases are slow.
    adaptive_latency_ms up to u32::MAX;
    /// An adaptive instance also lowers its rate if it answers more purchases than this at once.
    adaptive_in_flight up to u32::MAX;
    /// An account with more page views than this in a minute raises a guard warning.
    browsing_alert_above up to PAGE_VIEWS_MAX;
    /// An account with more page views than this in a minute is banned, and its tokens become invalid.
    browsing_ban_above up to PAGE_VIEWS_MAX;
    /// How long that ban lasts, in seconds.
    browsing_ban_seconds up to BAN_SECONDS_MAX;
}

macro_rules! stages {
    ($($(#[doc = $doc:literal])+ $name:ident;)*) => {
        /// The settings that have a value of their own for a part of the shoppers, for all instances.
        #[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
        #[serde(deny_unknown_fields, default)]
        pub struct GuardStages {
            $(
                $(#[doc = $doc])+
                #[serde(skip_serializing_if = "Option::is_none")]
                pub $name: Option<Stage<u32>>,
            )*
        }

        impl GuardStages {
            /// The settings that can have a stage.
            pub const NAMES: &[&str] = &[$(stringify!($name)),*];

            /// The stages that may pick anybody.
            #[must_use]
            pub fn in_force(self) -> Self {
                Self { $($name: self.$name.filter(Stage::picks_some),)* }
            }

            /// Whether an instance with these settings can work with these stages. The error names the first invalid
            /// one.
            pub fn check(&self, settings: &GuardSettings) -> Result<(), WrongSetting> {
                $(if let Some(stage) = self.$name {
                    if !stage.has_percent() {
                        return Err(WrongSetting(concat!(stringify!($name), ".percent must be 0 to 100").to_owned()));
                    }
                    GuardSettings { $name: stage.value, ..*settings }.check()?;
                })*
                if self.browsing_alert_above.is_some_and(|stage| stage.shadow) {
                    return Err(WrongSetting(
                        "browsing_alert_above has no shadow: a guard warning refuses nobody".to_owned(),
                    ));
                }
                Ok(())
            }
        }
    };
}

stages! {
    /// The rate of the picked client addresses.
    address_rate;
    /// The rate of the picked accounts.
    account_rate;
    /// The rate of an instance at which it refuses the picked client addresses. An adaptive instance ignores it.
    instance_rate;
    /// The rate of all instances together at which they refuse the picked client addresses.
    shared_rate;
    /// How many page views in a minute of the picked accounts raise a guard warning. It has no shadow.
    browsing_alert_above;
    /// How many page views in a minute ban the picked accounts.
    browsing_ban_above;
}

/// What operators have set over the configuration, for all instances.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct GuardOverrides {
    /// The settings for everybody.
    pub changed: GuardChanges,
    /// The settings for a part of the shoppers.
    pub staged: GuardStages,
}

/// Applies a merge patch (RFC 7396) to the stored settings and stages. A value replaces a setting and ends its stage.
/// An object changes its stage. A null removes both.
pub fn merge_patch(settings: &mut Map<String, Value>, stages: &mut Map<String, Value>, patch: Map<String, Value>) {
    for (name, value) in patch {
        let before = stages.remove(&name);
        match value {
            Value::Null => drop(settings.remove(&name)),
            Value::Object(changes) => drop(stages.insert(name, merged(before.as_ref(), changes))),
            value => drop(settings.insert(name, value)),
        }
    }
}

/// The limits on one account's page views in a minute; 0 is off.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PageViewLimits {
    /// More views raise a guard warning.
    pub alert_above: u32,
    /// More views ban the account.
    pub ban_above: u32,
    /// How long that ban lasts, in seconds.
    pub ban_seconds: u32,
    /// More views count as a ban that did not happen.
    pub shadow_ban_above: u32,
}

impl PageViewLimits {
    /// Whether views are counted at all.
    pub const fn are_on(&self) -> bool {
        self.alert_above > 0 || self.ban_above > 0 || self.shadow_ban_above > 0
    }
}

/// A setting that is not valid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct WrongSetting(String);

impl GuardSettings {
    /// Whether an instance can work with these settings. The error names the first invalid setting and its bounds.
    pub fn check(&self) -> Result<(), WrongSetting> {
        let rates = [
            ("address_rate", self.address_rate),
            ("account_rate", self.account_rate),
            ("instance_rate", self.instance_rate),
            ("shared_rate", self.shared_rate),
            ("adaptive_min_rate", self.adaptive_min_rate),
            ("adaptive_max_rate", self.adaptive_max_rate),
        ];
        if let Some((name, _)) = rates.iter().find(|(_, rate)| *rate > RATE_MAX) {
            return Err(WrongSetting(format!(
                "{name} must be 0 to {RATE_MAX} requests a second; 0 is off"
            )));
        }
        let page_views = [
            ("browsing_alert_above", self.browsing_alert_above),
            ("browsing_ban_above", self.browsing_ban_above),
        ];
        if let Some((name, _)) = page_views.iter().find(|(_, limit)| *limit > PAGE_VIEWS_MAX) {
            return Err(WrongSetting(format!(
                "{name} must be 0 to {PAGE_VIEWS_MAX} page views a minute; 0 is off"
            )));
        }
        // A ban lasts at least a second. While the guard is off, 0 is allowed.
        let seconds_min = u32::from(self.browsing_ban_above > 0);
        if !(seconds_min..=BAN_SECONDS_MAX).contains(&self.browsing_ban_seconds) {
            return Err(WrongSetting(format!(
                "browsing_ban_seconds must be {seconds_min} to {BAN_SECONDS_MAX}"
            )));
        }
        if self.adaptive_max_rate == 0 {
            return Ok(());
        }
        if !(1..=self.adaptive_max_rate).contains(&self.adaptive_min_rate) {
            return Err(WrongSetting(
                "adaptive_min_rate must be 1 to adaptive_max_rate".to_owned(),
            ));
        }
        if !(1..=LATENCY_MAX_MS).contains(&self.adaptive_latency_ms) {
            return Err(WrongSetting("adaptive_latency_ms must be 1 to 60000".to_owned()));
        }
        if self.adaptive_in_flight == 0 {
            return Err(WrongSetting("adaptive_in_flight must be at least 1".to_owned()));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn settings(change: impl FnOnce(&mut GuardSettings)) -> Result<(), WrongSetting> {
        let mut settings = GuardSettings {
            adaptive_min_rate: 10,
            adaptive_max_rate: 100,
            adaptive_latency_ms: 200,
            adaptive_in_flight: 64,
            ..GuardSettings::default()
        };
        change(&mut settings);
        settings.check()
    }

    type Change = fn(&mut GuardSettings);

    #[test]
    fn settings_are_refused_just_outside_their_bounds() {
        let names = |change: Change| settings(change).err().map(|wrong| wrong.to_string());
        assert_eq!(names(|_| ()), None);
        assert_eq!(names(|it| it.shared_rate = RATE_MAX), None);
        assert_eq!(names(|it| it.adaptive_min_rate = 100), None);
        // The adaptive rate is off, so its other settings do not matter.
        assert_eq!(names(|it| it.adaptive_max_rate = 0), None);
        assert_eq!(names(|it| it.browsing_alert_above = PAGE_VIEWS_MAX), None);
        let wrong: [(Change, &str); 12] = [
            (
                |it| it.browsing_alert_above = PAGE_VIEWS_MAX + 1,
                "browsing_alert_above",
            ),
            (|it| it.browsing_ban_above = PAGE_VIEWS_MAX + 1, "browsing_ban_above"),
            (
                |it| (it.browsing_ban_above, it.browsing_ban_seconds) = (1, 0),
                "browsing_ban_seconds",
            ),
            (
                |it| (it.browsing_ban_above, it.browsing_ban_seconds) = (1, BAN_SECONDS_MAX + 1),
                "browsing_ban_seconds",
            ),
            (
                |it| it.browsing_ban_seconds = BAN_SECONDS_MAX + 1,
                "browsing_ban_seconds",
            ),
            (|it| it.address_rate = RATE_MAX + 1, "address_rate"),
            (|it| it.instance_rate = RATE_MAX + 1, "instance_rate"),
            (|it| it.adaptive_min_rate = 0, "adaptive_min_rate"),
            (|it| it.adaptive_min_rate = 101, "adaptive_min_rate"),
            (|it| it.adaptive_latency_ms = 0, "adaptive_latency_ms"),
            (|it| it.adaptive_latency_ms = 60_001, "adaptive_latency_ms"),
            (|it| it.adaptive_in_flight = 0, "adaptive_in_flight"),
        ];
        for (change, name) in wrong {
            let text = names(change).unwrap();
            assert!(text.starts_with(name), "{text}");
        }
    }

    #[test]
    fn a_stage_is_refused_if_its_value_could_not_be_in_force() {
        let check = |text: &str| {
            let stages: GuardStages = serde_json::from_str(text).unwrap();
            stages
                .check(&GuardSettings::default())
                .map_err(|wrong| wrong.to_string())
        };
        assert_eq!(
            check(r#"{"address_rate":{"value":5,"percent":100,"shadow":true}}"#),
            Ok(())
        );
        for (text, named) in [
            (r#"{"address_rate":{"value":5,"percent":101}}"#, "address_rate.percent"),
            (
                r#"{"address_rate":{"value":1000001,"percent":1}}"#,
                "address_rate must be 0 to",
            ),
            (
                r#"{"browsing_ban_above":{"value":1,"percent":1}}"#,
                "browsing_ban_seconds",
            ),
            (
                r#"{"browsing_alert_above":{"value":1,"percent":1,"shadow":true}}"#,
                "browsing_alert_above has no shadow",
            ),
        ] {
            let error = check(text).unwrap_err();
            assert!(error.starts_with(named), "{error}");
        }
        assert!(serde_json::from_str::<GuardStages>(r#"{"adaptive_min_rate":{"value":1,"percent":1}}"#).is_err());
    }

    #[test]
    fn a_patch_changes_a_stage_by_its_members_and_a_plain_value_ends_it() {
        let (mut settings, mut stages) = (Map::new(), Map::new());
        let mut patched = |patch: Value| {
            merge_patch(&mut settings, &mut stages, patch.as_object().unwrap().clone());
            (Value::Object(settings.clone()), Value::Object(stages.clone()))
        };
        patched(json!({"address_rate": 30}));
        let staged = patched(json!({"address_rate": {"value": 5, "percent": 10, "shadow": true}}));
        assert_eq!(
            staged,
            (
                json!({"address_rate": 30}),
                json!({"address_rate": {"value": 5, "percent": 10, "shadow": true}})
            )
        );
        let grown = patched(json!({"address_rate": {"percent": 50, "shadow": null}}));
        assert_eq!(grown.1, json!({"address_rate": {"value": 5, "percent": 50}}));
        assert_eq!(
            patched(json!({"address_rate": 5})),
            (json!({"address_rate": 5}), json!({}))
        );
        patched(json!({"address_rate": {"value": 5, "percent": 10}}));
        assert_eq!(patched(json!({"address_rate": null})), (json!({}), json!({})));
    }

    #[test]
    fn what_is_not_changed_is_as_configured() {
        let configured = GuardSettings {
            address_rate: 5,
            instance_rate: 7,
            ..GuardSettings::default()
        };
        let changes: GuardChanges = serde_json::from_str(r#"{"instance_rate":0,"shared_rate":9}"#).unwrap();
        let expected = GuardSettings {
            instance_rate: 0,
            shared_rate: 9,
            ..configured
        };
        assert_eq!(configured.with(&changes), expected);
        assert_eq!(
            serde_json::to_string(&changes).unwrap(),
            r#"{"instance_rate":0,"shared_rate":9}"#
        );
        assert!(serde_json::from_str::<GuardChanges>(r#"{"rate":1}"#).is_err());
    }
}
