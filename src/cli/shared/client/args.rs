//! The arguments of commands that call the API: its address and certificate, the operator, and how answers are printed.

use super::{Client, REQUEST_LIMIT};
use crate::cli::Failure;
use crate::cli::shared::answer::Form;
use crate::cli::shared::setting;
use crate::config::ADMIN_KEY;
use crate::domain::deployment::host::is_this_machine;
use crate::domain::operator::console::OperatorName;
use crate::stderr;
use nix::unistd::{User, getuid};
use std::env::VarError;
use std::sync::Once;
use std::time::Duration;
use ureq::http::Uri;
use ureq::tls::{Certificate, PemItem, RootCerts, TlsConfig, parse_pem};

/// The variables that stand in for options. Clap reads none of them: it would show their options in every usage, as if
/// they were required.
const URL: &str = "FLASHSALE_URL";
const CACERT: &str = "FLASHSALE_CACERT";
const OPERATOR: &str = "FLASHSALE_OPERATOR";

/// Where `flashsale up` and `flashsale serve` listen by default.
const DEFAULT_URL: &str = "http://127.0.0.1:8080";

/// The heading of these options in the help.
const GLOBAL: &str = "Global options";

/// How a command reaches the API, the name that it gives there, and how it prints the answer.
#[derive(Debug, clap::Args)]
pub struct ApiArgs {
    /// Address of the API; default: FLASHSALE_URL, else http://127.0.0.1:8080.
    #[arg(long, value_name = "URL", global = true, help_heading = GLOBAL)]
    url: Option<String>,
    /// PEM file with the authority of the API's certificate, or with the certificate itself; default: FLASHSALE_CACERT,
    /// else Mozilla's list of authorities.
    #[arg(long, value_name = "FILE", global = true, help_heading = GLOBAL)]
    cacert: Option<String>,
    /// The operator's name in the audit log; default: FLASHSALE_OPERATOR, else the login name. With the shared key,
    /// operators choose their names, unchecked. A named key proves its own.
    #[arg(long = "as", value_name = "NAME", global = true, help_heading = GLOBAL)]
    operator: Option<String>,
    /// Print JSON: the server's answer, also one that refuses, or all entries of a list as one array.
    #[arg(long, global = true, help_heading = GLOBAL)]
    json: bool,
    /// Print ids alone, one a line; nothing if the answer has none. Views and reports ignore it.
    #[arg(short, long, global = true, help_heading = GLOBAL, conflicts_with = "json")]
    quiet: bool,
}

impl ApiArgs {
    pub fn form(&self) -> Form {
        match (self.json, self.quiet) {
            (true, _) => Form::Json,
            (false, true) => Form::Ids,
            (false, false) => Form::Text,
        }
    }

    /// A client that speaks as the operator.
    pub fn operator(&self) -> Result<Client, Failure> {
        self.operator_within(REQUEST_LIMIT)
    }

    /// Like [`ApiArgs::operator`], with another limit on each request.
    pub fn operator_within(&self, limit: Duration) -> Result<Client, Failure> {
        let name = operator_name(given(self.operator.as_ref(), OPERATOR)?.as_deref(), login().as_deref())?;
        let client = self.client_within(Some(setting::required(ADMIN_KEY)?), limit)?;
        Ok(client.proven_by(ADMIN_KEY).called(name))
    }

    /// A client that authenticates with `bearer`, or not at all.
    pub fn client(&self, bearer: Option<String>) -> Result<Client, Failure> {
        self.client_within(bearer, REQUEST_LIMIT)
    }

    /// Like [`ApiArgs::client`], with another limit on each request.
    pub fn client_within(&self, bearer: Option<String>, limit: Duration) -> Result<Client, Failure> {
        let url = given(self.url.as_ref(), URL)?.unwrap_or_else(|| DEFAULT_URL.to_owned());
        let uri = url.parse::<Uri>().unwrap_or_default();
        let is_open = uri.scheme_str() == Some("http") && !uri.host().is_some_and(is_this_machine);
        if bearer.is_some() && is_open {
            // A command may need two clients.
            static WARNED: Once = Once::new();
            WARNED.call_once(|| {
                stderr::line(format_args!(
                    "flashsale: warning: {url} gets a key or token unencrypted; use https where others can read the \
                     network"
                ));
            });
        }
        let tls = match given(self.cacert.as_ref(), CACERT)? {
            Some(file) => TlsConfig::builder()
                .root_certs(RootCerts::new_with_certs(&certificates(&file)?))
                .build(),
            None => TlsConfig::default(),
        };
        Client::new(tls, &url, bearer, limit)
    }
}

/// An option, else its variable.
fn given(option: Option<&String>, variable: &str) -> Result<Option<String>, Failure> {
    match option {
        Some(option) => Ok(Some(option.clone())),
        None => of_environment(variable, std::env::var(variable)),
    }
}

/// The value of a variable. Compose files and shells set an empty variable for "not set".
fn of_environment(variable: &str, found: Result<String, VarError>) -> Result<Option<String>, Failure> {
    match found {
        Err(VarError::NotUnicode(_)) => Err(Failure::Usage(format!(
            "{variable} is not UTF-8; set it again in plain text"
        ))),
        found => Ok(found.ok().filter(|value| !value.is_empty())),
    }
}

/// The operator's name: the given one, else the login name if that is valid.
fn operator_name(said: Option<&str>, login: Option<&str>) -> Result<Option<OperatorName>, Failure> {
    match said {
        Some(name) => name.parse().map(Some).map_err(|wrong| {
            Failure::Usage(format!(
                "--as or {OPERATOR} {wrong}: set it to your name, or leave it out"
            ))
        }),
        None => Ok(login.and_then(|login| login.parse().ok())),
    }
}

/// The login name. Without `USER`, as under cron and in containers, the name of the process's user.
fn login() -> Option<String> {
    let said = std::env::var("USER").ok().filter(|name| !name.is_empty());
    said.or_else(|| Some(User::from_uid(getuid()).ok()??.name))
}

fn certificates(file: &str) -> Result<Vec<Certificate<'static>>, Failure> {
    let wrong = |why: &str| Failure::Usage(format!("--cacert or FLASHSALE_CACERT names {file}, {why}"));
    let text = std::fs::read(file).map_err(|error| {
        wrong(&format!(
            "which cannot be read ({error}); name a PEM file that this user may read"
        ))
    })?;
    let certificate = |item| match item {
        Ok(PemItem::Certificate(certificate)) => Some(certificate),
        _ => None,
    };
    let found: Vec<_> = parse_pem(&text).filter_map(certificate).collect();
    if found.is_empty() {
        return Err(wrong("in which there is no certificate; name a PEM file with one"));
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::shared::mock_server::MockServer;
    use std::ffi::OsString;
    use std::os::unix::ffi::OsStringExt as _;

    #[test]
    fn an_empty_variable_is_not_set_and_one_that_is_no_text_is_bad_usage() {
        let read = |found| of_environment(URL, found);
        let url = "https://shop.example";
        assert_eq!(read(Ok(url.to_owned())).unwrap().as_deref(), Some(url));
        for none in [Ok(String::new()), Err(VarError::NotPresent)] {
            assert_eq!(read(none).unwrap(), None);
        }
        let no_text = VarError::NotUnicode(OsString::from_vec(vec![0xff]));
        let Err(Failure::Usage(line)) = read(Err(no_text)) else {
            panic!("it is not refused")
        };
        assert!(line.starts_with("FLASHSALE_URL is not UTF-8"), "{line}");
    }

    #[test]
    fn an_operators_name_is_the_given_one_or_else_the_login() {
        let called = |said, login| operator_name(said, login).map(|name| name.map(|it| it.as_str().to_owned()));
        assert_eq!(called(Some("Ada"), Some("root")).unwrap().as_deref(), Some("Ada"));
        let long = "x".repeat(65);
        assert_eq!(called(None, Some("root")).unwrap().as_deref(), Some("root"));
        // A login name that is not valid is no error.
        for login in [None, Some(""), Some("a\nb"), Some(&*long)] {
            assert_eq!(called(None, login).unwrap(), None);
        }
        for wrong in ["", " ", "a\u{1b}[2J", &long] {
            let Err(Failure::Usage(line)) = called(Some(wrong), None) else {
                panic!("{wrong:?} is no name")
            };
            assert!(
                line.starts_with("--as or FLASHSALE_OPERATOR must have 1 to 64"),
                "{line}"
            );
            assert!(!line.contains('\u{1b}'), "{line}");
        }
        let server = MockServer::answering(&[(200, "{}")]);
        let name = "王伟".parse().unwrap();
        server.client().called(Some(name)).get("/").unwrap();
        let request = &server.requests()[0];
        assert!(request.contains("x-operator: 王伟\r\n"), "{request}");
    }

    #[test]
    fn a_file_without_certificates_is_bad_usage() {
        let folder = tempfile::tempdir().unwrap();
        let empty = folder.path().join("empty.pem");
        std::fs::write(&empty, "hunter2").unwrap();
        for (file, expected) in [
            ("/no/such/file", "cannot be read"),
            (empty.to_str().unwrap(), "there is no"),
        ] {
            let Err(Failure::Usage(line)) = certificates(file) else {
                panic!("{file} is no file of certificates")
            };
            assert!(
                line.contains("FLASHSALE_CACERT") && line.contains(file) && line.contains(expected),
                "{line}"
            );
            assert!(!line.contains("hunter2"), "{line}");
        }
    }
}
