//! A Redis client without a library. It pipelines many commands over a few connections, as `redis-benchmark` does. All
//! commands are encoded before the clock starts, because the server is under test and not the client.

use anyhow::{Context as _, Result, bail};
use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};
use tokio_util::sync::CancellationToken;

/// Connections, and with [`DEPTH`] enough commands under way that the server always has work.
pub const CONNECTIONS: usize = 16;
/// Commands under way on each connection.
pub const DEPTH: usize = 32;
/// The time limit for a reply.
const ANSWER_MAX: Duration = Duration::from_secs(30);

/// Encoded commands.
#[derive(Default)]
pub struct Commands {
    bytes: Vec<u8>,
    ends: Vec<usize>,
}

impl Commands {
    pub fn add(&mut self, words: &[&[u8]]) {
        encode(words, &mut self.bytes);
        self.ends.push(self.bytes.len());
    }

    pub fn count(&self) -> usize {
        self.ends.len()
    }

    /// The bytes of the commands from one number to before another.
    fn slice(&self, from: usize, to: usize) -> &[u8] {
        let start = from.checked_sub(1).and_then(|it| self.ends.get(it)).copied();
        let end = to.checked_sub(1).and_then(|it| self.ends.get(it)).copied();
        self.bytes
            .get(start.unwrap_or_default()..end.unwrap_or_default())
            .unwrap_or_default()
    }
}

fn encode(words: &[&[u8]], bytes: &mut Vec<u8>) {
    bytes.extend_from_slice(format!("*{}\r\n", words.len()).as_bytes());
    for word in words {
        bytes.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
        bytes.extend_from_slice(word);
        bytes.extend_from_slice(b"\r\n");
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reply {
    Status(String),
    Error(String),
    Number(i64),
    Bulk(Option<Vec<u8>>),
    Array(Vec<Reply>),
}

impl Reply {
    /// The text of the reply. Fails when the reply is no text.
    pub fn text(self) -> Result<String> {
        match self {
            Self::Bulk(Some(bytes)) => Ok(String::from_utf8_lossy(&bytes).into_owned()),
            Self::Status(text) => Ok(text),
            other => bail!("Redis answered {other:?} where a text belongs"),
        }
    }
}

/// The reply at the start of the bytes and its length; `None` if it is incomplete.
fn reply(bytes: &[u8]) -> Result<Option<(Reply, usize)>> {
    let Some(end) = bytes.windows(2).position(|it| it == b"\r\n") else {
        return Ok(None);
    };
    let (kind, text) = bytes[..end].split_first().context("Redis answered an empty line")?;
    let text = String::from_utf8_lossy(text).into_owned();
    let at = end + 2;
    let number = || {
        text.parse::<i64>()
            .with_context(|| format!("Redis answered {text} for a number"))
    };
    Ok(Some(match kind {
        b'+' => (Reply::Status(text), at),
        b'-' => (Reply::Error(text), at),
        b':' => (Reply::Number(number()?), at),
        b'$' => match usize::try_from(number()?) {
            Err(_) => (Reply::Bulk(None), at),
            Ok(length) => match bytes.get(at..at + length + 2) {
                Some(value) => (Reply::Bulk(Some(value[..length].to_vec())), at + length + 2),
                None => return Ok(None),
            },
        },
        b'*' => {
            let mut at = at;
            let mut replies = Vec::new();
            for _ in 0..number()?.max(0) {
                let Some((one, length)) = reply(&bytes[at..])? else {
                    return Ok(None);
                };
                replies.push(one);
                at += length;
            }
            (Reply::Array(replies), at)
        }
        other => bail!("Redis answered something that begins with {other}"),
    }))
}

pub struct Resp {
    stream: UnixStream,
    read: Vec<u8>,
}

impl Resp {
    /// Connects to the server at this Unix socket.
    pub fn connect(socket: &Path) -> Result<Self> {
        let stream = UnixStream::connect(socket).context("Redis cannot be reached")?;
        stream.set_read_timeout(Some(ANSWER_MAX))?;
        stream.set_write_timeout(Some(ANSWER_MAX))?;
        Ok(Self {
            stream,
            read: Vec::with_capacity(1 << 16),
        })
    }

    /// Sends one command and waits for its reply. Fails without a reply, and when the reply is an error.
    pub fn call(&mut self, words: &[&str]) -> Result<Reply> {
        let words: Vec<&[u8]> = words.iter().map(|word| word.as_bytes()).collect();
        let mut command = Commands::default();
        command.add(&words);
        self.stream.write_all(&command.bytes)?;
        match self.next()? {
            Reply::Error(text) => bail!("Redis answered: {text}"),
            reply => Ok(reply),
        }
    }

    /// Sends a command whose reply is a number.
    pub fn number(&mut self, words: &[&str]) -> Result<i64> {
        match self.call(words)? {
            Reply::Number(number) => Ok(number),
            other => bail!("Redis answered {other:?} where a number belongs"),
        }
    }

    /// One field of a section of `INFO`.
    pub fn info(&mut self, section: &str, field: &str) -> Result<String> {
        let text = self.call(&["INFO", section])?.text()?;
        let line = text
            .lines()
            .find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
        Ok(line
            .with_context(|| format!("INFO {section} has no {field}"))?
            .to_owned())
    }

    pub fn memory(&mut self) -> Result<f64> {
        Ok(self.info("memory", "used_memory")?.parse()?)
    }

    fn next(&mut self) -> Result<Reply> {
        loop {
            if let Some((reply, length)) = reply(&self.read)? {
                self.read.drain(..length);
                return Ok(reply);
            }
            self.fill()?;
        }
    }

    fn fill(&mut self) -> Result<()> {
        let mut chunk = [0; 1 << 14];
        let length = self.stream.read(&mut chunk).context("Redis does not answer")?;
        if length == 0 {
            bail!("Redis closed the connection");
        }
        self.read.extend_from_slice(&chunk[..length]);
        Ok(())
    }

    /// Reads this many replies, and counts the good ones.
    fn skip(&mut self, count: usize, is_good: fn(&Reply) -> bool) -> Result<usize> {
        let (mut good, mut left, mut at) = (0, count, 0);
        while left > 0 {
            match reply(self.read.get(at..).unwrap_or_default())? {
                Some((reply, length)) => {
                    good += usize::from(is_good(&reply));
                    left -= 1;
                    at += length;
                }
                None => {
                    self.read.drain(..at);
                    at = 0;
                    self.fill()?;
                }
            }
        }
        self.read.drain(..at);
        Ok(good)
    }
}

/// The result of [`run`].
#[derive(Debug, Clone, Copy)]
pub struct Ran {
    pub good: usize,
    pub all: usize,
    /// From the first command to the last reply.
    pub seconds: f64,
}

impl Ran {
    /// Fails unless every reply was good.
    pub fn check(self, what: &str) -> Result<Self> {
        if self.good < self.all {
            bail!("{} of {} {what} were refused", self.all - self.good, self.all);
        }
        Ok(self)
    }
}

/// Sends all commands over [`CONNECTIONS`] connections, with [`DEPTH`] under way on each. Fails when Redis does not
/// reply, and when the run is interrupted.
pub fn run(socket: &Path, commands: &Commands, is_good: fn(&Reply) -> bool, stop: &CancellationToken) -> Result<Ran> {
    let mut connections = Vec::with_capacity(CONNECTIONS);
    for _ in 0..CONNECTIONS {
        // The number is the commands under way.
        connections.push((Resp::connect(socket)?, 0));
    }
    let all = commands.count();
    let (mut sent, mut answered, mut good) = (0, 0, 0);
    let began = Instant::now();
    while answered < all {
        if stop.is_cancelled() {
            bail!(super::INTERRUPTED);
        }
        for (connection, under_way) in &mut connections {
            if *under_way > 0 {
                good += connection.skip(*under_way, is_good)?;
                answered += *under_way;
            }
            *under_way = DEPTH.min(all - sent);
            if *under_way > 0 {
                connection.stream.write_all(commands.slice(sent, sent + *under_way))?;
                sent += *under_way;
            }
        }
    }
    Ok(Ran {
        good,
        all,
        seconds: began.elapsed().as_secs_f64(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replies_are_read_when_they_are_whole() {
        assert_eq!(reply(b"+OK\r\n").unwrap(), Some((Reply::Status("OK".to_owned()), 5)));
        assert_eq!(reply(b":-7\r\n").unwrap(), Some((Reply::Number(-7), 5)));
        assert_eq!(reply(b"$-1\r\n").unwrap(), Some((Reply::Bulk(None), 5)));
        assert_eq!(reply(b"$3\r\na\r\n").unwrap(), None);
        assert_eq!(
            reply(b"$3\r\na\r\n\r\n+").unwrap(),
            Some((Reply::Bulk(Some(b"a\r\n".to_vec())), 9))
        );
        let array = Reply::Array(vec![Reply::Bulk(Some(b"SHORT".to_vec())), Reply::Number(0)]);
        assert_eq!(reply(b"*2\r\n$5\r\nSHORT\r\n:0\r\n").unwrap(), Some((array, 19)));
        assert_eq!(reply(b"*2\r\n$5\r\nSHORT\r\n").unwrap(), None);
        assert!(reply(b"?\r\n").is_err());
    }

    #[test]
    fn commands_are_cut_out_by_their_numbers() {
        let mut commands = Commands::default();
        commands.add(&[b"GET", b"a"]);
        commands.add(&[b"DEL", b"bc"]);
        assert_eq!(commands.slice(0, 1), b"*2\r\n$3\r\nGET\r\n$1\r\na\r\n");
        assert_eq!(commands.slice(1, 2), b"*2\r\n$3\r\nDEL\r\n$2\r\nbc\r\n");
        assert_eq!(commands.slice(0, 2).len(), commands.bytes.len());
        assert!(commands.slice(2, 2).is_empty());
    }
}
