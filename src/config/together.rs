//! Settings that several variables make together, and checks across variables.

use super::settings::Settings;
use super::{
    ADMIN_KEY, ADMIN_LISTEN, ALERT_WEBHOOK_SECRET, ALERT_WEBHOOK_URL, ConfigError, DEVELOPMENT, JWT_SECRET, LISTEN,
    OPERATOR_KEYS, OTLP_RATIO, OTLP_URL, PREFIX, REDIS_CACERT, REDIS_CERT, REDIS_KEY, REDIS_URL, Result, Secret,
    TLS_CERT, TLS_KEY, TOKEN_KEYS, TRUSTED_PROXIES, Traces, WEBHOOK_SECRET, parse, strength, tls, transport,
};
use crate::domain::deployment::redis_certificates::{ClientCertificate, RedisCertificates};
use crate::domain::guard::GuardSettings;
use crate::domain::operator::alert::AlertWebhook;
use crate::domain::operator::keys::OperatorKeys;
use crate::domain::order::webhook;
use crate::domain::shopper::token_keys::TokenKeys;
use std::net::SocketAddr;
use tls::Tls;

/// The operators' own address, if there is one.
pub fn admin_listen(settings: &Settings) -> Result<Option<SocketAddr>> {
    let listen = settings.value(LISTEN, parse::address)?;
    settings.value(ADMIN_LISTEN, |value| {
        if value.is_empty() {
            return Ok(None);
        }
        let own = parse::address(value)?;
        // Port 0 stands for a free port each time.
        if own == listen && own.port() != 0 {
            return Err(format!(
                "is {own}, which serves shoppers; choose another address, or leave it out to serve both at one"
            ));
        }
        Ok(Some(own))
    })
}

/// Whether development mode is on. It is refused where other machines can connect.
pub fn development(settings: &Settings) -> Result<bool> {
    let listen = settings.value(LISTEN, parse::address)?;
    let has_proxies = settings.get(TRUSTED_PROXIES).is_some();
    let is_alone = listen.ip().is_loopback() && !has_proxies;
    settings.value(DEVELOPMENT, |value| match value {
        "false" => Ok(false),
        "auto" => Ok(is_alone),
        "true" if is_alone => Ok(true),
        "true" if has_proxies => Err(format!(
            "is true, which lets anyone sign in as any shopper, and {TRUSTED_PROXIES} says that a proxy forwards \
             requests of others; set it to false"
        )),
        "true" => Err(format!(
            "is true, which lets anyone sign in as any shopper, and other machines can reach {listen}; \
             listen on 127.0.0.1, or set it to false"
        )),
        _ => Err("must be true, false or auto".to_owned()),
    })
}

/// The keys of operators: the shared one, and the named ones.
pub fn operator_keys(settings: &Settings) -> Result<Secret<OperatorKeys>> {
    let shared = settings.get(ADMIN_KEY).unwrap_or_default();
    let check = parse::at_least(16, strength::check);
    settings.secret(OPERATOR_KEYS, |named| {
        OperatorKeys::parse(shared, named, |key| check(key).map(|_key| ()))
    })
}

/// The keys of purchase tokens. If none is set, one is derived from the secret of shoppers' tokens.
pub fn token_keys(settings: &Settings) -> Result<Secret<TokenKeys>> {
    let keys = settings.optional(TOKEN_KEYS, TokenKeys::parse)?;
    let derived = || TokenKeys::derived(settings.get(JWT_SECRET).unwrap_or_default().as_bytes());
    Ok(Secret(keys.unwrap_or_else(derived)))
}

/// The receiver of guard warnings, if any. Hidden because an address may carry a token.
pub fn alert_webhook(settings: &Settings) -> Result<Option<Secret<AlertWebhook>>> {
    let Some(url) = settings.optional(ALERT_WEBHOOK_URL, parse::http_url)? else {
        return Ok(None);
    };
    let key = settings.value(ALERT_WEBHOOK_SECRET, |secret| {
        if secret.is_empty() {
            return Err(format!(
                "is not set although {ALERT_WEBHOOK_URL} is: it signs guard warnings; \
                 make one with `echo whsec_$(openssl rand -base64 32)`"
            ));
        }
        parse::webhook_key(secret)
    })?;
    Ok(Some(Secret(AlertWebhook { url, key })))
}

/// The collector of traces, if any. Hidden because an address may carry a token.
pub fn traces(settings: &Settings) -> Result<Option<Secret<Traces>>> {
    let Some(url) = settings.optional(OTLP_URL, parse::http_url)? else {
        return Ok(None);
    };
    let ratio = settings.value(OTLP_RATIO, parse::share)?;
    Ok(Some(Secret(Traces { url, ratio })))
}

/// The certificate and key of HTTPS, read from their files; `None` serves plain HTTP.
pub fn tls(settings: &Settings) -> Result<Option<Tls>> {
    let advice = "set both to serve HTTPS, or neither to serve HTTP";
    if !are_both_set(settings, TLS_CERT, TLS_KEY, advice)? {
        return Ok(None);
    }
    let certificates = settings.value(TLS_CERT, tls::certificates)?;
    // If the two do not match, the error names the key: an operator can read the certificate, but not the key.
    let tls = settings.value(TLS_KEY, |path| Tls::new(certificates, tls::key(path)?))?;
    Ok(Some(tls))
}

/// The certificates of connections to Redis.
pub fn redis_certificates(settings: &Settings) -> Result<Secret<RedisCertificates>> {
    let has_tls = settings.get(REDIS_URL).is_some_and(transport::has_redis_tls);
    let mut given = [REDIS_CACERT, REDIS_CERT, REDIS_KEY].into_iter();
    if let Some(name) = given.find(|name| !has_tls && settings.get(name).is_some()) {
        let problem = format!(
            "is set, and {REDIS_URL} has no TLS; write rediss://HOST:PORT or rediss+cluster://HOST:PORT,HOST:PORT \
             there, or leave {name} out"
        );
        return Err(settings.refusal(name, problem));
    }
    let authorities = settings.optional(REDIS_CACERT, tls::authorities)?;
    let mut client = None;
    if are_both_set(
        settings,
        REDIS_CERT,
        REDIS_KEY,
        "set both for a client certificate, or neither",
    )? {
        let (certificates, chain) = settings.value(REDIS_CERT, tls::client_chain)?;
        let key = settings.value(REDIS_KEY, |path| tls::client_key(path, chain))?;
        client = Some(ClientCertificate { certificates, key });
    }
    Ok(Secret(RedisCertificates { authorities, client }))
}

/// Whether a certificate and its key are set. One alone is refused.
fn are_both_set(settings: &Settings, cert: &'static str, key: &'static str, advice: &str) -> Result<bool> {
    let (name, other) = match (settings.get(cert), settings.get(key)) {
        (Some(_), None) => (cert, key),
        (None, Some(_)) => (key, cert),
        (cert, _) => return Ok(cert.is_some()),
    };
    Err(settings.refusal(name, format!("is set and {other} is not; {advice}")))
}

/// Checks the guards together. An error names the variable of the setting that does not fit.
pub fn guards(guards: GuardSettings) -> Result<GuardSettings> {
    let checked = guards.check().map(|()| guards);
    checked.map_err(|wrong| {
        let text = wrong.to_string();
        let (name, problem) = text.split_once(' ').unwrap_or((&text, ""));
        ConfigError(format!("{PREFIX}{} {problem}", name.to_ascii_uppercase()))
    })
}

/// Warnings about settings that work but need an operator's attention.
pub fn warnings(settings: &Settings) -> Vec<String> {
    let unknown = settings.unknown().iter().map(ToString::to_string);
    let warnings = unknown.chain(weak_secrets(settings));
    warnings.chain(transport::warnings(settings)).collect()
}

/// Warnings about secrets that are accepted although they are easy to guess.
fn weak_secrets(settings: &Settings) -> impl Iterator<Item = String> {
    let decoded = |name| {
        let key = webhook::decode_secret(settings.get(name)?).ok()?;
        Some((name, parse::text_of(&key)))
    };
    let jwt = settings.get(JWT_SECRET).map(|secret| (JWT_SECRET, secret.to_owned()));
    let secrets = [jwt, decoded(WEBHOOK_SECRET), decoded(ALERT_WEBHOOK_SECRET)];
    let secrets = secrets.into_iter().flatten();
    secrets.filter_map(|(name, text)| Some(format!("{name} {}", strength::check(&text).err()?)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::tests::{WEBHOOK, complaint, load};

    #[test]
    fn alerts_are_sent_where_an_address_and_a_secret_say_so() {
        assert!(load(&[], None).unwrap().alert_webhook.is_none());
        // Without an address, a secret has no effect.
        let config = load(&[(ALERT_WEBHOOK_SECRET, WEBHOOK)], None).unwrap();
        assert!(config.alert_webhook.is_none());
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
        for (listen, proxies, is_alone) in [
            ("", "", true),
            ("127.0.0.1:1", "", true),
            ("[::1]:1", "", true),
            ("127.9.9.9:1", "", true),
            ("0.0.0.0:1", "", false),
            ("[::]:1", "", false),
            ("192.0.2.1:1", "", false),
            ("[::ffff:192.0.2.1]:1", "", false),
            ("", "127.0.0.1", false),
        ] {
            let of = |value| {
                load(
                    &[(LISTEN, listen), (TRUSTED_PROXIES, proxies), (DEVELOPMENT, value)],
                    None,
                )
            };
            let is_on = |value| of(value).unwrap().development;
            assert!(!is_on("") && !is_on("false"), "{listen}");
            assert_eq!(is_on("auto"), is_alone, "{listen}");
            if is_alone {
                assert!(is_on("true"), "{listen}");
                continue;
            }
            let text = of("true").unwrap_err().to_string();
            let reason = if proxies.is_empty() { listen } else { TRUSTED_PROXIES };
            assert!(text.starts_with(DEVELOPMENT) && text.contains(reason), "{text}");
        }
        assert!(load(&[], Some("development = true")).unwrap().development);
    }
}
