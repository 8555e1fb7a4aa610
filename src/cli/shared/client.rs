//! The commands' client of the HTTP API. It sends one blocking request at a time, limits every wait, and turns every
//! refusal into one line `code: detail`.

mod advice;
mod args;
mod error;

use crate::cli::Failure;
use crate::config::ADMIN_KEY;
use crate::domain::deployment::host::is_this_machine;
use crate::domain::operator::console::OperatorName;
use crate::stderr;
pub use advice::retry_with;
pub use args::ApiArgs;
pub use error::CallError;
use error::refusal;
use serde_json::Value;
use std::io::Read;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;
use ureq::http::{Request, Response, Uri};
use ureq::tls::TlsConfig;

/// The limit of a whole request with its answer: longer than the server's own limit for an operator's request.
pub const REQUEST_LIMIT: Duration = Duration::from_secs(20);
/// The limit for opening a connection.
const CONNECT_LIMIT: Duration = Duration::from_secs(3);
/// A stream that is silent for longer is lost: the server sends a keep-alive every 15 seconds.
const SILENCE_LIMIT: Duration = Duration::from_secs(45);
/// More than any answer of the API has. A wrong address may answer without end.
const ANSWER_BYTES_MAX: u64 = 16 * 1024 * 1024;

/// How many attempts a request with an idempotency key gets.
const TRIES: usize = 3;
/// The longest wait between two attempts.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(5);

/// The content type of bodies and of most answers.
const JSON: &str = "application/json";

/// An answer of 2xx.
#[derive(Debug)]
pub struct Answer {
    /// The JSON of its body; `null` when it was empty.
    pub body: Value,
    /// The version of the resource in the body, if it has one.
    pub etag: Option<String>,
}

/// A client of one server, for one caller.
#[derive(Clone)]
pub struct Client {
    agent: ureq::Agent,
    base: String,
    bearer: Option<String>,
    /// The setting whose value authenticates the requests, for the message about a 401.
    proof: Option<&'static str>,
    /// The operator's name.
    name: Option<OperatorName>,
}

impl Client {
    /// A client for the API at `url` that waits `limit` for an answer.
    pub fn new(tls: TlsConfig, url: &str, bearer: Option<String>, limit: Duration) -> Result<Self, Failure> {
        let base = url.trim_end_matches('/').to_owned();
        let uri: Uri = base.parse().map_err(|error| bad_url(url, &format!("{error}")))?;
        if !matches!(uri.scheme_str(), Some("http" | "https")) || uri.query().is_some() {
            return Err(bad_url(url, "write it as http://127.0.0.1:8080"));
        }
        // A proxy can read plain HTTP. HTTPS it only forwards, but then the server must prove that it is the right one.
        let is_direct =
            uri.scheme_str() == Some("http") || uri.host().is_some_and(is_this_machine) || tls.disable_verification();
        let mut config = ureq::Agent::config_builder()
            .http_status_as_error(false)
            // A redirect would send the key to another server. It is not followed, and reported as a refusal.
            .max_redirects(0)
            .max_redirects_will_error(false)
            .timeout_connect(Some(CONNECT_LIMIT.min(limit)))
            .timeout_global(Some(limit))
            .tls_config(tls)
            .user_agent(concat!("flashsale/", env!("CARGO_PKG_VERSION")));
        if is_direct {
            config = config.proxy(None);
        }
        Ok(Self {
            agent: config.build().new_agent(),
            base,
            bearer,
            proof: None,
            name: None,
        })
    }

    /// Names the setting that a message about a 401 should name.
    #[must_use]
    pub fn proven_by(self, setting: &'static str) -> Self {
        Self {
            proof: Some(setting),
            ..self
        }
    }

    /// Sets the operator's name.
    fn called(self, name: Option<OperatorName>) -> Self {
        Self { name, ..self }
    }

    pub fn get(&self, path: &str) -> Result<Answer, CallError> {
        let request = self.request("GET", path, JSON).body(());
        self.settle(request.map(|request| self.agent.run(request)))
    }

    /// Posts `body`, which is JSON or empty.
    pub fn post(&self, path: &str, body: &str) -> Result<Answer, CallError> {
        self.send("POST", path, &[], body)
    }

    /// Posts a request that its key makes safe to repeat. While the outcome is unknown, the request is repeated, with
    /// up to [`TRIES`] attempts. The wait before each is the server's `Retry-After`, else `pause`.
    pub fn post_once(&self, path: &str, key: &str, body: &str, pause: Duration) -> Result<Answer, CallError> {
        let mut tries = 1..TRIES;
        loop {
            match self.send("POST", path, &[("idempotency-key", key)], body) {
                Err(error) if error.may_pass() && tries.next().is_some() => {
                    let pause = error.retry_after().unwrap_or(pause).min(RETRY_AFTER_MAX);
                    stderr::line(format_args!("flashsale: {error}; trying again with the same key"));
                    std::thread::sleep(pause);
                }
                outcome => return outcome,
            }
        }
    }

    /// Sends `body`, which is JSON or empty, with further headers.
    pub fn send(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &str) -> Result<Answer, CallError> {
        let mut request = self.request(method, path, JSON);
        if !body.is_empty() {
            request = request.header("content-type", JSON);
        }
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        self.settle(request.body(body).map(|request| self.agent.run(request)))
    }

    /// Opens the stream of server-sent events at `path`. With `after`, it starts after the event with that id.
    pub fn stream(&self, path: &str, after: Option<&str>) -> Result<impl Read + use<>, CallError> {
        self.open(path, "text/event-stream", after)
    }

    /// Opens the table at `path`, as CSV.
    pub fn table(&self, path: &str) -> Result<impl Read + use<>, CallError> {
        self.open(path, "text/csv", None)
    }

    /// Opens an answer of this content type, without a limit on its length in time.
    fn open(&self, path: &str, kind: &str, after: Option<&str>) -> Result<impl Read + use<>, CallError> {
        let mut request = self.request("GET", path, kind);
        if let Some(after) = after {
            request = request.header("last-event-id", after);
        }
        let request = request.body(()).map(|request| {
            let agent = self.agent.configure_request(request);
            agent
                .timeout_global(None)
                .timeout_recv_response(Some(REQUEST_LIMIT))
                .timeout_per_read(Some(SILENCE_LIMIT))
                .build()
        });
        match request.map(|request| self.agent.run(request)) {
            Ok(Ok(response)) if response.status().is_success() => Ok(response.into_body().into_reader()),
            other => {
                self.settle(other)?;
                Err(CallError::NoAnswer(format!("{} answered no {kind}", self.base)))
            }
        }
    }

    /// A request for an answer of this content type.
    fn request(&self, method: &str, path: &str, kind: &str) -> ureq::http::request::Builder {
        let mut request = Request::builder()
            .method(method)
            .uri(format!("{}{path}", self.base))
            .header("accept", kind);
        if let Some(name) = &self.name {
            // As bytes, because a name need not be ASCII.
            request = request.header("x-operator", name.as_str().as_bytes());
        }
        match &self.bearer {
            Some(bearer) => request.header("authorization", format!("Bearer {bearer}")),
            None => request,
        }
    }

    fn settle(
        &self,
        outcome: Result<Result<Response<ureq::Body>, ureq::Error>, ureq::http::Error>,
    ) -> Result<Answer, CallError> {
        let outcome = outcome.map_err(|_unsendable| {
            CallError::NoAnswer("the key, token or header has a character that HTTP cannot carry: check it".to_owned())
        })?;
        let mut response = outcome.map_err(|error| self.no_answer(&error))?;
        let header = |name: &str| response.headers().get(name)?.to_str().ok().map(str::to_owned);
        let retry_after = header("retry-after");
        let etag = header("etag");
        let status = response.status().as_u16();
        let bytes = response
            .body_mut()
            .with_config()
            .limit(ANSWER_BYTES_MAX)
            .read_to_vec()
            .map_err(|error| self.no_answer(&error))?;
        if !(200..300).contains(&status) {
            let mut refusal = refusal(status, retry_after, self.advice(status), &bytes);
            // An operator has set a variable, and no header, which the API names.
            if status == 401 && self.proof == Some(ADMIN_KEY) {
                let advice = refusal.advice.take().unwrap_or_default();
                refusal.detail = format!("the operators' key is wrong: {advice}");
            }
            return Err(CallError::Refused(refusal));
        }
        if bytes.is_empty() {
            return Ok(Answer {
                body: Value::Null,
                etag,
            });
        }
        let body = serde_json::from_slice(&bytes).map_err(|_no_json| {
            CallError::NoAnswer(format!(
                "{} answered something that is not JSON: is it flashsale? Name another address with --url",
                self.base
            ))
        })?;
        Ok(Answer { body, etag })
    }
}

/// The URL at which a process on this machine reaches the listener at `address`.
pub fn own_url(mut address: SocketAddr, is_tls: bool) -> String {
    if address.ip().is_unspecified() {
        address.set_ip(match address {
            SocketAddr::V4(_) => Ipv4Addr::LOCALHOST.into(),
            SocketAddr::V6(_) => Ipv6Addr::LOCALHOST.into(),
        });
    }
    let scheme = if is_tls { "https" } else { "http" };
    format!("{scheme}://{address}")
}

/// A TLS configuration that checks no certificate. It is for an instance on this machine, reached by its address: a
/// certificate usually names hosts and no addresses.
pub fn trusting_anybody() -> TlsConfig {
    TlsConfig::builder().disable_verification(true).build()
}

fn bad_url(url: &str, why: &str) -> Failure {
    Failure::Usage(format!(
        "--url or FLASHSALE_URL {url:?} is no address of the API: {why}"
    ))
}

/// The path of a sale in the operators' API, followed by `rest`.
pub fn sale_path(id: impl std::fmt::Display, rest: &str) -> String {
    format!("/v1/admin/sales/{id}{rest}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::shared::mock_server::MockServer;

    pub fn client(url: &str) -> Client {
        Client::new(
            TlsConfig::default(),
            url,
            Some("key".to_owned()),
            Duration::from_millis(500),
        )
        .unwrap()
    }

    #[test]
    fn a_request_carries_the_key_and_the_answer_its_body() {
        let server = MockServer::answering(&[(200, r#"{"data":[]}"#)]);
        let answer = client(&format!("{}/", server.url())).get("/v1/admin/sales").unwrap();
        assert_eq!(answer.body, serde_json::json!({"data": []}));
        assert_eq!(answer.etag.as_deref(), Some("\"v1\""));
        let request = &server.requests()[0];
        assert!(request.starts_with("GET /v1/admin/sales HTTP/1.1"), "{request}");
        assert!(
            request.to_lowercase().contains("authorization: bearer key\r\n"),
            "{request}"
        );
    }

    #[test]
    fn a_problem_becomes_one_line_and_exit_code_1() {
        let body = r#"{"type":"about:blank","title":"Conflict","status":409,"detail":"a draft\ncannot open","code":"invalid_transition"}"#;
        let server = MockServer::answering(&[(409, body)]);
        let error = client(server.url()).post("/v1/admin/sales/x/open", "").unwrap_err();
        assert!(!error.may_pass());
        let failure = Failure::from(error);
        assert!(
            matches!(&failure, Failure::No(line) if line == "invalid_transition: a draft cannot open"),
            "{failure}"
        );
    }

    #[test]
    fn an_answer_from_something_else_is_named_as_such() {
        let server = MockServer::answering(&[(502, "<html>bad gateway"), (200, "<html>hello"), (301, "")]);
        let client = client(server.url());
        let error = client.get("/").unwrap_err();
        assert!(error.may_pass());
        assert_eq!(error.to_string(), "HTTP 502: <html>bad gateway");
        assert!(client.get("/").unwrap_err().to_string().contains("not JSON"));
        assert_eq!(client.get("/").unwrap_err().to_string(), "HTTP 301: no reason given");
    }

    #[test]
    fn an_instance_that_listens_everywhere_is_asked_here() {
        assert_eq!(own_url(([0, 0, 0, 0], 80).into(), false), "http://127.0.0.1:80");
        assert_eq!(own_url(([10, 0, 0, 1], 80).into(), true), "https://10.0.0.1:80");
        assert_eq!(own_url("[::]:443".parse().unwrap(), true), "https://[::1]:443");
    }

    #[test]
    fn an_address_that_is_none_is_bad_usage() {
        for url in ["", "127.0.0.1:8080", "ftp://x", "redis://x", "http://", "http://x?y"] {
            assert!(
                matches!(
                    Client::new(TlsConfig::default(), url, None, REQUEST_LIMIT),
                    Err(Failure::Usage(_))
                ),
                "{url}"
            );
        }
    }
}
