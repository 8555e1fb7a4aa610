//! Advice for a person at a terminal whose request failed: which address or setting may be wrong, and how to retry.

use super::error::Refusal;
use super::{CallError, Client};
use crate::cli::shared::output::one_line;
use crate::cli::shared::setting;
use crate::config::JWT_SECRET;

/// Where to find the ids of sales.
pub const SEE_SALES: &str = "see `flashsale sale list`";

impl Client {
    pub(super) fn no_answer(&self, error: &ureq::Error) -> CallError {
        let base = &self.base;
        let reason = match error {
            ureq::Error::Io(io) => one_line(&io.to_string()),
            other => one_line(&other.to_string()),
        };
        let is_unknown_host = matches!(error, ureq::Error::HostNotFound) || reason.contains("failed to lookup address");
        CallError::NoAnswer(match error {
            ureq::Error::Io(io) if io.kind() == std::io::ErrorKind::ConnectionRefused => {
                format!("no server at {base}: start one with `flashsale up`, or name another with --url")
            }
            _ if is_unknown_host => format!("no host of that name at {base}: name another with --url"),
            ureq::Error::Timeout(_) => format!(
                "no answer from {base} in time: the server may have carried out the request, check before repeating it"
            ),
            _ if reason.contains("InvalidContentType") => {
                format!("the port at {base} does not speak HTTPS: write http://")
            }
            _ => format!(
                "no answer from {base}: {reason}; {}",
                self.advice_without_answer(&reason)
            ),
        })
    }

    /// Which setting may be wrong if the server refuses so, or what to do next.
    pub(super) fn advice(&self, refusal: &Refusal) -> Option<String> {
        let path = self.base.split_once("://")?.1.split_once('/').map(|(_host, path)| path);
        match (refusal.status, self.proof, path) {
            (401, Some(proof), _) => {
                let other = format!(
                    "{proof} is not the one of the server at {}: {}",
                    self.base,
                    setting::EXPORT
                );
                // A token has its time in whole seconds, and the server knows the end of the sessions more exactly.
                Some(if proof == JWT_SECRET {
                    format!(
                        "if the account's sessions were ended a moment ago, wait a second; else the token has expired, \
                         or {other}"
                    )
                } else {
                    other
                })
            }
            (404, _, Some(path)) => Some(format!(
                "--url or FLASHSALE_URL has the path /{path}: leave it out, unless a proxy serves the API there"
            )),
            (404, _, None) if refusal.detail == "there is no such sale" => Some(SEE_SALES.to_owned()),
            _ => None,
        }
    }

    /// Which setting may be wrong if there is no answer that can be understood.
    fn advice_without_answer(&self, reason: &str) -> &'static str {
        if self.base.starts_with("http:") {
            "if that port speaks HTTPS, write https://"
        } else if reason.contains("not valid for name") {
            "name it in --url or FLASHSALE_URL as its certificate does"
        } else if reason.contains("CaUsedAsEndEntity") {
            "the certificate says that it is an authority: make one with basicConstraints=CA:FALSE"
        } else if reason.contains("certificate") {
            "name a file with its authority with --cacert or FLASHSALE_CACERT"
        } else {
            "if that port does not speak HTTPS, write http://"
        }
    }
}

/// How to retry after an unknown outcome. The key is quoted for a shell.
pub fn retry_with(key: &str) -> String {
    let quoted = one_line(key).replace('\'', r"'\''");
    format!("to retry, repeat the command with --key '{quoted}'")
}

#[cfg(test)]
mod tests {
    use super::retry_with;
    use crate::cli::shared::client::tests::client;
    use crate::cli::shared::mock_server::MockServer;
    use crate::config::{ADMIN_KEY, JWT_SECRET};

    #[test]
    fn a_wrong_key_is_named_and_so_is_a_path_that_does_not_belong() {
        let body = r#"{"code":"unauthenticated","detail":"the key is wrong"}"#;
        let missing = r#"{"code":"not_found","detail":"there is no such sale"}"#;
        let server = MockServer::answering(&[(401, body), (401, body), (404, missing)]);
        let stranger = client(server.url()).get("/").unwrap_err().to_string();
        assert_eq!(stranger, "unauthenticated: the key is wrong");
        let operator = client(server.url()).proven_by(ADMIN_KEY);
        let line = operator.get("/").unwrap_err().to_string();
        let named = format!(
            "unauthenticated: the operators' key is wrong: FLASHSALE_ADMIN_KEY is not the one of the server at {}: \
             export",
            server.url()
        );
        assert!(line.starts_with(&named) && !line.contains('\n'), "{line}");

        let line = operator.get("/").unwrap_err().to_string();
        assert_eq!(line, "not_found: there is no such sale; see `flashsale sale list`");
        let shopper = client(MockServer::answering(&[(401, body)]).url()).proven_by(JWT_SECRET);
        let line = shopper.get("/").unwrap_err().to_string();
        for part in [
            "wait a second",
            "has expired",
            "or FLASHSALE_JWT_SECRET is not the one of",
        ] {
            assert!(line.contains(part), "{part}: {line}");
        }
        for address in ["/console", "/v1/"] {
            let client = client(&format!("{}{address}", server.url()));
            let line = client.get("/").unwrap_err().to_string();
            let path = address.trim_end_matches('/');
            assert!(line.contains(&format!("FLASHSALE_URL has the path {path}: ")), "{line}");
        }
    }

    #[test]
    fn a_key_is_printed_as_a_shell_reads_it() {
        assert!(retry_with("k").ends_with(" --key 'k'"));
        assert!(retry_with("ada's click").ends_with(r" --key 'ada'\''s click'"));
    }

    #[test]
    fn no_server_says_how_to_start_one() {
        let free_port = std::net::TcpListener::bind("127.0.0.1:0")
            .unwrap()
            .local_addr()
            .unwrap();
        let error = client(&format!("http://{free_port}")).get("/").unwrap_err();
        assert_eq!(
            error.to_string(),
            format!("no server at http://{free_port}: start one with `flashsale up`, or name another with --url")
        );
    }

    #[test]
    fn a_silent_server_does_not_hold_the_command() {
        let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let error = client(&format!("http://{}", silent.local_addr().unwrap()))
            .get("/")
            .unwrap_err();
        assert!(error.to_string().contains("in time"), "{error}");
    }
}
