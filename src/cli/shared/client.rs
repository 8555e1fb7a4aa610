//! The commands' client of the HTTP API. It sends one blocking request at a time, limits every wait, and turns every
//! refusal into one line `code: detail`.

mod advice;
mod args;
mod error;

use crate::cli::Failure;
use crate::cli::shared::duration;
use crate::config::ADMIN_KEY;
use crate::domain::code::Code;
use crate::domain::deployment::host::is_this_machine;
use crate::domain::operator::console::OperatorName;
use crate::stderr;
pub use advice::{SEE_SALES, retry_with};
pub use args::ApiArgs;
pub use error::CallError;
use error::refusal;
use serde_json::Value;
use std::io::Read;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::thread;
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

/// How often a patient client repeats a request.
const REPEATS_MAX: usize = 5;
/// The least wait of a patient client: the server may work on a lost request for two seconds more.
pub const PAUSE: Duration = Duration::from_secs(3);
/// The longest `Retry-After` that a patient client waits for.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(60);
/// The most that is added to a wait at random, as a share of it, so that clients do not all come at once.
const SPREAD: f64 = 0.05;
/// Why a request cannot be sent.
const UNSENDABLE: &str = "FLASHSALE_ADMIN_KEY, the token or a header has a character that HTTP cannot carry: check it";

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
    /// The least wait before a request is repeated, if this client is patient.
    pause: Option<Duration>,
}

impl Client {
    /// A client for the API at `url` that waits `limit` for an answer.
    pub fn new(tls: TlsConfig, url: &str, bearer: Option<String>, limit: Duration) -> Result<Self, Failure> {
        let base = url.trim_end_matches('/').to_owned();
        let uri: Uri = base.parse().map_err(|error| bad_url(url, &format!("{error}")))?;
        if !matches!(uri.scheme_str(), Some("http" | "https")) || uri.query().is_some() {
            return Err(bad_url(url, "write it as http://127.0.0.1:8080"));
        }
        let is_foreign = |byte: u8| !(b' '..=b'~').contains(&byte);
        if bearer.as_ref().is_some_and(|bearer| bearer.bytes().any(is_foreign)) {
            return Err(Failure::Usage(UNSENDABLE.to_owned()));
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
            pause: None,
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

    /// Repeats each request that may succeed later, with this wait in between, or the server's `Retry-After` if that is
    /// longer. It is for requests that change nothing more when they are repeated.
    #[must_use]
    pub fn patient(self, pause: Duration) -> Self {
        Self {
            pause: Some(pause),
            ..self
        }
    }

    /// Sends a request; a patient client repeats it. A cooldown may last for hours, so it is not waited for.
    fn patiently(&self, send: impl Fn() -> Result<Answer, CallError>) -> Result<Answer, CallError> {
        let (mut repeats, mut said) = (0..REPEATS_MAX, String::new());
        loop {
            let error = match send() {
                Err(error) if error.may_pass() && error.code() != Code::CoolingDown.as_str() => error,
                outcome => return outcome,
            };
            let wait = self.pause.map(|pause| error.retry_after().unwrap_or(pause).max(pause));
            let wait = wait.filter(|wait| *wait <= RETRY_AFTER_MAX && repeats.next().is_some());
            let Some(wait) = wait else { return Err(error) };
            let trouble = error.to_string();
            if trouble != said {
                stderr::line(format_args!(
                    "flashsale: {trouble}; trying again every {}, {} times at most",
                    duration::text(wait),
                    repeats.len() + 1
                ));
                said = trouble;
            }
            thread::sleep(wait + wait.mul_f64(rand::random::<f64>() * SPREAD));
        }
    }

    pub fn get(&self, path: &str) -> Result<Answer, CallError> {
        self.patiently(|| {
            let request = self.request("GET", path, JSON).body(());
            self.settle(request.map(|request| self.agent.run(request)))
        })
    }

    /// Posts `body`, which is JSON or empty.
    pub fn post(&self, path: &str, body: &str) -> Result<Answer, CallError> {
        self.send("POST", path, &[], body)
    }

    /// Sends `body`, which is JSON or empty, with further headers.
    pub fn send(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &str) -> Result<Answer, CallError> {
        self.patiently(|| {
            let mut request = self.request(method, path, JSON);
            if !body.is_empty() {
                request = request.header("content-type", JSON);
            }
            for (name, value) in headers {
                request = request.header(*name, *value);
            }
            self.settle(request.body(body).map(|request| self.agent.run(request)))
        })
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
        let outcome = outcome.map_err(|_unsendable| CallError::NoAnswer(UNSENDABLE.to_owned()))?;
        let mut response = outcome.map_err(|error| self.no_answer(&error))?;
        let header = |name: &str| response.headers().get(name)?.to_str().ok().map(str::to_owned);
        let retry_after = header("retry-after").and_then(|seconds| Some(Duration::from_secs(seconds.parse().ok()?)));
        let etag = header("etag");
        let status = response.status().as_u16();
        let bytes = response
            .body_mut()
            .with_config()
            .limit(ANSWER_BYTES_MAX)
            .read_to_vec()
            .map_err(|error| self.no_answer(&error))?;
        if !(200..300).contains(&status) {
            let mut refusal = refusal(status, retry_after, &bytes);
            refusal.advice = self.advice(&refusal);
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
            matches!(&failure, Failure::Refused { text, .. } if text == "invalid_transition: a draft cannot open"),
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
        for key in ["é", "key\n"] {
            let keyed = Client::new(TlsConfig::default(), "http://x", Some(key.to_owned()), REQUEST_LIMIT);
            assert!(
                matches!(keyed, Err(Failure::Usage(said)) if said.contains("FLASHSALE_ADMIN_KEY")),
                "{key:?}"
            );
        }
    }

    #[test]
    fn a_patient_client_repeats_what_may_pass_and_no_cooldown() {
        let cooling = r#"{"code":"cooling_down","detail":"later"}"#;
        for (answers, requests) in [
            (&[(503, ""), (200, "{}")][..], 2),
            (&[(503, "")], 1 + REPEATS_MAX),
            (&[(429, cooling)], 1),
            (&[(404, "")], 1),
        ] {
            let server = MockServer::answering(answers);
            let client = server.client().patient(Duration::ZERO);
            assert_eq!(client.get("/").is_ok(), requests == 2, "{answers:?}");
            assert_eq!(server.requests().len(), requests, "{answers:?}");
        }
    }
}
