//! The machine that the figures are from, and the processor time of processes.

use crate::program;
use serde::Serialize;
use sha2::{Digest as _, Sha256};
use std::fmt;
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::Path;
use std::time::Instant;

/// Linux reports processor time to all programs in hundredths of a second.
const TICKS_A_SECOND: f64 = 100.0;
/// The number of writes whose median is the time of a disk write.
const SYNCS: usize = 50;

/// The properties of a machine that its figures depend on.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Machine {
    pub processor: String,
    /// Cores that this process may use.
    pub cores: usize,
    pub memory_gib: f64,
    pub kernel: String,
    /// The load averages of 1, 5 and 15 minutes before the run.
    pub load_before: String,
}

/// The first digits of the SHA-256 of the measured program's file; empty if the file cannot be read.
pub fn build() -> String {
    let mut hash = Sha256::new();
    let read = program::flashsale()
        .and_then(|path| Ok(File::open(path)?))
        .and_then(|mut file| Ok(io::copy(&mut file, &mut hash)?));
    if read.is_err() {
        return String::new();
    }
    let digits = hash.finalize();
    digits.iter().take(6).map(|byte| format!("{byte:02x}")).collect()
}

impl Machine {
    pub fn of_this_run() -> Self {
        let read = |path| fs::read_to_string(path).unwrap_or_default();
        let processors = read("/proc/cpuinfo");
        let model = processors
            .lines()
            .find_map(|line| line.strip_prefix("model name")?.split_once(':'));
        Self {
            processor: model
                .map_or("a processor that is not named", |(_, model)| model.trim())
                .to_owned(),
            cores: std::thread::available_parallelism().map_or(0, usize::from),
            memory_gib: memory_kib(&read("/proc/meminfo")).unwrap_or_default() / f64::from(1 << 20),
            kernel: read("/proc/sys/kernel/osrelease").trim().to_owned(),
            load_before: load_average(),
        }
    }
}

impl fmt::Display for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            processor,
            cores,
            memory_gib,
            kernel,
            ..
        } = self;
        write!(f, "{cores} cores ({processor}), {memory_gib:.0} GiB, Linux {kernel}")
    }
}

fn memory_kib(info: &str) -> Option<f64> {
    let total = info.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    total.split_whitespace().next()?.parse().ok()
}

/// The load averages of 1, 5 and 15 minutes.
pub fn load_average() -> String {
    let load = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    load.split_whitespace().take(3).collect::<Vec<_>>().join(" ")
}

/// The limit of open files and connections of this process; `None` where the system reports no limit.
pub fn open_files_max() -> Option<usize> {
    limit_of_files(&fs::read_to_string("/proc/self/limits").ok()?)
}

fn limit_of_files(limits: &str) -> Option<usize> {
    let line = limits.lines().find_map(|line| line.strip_prefix("Max open files"))?;
    line.split_whitespace().next()?.parse().ok()
}

/// The processor time of this process in seconds; 0 where the system does not report it.
pub fn processor_seconds() -> f64 {
    processor_seconds_of(std::process::id()).unwrap_or_default()
}

/// The processor time of a process and its ended children, in seconds.
pub fn processor_seconds_of(pid: u32) -> Option<f64> {
    Some(stat(pid)?.seconds)
}

/// The processor time of a process and its running children, in seconds. Postgres has a child for each session.
pub fn family_seconds(pid: u32) -> Option<f64> {
    let mut seconds = stat(pid)?.seconds;
    for entry in fs::read_dir("/proc").ok()?.flatten() {
        let child = entry.file_name().to_str().and_then(|name| name.parse().ok());
        if let Some(stat) = child.and_then(stat)
            && stat.parent == pid
        {
            seconds += stat.seconds;
        }
    }
    Some(seconds)
}

struct Stat {
    parent: u32,
    seconds: f64,
}

fn stat(pid: u32) -> Option<Stat> {
    parse_stat(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
}

fn parse_stat(stat: &str) -> Option<Stat> {
    // The program's name is in parentheses and may hold any character. The state and the parent follow it. Words 12 to
    // 15 are the times of the process and of its children.
    let (_, rest) = stat.rsplit_once(')')?;
    let words: Vec<&str> = rest.split_whitespace().collect();
    let times = words.get(11..15)?;
    let ticks: f64 = times.iter().filter_map(|ticks| ticks.parse::<f64>().ok()).sum();
    Some(Stat {
        parent: words.get(1)?.parse().ok()?,
        seconds: ticks / TICKS_A_SECOND,
    })
}

/// The median time to append 4 KiB to a file and sync it, in microseconds. Every purchase waits for such a sync. `None`
/// if the folder is not writable.
pub fn sync_micros(folder: &Path) -> Option<f64> {
    let path = folder.join("sync-trial");
    let mut file = File::create(&path).ok()?;
    let mut micros = Vec::with_capacity(SYNCS);
    for _ in 0..SYNCS {
        let began = Instant::now();
        file.write_all(&[0; 4096]).and_then(|()| file.sync_data()).ok()?;
        micros.push(began.elapsed().as_secs_f64() * 1e6);
    }
    fs::remove_file(&path).ok()?;
    super::numbers::median(&micros)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_times_of_a_process_are_found_behind_any_name() {
        let stat = parse_stat("7 (a) b (c) S 3 7 7 0 -1 4194560 1 2 3 4 150 50 25 25 20 0 9 0 12 1 1").unwrap();
        assert_eq!(stat.parent, 3);
        assert!((stat.seconds - 2.5).abs() < 1e-9);
        assert!(parse_stat("7 (a) S 3").is_none());
    }

    #[test]
    fn the_limit_of_open_files_is_the_first_number() {
        let limits = "Max processes             63432                63432                processes\n\
                      Max open files            1024                 524288               files\n";
        assert_eq!(limit_of_files(limits), Some(1024));
        assert_eq!(
            limit_of_files("Max open files            unlimited  unlimited  files"),
            None
        );
        assert_eq!(limit_of_files(""), None);
    }

    #[test]
    fn memory_is_found() {
        assert_eq!(memory_kib("MemFree: 1 kB\nMemTotal:  2048 kB\n"), Some(2048.0));
        assert_eq!(memory_kib(""), None);
    }
}
