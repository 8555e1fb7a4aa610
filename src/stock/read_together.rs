//! Reads keys of many shards in few commands: what a server has, in one go.

use super::keys::ShardKey;
use super::script::PURCHASE;
use super::{Stock, bounded, clock};
use crate::domain::fault::Fault;
use crate::domain::time::Millis;
use futures_util::StreamExt as _;
use futures_util::future::join_all;
use futures_util::stream::FuturesUnordered;
use redis::{Pipeline, from_redis_value};

/// Keys of one shard.
#[derive(Debug)]
pub(super) struct Wanted {
    pub(super) shard: ShardKey,
    pub(super) keys: Vec<String>,
}

/// The values of a shard's keys, all of one moment.
#[derive(Debug)]
pub(super) struct Reading {
    pub(super) values: Vec<Option<Vec<u8>>>,
    /// Whether the server has the script that sells. An admitted server has no permits but those of shards that were
    /// reconciled on it.
    pub(super) is_admitted: bool,
    /// The server's clock after the values were read. A permit that holds by it held at that moment.
    pub(super) now: Millis,
}

/// Readings, each with its place in what was wanted.
pub(super) type Readings = Vec<(usize, Result<Reading, Fault>)>;

/// Whether the script exists, the values, and the time.
type Answers = (Vec<bool>, Vec<Option<Vec<u8>>>, (i64, i64));

impl Stock {
    /// Whether [`Stock::survey`] reads all shards at one moment. The nodes of a cluster are read each at its own.
    pub const fn reads_one_moment(&self) -> bool {
        !self.link.is_cluster()
    }

    /// Reads what is wanted, from each server by itself.
    pub(super) async fn read_together<'a>(
        &'a self,
        wanted: &'a [Wanted],
    ) -> FuturesUnordered<impl Future<Output = Readings> + use<'a>> {
        // All keys of a shard are in one slot.
        let keys = wanted.iter().map(|it| it.keys.first().map_or("", String::as_str));
        let keys: Vec<&str> = keys.collect();
        let groups = self.link.groups(&keys).await.into_iter();
        groups.map(|group| self.read_group(wanted, group)).collect()
    }

    /// Like [`Stock::read_together`], once every server has answered, in the order of what was wanted.
    pub(super) async fn read_all_together(&self, wanted: &[Wanted]) -> Vec<Result<Reading, Fault>> {
        let mut readings: Readings = self.read_together(wanted).await.concat().await;
        readings.sort_unstable_by_key(|(at, _)| *at);
        readings.into_iter().map(|(_, reading)| reading).collect()
    }

    /// Reads what one server has.
    async fn read_group(&self, wanted: &[Wanted], group: Vec<usize>) -> Readings {
        let them: Vec<&Wanted> = group.iter().filter_map(|at| wanted.get(*at)).collect();
        let readings = if self.reads_one_moment() {
            self.read_at_once(&them).await
        } else {
            self.read_node(&them).await
        };
        group.into_iter().zip(readings).collect()
    }

    /// One command reads all values, so that nothing changes between two of them.
    async fn read_at_once(&self, them: &[&Wanted]) -> Vec<Result<Reading, Fault>> {
        let keys = them.iter().flat_map(|it| &it.keys);
        let answers = self.link.ask_together(pipeline([keys])).await;
        match self.noted::<Answers>(answers) {
            Ok((exist, values, time)) => {
                let mut values = values.into_iter();
                let mut next = |it: &&Wanted| values.by_ref().take(it.keys.len()).collect();
                them.iter().map(|it| Ok(Reading::of(next(it), &exist, time))).collect()
            }
            Err(fault) => them.iter().map(|_| Err(fault.clone())).collect(),
        }
    }

    /// One pipeline for a node of a cluster. What it does not have is read by itself, and follows its slot.
    async fn read_node(&self, them: &[&Wanted]) -> Vec<Result<Reading, Fault>> {
        let Some(first) = them.first() else { return Vec::new() };
        let pipeline = pipeline(them.iter().map(|it| &it.keys));
        let key = first.shard.shard();
        let answers = self.noted(bounded(self.link.ask_node_of(&key, &pipeline)).await);
        let mut answers = answers.unwrap_or_default().into_iter();
        let exist = answers.next().and_then(|it| from_redis_value::<Vec<bool>>(it).ok());
        let time = answers
            .next_back()
            .and_then(|it| from_redis_value::<(i64, i64)>(it).ok());
        let readings = them.iter().map(|it| {
            let values = answers.next().and_then(|value| from_redis_value(value).ok());
            let reading = exist.as_ref().zip(time).zip(values);
            let reading = reading.map(|((exist, time), values)| Reading::of(values, exist, time));
            async move {
                match reading {
                    Some(reading) => Ok(reading),
                    None => self.read_alone(it).await,
                }
            }
        });
        join_all(readings).await
    }

    async fn read_alone(&self, it: &Wanted) -> Result<Reading, Fault> {
        let answers = self.link.ask_together(pipeline([&it.keys])).await;
        let (exist, values, time) = self.noted::<Answers>(answers)?;
        Ok(Reading::of(values, &exist, time))
    }
}

impl Reading {
    fn of(values: Vec<Option<Vec<u8>>>, exist: &[bool], time: (i64, i64)) -> Self {
        Self {
            values,
            is_admitted: exist.first() == Some(&true),
            now: clock(time),
        }
    }
}

/// Reads each of these lists of keys with one command, after the scripts and before the clock.
fn pipeline<'a, Keys: IntoIterator<Item = &'a String>>(lists: impl IntoIterator<Item = Keys>) -> Pipeline {
    let mut pipeline = redis::pipe();
    pipeline.cmd("SCRIPT").arg("EXISTS").arg(PURCHASE.get_hash());
    for keys in lists {
        pipeline.cmd("MGET");
        keys.into_iter().for_each(|key| _ = pipeline.arg(key));
    }
    pipeline.cmd("TIME");
    pipeline
}
