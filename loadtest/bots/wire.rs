//! HTTP/1.1 over one kept connection at a time: the generator shares the processors with what it measures, so it does
//! no more than it must.

use anyhow::{Context as _, Result, bail};
use serde::Deserialize;
use std::net::SocketAddr;
use std::time::Duration;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;

/// An answer is waited for as long as this.
const PATIENCE: Duration = Duration::from_secs(15);
/// No answer of the API is longer.
const ANSWER_MAX: usize = 1 << 20;

/// What is asked.
#[derive(Clone, Default)]
pub struct Request<'a> {
    pub is_post: bool,
    /// Another method than `GET` and `POST`.
    pub method: Option<&'a str>,
    pub path: String,
    /// The bearer.
    pub bearer: &'a str,
    /// Whose address the proxy names.
    pub address: &'a str,
    pub key: Option<&'a str>,
    pub token: Option<&'a str>,
    pub admission: Option<&'a str>,
    pub body: String,
}

/// What came back.
#[derive(Debug, Clone, Default)]
pub struct Answer {
    /// 0 when there was none.
    pub status: u16,
    pub retry_after: Option<u64>,
    pub body: Vec<u8>,
}

/// What an answer may say, as far as a client looks.
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
    /// The body, read.
    pub fn said(&self) -> Said {
        serde_json::from_slice(&self.body).unwrap_or_default()
    }

    /// How it is counted: by status and code, and what was limited where that has one code for several guards.
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

/// A connection that is opened when it is needed, and again when it has been closed.
pub struct Wire {
    server: SocketAddr,
    stream: Option<TcpStream>,
    sent: Vec<u8>,
    read: Vec<u8>,
}

impl Wire {
    pub fn to(server: SocketAddr) -> Self {
        Self {
            server,
            stream: None,
            sent: Vec::with_capacity(1024),
            read: Vec::with_capacity(2048),
        }
    }

    /// Asks, and once more over a new connection if an idle one was closed meanwhile.
    pub async fn ask(&mut self, request: &Request<'_>) -> Answer {
        let was_open = self.stream.is_some();
        for _ in 0..=usize::from(was_open) {
            match timeout(PATIENCE, self.exchange(request)).await {
                Ok(Ok(answer)) => return answer,
                Ok(Err(_)) => self.stream = None,
                Err(_) => {
                    self.stream = None;
                    break;
                }
            }
        }
        Answer::default()
    }

    fn write(&mut self, request: &Request<'_>) {
        let mut head = format!(
            "{} {} HTTP/1.1\r\nHost: {}\r\nAuthorization: Bearer {}\r\n",
            request.method.unwrap_or(if request.is_post { "POST" } else { "GET" }),
            request.path,
            self.server,
            request.bearer,
        );
        let headers = [
            ("X-Forwarded-For", Some(request.address).filter(|it| !it.is_empty())),
            ("Idempotency-Key", request.key),
            ("X-Purchase-Token", request.token),
            ("X-Admission", request.admission),
        ];
        for (name, value) in headers {
            if let Some(value) = value {
                head.push_str(&format!("{name}: {value}\r\n"));
            }
        }
        if request.is_post {
            head.push_str(&format!(
                "Content-Type: application/json\r\nContent-Length: {}\r\n",
                request.body.len()
            ));
        }
        self.sent.clear();
        self.sent.extend_from_slice(head.as_bytes());
        self.sent.extend_from_slice(b"\r\n");
        self.sent.extend_from_slice(request.body.as_bytes());
    }

    async fn exchange(&mut self, request: &Request<'_>) -> Result<Answer> {
        if self.stream.is_none() {
            let stream = TcpStream::connect(self.server).await?;
            stream.set_nodelay(true)?;
            self.stream = Some(stream);
        }
        self.write(request);
        let stream = self.stream.as_mut().context("no connection")?;
        stream.write_all(&self.sent).await?;
        self.read.clear();
        let (head, mut answer, length) = loop {
            if stream.read_buf(&mut self.read).await? == 0 {
                bail!("closed");
            }
            if let Some(head) = self.read.windows(4).position(|it| it == b"\r\n\r\n") {
                let (answer, length) = parse(&self.read[..head])?;
                break (head + 4, answer, length);
            }
            if self.read.len() > ANSWER_MAX {
                bail!("a head that does not end");
            }
        };
        while self.read.len() < head + length {
            if stream.read_buf(&mut self.read).await? == 0 {
                bail!("closed");
            }
        }
        answer.body = self.read[head..head + length].to_vec();
        Ok(answer)
    }
}

fn parse(head: &[u8]) -> Result<(Answer, usize)> {
    let head = std::str::from_utf8(head)?;
    let mut lines = head.split("\r\n");
    let status = lines.next().and_then(|line| line.split(' ').nth(1));
    let mut answer = Answer {
        status: status.context("no status")?.parse()?,
        ..Answer::default()
    };
    let mut length = 0;
    for (name, value) in lines.filter_map(|line| line.split_once(':')) {
        if name.eq_ignore_ascii_case("content-length") {
            length = value.trim().parse()?;
        } else if name.eq_ignore_ascii_case("retry-after") {
            answer.retry_after = value.trim().parse().ok();
        }
    }
    if length > ANSWER_MAX {
        bail!("an answer that is too long");
    }
    Ok((answer, length))
}
