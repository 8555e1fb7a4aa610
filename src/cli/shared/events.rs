//! Server-sent events, as far as the API uses them. Events are read one at a time, each with a bound on its size.

use super::output::one_line;
use std::io::{BufRead, BufReader, Error, Read, Result};

/// One event: the lines up to an empty line.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Event {
    /// The id to resume after, as `Last-Event-ID`.
    pub id: Option<String>,
    /// The kind of the event.
    pub name: Option<String>,
    /// The payload; empty in a keep-alive.
    pub data: String,
}

/// An endless stream of events, each of so many bytes at most: a wrong address may send without end.
pub struct EventStream<R> {
    stream: BufReader<R>,
    event_bytes_max: u64,
}

impl<R: Read> EventStream<R> {
    pub fn of(stream: R, event_bytes_max: u64) -> Self {
        let stream = BufReader::new(stream);
        Self {
            stream,
            event_bytes_max,
        }
    }

    /// The next event, or why there is none.
    pub fn next_event(&mut self) -> std::result::Result<Event, String> {
        match read_event(&mut self.stream, self.event_bytes_max) {
            Ok(Some(event)) => Ok(event),
            Ok(None) => Err("the stream has ended".to_owned()),
            Err(error) => Err(format!("the stream broke off: {}", one_line(&error.to_string()))),
        }
    }
}

/// Reads the next event, of at most `max` bytes; `None` at the end of the stream, even inside an event.
fn read_event(stream: &mut impl BufRead, max: u64) -> Result<Option<Event>> {
    let mut event = Event::default();
    let mut stream = stream.take(max);
    loop {
        let mut line = String::new();
        stream.read_line(&mut line)?;
        let Some(line) = line.strip_suffix('\n') else {
            return if stream.limit() == 0 {
                Err(Error::other("an event is too long to be one of this API"))
            } else {
                Ok(None)
            };
        };
        let line = line.trim_end_matches('\r');
        if line.is_empty() {
            return Ok(Some(event));
        }
        let (field, value) = line.split_once(':').unwrap_or((line, ""));
        let value = value.strip_prefix(' ').unwrap_or(value);
        match field {
            "id" => event.id = Some(value.to_owned()),
            "event" => event.name = Some(value.to_owned()),
            "data" => event.data.push_str(value),
            // Comments and `retry`.
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_read_whatever_lies_between_them() {
        let text = "retry: 2000\nid: 7\n\n:\n\nid: 8\r\nevent: alert\r\ndata: {\"a\":1}\r\n\r\nid: 9\ndata: half";
        let mut stream = text.as_bytes();
        let event = |id: Option<&str>, name: Option<&str>, data: &str| Event {
            id: id.map(str::to_owned),
            name: name.map(str::to_owned),
            data: data.to_owned(),
        };
        let mut next = || read_event(&mut stream, 1000).unwrap();
        assert_eq!(next(), Some(event(Some("7"), None, "")));
        assert_eq!(next(), Some(event(None, None, "")));
        assert_eq!(next(), Some(event(Some("8"), Some("alert"), "{\"a\":1}")));
        assert_eq!(next(), None);
        let endless = format!("data: {}", "x".repeat(100_000));
        assert!(read_event(&mut endless.as_bytes(), 1000).is_err());
    }
}
