//! Files with secrets that every user of this machine can read.

use super::variables::{Kind, VARIABLES};
use super::{FILE, REDIS_KEY, Settings, TLS_KEY};
use std::os::unix::fs::PermissionsExt as _;

/// The names of such files among those that the settings name: `flashsale.toml` and private keys.
pub fn files(settings: &Settings) -> Vec<String> {
    let secrets = VARIABLES
        .iter()
        .filter(|variable| matches!(variable.kind, Kind::Secret | Kind::Server | Kind::Address));
    let mut found = secrets.filter_map(|variable| settings.found.get(variable.name));
    let file = found.any(|found| found.origin.starts_with(FILE)).then_some(FILE);
    let is_exposed = |path: &&str| std::fs::metadata(path).is_ok_and(|found| found.permissions().mode() & 0o004 != 0);
    let keys = [TLS_KEY, REDIS_KEY].into_iter().filter_map(|name| settings.get(name));
    let exposed = file.into_iter().chain(keys).filter(is_exposed);
    exposed.map(str::to_owned).collect()
}
