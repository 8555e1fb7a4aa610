//! The folder of an instance: its data, its logs and its secrets.

use crate::cli::Failure;
use crate::embedded::{self, Identity, secrets};
use anyhow::Context as _;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

/// The file with the addresses and process ids of a running instance.
pub(super) const RUN_FILE: &str = "run.json";

/// The folder of an instance, which this process owns as long as it runs.
pub(super) struct DataFolder {
    pub(super) dir: PathBuf,
    /// The user of the servers and, once it serves, of this process.
    identity: Option<Identity>,
    is_first_start: bool,
    /// Whether the folder had files before any instance used it.
    has_other_files: bool,
    /// Goes before the lock, so that no other process is in the folder by then.
    made: Made,
    _lock: fs::File,
}

/// The files and folders that a start has made, the innermost first. They are removed with it.
struct Made(Vec<PathBuf>);

impl Drop for Made {
    fn drop(&mut self) {
        for path in &self.0 {
            // A folder in which there is something else stays.
            let _kept = fs::remove_file(path).or_else(|_folder| fs::remove_dir(path));
        }
    }
}

impl DataFolder {
    pub(super) fn open(data: &Path) -> Result<Self, Failure> {
        if data.exists() && !data.is_dir() {
            return Err(Failure::Usage(format!(
                "--data names {}, which is a file: name a folder",
                data.display()
            )));
        }
        let above = data.ancestors().filter(|folder| !folder.as_os_str().is_empty());
        let mut folders: Vec<PathBuf> = above.map(Path::to_owned).collect();
        folders.retain(|folder| is_missing(folder));
        let dir = embedded::open_folder(data)?;
        let lock_file = dir.join("lock");
        let has_lock_file = lock_file.exists();
        let has_other_files = !has_lock_file && has_files(&dir)?;
        let lock = embedded::lock(&lock_file)?;
        let mut made = Vec::new();
        made.extend((!has_lock_file).then_some(lock_file));
        made.extend(Some(secrets::path(&dir)).filter(|file| is_missing(file)));
        made.extend(folders);
        let made = Made(made);
        let is_first_start = !dir.join("postgres").exists();
        let identity = Identity::of(&dir)?;
        if let Some(identity) = identity {
            identity.own(&dir)?;
        }
        // A run that was killed has left its file behind.
        remove(&dir.join(RUN_FILE))?;
        Ok(Self {
            dir,
            identity,
            is_first_start,
            has_other_files,
            made,
            _lock: lock,
        })
    }

    /// Keeps the folder, also if the start fails from here on.
    pub(super) fn keep(&mut self) {
        self.made.0.clear();
    }

    /// Warns of other files in the folder, and of a user that other programs share.
    pub(super) fn warn_of_others(&self) {
        if self.has_other_files {
            tracing::warn!(
                "{} has other files; Flashsale adds its own (--data names another folder)",
                self.dir.display()
            );
        }
        if self.is_first_start
            && let Some(user) = self.identity.and_then(Identity::shared)
        {
            tracing::warn!(
                "Redis, Postgres and this process run as user {user}, which other programs may also use; to give them \
                 a user of their own, end this, remove {}, and start again after: useradd --system flashsale",
                self.dir.display()
            );
        }
    }

    /// Makes this the working folder, and becomes the servers' user. From here on, paths are relative to the folder:
    /// that user may not enter the folders above it.
    pub(super) fn enter(&self) -> anyhow::Result<()> {
        std::env::set_current_dir(&self.dir).with_context(|| format!("cannot enter {}", self.dir.display()))?;
        self.identity.map_or(Ok(()), Identity::assume)
    }
}

fn is_missing(path: &Path) -> bool {
    fs::symlink_metadata(path).is_err_and(|error| error.kind() == ErrorKind::NotFound)
}

/// Whether a folder has files, apart from the one that file systems keep there.
fn has_files(dir: &Path) -> anyhow::Result<bool> {
    let entries = fs::read_dir(dir).with_context(|| format!("cannot read {}", dir.display()))?;
    Ok(entries.flatten().any(|entry| entry.file_name() != "lost+found"))
}

pub(super) fn remove(path: &Path) -> anyhow::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            Err(error).with_context(|| format!("cannot remove {}", path.display()))
        }
        _ => Ok(()),
    }
}
