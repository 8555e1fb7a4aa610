//! How `flashsale config show` shows values that may hold secrets.

pub const HIDDEN: &str = "[hidden]";
/// A URL without its login and without parameters that may be secrets, and without its path unless `with_path`. A
/// value that is no URL is hidden: it may be a secret in the wrong variable.
pub fn without_login(url: &str, with_path: bool) -> String {
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
        // Parameters of a server's URL that are no secrets.
        match name {
            "host" | "port" | "user" | "dbname" | "db" | "sslmode" | "sslrootcert" | "application_name" => {
                shown += parameter;
            }
            _ => shown += &format!("{name}={HIDDEN}"),
        }
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

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
