//! Instances: each notes every second that it lives, and reads the notes of the others, with one pipeline. All notes of
//! one ledger are the hash `{instances:<ledger>}:notes`, by the instances' ids. It expires by itself. A crash leaves a
//! note that is out of date after [`LASTS`].
//!
//! A note is packed like a record ([`crate::stock::record`]):
//!
//! | bytes | field |
//! | --- | --- |
//! | 1 | version, 0 today |
//! | 6 | lives until, milliseconds; at this place in every version |
//! | 1 | roles; at this place in every version: 1 it runs the jobs, 2 it serves HTTP, 4 it renews permits |
//! | 34 a shard | 16 sale, 2 number (highest bit: braked), 4 hash of its server, 6 epoch and 6 number of its last event |

use crate::domain::deployment::server::Server;
use crate::domain::fault::Fault;
use crate::domain::ids::SaleId;
use crate::domain::order::event::Position;
use crate::domain::time::Millis;
use crate::stock::keys::ShardKey;
use crate::stock::record::Unpack;
use crate::stock::{Stock, clock, millis};
use siphasher::sip::SipHasher13;
use std::hash::Hasher as _;
use std::time::{Duration, Instant};
use uuid::Uuid;

/// How long a note lasts, in milliseconds: a little longer than three are apart.
const LASTS: Millis = 3_200;
/// How much longer a note may seem to last, in milliseconds: since the last note, its instance reckoned Redis's clock by
/// its own.
const RECKONED: Millis = 100;
/// How long Redis keeps the hash after the last note, in milliseconds.
const KEPT: Millis = 60_000;
/// How long an answer to a note shows that Redis answers. Notes are a second apart.
const FRESH: Duration = Duration::from_secs(2);
/// Shards in a note. Of further ones, the other instances do not learn the last event, and read the permits.
const SHARDS_MAX: usize = 4_000;

const VERSION: u8 = 0;
const WORKS: u8 = 1;
const SERVES: u8 = 2;
const RENEWS: u8 = 4;
const BRAKED: u16 = 1 << 15;
const HEAD: usize = 8;
const SHARD: usize = 34;

/// What an instance lets the others know.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InstanceNote {
    pub id: Uuid,
    /// Whether it runs the jobs.
    pub works: bool,
    /// Whether it serves HTTP.
    pub serves: bool,
    /// Whether it knows every shard as reconciled, so that it can renew all permits.
    pub renews: bool,
    /// The shards whose permits it has just renewed.
    pub sightings: Vec<Sighting>,
}

/// The note of another instance that lives.
#[derive(Debug, PartialEq, Eq)]
pub struct LiveNote {
    pub note: InstanceNote,
    /// How long ago it was written.
    pub age: Duration,
}

/// What an instance saw of a shard.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sighting {
    pub shard: ShardKey,
    /// Whether its brake held.
    pub brake: bool,
    /// The last event that it wrote.
    pub last: Position,
    /// A hash of the name of the server where it saw that.
    server: u32,
}

impl Sighting {
    pub fn new(shard: ShardKey, server: &Server, last: Position, brake: bool) -> Self {
        Self {
            shard,
            brake,
            last,
            server: short(server),
        }
    }

    /// Whether the shard was on this server.
    pub fn is_on(&self, server: &Server) -> bool {
        self.server == short(server)
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let mut bytes = Unpack(bytes);
        let sale = SaleId(Uuid::from_slice(bytes.take(16)?).ok()?);
        let number = u16::try_from(bytes.number(2)?).ok()?;
        let server = u32::try_from(bytes.number(4)?).ok()?;
        let (epoch, seq) = (bytes.number(6)?, bytes.number(6)?);
        Some(Self {
            shard: ShardKey::new(sale, number & !BRAKED),
            brake: number & BRAKED != 0,
            last: Position { epoch, seq },
            server,
        })
    }

    fn encode(&self, to: &mut Vec<u8>) {
        to.extend_from_slice(self.shard.sale.0.as_bytes());
        let brake = if self.brake { BRAKED } else { 0 };
        to.extend_from_slice(&(self.shard.shard | brake).to_be_bytes());
        to.extend_from_slice(&self.server.to_be_bytes());
        to.extend_from_slice(&self.last.epoch.to_be_bytes()[2..]);
        to.extend_from_slice(&self.last.seq.to_be_bytes()[2..]);
    }
}

fn short(server: &Server) -> u32 {
    let mut hasher = SipHasher13::new();
    hasher.write(server.as_str().as_bytes());
    let [a, b, c, d, ..] = hasher.finish().to_be_bytes();
    u32::from_be_bytes([a, b, c, d])
}

impl InstanceNote {
    fn encode(&self, until: Millis) -> Vec<u8> {
        let roles = [(self.works, WORKS), (self.serves, SERVES), (self.renews, RENEWS)];
        let roles = roles
            .into_iter()
            .filter(|(has, _)| *has)
            .fold(0, |all, (_, role)| all | role);
        let mut note = Vec::with_capacity(HEAD + SHARD * self.sightings.len());
        note.push(VERSION);
        note.extend_from_slice(&until.to_be_bytes()[2..]);
        note.push(roles);
        let known = self.sightings.iter().take(SHARDS_MAX);
        known.for_each(|sighting| sighting.encode(&mut note));
        note
    }

    /// `None` if the note is out of date, or no note. A note from before the clock was set back is out of date, too.
    fn decode(id: &str, note: &[u8], now: Millis) -> Option<LiveNote> {
        let (head, shards) = note.split_at_checked(HEAD)?;
        let [version, until @ .., roles] = head else {
            return None;
        };
        let until = Unpack(until).number(6)?;
        if until <= now || until > now + LASTS + RECKONED {
            return None;
        }
        let shards = if *version == VERSION { shards } else { &[] };
        let note = Self {
            id: id.parse().ok()?,
            works: roles & WORKS != 0,
            serves: roles & SERVES != 0,
            renews: roles & RENEWS != 0,
            sightings: shards.chunks_exact(SHARD).filter_map(Sighting::decode).collect(),
        };
        let age = u64::try_from(now + LASTS - until).unwrap_or_default();
        let age = Duration::from_millis(age);
        Some(LiveNote { note, age })
    }
}

/// What an instance keeps of a note for the next one; nothing before the first, and after one that failed.
#[derive(Debug, Default)]
pub struct LastNote {
    /// Redis's clock, and when that was read.
    clock: Option<(Millis, Instant)>,
    /// How long Redis took to answer; none on a cluster, of which a note asks one server.
    took: Option<Duration>,
    /// The ids of notes that were out of date.
    old: Vec<String>,
}

impl LastNote {
    /// How long Redis took for its last answer, if that was a moment ago; none on a cluster.
    pub fn took(&self) -> Option<Duration> {
        let (_, read) = self.clock?;
        self.took.filter(|_| read.elapsed() < FRESH)
    }
}

/// Encoded notes, each under its instance's id.
type Notes = Vec<(String, Vec<u8>)>;

fn key(ledger: &str) -> String {
    format!("{{instances:{ledger}}}:notes")
}

impl Stock {
    /// Notes that an instance of this ledger lives. Returns the notes of the others that live, and what the next call
    /// needs. That one removes the notes that were out of date. If an instance comes back meanwhile, the others learn it
    /// with its next note.
    ///
    /// The last note tells the clock. If that has jumped since, as in a failover, notes may be void for two rounds.
    pub async fn note_instance(
        &self,
        ledger: &str,
        own: &InstanceNote,
        last: LastNote,
    ) -> Result<(Vec<LiveNote>, LastNote), Fault> {
        let (key, id) = (key(ledger), own.id.to_string());
        let (then, read) = match last.clock {
            Some(known) => known,
            None => {
                let time = self.link.ask_server_of(&key, &redis::cmd("TIME")).await;
                (clock(self.noted(time)?), Instant::now())
            }
        };
        let until = then.saturating_add_unsigned(millis(read.elapsed())) + LASTS;
        let mut note = redis::pipe();
        if !last.old.is_empty() {
            note.cmd("HDEL").arg(&key).arg(&last.old).ignore();
        }
        note.cmd("HSET").arg(&key).arg(&id).arg(own.encode(until)).ignore();
        note.cmd("PEXPIRE").arg(&key).arg(KEPT).ignore();
        note.cmd("TIME").cmd("HGETALL").arg(&key);
        let asked = Instant::now();
        let (time, notes): ((i64, i64), Notes) = self.noted(self.link.ask_together(note).await)?;
        let (read, took) = (Instant::now(), asked.elapsed());
        let now = clock(time);
        let (mut others, mut old) = (Vec::new(), Vec::new());
        for (other, note) in notes.into_iter().filter(|(other, _)| *other != id) {
            match InstanceNote::decode(&other, &note, now) {
                Some(note) => others.push(note),
                None => old.push(other),
            }
        }
        let last = LastNote {
            clock: Some((now, read)),
            took: (!self.link.is_cluster()).then_some(took),
            old,
        };
        Ok((others, last))
    }

    /// Removes the note of an instance that ends.
    pub async fn forget_instance(&self, ledger: &str, id: Uuid) -> Result<(), Fault> {
        let mut forget = redis::cmd("HDEL");
        forget.arg(key(ledger)).arg(id.to_string());
        self.command::<i64>(&forget).await.map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn note() -> InstanceNote {
        let shard = ShardKey::new(SaleId(Uuid::from_u128(7)), 513);
        let last = Position { epoch: 3, seq: 70_000 };
        InstanceNote {
            id: Uuid::from_u128(9),
            works: true,
            serves: false,
            renews: true,
            sightings: vec![
                Sighting::new(shard, &"r1-aa-00".into(), last, false),
                Sighting::new(shard, &"r2-bb-aa".into(), last, true),
            ],
        }
    }

    #[test]
    fn a_note_is_read_as_it_was_written_until_it_is_out_of_date() {
        let (note, id) = (note(), Uuid::from_u128(9).to_string());
        let written = note.encode(1_000 + LASTS);
        for (now, age) in [(950, 0), (1_000, 0), (3_000, 2_000)] {
            let (note, age) = (note.clone(), Duration::from_millis(age));
            assert_eq!(InstanceNote::decode(&id, &written, now), Some(LiveNote { note, age }));
        }
        assert!(note.sightings[0].is_on(&"r1-aa-00".into()) && !note.sightings[1].is_on(&"r1-aa-00".into()));
        let begins = 1_000 - RECKONED;
        for (now, lives) in [
            (begins - 1, false),
            (begins, true),
            (1_000 + LASTS - 1, true),
            (1_000 + LASTS, false),
        ] {
            assert_eq!(InstanceNote::decode(&id, &written, now).is_some(), lives, "{now}");
        }
        for wrong in [&b""[..], b"\0", &written[..HEAD - 1]] {
            assert_eq!(InstanceNote::decode(&id, wrong, 1_000), None);
        }
        assert_eq!(InstanceNote::decode("somebody", &written, 1_000), None);
    }

    #[test]
    fn an_instance_of_a_newer_version_lives_as_well() {
        let mut written = note().encode(1_000 + LASTS);
        written[0] = 1;
        let read = InstanceNote::decode(&Uuid::nil().to_string(), &written, 1_000).unwrap();
        assert!(read.note.works && read.note.sightings.is_empty());
    }
}
