//! A server for tests of the commands. It gives prepared answers in turn and keeps the requests.

use super::client::Client;
use crate::http::admin::live_sample;
use serde_json::Value;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpListener;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use ureq::tls::TlsConfig;

/// Listens until the test process ends.
pub struct MockServer {
    url: String,
    requests: Arc<Mutex<Vec<String>>>,
}

impl MockServer {
    /// Answers each connection once, with the next status and body. The last answer is repeated without end.
    pub fn answering(answers: &[(u16, &str)]) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let requests = Arc::new(Mutex::new(Vec::new()));
        let answers: Vec<(u16, String)> = answers
            .iter()
            .map(|(status, body)| (*status, (*body).to_owned()))
            .collect();
        let seen = Arc::clone(&requests);
        std::thread::spawn(move || {
            for turn in 0.. {
                let Ok((mut stream, _)) = listener.accept() else { return };
                let mut reader = BufReader::new(stream.try_clone().unwrap());
                let mut request = String::new();
                while reader.read_line(&mut request).unwrap() > 2 {}
                let length = request.lines().find_map(|line| {
                    line.to_lowercase()
                        .strip_prefix("content-length: ")?
                        .parse::<usize>()
                        .ok()
                });
                let mut body = vec![0; length.unwrap_or(0)];
                reader.read_exact(&mut body).unwrap();
                request.push_str(&String::from_utf8(body).unwrap());
                seen.lock().unwrap().push(request);
                let (status, body) = &answers[turn.min(answers.len() - 1)];
                write!(
                    stream,
                    "HTTP/1.1 {status} X\r\netag: \"v1\"\r\nconnection: close\r\n\
                     content-length: {}\r\n\r\n{body}",
                    body.len()
                )
                .unwrap();
            }
        });
        Self { url, requests }
    }

    /// A client with a key.
    pub fn client(&self) -> Client {
        Client::new(
            TlsConfig::default(),
            &self.url,
            Some("key".to_owned()),
            Duration::from_secs(2),
        )
        .unwrap()
    }

    pub fn url(&self) -> &str {
        &self.url
    }

    /// The requests in order, each with head and body.
    pub fn requests(&self) -> Vec<String> {
        self.requests.lock().unwrap().clone()
    }
}

/// A live sample with other values at these JSON pointers.
pub fn live_sample(changes: &[(&str, Value)]) -> Value {
    let mut sample = live_sample::example();
    for (pointer, value) in changes {
        *sample.pointer_mut(pointer).unwrap() = value.clone();
    }
    sample
}
