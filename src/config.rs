//! Configuration from the environment and an optional `flashsale.toml`. The environment wins. Every value is checked
//! before anything starts; a fault is one line that names the variable, or the file and line. No secret is shown.
//!
//! A variable is a row of `variables!`. Its constant, its default, its field in [`Config`], its reading, its line in
//! `flashsale config show` and in `docs/configuration.md` follow from the row.

mod exposed;
mod hidden;
mod parse;
mod settings;
mod strength;
pub mod tls;
mod together;
mod transport;
mod unknown;
mod variable;

use crate::domain::deployment::connection_pools::ConnectionPools;
use crate::domain::deployment::redis_certificates::RedisCertificates;
use crate::domain::deployment::retention::{AUDIT_LOG_LEAST, Retention};
use crate::domain::guard::GuardSettings;
use crate::domain::operator::alert::AlertWebhook;
use crate::domain::operator::keys::OperatorKeys;
use crate::domain::sale::guards::SaleGuards;
use crate::domain::shop::link::{ShopLink, ShopLinks};
use crate::domain::shop::look::{Accent, ShopLook};
use crate::domain::shopper::token_keys::TokenKeys;
use ipnet::IpNet;
use parse::{
    address, at_least, connections, database_url, days, log_filter, number, proxies, rate, redis_url, webhook_key,
};
pub use settings::{Settings, ShownVariable};
use std::fmt;
use std::net::SocketAddr;
use tls::Tls;
pub use together::redis_certificates;
pub use unknown::Unknown;
use variable::Unset::{Is, OffAlone, Optional, Required};
pub use variable::markdown;
use variable::{Kind, Variable};

/// The optional file, in the current directory.
const FILE: &str = "flashsale.toml";

const PREFIX: &str = "FLASHSALE_";

type Result<T, E = ConfigError> = std::result::Result<T, E>;

macro_rules! variables {
    ($(
        $variable:ident: $kind:ident, $unset:expr,
        $(config.$field:ident: $type:ty = $read:ident($parse:expr),)?
        $(together.$part:ident: $whole:ty,)?
        $(guards.$guard:ident = $guard_parse:expr,)?
        $(connections.$limit:ident = $limit_parse:expr,)?
        $(retention.$kept:ident = $kept_parse:expr,)?
        $(shop.$link:ident = $link_parse:expr,)?
        $(look.$feature:ident = $look_read:ident($look_parse:expr),)?
        $meaning:literal;
    )*) => {
        $(pub const $variable: &str = concat!("FLASHSALE_", stringify!($variable));)*

        const VARIABLES: &[Variable] = &[
            $(Variable { name: $variable, kind: Kind::$kind, unset: $unset, meaning: $meaning },)*
        ];

        /// The checked settings of a process that serves.
        #[derive(Clone, Debug)]
        pub struct Config {
            $($(#[doc = $meaning] pub $field: $type,)?)*
            $($(#[doc = $meaning] pub $part: $whole,)?)*
            /// The guards on shoppers' requests. Operators may change them while instances run.
            pub guards: GuardSettings,
            /// How many connections of clients may be open.
            pub connections: ConnectionLimits,
            /// How long the ledger keeps what it may forget.
            pub retention: Retention,
            /// The shop's pages for signing in and paying.
            pub shop: ShopLinks,
            /// The shop's own look on the pages.
            pub look: ShopLook,
            /// Files with secrets that every user of this machine can read.
            pub exposed_files: Vec<String>,
            /// Warnings about settings that work but need an operator's attention.
            pub warnings: Vec<String>,
        }

        impl Config {
            /// Checks settings and fills in the defaults.
            pub fn from_settings(settings: &Settings) -> Result<Self> {
                settings.check_required()?;
                Ok(Self {
                    $($($field: settings.$read($variable, $parse)?,)?)*
                    $($($part: together::$part(settings)?,)?)*
                    guards: together::guards(GuardSettings {
                        $($($guard: settings.value($variable, $guard_parse)?,)?)*
                    })?,
                    connections: ConnectionLimits { $($($limit: settings.value($variable, $limit_parse)?,)?)* },
                    retention: Retention { $($($kept: settings.value($variable, $kept_parse)?,)?)* },
                    shop: ShopLinks { $($($link: settings.optional($variable, $link_parse)?,)?)* },
                    look: ShopLook { $($($feature: settings.$look_read($variable, $look_parse)?,)?)* },
                    exposed_files: exposed::files(settings),
                    warnings: together::warnings(settings),
                })
            }
        }
    };
}

// A variable without `FLASHSALE_`, its kind, its value if nothing sets it, its place, and its meaning in Markdown. The
// place is one of three: a field that `value`, `optional` or `secret` reads with a parser, a member of another field,
// or a field that several variables make together. Only one of those variables names it. The order is that of the
// document.
variables! {
    LISTEN: Text, Is("127.0.0.1:8080"), config.listen: SocketAddr = value(address), "address of the API and the pages";
    METRICS_LISTEN: Text, Optional, config.metrics_listen: Option<SocketAddr> = optional(address),
        "a second address for `/metrics`, `/healthz` and `/readyz`, without TLS; `--role worker` serves it too";
    REDIS_URL: Server, Required, config.redis_url: Secret<String> = secret(redis_url),
        "`redis://`, `unix://` or `redis+cluster://h1:p1,h2:p2`; with TLS `rediss://` or \
         `rediss+cluster://h1:p1,h2:p2`";
    REDIS_CACERT: Text, Optional, together.redis_certificates: Secret<RedisCertificates>,
        "PEM file with the authorities that are trusted for Redis; without it, those of Mozilla's list";
    REDIS_CERT: Text, Optional, "PEM file of a client certificate for Redis";
    REDIS_KEY: KeyFile, Optional, "PEM file of the key of that certificate";
    DATABASE_URL: Server, Required, config.database_url: Secret<String> = secret(database_url),
        "`postgres://`; to another machine with `?sslmode=verify-full&sslrootcert=FILE`";
    DATABASE_POOLS: Text, Is("{}"), config.database_pools: ConnectionPools = value(parse::connection_pools),
        "connections to Postgres that a process opens at most, as JSON: \
         `{\"shoppers\": 12, \"operators\": 6, \"payments\": 6, \"jobs\": 12, \"reports\": 4, \"upkeep\": 3}`; these are the \
         defaults, and two more get the ledger's news";
    RETENTION_ACCOUNTS_DAYS: Number, Is("0"), retention.accounts = days(1),
        "days from a sale's end until its orders lose their accounts; 0 is never";
    RETENTION_HISTORY_DAYS: Number, Is("0"), retention.history = days(1),
        "days from a sale's end until its report loses its course; 0 is never";
    RETENTION_AUDIT_LOG_DAYS: Number, Is("90"), retention.audit_log = days(AUDIT_LOG_LEAST),
        "days that an entry of the audit log stays, 90 at least; 0 is for ever";
    RETENTION_WARNINGS_DAYS: Number, Is("30"), retention.warnings = days(1),
        "days that a guard warning stays; 0 is for ever";
    ADMIN_LISTEN: Text, Optional, together.admin_listen: Option<SocketAddr>,
        "the only address of `/console`, `/v1/admin` and `/metrics`, if set";
    ADMIN_KEY: Secret, Required, config.admin_key: Secret<String> = secret(at_least(16, strength::check)),
        "operators' bearer key, at least 16 bytes; one that is easy to guess is refused (`openssl rand -hex 32`)";
    OPERATOR_KEYS: Secret, Optional, together.operator_keys: Secret<OperatorKeys>,
        "further keys, each of one operator, `NAME:ROLE:KEY` separated by commas; a role is `view`, `run` or `all`";
    JWT_SECRET: Secret, Required, config.jwt_secret: Secret<String> = secret(at_least(32, strength::check_repetition)),
        "HS256 secret of shoppers' tokens, at least 32 bytes";
    WEBHOOK_SECRET: Secret, Required, config.webhook_secret: Secret<Vec<u8>> = secret(webhook_key),
        "`whsec_` and base64: the key of the payment provider's signatures, 24 to 64 bytes";
    ALERT_WEBHOOK_URL: Address, Optional, together.alert_webhook: Option<Secret<AlertWebhook>>,
        "receives guard warnings, `http://` or `https://`";
    ALERT_WEBHOOK_SECRET: Secret, Optional, "`whsec_` and base64: signs what is sent there; required with the URL";
    GATEWAY_RATE: Number, Is("0"), guards.instance_rate = rate, "shoppers' requests a second of one instance; 0 is off";
    ADDRESS_RATE: Number, OffAlone("50"), guards.address_rate = rate,
        "requests a second of one client address to the shoppers' API of an instance; an IPv6 client is a /64";
    ACCOUNT_RATE: Number, OffAlone("20"), guards.account_rate = rate, "requests a second of one account to an instance";
    CONNECTIONS: Number, Is("30000"), connections.total = connections(1), "open connections of an instance";
    ADDRESS_CONNECTIONS: Number, OffAlone("500"), connections.per_client = connections(0),
        "open connections of one client address, but for trusted proxies";
    SHARED_RATE: Number, Is("0"), guards.shared_rate = rate,
        "shoppers' requests a second of all instances together; 0 is off";
    ADAPTIVE_MIN_RATE: Number, Is("10"), guards.adaptive_min_rate = number, "lower bound of the adaptive rate";
    ADAPTIVE_MAX_RATE: Number, Is("0"), guards.adaptive_max_rate = rate,
        "upper bound of the adaptive rate; 0 keeps `FLASHSALE_GATEWAY_RATE`";
    ADAPTIVE_LATENCY_MS: Number, Is("200"), guards.adaptive_latency_ms = number,
        "the adaptive rate falls when purchases take longer than this, in milliseconds";
    ADAPTIVE_IN_FLIGHT: Number, Is("512"), guards.adaptive_in_flight = number,
        "the adaptive rate falls when more requests are in flight";
    BROWSING_ALERT_ABOVE: Number, Is("0"), guards.browsing_alert_above = number,
        "page views of sales in a minute above which an account raises a guard warning; 0 is off";
    BROWSING_BAN_ABOVE: Number, Is("0"), guards.browsing_ban_above = number,
        "the same, above which the account is banned; 0 is off";
    BROWSING_BAN_SECONDS: Number, Is("86400"), guards.browsing_ban_seconds = number,
        "how long such a ban lasts, in seconds";
    TRUSTED_PROXIES: Text, Optional, config.trusted_proxies: Vec<IpNet> = value(proxies),
        "networks whose `X-Forwarded-For` is believed, separated by commas";
    TOKEN_KEYS: Secret, Optional, together.token_keys: Secret<TokenKeys>,
        "keys of purchase tokens, `ID:BASE64` separated by commas, newest first; without it, one derived from the JWT \
         secret";
    SALE_GUARDS: Text, Is("{}"), config.sale_guards: SaleGuards = value(parse::sale_guards),
        "guards of sales that do not set their own, as JSON: `{\"holds_max\": 3}`";
    TLS_CERT: Text, Optional, together.tls: Option<Tls>, "PEM file of the certificate; HTTPS instead of HTTP";
    TLS_KEY: KeyFile, Optional, "PEM file of its key";
    SIGN_IN_URL: Text, Optional, shop.sign_in = ShopLink::sign_in,
        "the shop's sign-in page, with `{return}` for the address to come back to; without it, pages show a field for \
         a token";
    PAY_URL: Text, Optional, shop.pay = ShopLink::pay,
        "the shop's payment page, with `{order}` for the order's id; without it, pages show the order's number";
    SHOP_NAME: Text, Is("Flashsale"), look.name = value(parse::shop_name), "the shop's name on its pages";
    SHOP_LOGO_URL: Text, Optional, look.logo_url = optional(parse::image),
        "the shop's logo there: an `https://` address, or a path";
    SHOP_ACCENT: Text, Optional, look.accent = optional(Accent::parse),
        "the colour of links and buttons there, as `#rrggbb`; its contrast with white must be 4.5 at least; without \
         it, ours";
    IMAGE_ORIGINS: Text, Optional, look.image_origins = value(parse::image_origins),
        "origins besides their own that pages load pictures from, as `https://images.example`, separated by commas";
    DEVELOPMENT: Switch, Is("false"), together.development: bool,
        "`true` lets anybody with the printed link sign in as any shopper and pay without money, on a loopback address \
         only; `auto` is `true` there, and what `up` has unless this is set";
    LOG: Text, Is("info"), config.log: String = value(log_filter),
        "tracing filter; `up` on a terminal: `warn`";
    OTLP_URL: Address, Optional, together.traces: Option<Secret<Traces>>,
        "OpenTelemetry collector for traces, OTLP over HTTP";
    OTLP_RATIO: Text, Is("0.01"), "share of requests that are traced, 0 to 1";
}

/// A secret value. `Debug` hides it, and there is no `Display`.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret<T>(T);

impl<T> Secret<T> {
    pub const fn new(value: T) -> Self {
        Self(value)
    }

    /// The value in the clear, for the place that needs it.
    pub const fn expose(&self) -> &T {
        &self.0
    }
}

impl<T> fmt::Debug for Secret<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[hidden]")
    }
}

impl Config {
    /// Reads the environment and `flashsale.toml`.
    pub fn load() -> Result<Self> {
        Self::from_settings(&Settings::load()?)
    }
}

/// How many connections may be open at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ConnectionLimits {
    /// Of all clients together.
    pub total: usize,
    /// Of one client; 0 is no limit.
    pub per_client: usize,
}

/// A collector of traces.
#[derive(Clone, Debug, PartialEq)]
pub struct Traces {
    /// The address without the path.
    pub url: String,
    /// The share of requests that is traced, 0 to 1.
    pub ratio: f64,
}

/// A missing or wrong setting. The text is one line that names the variable, or the file and line, and says what to
/// do. It does not show the value, which may be a secret.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct ConfigError(String);

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::OsString;

    const KEY: &str = "3f9a1c77be204d58";
    /// A secret whose text and bytes the tests search for in the output.
    pub const WEBHOOK: &str = "whsec_OWI3NGM5ODk3YmFjNzcwZmZjMDI5MTAyYTIwMGM1ZGU=";
    const COMPLETE: [(&str, &str); 5] = [
        (REDIS_URL, "redis://127.0.0.1:6379"),
        (DATABASE_URL, "postgres://flashsale@127.0.0.1/flashsale"),
        (ADMIN_KEY, KEY),
        (JWT_SECRET, "9b74c9897bac770ffc029102a200c5de"),
        (WEBHOOK_SECRET, WEBHOOK),
    ];

    /// The outcome with a complete environment, changed by `changes` (an empty value unsets).
    pub fn load(changes: &[(&str, &str)], file: Option<&str>) -> Result<Config> {
        let environment = |name: &str| {
            let pairs = changes.iter().chain(&COMPLETE);
            pairs
                .into_iter()
                .find(|(key, _)| *key == name)
                .map(|(_, value)| OsString::from(value))
        };
        Config::from_settings(&Settings::from_sources(environment, file)?)
    }

    pub fn complaint(changes: &[(&str, &str)], file: Option<&str>) -> String {
        let text = load(changes, file).unwrap_err().to_string();
        assert!(!text.contains('\n'), "{text}");
        text
    }

    #[test]
    fn defaults_are_those_of_the_contract() {
        let config = load(&[], None).unwrap();
        assert_eq!(config.listen.to_string(), "127.0.0.1:8080");
        assert_eq!(config.admin_listen, None);
        assert_eq!((config.guards.instance_rate, config.log.as_str()), (0, "info"));
        assert_eq!((config.guards.address_rate, config.guards.account_rate), (0, 0));
        assert_eq!((config.connections.total, config.connections.per_client), (30_000, 0));
        // Other machines can connect.
        for open in [(LISTEN, "0.0.0.0:1"), (TRUSTED_PROXIES, "127.0.0.1")] {
            let config = load(&[open], None).unwrap();
            assert_eq!((config.guards.address_rate, config.guards.account_rate), (50, 20));
            assert_eq!(config.connections.per_client, 500);
        }
        assert_eq!(config.retention, Retention::default());
        assert_eq!(config.guards.shared_rate, 0);
        assert_eq!(config.guards.adaptive_max_rate, 0);
        assert!(config.trusted_proxies.is_empty());
        assert_eq!(
            config.webhook_secret.expose().as_slice(),
            b"9b74c9897bac770ffc029102a200c5de"
        );
    }

    #[test]
    fn all_that_is_missing_is_named_at_once() {
        let text = complaint(&[(REDIS_URL, ""), (JWT_SECRET, "")], None);
        assert!(
            text.contains("FLASHSALE_REDIS_URL, FLASHSALE_JWT_SECRET; set them"),
            "{text}"
        );
    }

    #[test]
    fn a_wrong_value_names_its_variable() {
        let wrong = [
            (LISTEN, "localhost"),
            (METRICS_LISTEN, "localhost"),
            (ADMIN_LISTEN, "localhost"),
            (ADMIN_LISTEN, "127.0.0.1:8080"),
            (REDIS_URL, "http://x"),
            (REDIS_CACERT, "ca.pem"),
            (REDIS_CERT, "cert.pem"),
            (REDIS_KEY, "key.pem"),
            (DATABASE_URL, "mysql://x"),
            (ADMIN_KEY, "short"),
            (ADMIN_KEY, "changeme-changeme"),
            (OPERATOR_KEYS, "ada:boss:9b74c9897bac770ffc029102a200c5de"),
            (OPERATOR_KEYS, "ada:run:changeme-changeme"),
            (JWT_SECRET, "changemechangemechangemechangeme"),
            (WEBHOOK_SECRET, "whsec_AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA="),
            (JWT_SECRET, "9b74c9897bac770f"),
            (WEBHOOK_SECRET, "whsec_c2hvcnQ="),
            (WEBHOOK_SECRET, "MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY="),
            (GATEWAY_RATE, "-1"),
            (GATEWAY_RATE, "1000001"),
            (ADDRESS_RATE, "many"),
            (ACCOUNT_RATE, "-1"),
            (CONNECTIONS, "0"),
            (CONNECTIONS, "some"),
            (ADDRESS_CONNECTIONS, "-1"),
            (SHARED_RATE, "1.5"),
            (ADAPTIVE_MIN_RATE, "some"),
            (ADAPTIVE_MAX_RATE, "-1"),
            (ADAPTIVE_LATENCY_MS, "soon"),
            (ADAPTIVE_IN_FLIGHT, "many"),
            (BROWSING_ALERT_ABOVE, "ten"),
            (BROWSING_BAN_ABOVE, "twenty"),
            (BROWSING_BAN_SECONDS, "1d"),
            (TRUSTED_PROXIES, "10.0.0.0/33"),
            (TRUSTED_PROXIES, "0.0.0.0/0"),
            (TRUSTED_PROXIES, "10.0.0.0/8,::/0"),
            (TRUSTED_PROXIES, "128.0.0.0/1"),
            (TRUSTED_PROXIES, "proxy.example"),
            (TOKEN_KEYS, "k1:c2hvcnQ="),
            (ALERT_WEBHOOK_URL, "example.org/alerts"),
            (ALERT_WEBHOOK_URL, "ftp://example.org"),
            (ALERT_WEBHOOK_URL, "https://"),
            (ALERT_WEBHOOK_URL, "http://a b"),
            (ALERT_WEBHOOK_SECRET, "whsec_c2hvcnQ="),
            (SALE_GUARDS, "{"),
            (DATABASE_POOLS, "12"),
            (DATABASE_POOLS, "{\"jobs\": 6}"),
            (DATABASE_POOLS, "{\"reports\": 1}"),
            (DATABASE_POOLS, "{\"jobs\": 1001}"),
            (DATABASE_POOLS, "{\"jobs\": -2}"),
            (DATABASE_POOLS, "{\"news\": 2}"),
            (RETENTION_ACCOUNTS_DAYS, "-1"),
            (RETENTION_HISTORY_DAYS, "1.5"),
            (RETENTION_AUDIT_LOG_DAYS, "89"),
            (RETENTION_WARNINGS_DAYS, "36501"),
            (OTLP_URL, "ftp://example.org"),
            (OTLP_RATIO, "2"),
            (TLS_CERT, "/no/such/file"),
            (TLS_KEY, "/no/such/file"),
            (SIGN_IN_URL, "javascript:alert(1)"),
            (PAY_URL, "https://shop.example/pay"),
            (SHOP_NAME, "Shop\u{202e}"),
            (SHOP_LOGO_URL, "http://shop.example/logo.svg"),
            (SHOP_LOGO_URL, "logo.svg"),
            (SHOP_ACCENT, "red"),
            (SHOP_ACCENT, "#ffcc00"),
            (IMAGE_ORIGINS, "*"),
            (IMAGE_ORIGINS, "images.example"),
            (IMAGE_ORIGINS, "http://images.example"),
            (IMAGE_ORIGINS, "https://images.example, https://cdn.example/pictures"),
            (IMAGE_ORIGINS, "https://images.example; script-src *"),
            (DEVELOPMENT, "yes"),
            (LOG, "flashsale=loud=louder"),
            (LOG, "flashsale=loud"),
            (LOG, ":::"),
            (LOG, "::=info"),
            (LOG, "inof"),
            (LOG, "info,flashsale::"),
        ];
        // Two variables are read only beside another.
        let beside = [
            (ALERT_WEBHOOK_URL, "https://example.org/"),
            (ALERT_WEBHOOK_SECRET, WEBHOOK),
            (OTLP_URL, "http://127.0.0.1:4318"),
        ];
        for (name, value) in wrong {
            let text = complaint(&[(name, value), beside[0], beside[1], beside[2]], None);
            assert!(text.starts_with(name), "{text}");
        }
        // A row that nothing reads accepts every value.
        for variable in VARIABLES {
            let is_tried = wrong.iter().any(|(name, _)| *name == variable.name);
            assert!(is_tried, "add a wrong value of {}", variable.name);
        }
    }

    #[test]
    fn secrets_are_never_shown() {
        let shown = format!("{:?}", load(&[(REDIS_URL, "redis://:hunter2hunter2@h")], None).unwrap());
        assert!(
            !shown.contains(KEY) && !shown.contains("9b74c98") && !shown.contains("hunter2"),
            "{shown}"
        );
        let text = complaint(&[(ADMIN_KEY, "")], Some("admin_key = \"hunter2\nx"));
        assert!(!text.contains("hunter2"), "{text}");
        let text = complaint(&[(WEBHOOK_SECRET, "hunter2")], None);
        assert!(!text.contains("hunter2"), "{text}");
    }
}
