//! Configuration from the environment and an optional `flashsale.toml`. The environment wins. Every value is checked
//! before anything starts; a fault is one line that names the variable, or the file and line. No secret is shown.

mod exposed;
mod strength;
pub mod tls;
mod transport;
mod variables;

use crate::domain::alert::AlertWebhook;
use crate::domain::guard::{GuardSettings, RATE_MAX};
use crate::domain::redis_certificates::RedisCertificates;
use crate::domain::sale_guards::SaleGuards;
use crate::domain::shop_link::{ShopLink, ShopLinks};
use crate::domain::token_keys::TokenKeys;
use crate::domain::webhook;
use ipnet::IpNet;
use serde::Serialize;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use tls::Tls;
use toml::de::{DeTable, DeValue};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::LevelFilter;
use ureq::http::Uri;
pub use variables::markdown;
use variables::{Kind, VARIABLES, Variable, unknown};

/// The optional file, in the current directory.
const FILE: &str = "flashsale.toml";

const PREFIX: &str = "FLASHSALE_";
const LISTEN: &str = "FLASHSALE_LISTEN";
const METRICS_LISTEN: &str = "FLASHSALE_METRICS_LISTEN";
const ADMIN_LISTEN: &str = "FLASHSALE_ADMIN_LISTEN";
pub const REDIS_URL: &str = "FLASHSALE_REDIS_URL";
pub const REDIS_CACERT: &str = "FLASHSALE_REDIS_CACERT";
pub const REDIS_CERT: &str = "FLASHSALE_REDIS_CERT";
pub const REDIS_KEY: &str = "FLASHSALE_REDIS_KEY";
pub const DATABASE_URL: &str = "FLASHSALE_DATABASE_URL";
const GATEWAY_RATE: &str = "FLASHSALE_GATEWAY_RATE";
const ADDRESS_RATE: &str = "FLASHSALE_ADDRESS_RATE";
const ACCOUNT_RATE: &str = "FLASHSALE_ACCOUNT_RATE";
const CONNECTIONS: &str = "FLASHSALE_CONNECTIONS";
const ADDRESS_CONNECTIONS: &str = "FLASHSALE_ADDRESS_CONNECTIONS";
const SHARED_RATE: &str = "FLASHSALE_SHARED_RATE";
const ADAPTIVE_MIN_RATE: &str = "FLASHSALE_ADAPTIVE_MIN_RATE";
const ADAPTIVE_MAX_RATE: &str = "FLASHSALE_ADAPTIVE_MAX_RATE";
const ADAPTIVE_LATENCY_MS: &str = "FLASHSALE_ADAPTIVE_LATENCY_MS";
const ADAPTIVE_IN_FLIGHT: &str = "FLASHSALE_ADAPTIVE_IN_FLIGHT";
const BROWSING_ALERT_ABOVE: &str = "FLASHSALE_BROWSING_ALERT_ABOVE";
const BROWSING_BAN_ABOVE: &str = "FLASHSALE_BROWSING_BAN_ABOVE";
const BROWSING_BAN_SECONDS: &str = "FLASHSALE_BROWSING_BAN_SECONDS";
const TOKEN_KEYS: &str = "FLASHSALE_TOKEN_KEYS";
const SALE_GUARDS: &str = "FLASHSALE_SALE_GUARDS";
const ALERT_WEBHOOK_URL: &str = "FLASHSALE_ALERT_WEBHOOK_URL";
const ALERT_WEBHOOK_SECRET: &str = "FLASHSALE_ALERT_WEBHOOK_SECRET";
const TRUSTED_PROXIES: &str = "FLASHSALE_TRUSTED_PROXIES";
pub const TLS_CERT: &str = "FLASHSALE_TLS_CERT";
const TLS_KEY: &str = "FLASHSALE_TLS_KEY";
const SIGN_IN_URL: &str = "FLASHSALE_SIGN_IN_URL";
const PAY_URL: &str = "FLASHSALE_PAY_URL";
pub const DEVELOPMENT: &str = "FLASHSALE_DEVELOPMENT";
const LOG: &str = "FLASHSALE_LOG";
const OTLP_URL: &str = "FLASHSALE_OTLP_URL";
const OTLP_RATIO: &str = "FLASHSALE_OTLP_RATIO";
pub const ADMIN_KEY: &str = "FLASHSALE_ADMIN_KEY";
pub const JWT_SECRET: &str = "FLASHSALE_JWT_SECRET";
pub const WEBHOOK_SECRET: &str = "FLASHSALE_WEBHOOK_SECRET";

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

/// The checked settings of a process that serves.
#[derive(Clone, Debug)]
pub struct Config {
    /// The address of HTTP.
    pub listen: SocketAddr,
    /// A second address for metrics and health, without TLS. A worker serves it too.
    pub metrics_listen: Option<SocketAddr>,
    /// The only address of the console, the operators' API and the metrics. `None`: they are served at `listen`.
    pub admin_listen: Option<SocketAddr>,
    /// The stock. Hidden because a URL may carry a password.
    pub redis_url: Secret<String>,
    /// The certificates of connections to Redis.
    pub redis_certificates: Secret<RedisCertificates>,
    /// The ledger. Hidden because a URL may carry a password.
    pub database_url: Secret<String>,
    /// The operators' bearer key, at least 16 bytes.
    pub admin_key: Secret<String>,
    /// The HS256 secret of shoppers' tokens, at least 32 bytes.
    pub jwt_secret: Secret<String>,
    /// The decoded key of the payment provider's signatures, 24 to 64 bytes.
    pub webhook_secret: Secret<Vec<u8>>,
    /// The receiver of guard warnings, if any. Hidden because an address may carry a token.
    pub alert_webhook: Option<Secret<AlertWebhook>>,
    /// The guards on shoppers' requests. Operators may change them while instances run.
    pub guards: GuardSettings,
    /// The guards of sales that do not set their own.
    pub sale_guards: SaleGuards,
    /// The keys of purchase tokens. If none is set, one is derived from the secret of shoppers' tokens.
    pub token_keys: Secret<TokenKeys>,
    /// Proxies whose `X-Forwarded-For` is believed.
    pub trusted_proxies: Vec<IpNet>,
    /// How many connections of clients may be open.
    pub connections: ConnectionLimits,
    /// The certificate and key of HTTPS; `None` serves plain HTTP.
    pub tls: Option<Tls>,
    /// The shop's pages for signing in and paying.
    pub shop: ShopLinks,
    /// Development mode: with the printed key, anyone signs in as any shopper and pays with nothing. Only on a
    /// loopback address.
    pub development: bool,
    /// The tracing filter.
    pub log: String,
    /// The collector of traces, if any. Hidden because an address may carry a token.
    pub traces: Option<Secret<Traces>>,
    /// Files with secrets that every user of this machine can read.
    pub exposed_files: Vec<String>,
    /// Warnings about settings that work but need an operator's attention.
    pub warnings: Vec<String>,
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
/// do.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// Required variables that nothing sets.
    #[error("not set: {}; set {} in the environment or in {FILE} (`flashsale up` needs none of them){}",
        .names.join(", "), if .names.len() == 1 { "it" } else { "them" },
        .unknown.iter().map(|unknown| format!("; {unknown}")).collect::<String>())]
    Missing {
        names: Vec<&'static str>,
        /// Names that may be misspelt.
        unknown: Vec<Unknown>,
    },
    /// A value that cannot be used. The error does not show the value: it may be a secret.
    #[error("{origin} {problem}")]
    Invalid {
        /// The variable, or the file and line with the key.
        origin: String,
        /// The fault, and what to write instead.
        problem: String,
    },
    /// The file cannot be read.
    #[error("{FILE}: {0}; make it readable or remove it")]
    Unreadable(std::io::Error),
    /// The file is not TOML, or has a key that is no setting.
    #[error("{FILE}:{line}: {problem}")]
    File {
        /// The line, from 1.
        line: usize,
        /// The fault, and what to write instead.
        problem: String,
    },
}

/// A value and its origin: the variable, or the file, line and key.
#[derive(Clone)]
struct Found {
    value: String,
    origin: String,
}

/// The settings as found, before they are checked. `up` adds the secrets and URLs that it makes.
#[derive(Clone, Default)]
pub struct Settings {
    found: BTreeMap<&'static str, Found>,
    unknown: Vec<Unknown>,
}

/// A name in the environment that begins like our variables and is none of them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Unknown {
    pub name: String,
    /// The variable that was probably meant.
    pub meant: Option<&'static str>,
}

impl fmt::Display for Unknown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} is no variable of Flashsale; ", self.name)?;
        match self.meant {
            Some(meant) => write!(f, "did you mean {meant}?"),
            None => f.write_str("remove it, or list all variables with `flashsale config show`"),
        }
    }
}

/// A variable as an instance has it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Shown {
    pub name: &'static str,
    /// The value without secrets, if there is one.
    pub value: Option<String>,
    /// `environment`, the file and line, or `default`; `None` if the variable is not set.
    pub from: Option<String>,
}

impl Settings {
    /// Reads the environment and, in the current directory, `flashsale.toml`.
    ///
    /// # Errors
    /// When the file exists and cannot be read, or holds anything but settings.
    pub fn load() -> Result<Self, ConfigError> {
        let text = match std::fs::read_to_string(FILE) {
            Ok(text) => Some(text),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => None,
            Err(error) => return Err(ConfigError::Unreadable(error)),
        };
        let mut settings = Self::from_sources(|name| std::env::var_os(name), text.as_deref())?;
        let names = std::env::vars_os().map(|(name, _)| name.to_string_lossy().into_owned());
        settings.unknown = unknown(names);
        Ok(settings)
    }

    /// Like [`Settings::load`], from any environment and any text of the file.
    pub fn from_sources(
        environment: impl Fn(&str) -> Option<OsString>,
        file: Option<&str>,
    ) -> Result<Self, ConfigError> {
        let mut settings = file.map_or_else(|| Ok(Self::default()), read_file)?;
        for Variable { name, .. } in &VARIABLES {
            // Compose files and shells set an empty variable for "not set".
            let Some(value) = environment(name).filter(|value| !value.is_empty()) else {
                continue;
            };
            let value = value.into_string().map_err(|_raw| ConfigError::Invalid {
                origin: (*name).to_owned(),
                problem: "is not UTF-8; set it again in plain text".to_owned(),
            })?;
            settings.set(name, value, (*name).to_owned());
        }
        Ok(settings)
    }

    /// The value of a variable from any source; `None` if nothing sets it.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&str> {
        self.found.get(name).map(|found| found.value.as_str())
    }

    /// Sets a variable, in place of any value that was found. An error about the value names `origin`.
    pub fn set(&mut self, name: &'static str, value: String, origin: String) {
        self.found.insert(name, Found { value, origin });
    }

    /// Names in the environment that begin like our variables and that nothing reads.
    #[must_use]
    pub fn unknown(&self) -> &[Unknown] {
        &self.unknown
    }

    /// A variable's default with these settings. If only this machine can connect, the limits on one client are off.
    fn default_of(&self, variable: &Variable) -> &'static str {
        let is_of_client = [ADDRESS_RATE, ADDRESS_CONNECTIONS, ACCOUNT_RATE].contains(&variable.name);
        if is_of_client && self.is_here_alone() {
            return "0";
        }
        variable.default
    }

    /// Whether only this machine can connect: a loopback address without trusted proxies.
    fn is_here_alone(&self) -> bool {
        let listen = self.get(LISTEN).map(str::parse::<SocketAddr>);
        listen.is_none_or(|listen| listen.is_ok_and(|listen| listen.ip().is_loopback()))
            && self.get(TRUSTED_PROXIES).is_none()
    }

    /// Every variable with its value, without secrets, and with its origin.
    #[must_use]
    pub fn shown(&self) -> Vec<Shown> {
        let shown = |variable: &Variable| {
            let found = self.found.get(variable.name);
            let default = Some(self.default_of(variable)).filter(|default| !default.is_empty());
            let from = match found {
                Some(found) if found.origin == variable.name => Some("environment".to_owned()),
                Some(found) => found.origin.split(": ").next().map(str::to_owned),
                None => default.map(|_| "default".to_owned()),
            };
            let value = found.map(|found| found.value.as_str()).or(default);
            Shown {
                name: variable.name,
                value: value.map(|value| variable.shown(value)),
                from,
            }
        };
        VARIABLES.iter().map(shown).collect()
    }

    /// Sets the address of HTTP, for `--listen`.
    pub fn set_listen(&mut self, address: String) {
        self.set(LISTEN, address, "--listen".to_owned());
    }

    /// The certificates of connections to Redis.
    ///
    /// # Errors
    /// When a file cannot be used, or a variable is set without another that it needs.
    pub fn redis_certificates(&self) -> Result<RedisCertificates, ConfigError> {
        transport::redis_certificates(self)
    }

    /// Sets the URLs of Redis and Postgres, and removes the certificates, which are for another Redis.
    pub fn set_servers(&mut self, redis_url: String, database_url: String) {
        for name in [REDIS_CACERT, REDIS_CERT, REDIS_KEY] {
            self.found.remove(name);
        }
        self.set(REDIS_URL, redis_url, REDIS_URL.to_owned());
        self.set(DATABASE_URL, database_url, DATABASE_URL.to_owned());
    }
}

impl Config {
    /// Reads the environment and `flashsale.toml`.
    ///
    /// # Errors
    /// One line that names all missing variables, or the first wrong one.
    pub fn load() -> Result<Self, ConfigError> {
        Self::from_settings(&Settings::load()?)
    }

    /// Checks settings and fills in the defaults.
    pub fn from_settings(settings: &Settings) -> Result<Self, ConfigError> {
        let required = [REDIS_URL, DATABASE_URL, ADMIN_KEY, JWT_SECRET, WEBHOOK_SECRET];
        let missing: Vec<_> = required
            .into_iter()
            .filter(|name| settings.get(name).is_none())
            .collect();
        if !missing.is_empty() {
            return Err(ConfigError::Missing {
                names: missing,
                unknown: settings.unknown.clone(),
            });
        }
        let checked = |name, check: fn(&str) -> Result<(), String>| check_one(settings, name, check);
        let listen = parsed(settings, LISTEN, address)?;
        Ok(Self {
            listen,
            metrics_listen: match settings.get(METRICS_LISTEN) {
                Some(_) => Some(parsed(settings, METRICS_LISTEN, address)?),
                None => None,
            },
            admin_listen: parsed(settings, ADMIN_LISTEN, |value| admin_listen(value, listen))?,
            redis_url: Secret(checked(REDIS_URL, check_redis_url)?),
            redis_certificates: Secret(settings.redis_certificates()?),
            database_url: Secret(checked(DATABASE_URL, check_database_url)?),
            admin_key: Secret(checked(ADMIN_KEY, |value| hard_to_guess(value, 16))?),
            jwt_secret: Secret(checked(JWT_SECRET, |value| no_repetition(value, 32))?),
            webhook_secret: Secret(parsed(settings, WEBHOOK_SECRET, webhook_key)?),
            alert_webhook: alert_webhook(settings)?.map(Secret),
            guards: guards(settings)?,
            sale_guards: parsed(settings, SALE_GUARDS, sale_guards)?,
            token_keys: Secret(match settings.get(TOKEN_KEYS) {
                Some(_) => parsed(settings, TOKEN_KEYS, TokenKeys::parse)?,
                None => TokenKeys::derived(settings.get(JWT_SECRET).unwrap_or_default().as_bytes()),
            }),
            trusted_proxies: parsed(settings, TRUSTED_PROXIES, networks)?,
            connections: connections(settings)?,
            tls: tls(settings)?,
            shop: ShopLinks {
                sign_in: shop_link(settings, SIGN_IN_URL, ShopLink::sign_in)?,
                pay: shop_link(settings, PAY_URL, ShopLink::pay)?,
            },
            development: parsed(settings, DEVELOPMENT, |value| {
                development(value, listen, settings.get(TRUSTED_PROXIES).is_some())
            })?,
            log: checked(LOG, |value| {
                check_filter(value)
                    .map_err(|error| format!("is not a tracing filter such as `info,flashsale=debug` ({error})"))
            })?,
            traces: traces(settings)?.map(Secret),
            exposed_files: exposed::files(settings),
            warnings: {
                let unknown = settings.unknown.iter().map(ToString::to_string);
                unknown
                    .chain(weak_secrets(settings))
                    .chain(transport::warnings(settings))
                    .collect()
            },
        })
    }
}

fn traces(settings: &Settings) -> Result<Option<Traces>, ConfigError> {
    if settings.get(OTLP_URL).is_none() {
        return Ok(None);
    }
    let ratio = parsed(settings, OTLP_RATIO, |value| {
        let ratio = value.parse().ok().filter(|ratio| (0.0..=1.0).contains(ratio));
        ratio.ok_or_else(|| "is not a share from 0 to 1, such as 0.01 for one request in a hundred".to_owned())
    })?;
    Ok(Some(Traces {
        url: check_one(settings, OTLP_URL, check_webhook_url)?,
        ratio,
    }))
}

fn address(value: &str) -> Result<SocketAddr, String> {
    let address = value.parse();
    address.map_err(|_error| "is not an address; write it as IP:PORT, for example 127.0.0.1:8080".to_owned())
}

/// The operators' own address, if there is one.
fn admin_listen(value: &str, listen: SocketAddr) -> Result<Option<SocketAddr>, String> {
    if value.is_empty() {
        return Ok(None);
    }
    let own = address(value)?;
    // Port 0 stands for a free port each time.
    if own == listen && own.port() != 0 {
        return Err(format!(
            "is {own}, which serves shoppers; choose another address, or leave it out to serve both at one"
        ));
    }
    Ok(Some(own))
}

fn alert_webhook(settings: &Settings) -> Result<Option<AlertWebhook>, ConfigError> {
    if settings.get(ALERT_WEBHOOK_URL).is_none() {
        return Ok(None);
    }
    let url = check_one(settings, ALERT_WEBHOOK_URL, check_webhook_url)?;
    let key = parsed(settings, ALERT_WEBHOOK_SECRET, |secret| {
        if secret.is_empty() {
            return Err(format!(
                "is not set although {ALERT_WEBHOOK_URL} is: it signs guard warnings; \
                 make one with `echo whsec_$(openssl rand -base64 32)`"
            ));
        }
        webhook_key(secret)
    })?;
    Ok(Some(AlertWebhook { url, key }))
}

/// The link to a page of the shop, if it is set.
fn shop_link(
    settings: &Settings,
    name: &str,
    parse: fn(&str) -> Result<ShopLink, String>,
) -> Result<Option<ShopLink>, ConfigError> {
    let link = settings.get(name).map(|_| parsed(settings, name, parse));
    link.transpose()
}

/// Whether development mode is on. It is refused where other machines can connect.
fn development(value: &str, listen: SocketAddr, has_proxies: bool) -> Result<bool, String> {
    let is_here_alone = listen.ip().is_loopback() && !has_proxies;
    match value {
        "false" => Ok(false),
        "auto" => Ok(is_here_alone),
        "true" if is_here_alone => Ok(true),
        "true" if has_proxies => Err(format!(
            "is true, which lets anyone sign in as any shopper, and {TRUSTED_PROXIES} says that a proxy forwards \
             requests of others; set it to false"
        )),
        "true" => Err(format!(
            "is true, which lets anyone sign in as any shopper, and other machines can reach {listen}; \
             listen on 127.0.0.1, or set it to false"
        )),
        _ => Err("must be true, false or auto".to_owned()),
    }
}

/// The certificate and key of HTTPS, read from their files.
fn tls(settings: &Settings) -> Result<Option<Tls>, ConfigError> {
    let alone = |name: &'static str, other: &str| {
        parsed(settings, name, |_path| {
            Err(format!(
                "is set and {other} is not; set both to serve HTTPS, or neither to serve HTTP"
            ))
        })
    };
    match (settings.get(TLS_CERT), settings.get(TLS_KEY)) {
        (None, None) => Ok(None),
        (Some(_), None) => alone(TLS_CERT, TLS_KEY),
        (None, Some(_)) => alone(TLS_KEY, TLS_CERT),
        (Some(_), Some(_)) => {
            let certificates = parsed(settings, TLS_CERT, tls::certificates)?;
            let key = parsed(settings, TLS_KEY, tls::key)?;
            // If the two do not match, the error names the key: an operator can read the certificate, but not the
            // key.
            parsed(settings, TLS_KEY, |_path| Tls::new(certificates, key)).map(Some)
        }
    }
}

fn guards(settings: &Settings) -> Result<GuardSettings, ConfigError> {
    let rate = |name| {
        parsed(settings, name, |value| {
            let rate = value.parse().ok().filter(|rate| *rate <= RATE_MAX);
            rate.ok_or_else(|| format!("is not a whole number of requests a second from 0 to {RATE_MAX} (0 is off)"))
        })
    };
    let number = |name| {
        parsed(settings, name, |value| {
            value.parse().map_err(|_error| "is not a whole number".to_owned())
        })
    };
    let guards = GuardSettings {
        address_rate: rate(ADDRESS_RATE)?,
        account_rate: rate(ACCOUNT_RATE)?,
        instance_rate: rate(GATEWAY_RATE)?,
        shared_rate: rate(SHARED_RATE)?,
        adaptive_min_rate: number(ADAPTIVE_MIN_RATE)?,
        adaptive_max_rate: rate(ADAPTIVE_MAX_RATE)?,
        adaptive_latency_ms: number(ADAPTIVE_LATENCY_MS)?,
        adaptive_in_flight: number(ADAPTIVE_IN_FLIGHT)?,
        browsing_alert_above: number(BROWSING_ALERT_ABOVE)?,
        browsing_ban_above: number(BROWSING_BAN_ABOVE)?,
        browsing_ban_seconds: number(BROWSING_BAN_SECONDS)?,
    };
    guards.check().map_err(|wrong| {
        let text = wrong.to_string();
        let (name, problem) = text.split_once(' ').unwrap_or((&text, ""));
        ConfigError::Invalid {
            origin: format!("{PREFIX}{}", name.to_ascii_uppercase()),
            problem: problem.to_owned(),
        }
    })?;
    Ok(guards)
}

fn connections(settings: &Settings) -> Result<ConnectionLimits, ConfigError> {
    let number = |name, least| {
        parsed(settings, name, |value| {
            let number = value.parse().ok().filter(|number| *number >= least);
            number.ok_or_else(|| format!("is not a whole number of connections, {least} or more"))
        })
    };
    Ok(ConnectionLimits {
        total: number(CONNECTIONS, 1)?,
        per_client: number(ADDRESS_CONNECTIONS, 0)?,
    })
}

/// The guards of sales that do not set their own.
fn sale_guards(value: &str) -> Result<SaleGuards, String> {
    let said = serde_json::from_str(value).map_err(|error| {
        format!("is no JSON object ({error}); write it as in a sale, for example {{\"purchase_token\": true}}")
    })?;
    SaleGuards::default()
        .with(said)
        .map_err(|wrong| format!("has an invalid value: {wrong}"))
}

/// The widest network of proxies that is believed: `fc00::/7`, the private addresses of IPv6.
const PROXIES_BITS: u8 = 7;

/// A list of networks or addresses, separated by commas.
fn networks(value: &str) -> Result<Vec<IpNet>, String> {
    let parts = value.split(',').map(str::trim).filter(|part| !part.is_empty());
    let network = |part: &str| {
        let address = part.parse::<IpAddr>().map(IpNet::from);
        let network = address.or_else(|_| part.parse::<IpNet>()).map_err(|_error| {
            "is not a list of networks; write them as 10.0.0.0/8,fd00::/8 with commas in between".to_owned()
        })?;
        // A network as wide as half of all addresses is a mistake.
        if network.prefix_len() < PROXIES_BITS {
            return Err(format!(
                "trusts every address in {network}; name only the networks of your proxies"
            ));
        }
        Ok(network)
    };
    parts.map(network).collect()
}

/// The parsed value of one setting, or of its default.
fn parsed<T>(settings: &Settings, name: &str, parse: impl FnOnce(&str) -> Result<T, String>) -> Result<T, ConfigError> {
    let found = settings.found.get(name);
    let variable = || VARIABLES.iter().find(|variable| variable.name == name);
    let value = found.map(|found| found.value.as_str());
    let value = value
        .or_else(|| Some(settings.default_of(variable()?)))
        .unwrap_or_default();
    parse(value).map_err(|problem| ConfigError::Invalid {
        origin: found.map_or_else(|| name.to_owned(), |found| found.origin.clone()),
        problem,
    })
}

/// The checked value of one setting that stays text.
fn check_one(settings: &Settings, name: &str, check: fn(&str) -> Result<(), String>) -> Result<String, ConfigError> {
    parsed(settings, name, |value| check(value).map(|()| value.to_owned()))
}

/// Checks a secret that operators may choose themselves.
fn hard_to_guess(value: &str, bytes: usize) -> Result<(), String> {
    long_enough(value, bytes, strength::check)
}

/// Checks a secret that is shared with another program. A weaker one is accepted, and [`weak_secrets`] warns of it.
fn no_repetition(value: &str, bytes: usize) -> Result<(), String> {
    long_enough(value, bytes, strength::check_repetition)
}

fn long_enough(value: &str, bytes: usize, check: fn(&str) -> Result<(), String>) -> Result<(), String> {
    let checked = match value.len() {
        length if length < bytes => Err(format!("has {length} bytes and needs at least {bytes}")),
        _ => check(value),
    };
    checked.map_err(|problem| format!("{problem}; make one with `openssl rand -hex 32`"))
}

/// A webhook key as text, with one character a byte.
fn text_of(key: &[u8]) -> String {
    key.iter().copied().map(char::from).collect()
}

/// Warnings about secrets that are accepted although they are easy to guess.
fn weak_secrets(settings: &Settings) -> Vec<String> {
    let texts = [JWT_SECRET, WEBHOOK_SECRET, ALERT_WEBHOOK_SECRET].map(|name| {
        let value = settings.get(name).unwrap_or_default();
        let text = match name {
            JWT_SECRET => value.to_owned(),
            _ => webhook::decode_secret(value).map_or_else(|_| String::new(), |key| text_of(&key)),
        };
        (name, text)
    });
    let weak = texts.into_iter().filter(|(_, text)| !text.is_empty());
    weak.filter_map(|(name, text)| Some(format!("{name} {}", strength::check(&text).err()?)))
        .collect()
}

/// Checks that each part of a filter is a level, or a module with a level. Tracing would take any other word for the
/// name of a module, and then log only that module.
fn check_filter(value: &str) -> Result<(), String> {
    EnvFilter::try_new(value).map_err(|error| error.to_string())?;
    // A filter on spans is not checked: it has commas and words of its own.
    let parts = value.split(',').map(str::trim).filter(|part| !part.is_empty());
    for part in parts.filter(|_| !value.contains('[')) {
        let (module, level) = part
            .split_once('=')
            .map_or((part, None), |(of, level)| (of, Some(level)));
        let is_name = |name: &str| {
            let mut letters = name.chars();
            letters.next().is_some_and(|it| it.is_ascii_alphabetic() || it == '_')
                && letters.all(|it| it.is_ascii_alphanumeric() || it == '_' || it == '-')
        };
        if level.is_none() && part.parse::<LevelFilter>().is_err() {
            return Err(format!(
                "{part:?} is not off, error, warn, info, debug or trace; to set a module write {part}=info"
            ));
        }
        if level.is_some() && !module.split("::").all(is_name) {
            return Err(format!("{module:?} is no module"));
        }
    }
    Ok(())
}

fn check_redis_url(url: &str) -> Result<(), String> {
    let schemes = [
        "redis",
        "rediss",
        "unix",
        "redis+unix",
        "redis+cluster",
        "rediss+cluster",
    ];
    match url.split_once("://") {
        Some((scheme, rest)) if schemes.contains(&scheme) && !rest.is_empty() => Ok(()),
        _ => Err(
            "is not a Redis URL; write redis://HOST:PORT, unix:///PATH or redis+cluster://HOST:PORT,HOST:PORT, or with \
             TLS rediss://HOST:PORT or rediss+cluster://HOST:PORT,HOST:PORT"
                .to_owned(),
        ),
    }
}

fn check_database_url(url: &str) -> Result<(), String> {
    match url.split_once("://") {
        Some(("postgres" | "postgresql", rest)) if !rest.is_empty() => Ok(()),
        _ => Err("is not a Postgres URL; write postgres://USER:PASSWORD@HOST:PORT/DATABASE".to_owned()),
    }
}

fn check_webhook_url(url: &str) -> Result<(), String> {
    let is_right = url.parse::<Uri>().is_ok_and(|uri| {
        matches!(uri.scheme_str(), Some("http" | "https")) && uri.host().is_some_and(|host| !host.is_empty())
    });
    if is_right {
        return Ok(());
    }
    Err("is not an HTTP address; write http://HOST/PATH or https://HOST/PATH".to_owned())
}

/// The decoded key of a secret in the form of Standard Webhooks.
fn webhook_key(secret: &str) -> Result<Vec<u8>, String> {
    let key = webhook::decode_secret(secret).map_err(|wrong| format!("is wrong: {wrong}"));
    let checked = key.and_then(|key| strength::check_repetition(&text_of(&key)).map(|()| key));
    checked.map_err(|problem| format!("{problem}; make one with `echo whsec_$(openssl rand -base64 32)`"))
}

fn read_file(text: &str) -> Result<Settings, ConfigError> {
    let line_of = |offset: usize| 1 + text.bytes().take(offset).filter(|byte| *byte == b'\n').count();
    let table = DeTable::parse(text).map_err(|error| ConfigError::File {
        line: line_of(error.span().map_or(0, |span| span.start)),
        // Only the message: the error's other text quotes the line, which may hold a secret.
        problem: format!(
            "{}; write each setting as key = \"value\"",
            error.message().replace('\n', "; ")
        ),
    })?;
    let mut settings = Settings::default();
    for (key, value) in table.get_ref() {
        let line = line_of(key.span().start);
        let wrong = |problem: String| ConfigError::File { line, problem };
        let key: &str = key.get_ref();
        let Variable { name, kind, .. } = VARIABLES
            .iter()
            .find(|variable| variable.name == key || variable.key() == key)
            .ok_or_else(|| wrong(format!("unknown key `{}`; the keys are {}", key.escape_debug(), keys())))?;
        let value = match value.get_ref() {
            DeValue::String(value) => value.to_string(),
            DeValue::Integer(value) if *kind == Kind::Number && value.radix() == 10 => value.as_str().to_owned(),
            DeValue::Boolean(value) if *kind == Kind::Switch => value.to_string(),
            other => {
                return Err(wrong(format!(
                    "`{key}` is {}; write it as a string",
                    with_article(other.type_str())
                )));
            }
        };
        let origin = format!("{FILE}:{line}: `{key}`");
        if settings.found.insert(name, Found { value, origin }).is_some() {
            return Err(wrong(format!(
                "`{key}` is {name}, which the file also sets under its other name; keep one"
            )));
        }
    }
    Ok(settings)
}

fn keys() -> String {
    VARIABLES.each_ref().map(Variable::key).join(", ")
}

fn with_article(kind: &str) -> String {
    format!("{} {kind}", if kind.starts_with(['a', 'i']) { "an" } else { "a" })
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: &str = "3f9a1c77be204d58";
    /// A secret whose text and bytes the tests search for in the output.
    const WEBHOOK: &str = "whsec_OWI3NGM5ODk3YmFjNzcwZmZjMDI5MTAyYTIwMGM1ZGU=";
    const COMPLETE: [(&str, &str); 5] = [
        (REDIS_URL, "redis://127.0.0.1:6379"),
        (DATABASE_URL, "postgres://flashsale@127.0.0.1/flashsale"),
        (ADMIN_KEY, KEY),
        (JWT_SECRET, "9b74c9897bac770ffc029102a200c5de"),
        (WEBHOOK_SECRET, WEBHOOK),
    ];

    /// The outcome with a complete environment, changed by `changes` (an empty value unsets).
    fn load(changes: &[(&str, &str)], file: Option<&str>) -> Result<Config, ConfigError> {
        let environment = |name: &str| {
            let pairs = changes.iter().chain(&COMPLETE);
            pairs
                .into_iter()
                .find(|(key, _)| *key == name)
                .map(|(_, value)| OsString::from(value))
        };
        Config::from_settings(&Settings::from_sources(environment, file)?)
    }

    fn complaint(changes: &[(&str, &str)], file: Option<&str>) -> String {
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
    fn each_value_is_shown_with_where_it_comes_from() {
        let environment = |name: &str| {
            let pairs = [
                (LISTEN, "[::1]:2"),
                (REDIS_URL, "redis://:hunter2@h"),
                (JWT_SECRET, "hunter2"),
            ];
            pairs
                .iter()
                .find(|(key, _)| *key == name)
                .map(|(_, value)| OsString::from(value))
        };
        let file = "listen = \"127.0.0.1:1\"\nadmin_key = \"hunter2\"\ngateway_rate = 7\n";
        let shown = Settings::from_sources(environment, Some(file)).unwrap().shown();
        assert_eq!(shown.len(), VARIABLES.len());
        for (name, value, from) in [
            (LISTEN, Some("[::1]:2"), Some("environment")),
            (REDIS_URL, Some("redis://[hidden]@h"), Some("environment")),
            (JWT_SECRET, Some("[hidden]"), Some("environment")),
            (ADMIN_KEY, Some("[hidden]"), Some("flashsale.toml:2")),
            (GATEWAY_RATE, Some("7"), Some("flashsale.toml:3")),
            (ADDRESS_RATE, Some("0"), Some("default")),
            (ACCOUNT_RATE, Some("0"), Some("default")),
            (DATABASE_URL, None, None),
        ] {
            let found = shown.iter().find(|shown| shown.name == name).unwrap();
            assert_eq!((found.value.as_deref(), found.from.as_deref()), (value, from), "{name}");
        }
    }

    #[test]
    fn the_environment_wins_over_the_file() {
        let file = "listen = \"127.0.0.1:1\"\nFLASHSALE_LOG = \"debug\"\ngateway_rate = 7\n";
        let config = load(&[(LISTEN, "[::1]:2")], Some(file)).unwrap();
        assert_eq!(config.listen.to_string(), "[::1]:2");
        assert_eq!((config.guards.instance_rate, config.log.as_str()), (7, "debug"));
    }

    #[test]
    fn a_wrong_value_names_its_variable() {
        let wrong = [
            (LISTEN, "localhost"),
            (ADMIN_LISTEN, "localhost"),
            (ADMIN_LISTEN, "127.0.0.1:8080"),
            (REDIS_URL, "http://x"),
            (REDIS_CACERT, "ca.pem"),
            (REDIS_CERT, "cert.pem"),
            (REDIS_KEY, "key.pem"),
            (DATABASE_URL, "mysql://x"),
            (ADMIN_KEY, "short"),
            (ADMIN_KEY, "changeme-changeme"),
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
            (ADAPTIVE_LATENCY_MS, "soon"),
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
            (TLS_CERT, "/no/such/file"),
            (TLS_KEY, "/no/such/file"),
            (SIGN_IN_URL, "javascript:alert(1)"),
            (PAY_URL, "https://shop.example/pay"),
            (DEVELOPMENT, "yes"),
            (LOG, "flashsale=loud=louder"),
            (LOG, "flashsale=loud"),
            (LOG, ":::"),
            (LOG, "::=info"),
            (LOG, "inof"),
            (LOG, "info,flashsale::"),
        ];
        for (name, value) in wrong {
            let text = complaint(&[(name, value)], None);
            assert!(text.starts_with(name), "{text}");
        }
        for right in [
            "warn",
            "INFO,flashsale::flow=debug",
            "off,actix_web=trace",
            "0",
            "info,[order]=trace",
        ] {
            assert_eq!(load(&[(LOG, right)], None).unwrap().log, right);
        }
    }

    #[test]
    fn alerts_are_sent_where_an_address_and_a_secret_say_so() {
        assert!(load(&[], None).unwrap().alert_webhook.is_none());
        // Without an address, a secret has no effect.
        assert!(
            load(&[(ALERT_WEBHOOK_SECRET, WEBHOOK)], None)
                .unwrap()
                .alert_webhook
                .is_none()
        );
        let url = (ALERT_WEBHOOK_URL, "https://example.org/hunter2?a=b");
        let text = complaint(&[url], None);
        assert!(
            text.starts_with("FLASHSALE_ALERT_WEBHOOK_SECRET is not set") && text.contains("whsec_"),
            "{text}"
        );
        for wrong in ["hunter2", "whsec_c2hvcnQ="] {
            let text = complaint(&[url, (ALERT_WEBHOOK_SECRET, wrong)], None);
            assert!(
                text.starts_with(ALERT_WEBHOOK_SECRET) && !text.contains("hunter2"),
                "{text}"
            );
        }
        let config = load(&[url, (ALERT_WEBHOOK_SECRET, WEBHOOK)], None).unwrap();
        assert!(!format!("{config:?}").contains("hunter2"));
        let hook = config.alert_webhook.unwrap();
        assert_eq!(hook.expose().url, url.1);
        assert_eq!(hook.expose().key, b"9b74c9897bac770ffc029102a200c5de");
    }

    #[test]
    fn operators_may_have_an_address_of_their_own() {
        let config = load(&[(LISTEN, "0.0.0.0:80"), (ADMIN_LISTEN, "127.0.0.1:80")], None).unwrap();
        assert_eq!(config.admin_listen.unwrap().to_string(), "127.0.0.1:80");
        let free = "127.0.0.1:0";
        let config = load(&[(LISTEN, free), (ADMIN_LISTEN, free)], None).unwrap();
        assert!(config.admin_listen.is_some(), "two free ports are two addresses");
    }

    #[test]
    fn development_mode_is_for_this_machine_alone() {
        assert!(!load(&[], None).unwrap().development);
        assert!(
            !load(&[(DEVELOPMENT, "false"), (LISTEN, "0.0.0.0:1")], None)
                .unwrap()
                .development
        );
        for own in ["127.0.0.1:1", "[::1]:1", "127.9.9.9:1"] {
            let file = "development = true";
            assert!(load(&[(LISTEN, own)], Some(file)).unwrap().development, "{own}");
        }
        for open in ["0.0.0.0:1", "[::]:1", "192.0.2.1:1", "[::ffff:192.0.2.1]:1"] {
            let text = complaint(&[(DEVELOPMENT, "true"), (LISTEN, open)], None);
            assert!(text.starts_with(DEVELOPMENT) && text.contains(open), "{text}");
            assert!(
                !load(&[(DEVELOPMENT, "auto"), (LISTEN, open)], None)
                    .unwrap()
                    .development
            );
        }
        let behind = [(DEVELOPMENT, "true"), (TRUSTED_PROXIES, "127.0.0.1")];
        let text = complaint(&behind, None);
        assert!(
            text.starts_with(DEVELOPMENT) && text.contains(TRUSTED_PROXIES),
            "{text}"
        );
        let behind = [(DEVELOPMENT, "auto"), (TRUSTED_PROXIES, "127.0.0.1")];
        assert!(!load(&behind, None).unwrap().development);
        assert!(load(&[(DEVELOPMENT, "auto")], None).unwrap().development);
    }

    #[test]
    fn a_wrong_line_of_the_file_is_named() {
        let cases = [
            ("\nlisten = 8080\n", "flashsale.toml:2: `listen` is an integer"),
            ("# one\n# two\nlisten = \n", "flashsale.toml:3: "),
            (
                "a = 1\n",
                "flashsale.toml:1: unknown key `a`; the keys are listen, metrics_listen",
            ),
            ("Listen = \"127.0.0.1:1\"\n", "flashsale.toml:1: unknown key `Listen`"),
            ("\nadmin_key = \"x\"\n", "flashsale.toml:2: `admin_key` has 1 bytes"),
            ("log = \"info\"\nFLASHSALE_LOG = \"info\"\n", "which the file also sets"),
            ("gateway_rate = true\n", "flashsale.toml:1: `gateway_rate` is a boolean"),
        ];
        for (file, expected) in cases {
            let text = complaint(&[(ADMIN_KEY, "")], Some(file));
            assert!(text.contains(expected), "{text}");
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
