//! The user that runs the servers and the program when root starts them.

use anyhow::{Context as _, bail};
use nix::sys::prctl;
use nix::unistd::{Gid, Uid, User, setgid, setgroups, setuid};
use std::fs;
use std::io;
use std::os::unix::fs::{MetadataExt as _, lchown};
use std::path::Path;

/// The users that run the servers if root starts them, the best first. They are a user of their own, the user of
/// Debian's Postgres package, and the user without files.
pub(super) const USERS: [&str; 3] = ["flashsale", "postgres", "nobody"];
/// Files in an instance's folder after its first start, even a failed one. At least one of them exists.
const OURS: [&str; 2] = ["secrets.env", "postgres/lock"];
/// How deep folders of earlier versions may lie in each other.
const DEPTH_MAX: u32 = 16;

/// A user and the user's group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    pub(super) uid: Uid,
    pub(super) gid: Gid,
}

impl Identity {
    /// The name of this user, if other programs may use the same user.
    pub fn shared(self) -> Option<&'static str> {
        let [_own, shared @ ..] = USERS;
        let is_it = |name: &&str| User::from_name(name).is_ok_and(|user| user.is_some_and(|user| user.uid == self.uid));
        shared.into_iter().find(is_it)
    }

    /// Gives the instance's folder to this user, with the files of an earlier version whose Redis ran as root. As long
    /// as root owns the folder, no other user can have put a link there. The folder itself is given last, so that the
    /// next start repeats what a crash interrupted. Fails when the folder holds other files, or cannot be given.
    pub fn own(self, dir: &Path) -> anyhow::Result<()> {
        let shown = dir.display();
        let metadata = fs::metadata(dir).with_context(|| format!("cannot read {shown}"))?;
        if metadata.uid() != 0 {
            return Ok(());
        }
        let names = fs::read_dir(dir).with_context(|| format!("cannot read {shown}"))?;
        let names: Vec<_> = names.flatten().map(|entry| entry.file_name()).collect();
        if !names.iter().all(|name| name == "lock") && !OURS.iter().any(|ours| dir.join(ours).exists()) {
            bail!(
                "{shown} holds other files, and would be given to user {}; name a folder of its own",
                self.uid
            );
        }
        self.own_files_of_root(&dir.join("redis"))
            .and_then(|()| lchown(dir, Some(self.uid.as_raw()), Some(self.gid.as_raw())))
            .with_context(|| format!("cannot hand over {shown}"))
    }

    /// Gives this user a folder of root and its content. Does nothing if root does not own it or it is no folder.
    pub(super) fn own_files_of_root(self, path: &Path) -> io::Result<()> {
        self.own_files_down_to(path, DEPTH_MAX)
    }

    fn own_files_down_to(self, path: &Path, depth: u32) -> io::Result<()> {
        if !fs::symlink_metadata(path).is_ok_and(|found| found.is_dir() && found.uid() == 0) {
            return Ok(());
        }
        for entry in fs::read_dir(path)? {
            let entry = entry?;
            if entry.file_type()?.is_dir() && depth > 0 {
                self.own_files_down_to(&entry.path(), depth - 1)?;
            }
            lchown(entry.path(), Some(self.uid.as_raw()), Some(self.gid.as_raw()))?;
        }
        lchown(path, Some(self.uid.as_raw()), Some(self.gid.as_raw()))
    }

    /// Makes this process run as this user, for good. Files and ports that only root may open must be open by then.
    /// Fails when the system refuses it.
    pub fn assume(self) -> anyhow::Result<()> {
        // On a change of user, the kernel clears the signal for the death of the parent process.
        let signal = prctl::get_pdeathsig().context("cannot read our own signals")?;
        setgroups(&[])
            .and_then(|()| setgid(self.gid))
            .and_then(|()| setuid(self.uid))
            .and_then(|()| prctl::set_pdeathsig(signal))
            .with_context(|| format!("cannot become user {}", self.uid))
    }
}
