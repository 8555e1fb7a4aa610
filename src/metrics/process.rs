//! Metrics of this process by the operating system, under the names that Prometheus's own libraries use. They are
//! read at each scrape. A metric that the system does not provide is left out.

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Unit;

/// The ticks a second in which Linux counts a process's time, on all machines that the program supports.
const TICKS_A_SECOND: f64 = 100.0;

#[derive(Debug)]
pub struct Process {
    started: f64,
}

impl Default for Process {
    fn default() -> Self {
        // Not the exact start of the process, but all counters start here.
        Self { started: super::now() }
    }
}

impl Collector for Process {
    fn encode(&self, mut encoder: DescriptorEncoder) -> Result<(), std::fmt::Error> {
        let mut gauge = |name: &str, help: &str, unit: Option<&Unit>, value: f64| {
            let gauge = ConstGauge::new(value);
            gauge.encode(encoder.encode_descriptor(name, help, unit, gauge.metric_type())?)
        };
        let help = "When this process started to count, since the epoch.";
        gauge("process_start_time", help, Some(&Unit::Seconds), self.started)?;
        if let Some(open) = open_files() {
            gauge(
                "process_open_fds",
                "Files and connections that this process has open.",
                None,
                open,
            )?;
        }
        if let Some(max) = open_files_max() {
            gauge("process_max_fds", "The limit on open files.", None, max)?;
        }
        if let Some(seconds) = processor_seconds() {
            let counter = ConstCounter::new(seconds);
            let help = "Processor time that this process has used.";
            let kind = counter.metric_type();
            counter.encode(encoder.encode_descriptor("process_cpu", help, Some(&Unit::Seconds), kind)?)?;
        }
        Ok(())
    }
}

/// The resident memory of this process, in bytes.
pub fn resident_memory() -> Option<i64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kibibytes: i64 = line.split_whitespace().next()?.parse().ok()?;
    Some(kibibytes * 1024)
}

fn open_files() -> Option<f64> {
    let open = std::fs::read_dir("/proc/self/fd").ok()?.count();
    u32::try_from(open).ok().map(f64::from)
}

fn open_files_max() -> Option<f64> {
    let limits = std::fs::read_to_string("/proc/self/limits").ok()?;
    let line = limits.lines().find_map(|line| line.strip_prefix("Max open files"))?;
    line.split_whitespace().next()?.parse().ok()
}

fn processor_seconds() -> Option<f64> {
    let stat = std::fs::read_to_string("/proc/self/stat").ok()?;
    // The program's name, in brackets, may hold any characters.
    let (_, rest) = stat.rsplit_once(')')?;
    let mut fields = rest.split_whitespace().skip(11);
    let (user, system): (f64, f64) = (fields.next()?.parse().ok()?, fields.next()?.parse().ok()?);
    Some((user + system) / TICKS_A_SECOND)
}
