//! Compares the cost of a purchase on one Redis with the cost on a cluster of three primaries on this machine.

use super::stage::{Cost, Stage};
use crate::machine::processor_seconds_of;
use crate::numbers::{median_of, ratio};
use crate::resp::Resp;
use crate::shoppers::Purchase;
use crate::world::{OwnRedis, Plan, Terms, free_port};
use anyhow::{Context as _, Result, bail};
use flashsale::domain::sale::Sale;
use flashsale::stock::keys::ShardKey;
use serde::Serialize;
use std::time::Duration;

const SLOTS: [(&str, &str); 3] = [("0", "5460"), ("5461", "10922"), ("10923", "16383")];
/// Shards of the sale, on the cluster and on one Redis: four for each primary.
pub(super) const SHARDS: u16 = 12;
/// The time limit for draining the ledger's backlog.
const DRAIN_MAX: Duration = Duration::from_secs(120);
/// The time limit for the nodes to form a cluster.
const MEET_MAX: Duration = Duration::from_secs(30);

#[derive(Clone, Debug, Serialize)]
pub(super) struct OnCluster {
    pub(super) primaries: usize,
    pub(super) cost: Cost,
    /// The busiest primary's share of all Redis processor time.
    pub(super) busiest: Option<f64>,
}

impl OnCluster {
    /// The medians of the rounds, if there are any.
    pub(super) fn middle(rounds: &[Self]) -> Option<Self> {
        let first = rounds.first()?;
        let costs: Vec<Cost> = rounds.iter().map(|it| it.cost.clone()).collect();
        Some(Self {
            primaries: first.primaries,
            cost: Cost::typical(&costs),
            busiest: median_of(rounds, |it| it.busiest),
        })
    }
}

/// A cluster, and the plan that starts an application on it.
pub(super) struct Cluster {
    nodes: Vec<OwnRedis>,
    database: String,
    plan: Plan,
}

impl Cluster {
    pub(super) fn start(stage: &Stage<'_>) -> Result<Self> {
        let (nodes, url) = start(stage)?;
        let database = stage.world.database(stage.bench, "on_cluster", true)?;
        let plan = stage
            .world
            .plan("on-cluster", &["serve", "--role", "all"], &url, &database)?;
        Ok(Self { nodes, database, plan })
    }

    /// Measures the cost as on one Redis.
    pub(super) fn measure(&self, stage: &mut Stage<'_>) -> Result<OnCluster> {
        let (bench, plan) = (stage.bench, &self.plan);
        let program = plan.start()?;
        let terms = Terms {
            shards: SHARDS,
            ..Terms::default()
        };
        let sale = stage.world.sale(bench, plan.address, &self.database, &terms)?;
        stage.world.calm(bench, &self.database)?;
        let pids = self.nodes.iter().map(OwnRedis::pid).collect::<Result<Vec<_>>>()?;
        let spent = || -> Vec<f64> { pids.iter().filter_map(|pid| processor_seconds_of(*pid)).collect() };
        let before = spent();
        let id = sale.id.to_string();
        let question = stage.question(vec![Purchase::of(plan.address, &id, 0)], 0);
        let load = (plan.address, &question);
        let what = "a cluster of three primaries";
        let (_, cost) = stage.purchases((&self.nodes, &program), load, stage.window, what, |nodes| {
            bench.poll("the ledger catches up", DRAIN_MAX, || {
                Ok((backlog(nodes, &sale)? == 0).then_some(()))
            })
        })?;
        let spent: Vec<f64> = spent().iter().zip(&before).map(|(now, then)| now - then).collect();
        let mut operator = stage.world.operator(plan.address);
        let (_, audit) = bench.wait_for(operator.count(&id))?;
        if audit["balanced"] != true {
            bail!("the books of the sale are not even: {audit}");
        }
        stage.world.close(bench, plan.address, &[sale])?;
        program.stop();
        Ok(OnCluster {
            primaries: self.nodes.len(),
            cost,
            busiest: ratio(spent.iter().copied().reduce(f64::max), Some(spent.iter().sum())),
        })
    }
}

/// Events of a sale that wait for the ledger. Only the node of a shard can count that shard's events.
fn backlog(nodes: &mut [Resp], sale: &Sale) -> Result<i64> {
    let mut all = 0;
    for shard in 0..sale.shards {
        let events = ShardKey { sale: sale.id, shard }.events();
        let found = nodes.iter_mut().find_map(|node| node.number(&["XLEN", &events]).ok());
        all += found.with_context(|| format!("no node has {events}"))?;
    }
    Ok(all)
}

/// Starts the nodes, and gives them and the URL of the cluster.
fn start(stage: &Stage<'_>) -> Result<(Vec<OwnRedis>, String)> {
    let mut nodes = Vec::new();
    let mut ports = Vec::new();
    for (number, slots) in SLOTS.iter().enumerate() {
        let (port, bus) = (free_port()?.to_string(), free_port()?.to_string());
        let settings = [
            ("port", port.as_str()),
            ("bind", "127.0.0.1"),
            ("cluster-enabled", "yes"),
            ("cluster-port", &bus),
        ];
        let node = stage.world.another_redis(&format!("node-{number}"), true, &settings)?;
        node.connect()?.call(&["CLUSTER", "ADDSLOTSRANGE", slots.0, slots.1])?;
        nodes.push(node);
        ports.push((port, bus));
    }
    if let Some(first) = nodes.first() {
        let mut first = first.connect()?;
        for (port, bus) in ports.iter().skip(1) {
            first.call(&["CLUSTER", "MEET", "127.0.0.1", port, bus])?;
        }
    }
    stage.bench.poll("the nodes find each other", MEET_MAX, || {
        for node in &nodes {
            let mut connection = node.connect()?;
            let known = connection.call(&["CLUSTER", "NODES"])?.text()?;
            let linked = known.lines().filter(|line| line.contains(" connected")).count();
            let info = connection.call(&["CLUSTER", "INFO"])?.text()?;
            if linked < nodes.len() || !info.contains("cluster_state:ok") {
                return Ok(None);
            }
        }
        Ok(Some(()))
    })?;
    let hosts: Vec<String> = ports.iter().map(|(port, _)| format!("127.0.0.1:{port}")).collect();
    Ok((nodes, format!("redis+cluster://{}", hosts.join(","))))
}
