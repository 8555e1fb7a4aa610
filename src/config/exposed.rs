//! Files with secrets that every user of this machine can read.

use super::settings::Settings;
use super::variable::Kind;
use super::{FILE, VARIABLES};
use std::os::unix::fs::PermissionsExt as _;

/// The names of such files among those that the settings name: `flashsale.toml` and private keys.
pub fn files(settings: &Settings) -> Vec<String> {
    let file = settings.file_has_secrets().then_some(FILE);
    // The key of HTTPS first.
    let keys = VARIABLES.iter().rev().filter(|variable| variable.kind == Kind::KeyFile);
    let keys = keys.filter_map(|variable| settings.get(variable.name));
    let is_exposed = |path: &&str| std::fs::metadata(path).is_ok_and(|found| found.permissions().mode() & 0o004 != 0);
    file.into_iter()
        .chain(keys)
        .filter(is_exposed)
        .map(str::to_owned)
        .collect()
}
