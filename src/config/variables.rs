//! The table of all variables, with their defaults, and how their values are shown without secrets.

use super::{
    ACCOUNT_RATE, ADAPTIVE_IN_FLIGHT, ADAPTIVE_LATENCY_MS, ADAPTIVE_MAX_RATE, ADAPTIVE_MIN_RATE, ADDRESS_CONNECTIONS,
    ADDRESS_RATE, ADMIN_KEY, ADMIN_LISTEN, ALERT_WEBHOOK_SECRET, ALERT_WEBHOOK_URL, BROWSING_ALERT_ABOVE,
    BROWSING_BAN_ABOVE, BROWSING_BAN_SECONDS, CONNECTIONS, DATABASE_URL, DEVELOPMENT, GATEWAY_RATE, JWT_SECRET, LISTEN,
    LOG, METRICS_LISTEN, OTLP_RATIO, OTLP_URL, PAY_URL, PREFIX, REDIS_CACERT, REDIS_CERT, REDIS_KEY, REDIS_URL,
    SALE_GUARDS, SHARED_RATE, SIGN_IN_URL, TLS_CERT, TLS_KEY, TOKEN_KEYS, TRUSTED_PROXIES, Unknown, WEBHOOK_SECRET,
};
use strsim::damerau_levenshtein;

/// Every variable with its default; an empty default is none. A key of the file is the variable's name, or the name
/// in lower case without the prefix.
#[rustfmt::skip] // One variable a line.
pub const VARIABLES: [Variable; 37] = [
    Variable::new(LISTEN, Kind::Text, "127.0.0.1:8080", "address of the API and the pages"),
    Variable::new(METRICS_LISTEN, Kind::Text, "", "a second address for `/metrics`, `/healthz` and `/readyz`, without TLS; `--role worker` serves it too"),
    Variable::new(REDIS_URL, Kind::Server, "", "`redis://`, `unix://` or `redis+cluster://h1:p1,h2:p2`; with TLS `rediss://` or `rediss+cluster://h1:p1,h2:p2`; required by `serve`"),
    Variable::new(REDIS_CACERT, Kind::Text, "", "PEM file with the authorities that are trusted for Redis; without it, those of Mozilla's list"),
    Variable::new(REDIS_CERT, Kind::Text, "", "PEM file of a client certificate for Redis"),
    Variable::new(REDIS_KEY, Kind::Text, "", "PEM file of the key of that certificate"),
    Variable::new(DATABASE_URL, Kind::Server, "", "`postgres://`; to another machine with `?sslmode=verify-full&sslrootcert=FILE`; required by `serve`"),
    Variable::new(ADMIN_LISTEN, Kind::Text, "", "the only address of `/console`, `/v1/admin` and `/metrics`, if set"),
    Variable::new(ADMIN_KEY, Kind::Secret, "", "operators' bearer key, at least 16 bytes; one that is easy to guess is refused (`openssl rand -hex 32`); required by `serve`"),
    Variable::new(JWT_SECRET, Kind::Secret, "", "HS256 secret of shoppers' tokens, at least 32 bytes; required by `serve`"),
    Variable::new(WEBHOOK_SECRET, Kind::Secret, "", "`whsec_` and base64: the key of the payment provider's signatures, 24 to 64 bytes; required by `serve`"),
    Variable::new(ALERT_WEBHOOK_URL, Kind::Address, "", "receives guard warnings, `http://` or `https://`"),
    Variable::new(ALERT_WEBHOOK_SECRET, Kind::Secret, "", "`whsec_` and base64: signs what is sent there; required with the URL"),
    Variable::new(GATEWAY_RATE, Kind::Number, "0", "shoppers' requests a second of one instance; 0 is off"),
    Variable::new(ADDRESS_RATE, Kind::Number, "50", "requests a second of one client address to the shoppers' API of an instance; an IPv6 client is a /64; 0 is off, and the default on a loopback address without trusted proxies"),
    Variable::new(ACCOUNT_RATE, Kind::Number, "20", "requests a second of one account to an instance; 0 is off, and the default on a loopback address without trusted proxies"),
    Variable::new(CONNECTIONS, Kind::Number, "30000", "open connections of an instance"),
    Variable::new(ADDRESS_CONNECTIONS, Kind::Number, "500", "open connections of one client address, but for trusted proxies; 0 is off, and the default on a loopback address without trusted proxies"),
    Variable::new(SHARED_RATE, Kind::Number, "0", "shoppers' requests a second of all instances together; 0 is off"),
    Variable::new(ADAPTIVE_MIN_RATE, Kind::Number, "10", "lower bound of the adaptive rate"),
    Variable::new(ADAPTIVE_MAX_RATE, Kind::Number, "0", "upper bound of the adaptive rate; 0 keeps `FLASHSALE_GATEWAY_RATE`"),
    Variable::new(ADAPTIVE_LATENCY_MS, Kind::Number, "200", "the adaptive rate falls when purchases take longer than this, in milliseconds"),
    Variable::new(ADAPTIVE_IN_FLIGHT, Kind::Number, "512", "the adaptive rate falls when more requests are in flight"),
    Variable::new(BROWSING_ALERT_ABOVE, Kind::Number, "0", "page views of sales in a minute above which an account raises a guard warning; 0 is off"),
    Variable::new(BROWSING_BAN_ABOVE, Kind::Number, "0", "the same, above which the account is banned; 0 is off"),
    Variable::new(BROWSING_BAN_SECONDS, Kind::Number, "86400", "how long such a ban lasts, in seconds"),
    Variable::new(TRUSTED_PROXIES, Kind::Text, "", "networks whose `X-Forwarded-For` is believed, separated by commas"),
    Variable::new(TOKEN_KEYS, Kind::Secret, "", "keys of purchase tokens, `ID:BASE64` separated by commas, newest first; without it, one derived from the JWT secret"),
    Variable::new(SALE_GUARDS, Kind::Text, "{}", "guards of sales that do not set their own, as JSON: `{\"holds_max\": 3}`"),
    Variable::new(TLS_CERT, Kind::Text, "", "PEM file of the certificate; HTTPS instead of HTTP"),
    Variable::new(TLS_KEY, Kind::Text, "", "PEM file of its key"),
    Variable::new(SIGN_IN_URL, Kind::Text, "", "the shop's sign-in page, with `{return}` for the address to come back to; without it, pages show a field for a token"),
    Variable::new(PAY_URL, Kind::Text, "", "the shop's payment page, with `{order}` for the order's id; without it, pages show the order's number"),
    Variable::new(DEVELOPMENT, Kind::Switch, "false", "`true` lets whoever has the printed link sign in as anybody and pay with nothing, on a loopback address only; `auto` is `true` there"),
    Variable::new(LOG, Kind::Text, "info", "tracing filter"),
    Variable::new(OTLP_URL, Kind::Address, "", "OpenTelemetry collector for traces, OTLP over HTTP"),
    Variable::new(OTLP_RATIO, Kind::Text, "0.01", "share of requests that are traced, 0 to 1"),
];

/// Variables of the commands, the compose file and test programs. No server reads them.
const OTHERS: [&str; 9] = [
    "FLASHSALE_ADMISSION",
    "FLASHSALE_BUG",
    "FLASHSALE_CACERT",
    "FLASHSALE_CRASH_AT",
    "FLASHSALE_OPERATOR",
    "FLASHSALE_PURCHASE_TOKEN",
    "FLASHSALE_TEST_PROGRAM",
    "FLASHSALE_TOKEN",
    "FLASHSALE_URL",
];
/// The prefixes of variables that Kubernetes sets for a service named flashsale, of the compose file, and of seeded
/// bugs.
const OTHER_PREFIXES: [&str; 3] = ["FLASHSALE_SERVICE_", "FLASHSALE_PORT", "FLASHSALE_BUG_"];
/// How many typing errors a name may have to be matched with a variable.
const TYPOS_MAX: usize = 4;

/// The kind of a value.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Text that may be shown.
    Text,
    /// A number. The file may have it without quotes.
    Number,
    /// A boolean. The file may have it without quotes.
    Switch,
    Secret,
    /// The URL of a server, which may hold a login.
    Server,
    /// The URL of a receiver of notifications or traces. Its path may be a secret.
    Address,
}

pub struct Variable {
    /// The name in the environment.
    pub name: &'static str,
    pub kind: Kind,
    /// The default; empty if there is none.
    pub default: &'static str,
    /// What the variable sets, in Markdown.
    pub meaning: &'static str,
}

impl Variable {
    const fn new(name: &'static str, kind: Kind, default: &'static str, meaning: &'static str) -> Self {
        Self {
            name,
            kind,
            default,
            meaning,
        }
    }

    /// The name in the file.
    pub fn key(&self) -> String {
        self.name.trim_start_matches(PREFIX).to_ascii_lowercase()
    }

    /// A value without its secrets.
    pub fn shown(&self, value: &str) -> String {
        match self.kind {
            Kind::Text | Kind::Number | Kind::Switch => value.to_owned(),
            Kind::Secret => HIDDEN.to_owned(),
            Kind::Server => without_login(value, true),
            Kind::Address => without_login(value, false),
        }
    }
}

/// The table of all variables in Markdown.
#[must_use]
pub fn markdown() -> String {
    let row = |it: &Variable| {
        let default = match it.default {
            "" => "none".to_owned(),
            default => format!("`{default}`"),
        };
        format!("| `{}` | {} | {default} |\n", it.name, it.meaning)
    };
    let rows: String = VARIABLES.iter().map(row).collect();
    format!("| variable | meaning | default |\n| --- | --- | --- |\n{rows}")
}

const HIDDEN: &str = "[hidden]";
/// Parameters of a server's URL that are no secrets.
const PLAIN_PARAMETERS: [&str; 8] = [
    "host",
    "port",
    "user",
    "dbname",
    "db",
    "sslmode",
    "sslrootcert",
    "application_name",
];

/// A URL without its login and without parameters that may be secrets, and without its path unless `with_path`. A
/// value that is no URL is hidden: it may be a secret in the wrong variable.
fn without_login(url: &str, with_path: bool) -> String {
    let Some((scheme, rest)) = url.split_once("://") else {
        return HIDDEN.to_owned();
    };
    // A password may hold any character, even `/`, `?` and `@`. If an `@` comes after one of these, the host is
    // ambiguous.
    let authority = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    let (login, rest) = match rest.rfind('@') {
        Some(at) if at > authority => return format!("{scheme}://{HIDDEN}"),
        Some(at) => ("[hidden]@", rest.get(at + 1..).unwrap_or_default()),
        None => ("", rest),
    };
    let (place, query) = rest.split_once(['?', '#']).unwrap_or((rest, ""));
    let mut shown = format!("{scheme}://{login}");
    if !with_path {
        let host = place.split('/').next().unwrap_or_default();
        let more = if host.len() < rest.len() { "/[hidden]" } else { "" };
        return shown + host + more;
    }
    shown += place;
    for (at, parameter) in query.split('&').filter(|parameter| !parameter.is_empty()).enumerate() {
        let name = parameter.split('=').next().unwrap_or_default();
        shown.push(if at == 0 { '?' } else { '&' });
        if PLAIN_PARAMETERS.contains(&name) {
            shown += parameter;
        } else {
            shown += &format!("{name}={HIDDEN}");
        }
    }
    shown
}

/// Names in the environment that begin like our variables and that nothing reads, each with the variable that was
/// probably meant.
pub fn unknown(names: impl Iterator<Item = String>) -> Vec<Unknown> {
    let mut unknown: Vec<_> = names
        .filter(|name| name.starts_with(PREFIX) && !OTHERS.contains(&name.as_str()))
        .filter(|name| !VARIABLES.iter().any(|variable| variable.name == name))
        .filter(|name| !OTHER_PREFIXES.iter().any(|prefix| name.starts_with(prefix)))
        .map(|name| {
            let meant = nearest(&name);
            Unknown { name, meant }
        })
        .collect();
    unknown.sort_by(|one, other| one.name.cmp(&other.name));
    unknown
}

fn nearest(name: &str) -> Option<&'static str> {
    let name = name.to_ascii_uppercase();
    let distance = |variable: &Variable| damerau_levenshtein(variable.name, &name);
    let nearest = VARIABLES.iter().min_by_key(|variable| distance(variable))?;
    (distance(nearest) <= TYPOS_MAX).then_some(nearest.name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_misspelt_name_is_found_with_the_one_that_was_meant() {
        let of = |name: &str| unknown(std::iter::once(name.to_owned())).pop();
        for (name, meant) in [
            ("FLASHSALE_ADRESS_RATE", Some(ADDRESS_RATE)),
            ("FLASHSALE_ADDRESSRATE", Some(ADDRESS_RATE)),
            ("FLASHSALE_REDIS_ULR", Some(REDIS_URL)),
            ("FLASHSALE_DATABASE", Some(DATABASE_URL)),
            ("FLASHSALE_listen", Some(LISTEN)),
            ("FLASHSALE_SOMETHING_ELSE", None),
        ] {
            let name = name.to_owned();
            assert_eq!(of(&name), Some(Unknown { name, meant }));
        }
        for known in [
            LISTEN,
            "FLASHSALE_URL",
            "FLASHSALE_PORT",
            "FLASHSALE_SERVICE_HOST",
            "PATH",
            "FLASHSALE",
        ] {
            assert_eq!(of(known), None, "{known}");
        }
    }

    #[test]
    fn a_url_is_shown_without_what_may_be_secret() {
        for (url, with_path, shown) in [
            ("redis://h:6379/0", true, "redis://h:6379/0"),
            ("redis://:hunter2@h:6379/0", true, "redis://[hidden]@h:6379/0"),
            ("redis+cluster://u:hun@t/e?r2@a:1,b:2", true, "redis+cluster://[hidden]"),
            (
                "redis+cluster://u:hun@ter2@a:1,b:2",
                true,
                "redis+cluster://[hidden]@a:1,b:2",
            ),
            ("unix:///run/redis.sock?pass=hun@ter2", true, "unix://[hidden]"),
            ("postgres:///x?user=a&password=p@ssw0rd9", true, "postgres://[hidden]"),
            ("https://hooks.example/u@hunter2", false, "https://[hidden]"),
            (
                "unix:///run/redis.sock?pass=hunter2&db=1",
                true,
                "unix:///run/redis.sock?pass=[hidden]&db=1",
            ),
            (
                "postgres://u:hunter2@h/x?sslmode=verify-full&password=hunter2",
                true,
                "postgres://[hidden]@h/x?sslmode=verify-full&password=[hidden]",
            ),
            (
                "https://hooks.example/hunter2?a=hunter2",
                false,
                "https://hooks.example/[hidden]",
            ),
            ("https://hunter2@hooks.example", false, "https://[hidden]@hooks.example"),
            ("https://hooks.example?hunter2", false, "https://hooks.example/[hidden]"),
            ("hunter2", true, "[hidden]"),
        ] {
            assert_eq!(without_login(url, with_path), shown);
        }
    }
}
