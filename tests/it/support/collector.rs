//! A collector of traces, as an exporter sees it.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpListener;
use std::sync::mpsc::{self, Receiver};
use std::thread;

/// The head and the body of each request.
pub type Sent = Receiver<(String, Vec<u8>)>;

/// A collector of traces: its requests, on a thread that ends with the test.
pub fn collector() -> (String, Sent) {
    collector_answering("HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n".to_owned())
}

/// The same with another answer.
pub fn collector_answering(answer: String) -> (String, Sent) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let (sent, received) = mpsc::channel();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = BufReader::new(stream.unwrap());
            // A connection is used for one batch after the other.
            loop {
                let (mut head, mut length) = (String::new(), 0);
                while !head.ends_with("\r\n\r\n") {
                    if stream.read_line(&mut head).unwrap_or_default() == 0 {
                        break;
                    }
                }
                if head.is_empty() {
                    break;
                }
                for line in head.lines() {
                    if let Some((name, value)) = line.split_once(": ")
                        && name.eq_ignore_ascii_case("content-length")
                    {
                        length = value.parse().unwrap();
                    }
                }
                let mut body = vec![0; length];
                stream.read_exact(&mut body).unwrap();
                // Stored before the answer: a client may end right after it, and then the test reads.
                if sent.send((head, body)).is_err() {
                    return;
                }
                stream.get_mut().write_all(answer.as_bytes()).unwrap();
            }
        }
    });
    (url, received)
}
