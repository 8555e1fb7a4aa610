//! The reading of settings from the environment and `flashsale.toml`.

use super::unknown::{Unknown, unknown};
use super::variable::{Kind, Unset, Variable};
use super::{
    ConfigError, DATABASE_URL, FILE, LISTEN, REDIS_CACERT, REDIS_CERT, REDIS_KEY, REDIS_URL, Result, Secret,
    TRUSTED_PROXIES, VARIABLES,
};
use serde::Serialize;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::net::SocketAddr;
use toml::de::{DeTable, DeValue};

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

/// A variable as an instance has it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ShownVariable {
    pub name: &'static str,
    /// The value without secrets, if there is one.
    pub value: Option<String>,
    /// `environment`, the file and line, or `default`; `None` if the variable is not set.
    pub from: Option<String>,
}

impl Settings {
    /// Reads the environment and, in the current directory, `flashsale.toml`.
    pub fn load() -> Result<Self> {
        let text = match std::fs::read_to_string(FILE) {
            Ok(text) => Some(text),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => None,
            Err(error) => {
                return Err(ConfigError(format!("{FILE}: {error}; make it readable or remove it")));
            }
        };
        let mut settings = Self::from_sources(|name| std::env::var_os(name), text.as_deref())?;
        let names = std::env::vars_os().map(|(name, _)| name.to_string_lossy().into_owned());
        settings.unknown = unknown(names);
        Ok(settings)
    }

    /// Like [`Settings::load`], from any environment and any text of the file.
    pub fn from_sources(environment: impl Fn(&str) -> Option<OsString>, file: Option<&str>) -> Result<Self> {
        let mut settings = file.map_or_else(|| Ok(Self::default()), read_file)?;
        for Variable { name, .. } in VARIABLES {
            // Compose files and shells set an empty variable for "not set".
            let Some(value) = environment(name).filter(|value| !value.is_empty()) else {
                continue;
            };
            let value = value.into_string();
            let value =
                value.map_err(|_raw| ConfigError(format!("{name} is not UTF-8; set it again in plain text")))?;
            settings.set(name, value, (*name).to_owned());
        }
        Ok(settings)
    }

    /// The value of a variable from any source; `None` if nothing sets it.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.found.get(name).map(|found| found.value.as_str())
    }

    /// Sets a variable, in place of any value that was found. An error about the value names `origin`.
    pub fn set(&mut self, name: &'static str, value: String, origin: String) {
        self.found.insert(name, Found { value, origin });
    }

    /// Sets the URLs of Redis and Postgres, and removes the certificates, which are for another Redis.
    pub fn set_servers(&mut self, redis_url: String, database_url: String) {
        for name in [REDIS_CACERT, REDIS_CERT, REDIS_KEY] {
            self.found.remove(name);
        }
        self.set(REDIS_URL, redis_url, REDIS_URL.to_owned());
        self.set(DATABASE_URL, database_url, DATABASE_URL.to_owned());
    }

    /// Names in the environment that begin like our variables and that nothing reads.
    pub fn unknown(&self) -> &[Unknown] {
        &self.unknown
    }

    /// Every variable with its value, without secrets, and with its origin.
    pub fn shown(&self) -> Vec<ShownVariable> {
        let is_alone = self.is_alone();
        let shown = |variable: &Variable| {
            let found = self.found.get(variable.name);
            let default = variable.default(is_alone);
            let from = match found {
                Some(found) if found.origin == variable.name => Some("environment".to_owned()),
                Some(found) => found.origin.split(": ").next().map(str::to_owned),
                None => default.map(|_| "default".to_owned()),
            };
            let value = found.map(|found| found.value.as_str()).or(default);
            ShownVariable {
                name: variable.name,
                value: value.map(|value| variable.shown(value)),
                from,
            }
        };
        VARIABLES.iter().map(shown).collect()
    }

    /// Fails with the names of all required variables that nothing sets.
    pub fn check_required(&self) -> Result<()> {
        let required = VARIABLES.iter().filter(|variable| variable.unset == Unset::Required);
        let names = required.map(|variable| variable.name);
        let names: Vec<_> = names.filter(|name| self.get(name).is_none()).collect();
        if names.is_empty() {
            return Ok(());
        }
        let unknown: String = self.unknown.iter().map(|unknown| format!("; {unknown}")).collect();
        Err(ConfigError(format!(
            "not set: {}; set {} in the environment or in {FILE} (`flashsale up` needs none of them){unknown}",
            names.join(", "),
            if names.len() == 1 { "it" } else { "them" },
        )))
    }

    /// The parsed value of a variable, or of its default.
    pub fn value<T>(&self, name: &str, parse: impl FnOnce(&str) -> Result<T, String>) -> Result<T> {
        let default = || Variable::named(name)?.default(self.is_alone());
        let value = self.get(name).or_else(default).unwrap_or_default();
        parse(value).map_err(|problem| self.refusal(name, problem))
    }

    /// The parsed value of a variable, if it is set.
    pub fn optional<T>(&self, name: &str, parse: impl FnOnce(&str) -> Result<T, String>) -> Result<Option<T>> {
        self.get(name).map(|_| self.value(name, parse)).transpose()
    }

    /// The parsed value of a variable that is a secret, or may hold one.
    pub fn secret<T>(&self, name: &str, parse: impl FnOnce(&str) -> Result<T, String>) -> Result<Secret<T>> {
        self.value(name, parse).map(Secret)
    }

    /// An error about the value of a variable, with its origin.
    pub fn refusal(&self, name: &str, problem: String) -> ConfigError {
        let origin = self.found.get(name).map_or(name, |found| &found.origin);
        ConfigError(format!("{origin} {problem}"))
    }

    /// Whether the file sets a variable that is a secret, or may hold one.
    pub fn file_has_secrets(&self) -> bool {
        let secrets = VARIABLES.iter().filter(|variable| variable.is_secret());
        let mut found = secrets.filter_map(|variable| self.found.get(variable.name));
        found.any(|found| found.origin.starts_with(FILE))
    }

    /// Whether only this machine can connect: a loopback address without trusted proxies.
    fn is_alone(&self) -> bool {
        let listen = self.get(LISTEN).map(str::parse::<SocketAddr>);
        listen.is_none_or(|listen| listen.is_ok_and(|listen| listen.ip().is_loopback()))
            && self.get(TRUSTED_PROXIES).is_none()
    }
}

fn read_file(text: &str) -> Result<Settings> {
    let line_of = |offset: usize| 1 + text.bytes().take(offset).filter(|byte| *byte == b'\n').count();
    let wrong = |line: usize, problem: String| ConfigError(format!("{FILE}:{line}: {problem}"));
    let table = DeTable::parse(text).map_err(|error| {
        let line = line_of(error.span().map_or(0, |span| span.start));
        // Only the message: the error's other text quotes the line, which may hold a secret.
        let message = error.message().replace('\n', "; ");
        wrong(line, format!("{message}; write each setting as key = \"value\""))
    })?;
    let mut settings = Settings::default();
    for (key, value) in table.get_ref() {
        let line = line_of(key.span().start);
        let wrong = |problem| wrong(line, problem);
        let key: &str = key.get_ref();
        let mut variables = VARIABLES.iter();
        let variable = variables.find(|variable| variable.name == key || variable.key() == key);
        let Variable { name, kind, .. } =
            variable.ok_or_else(|| wrong(format!("unknown key `{}`; the keys are {}", key.escape_debug(), keys())))?;
        let value = match value.get_ref() {
            DeValue::String(value) => value.to_string(),
            DeValue::Integer(value) if *kind == Kind::Number && value.radix() == 10 => value.as_str().to_owned(),
            DeValue::Boolean(value) if *kind == Kind::Switch => value.to_string(),
            other => {
                let kind = other.type_str();
                let article = if kind.starts_with(['a', 'i']) { "an" } else { "a" };
                return Err(wrong(format!("`{key}` is {article} {kind}; write it as a string")));
            }
        };
        if settings.get(name).is_some() {
            return Err(wrong(format!(
                "`{key}` is {name}, which the file also sets under its other name; keep one"
            )));
        }
        settings.set(name, value, format!("{FILE}:{line}: `{key}`"));
    }
    Ok(settings)
}

fn keys() -> String {
    let keys: Vec<String> = VARIABLES.iter().map(Variable::key).collect();
    keys.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::tests::complaint;
    use crate::config::{ACCOUNT_RATE, ADDRESS_RATE, ADMIN_KEY, GATEWAY_RATE, JWT_SECRET};

    #[test]
    fn each_value_is_shown_with_where_it_comes_from() {
        let environment = |name: &str| {
            let value = match name {
                LISTEN => "[::1]:2",
                REDIS_URL => "redis://:hunter2@h",
                JWT_SECRET => "hunter2",
                _ => return None,
            };
            Some(OsString::from(value))
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
}
