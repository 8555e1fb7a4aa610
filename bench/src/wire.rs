//! HTTP/1.1 over one keep-alive connection. The generator shares the cores with the program under test, so this client
//! does the least work possible.

use anyhow::{Context as _, Result, bail};
use serde::Deserialize;
use std::io::Write as _;
use std::net::SocketAddr;
use std::time::Duration;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;

/// The time limit for a reply, unless the client sets another.
const PATIENCE: Duration = Duration::from_secs(15);
/// The longest reply of the API in bytes.
const ANSWER_MAX: usize = 1 << 20;

#[derive(Clone, Default)]
pub struct Request<'a> {
    /// `POST` with the body; otherwise `GET`.
    pub is_post: bool,
    /// Another method than `GET` and `POST`.
    pub method: Option<&'a str>,
    pub path: String,
    pub bearer: &'a str,
    /// The client address that the proxy reports.
    pub address: &'a str,
    pub key: Option<&'a str>,
    pub token: Option<&'a str>,
    pub admission: Option<&'a str>,
    pub body: String,
}

#[derive(Debug, Clone, Default)]
pub struct Answer {
    /// 0 without a reply.
    pub status: u16,
    /// The seconds of the `Retry-After` header.
    pub retry_after: Option<u64>,
    pub body: Vec<u8>,
}

/// The members of a reply that clients read.
#[derive(Deserialize, Default)]
#[serde(default)]
pub struct Said {
    pub code: Option<String>,
    pub detail: Option<String>,
    pub state: Option<String>,
    pub id: Option<String>,
    pub ticket: Option<String>,
    pub admission: Option<String>,
    pub token: Option<String>,
    pub ask_again_seconds: Option<u64>,
    pub altcha: Option<altcha::Challenge>,
}

impl Answer {
    pub fn said(&self) -> Said {
        serde_json::from_slice(&self.body).unwrap_or_default()
    }

    /// The name for counting: status and code. One code serves several guards, so the name adds the guard that refused.
    pub fn name(&self) -> String {
        match self.status {
            0 => "no answer".to_owned(),
            200..=299 => self.status.to_string(),
            status => {
                let said = self.said();
                let detail = said.detail.unwrap_or_default();
                let which = if detail.contains("this address") {
                    " (address)"
                } else if detail.contains("window") {
                    " (window)"
                } else if detail.contains("challenges") {
                    " (challenges)"
                } else {
                    ""
                };
                format!("{status} {}{which}", said.code.unwrap_or_default())
            }
        }
    }
}

/// A reply whose body stays in the read buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Seen<'a> {
    /// 0 without a reply.
    pub status: u16,
    pub body: &'a [u8],
}

impl<'a> Seen<'a> {
    /// The text of a JSON member. `member` is its name in quotation marks with a colon. This works because the API
    /// writes no spaces around colons, and no member names into texts.
    pub fn text(&self, member: &str) -> Option<&'a str> {
        let body = std::str::from_utf8(self.body).ok()?;
        let (_, rest) = body.split_once(member)?;
        rest.strip_prefix('"')?.split('"').next()
    }
}

#[derive(Clone, Copy, Default)]
struct Head {
    status: u16,
    retry_after: Option<u64>,
    length: usize,
}

/// A connection that opens when needed, and again after it was closed.
pub struct Wire {
    server: SocketAddr,
    patience: Duration,
    stream: Option<TcpStream>,
    sent: Vec<u8>,
    read: Vec<u8>,
}

impl Wire {
    pub fn to(server: SocketAddr) -> Self {
        Self::patient(server, PATIENCE)
    }

    /// A connection to this server with this time limit for a reply.
    pub fn patient(server: SocketAddr, patience: Duration) -> Self {
        Self {
            server,
            patience,
            stream: None,
            sent: Vec::with_capacity(1024),
            read: Vec::with_capacity(2048),
        }
    }

    /// Sends a request. If a connection that was already open fails, it sends the request once more over a new one.
    pub async fn ask(&mut self, request: &Request<'_>) -> Answer {
        let mut sent = std::mem::take(&mut self.sent);
        sent.clear();
        write(request, self.server, &mut sent);
        let answer = self.exchanged(&sent).await.map(|(head, at)| Answer {
            status: head.status,
            retry_after: head.retry_after,
            body: self.read[at..at + head.length].to_vec(),
        });
        self.sent = sent;
        answer.unwrap_or_default()
    }

    /// Like [`Wire::ask`], with an encoded request.
    pub async fn ask_written(&mut self, request: &[u8]) -> Seen<'_> {
        match self.exchanged(request).await {
            Some((head, at)) => Seen {
                status: head.status,
                body: &self.read[at..at + head.length],
            },
            None => Seen { status: 0, body: &[] },
        }
    }

    /// The head of the reply, and the position of its body.
    async fn exchanged(&mut self, request: &[u8]) -> Option<(Head, usize)> {
        let was_open = self.stream.is_some();
        for _ in 0..=usize::from(was_open) {
            match timeout(self.patience, self.exchange(request)).await {
                Ok(Ok(answer)) => return Some(answer),
                Ok(Err(_)) => self.stream = None,
                Err(_) => {
                    self.stream = None;
                    break;
                }
            }
        }
        None
    }

    async fn exchange(&mut self, request: &[u8]) -> Result<(Head, usize)> {
        if self.stream.is_none() {
            let stream = TcpStream::connect(self.server).await?;
            stream.set_nodelay(true)?;
            self.stream = Some(stream);
        }
        let stream = self.stream.as_mut().context("no connection")?;
        stream.write_all(request).await?;
        self.read.clear();
        let (head, at) = loop {
            if stream.read_buf(&mut self.read).await? == 0 {
                bail!("closed");
            }
            if let Some(end) = self.read.windows(4).position(|it| it == b"\r\n\r\n") {
                break (parse(&self.read[..end])?, end + 4);
            }
            if self.read.len() > ANSWER_MAX {
                bail!("a head that does not end");
            }
        };
        while self.read.len() < at + head.length {
            if stream.read_buf(&mut self.read).await? == 0 {
                bail!("closed");
            }
        }
        Ok((head, at))
    }
}

fn write(request: &Request<'_>, server: SocketAddr, sent: &mut Vec<u8>) {
    let mut head = || -> std::io::Result<()> {
        let method = request.method.unwrap_or(if request.is_post { "POST" } else { "GET" });
        write!(
            sent,
            "{method} {} HTTP/1.1\r\nHost: {server}\r\nAuthorization: Bearer {}\r\n",
            request.path, request.bearer,
        )?;
        let headers = [
            ("X-Forwarded-For", Some(request.address).filter(|it| !it.is_empty())),
            ("Idempotency-Key", request.key),
            ("X-Purchase-Token", request.token),
            ("X-Admission", request.admission),
        ];
        for (name, value) in headers {
            if let Some(value) = value {
                write!(sent, "{name}: {value}\r\n")?;
            }
        }
        if request.is_post {
            let length = request.body.len();
            write!(sent, "Content-Type: application/json\r\nContent-Length: {length}\r\n")?;
        }
        Ok(())
    };
    // Writing to memory cannot fail.
    let _infallible = head();
    sent.extend_from_slice(b"\r\n");
    sent.extend_from_slice(request.body.as_bytes());
}

fn parse(head: &[u8]) -> Result<Head> {
    let text = std::str::from_utf8(head)?;
    let mut lines = text.split("\r\n");
    let status = lines.next().and_then(|line| line.split(' ').nth(1));
    let mut head = Head {
        status: status.context("no status")?.parse()?,
        ..Head::default()
    };
    for (name, value) in lines.filter_map(|line| line.split_once(':')) {
        if name.eq_ignore_ascii_case("content-length") {
            head.length = value.trim().parse()?;
        } else if name.eq_ignore_ascii_case("retry-after") {
            head.retry_after = value.trim().parse().ok();
        }
    }
    if head.length > ANSWER_MAX {
        bail!("an answer that is too long");
    }
    Ok(head)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_head_gives_status_length_and_how_long_to_wait() {
        let head = parse(b"HTTP/1.1 503 Service Unavailable\r\nretry-after: 2\r\nContent-Length: 17").unwrap();
        assert_eq!((head.status, head.length, head.retry_after), (503, 17, Some(2)));
        assert!(parse(b"HTTP/1.1").is_err());
        assert!(parse(b"HTTP/1.1 200 OK\r\ncontent-length: 99999999").is_err());
    }

    #[test]
    fn a_request_is_written_as_http_wants_it() {
        let request = Request {
            is_post: true,
            path: "/x".to_owned(),
            bearer: "b",
            key: Some("k"),
            body: "{}".to_owned(),
            ..Request::default()
        };
        let mut sent = Vec::new();
        write(&request, "127.0.0.1:80".parse().unwrap(), &mut sent);
        assert_eq!(
            String::from_utf8(sent).unwrap(),
            "POST /x HTTP/1.1\r\nHost: 127.0.0.1:80\r\nAuthorization: Bearer b\r\nIdempotency-Key: k\r\n\
             Content-Type: application/json\r\nContent-Length: 2\r\n\r\n{}"
        );
    }

    #[test]
    fn a_member_is_found_in_a_body() {
        let seen = Seen {
            status: 409,
            body: br#"{"title":"Sold out","status":409,"code":"sold_out"}"#,
        };
        assert_eq!(seen.text("\"code\":"), Some("sold_out"));
        assert_eq!(seen.text("\"id\":"), None);
    }
}
