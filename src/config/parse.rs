//! The parsers of single variables. An error says what is wrong and what to write instead, without the value, which may
//! be a secret.

use super::strength;
use crate::domain::deployment::connection_pools::ConnectionPools;
use crate::domain::deployment::host::Origin;
use crate::domain::deployment::retention::DAYS_MAX;
use crate::domain::guard::RATE_MAX;
use crate::domain::order::webhook;
use crate::domain::plain::plain;
use crate::domain::sale::guards::SaleGuards;
use crate::domain::shop::image_url::image_url;
use crate::domain::shop::look::SHOP_NAME_MAX;
use ipnet::IpNet;
use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::LevelFilter;
use ureq::http::Uri;

/// The widest network of proxies that is believed: `fc00::/7`, the private addresses of IPv6.
const PROXIES_BITS: u8 = 7;

pub fn address(value: &str) -> Result<SocketAddr, String> {
    let address = value.parse();
    address.map_err(|_error| {
        format!("is {value:?}, which is not an address; write it as IP:PORT, for example 127.0.0.1:8080")
    })
}

pub fn number<T: FromStr>(value: &str) -> Result<T, String> {
    value.parse().map_err(|_error| "is not a whole number".to_owned())
}

/// The rate of a guard.
pub fn rate(value: &str) -> Result<u32, String> {
    let rate = value.parse().ok().filter(|rate| *rate <= RATE_MAX);
    rate.ok_or_else(|| format!("is not a whole number of requests a second from 0 to {RATE_MAX} (0 is off)"))
}

/// A number of connections, at least this many.
pub fn connections(least: usize) -> impl Fn(&str) -> Result<usize, String> {
    move |value| {
        let number = value.parse().ok().filter(|number| *number >= least);
        number.ok_or_else(|| format!("is not a whole number of connections, {least} or more"))
    }
}

/// A number of days, at least this many; 0 is for ever.
pub fn days(least: u16) -> impl Fn(&str) -> Result<Option<u16>, String> {
    move |value| match value.parse::<u16>() {
        Ok(0) => Ok(None),
        Ok(days) if (least..=DAYS_MAX).contains(&days) => Ok(Some(days)),
        _ => Err(format!(
            "is not a whole number of days from {least} to {DAYS_MAX} (0 is for ever)"
        )),
    }
}

pub fn share(value: &str) -> Result<f64, String> {
    let share = value.parse().ok().filter(|share| (0.0..=1.0).contains(share));
    share.ok_or_else(|| "is not a share from 0 to 1, such as 0.01 for one request in a hundred".to_owned())
}

pub fn redis_url(url: &str) -> Result<String, String> {
    match url.split_once("://") {
        Some(("redis" | "rediss" | "unix" | "redis+unix" | "redis+cluster" | "rediss+cluster", rest))
            if !rest.is_empty() =>
        {
            Ok(url.to_owned())
        }
        _ => Err(
            "is not a Redis URL; write redis://HOST:PORT, unix:///PATH or redis+cluster://HOST:PORT,HOST:PORT, or with \
             TLS rediss://HOST:PORT or rediss+cluster://HOST:PORT,HOST:PORT"
                .to_owned(),
        ),
    }
}

pub fn database_url(url: &str) -> Result<String, String> {
    match url.split_once("://") {
        Some(("postgres" | "postgresql", rest)) if !rest.is_empty() => Ok(url.to_owned()),
        _ => Err("is not a Postgres URL; write postgres://USER:PASSWORD@HOST:PORT/DATABASE".to_owned()),
    }
}

pub fn http_url(url: &str) -> Result<String, String> {
    let is_right = |uri: &Uri| {
        matches!(uri.scheme_str(), Some("http" | "https")) && uri.host().is_some_and(|host| !host.is_empty())
    };
    match url.parse::<Uri>() {
        Ok(uri) if is_right(&uri) => Ok(url.to_owned()),
        _ => Err("is not an HTTP address; write http://HOST/PATH or https://HOST/PATH".to_owned()),
    }
}

/// A secret of at least this many bytes that passes a check of its strength.
pub fn at_least(bytes: usize, check: fn(&str) -> Result<(), String>) -> impl Fn(&str) -> Result<String, String> {
    move |value| {
        let checked = match value.len() {
            length if length < bytes => Err(format!("has {length} bytes and needs at least {bytes}")),
            _ => check(value),
        };
        let checked = checked.map(|()| value.to_owned());
        checked.map_err(|problem| format!("{problem}; make one with `openssl rand -hex 32`"))
    }
}

/// The decoded key of a secret in the form of Standard Webhooks.
pub fn webhook_key(secret: &str) -> Result<Vec<u8>, String> {
    let key = webhook::decode_secret(secret).map_err(|wrong| format!("is wrong: {wrong}"));
    let checked = key.and_then(|key| strength::check_repetition(&text_of(&key)).map(|()| key));
    checked.map_err(|problem| format!("{problem}; make one with `echo whsec_$(openssl rand -base64 32)`"))
}

/// A webhook key as text, with one character a byte.
pub fn text_of(key: &[u8]) -> String {
    key.iter().copied().map(char::from).collect()
}

pub fn connection_pools(value: &str) -> Result<ConnectionPools, String> {
    let pools: ConnectionPools = serde_json::from_str(value)
        .map_err(|error| format!("is no JSON object of pools ({error}); write for example {{\"jobs\": 12}}"))?;
    pools.check()
}

pub fn sale_guards(value: &str) -> Result<SaleGuards, String> {
    let said = serde_json::from_str(value).map_err(|error| {
        format!("is no JSON object ({error}); write it as in a sale, for example {{\"purchase_token\": true}}")
    })?;
    SaleGuards::default()
        .with(said)
        .map_err(|wrong| format!("has an invalid value: {wrong}"))
}

/// Networks or addresses, separated by commas.
pub fn proxies(value: &str) -> Result<Vec<IpNet>, String> {
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

pub fn shop_name(value: &str) -> Result<String, String> {
    let name = plain(value, SHOP_NAME_MAX);
    name.map(str::to_owned).map_err(|wrong| wrong.to_string())
}

/// The address of a picture.
pub fn image(value: &str) -> Result<String, String> {
    let address = image_url(value);
    address.map(str::to_owned).map_err(|wrong| wrong.to_string())
}

/// Origins of pictures, separated by commas.
pub fn image_origins(value: &str) -> Result<Vec<String>, String> {
    let parts = value.split(',').map(str::trim).filter(|part| !part.is_empty());
    let origin = |part: &str| {
        let origin = Origin::of(part).filter(|it| it.is_secure()).map(|it| it.to_string());
        origin.filter(|it| it == part).ok_or_else(|| {
            "is not a list of origins; write them as https://images.example,https://cdn.example:8443, without a path"
                .to_owned()
        })
    };
    parts.map(origin).collect()
}

/// A tracing filter, each part of which is a level, or a module with a level. Tracing would take any other word for the
/// name of a module, and then log only that module.
pub fn log_filter(value: &str) -> Result<String, String> {
    let checked = check_filter(value).map(|()| value.to_owned());
    checked.map_err(|error| format!("is not a tracing filter such as `info,flashsale=debug` ({error})"))
}

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pools_that_are_left_out_have_their_defaults() {
        let few_jobs = ConnectionPools {
            jobs: 7,
            ..ConnectionPools::default()
        };
        assert_eq!(connection_pools("{}"), Ok(ConnectionPools::default()));
        assert_eq!(connection_pools(r#"{"jobs": 7}"#), Ok(few_jobs));
    }

    #[test]
    fn pictures_may_come_from_several_origins() {
        assert_eq!(image_origins(""), Ok(Vec::new()));
        assert_eq!(
            image_origins("https://a.example, https://b.example:8443,http://127.0.0.1:9000,"),
            Ok(["https://a.example", "https://b.example:8443", "http://127.0.0.1:9000"]
                .map(str::to_owned)
                .to_vec())
        );
    }

    #[test]
    fn filters_of_levels_modules_and_spans_are_taken_as_they_stand() {
        for right in [
            "warn",
            "INFO,flashsale::flow=debug",
            "off,actix_web=trace",
            "0",
            "info,[order]=trace",
        ] {
            assert_eq!(log_filter(right), Ok(right.to_owned()));
        }
    }
}
