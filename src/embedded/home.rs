//! Where a server's files are, and whom it runs as: root runs none of them.

use super::{child, folder};
use crate::stderr;
use anyhow::{Context as _, bail};
use nix::sys::prctl;
use nix::unistd::{Gid, Uid, User, geteuid, setgid, setgroups, setuid};
use std::fs::{self, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{MetadataExt as _, lchown, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Whom servers run as that root starts, the best first: a user of their own, the one that Debian's package makes, and the
/// one that owns nothing.
const USERS: [&str; 3] = ["flashsale", "postgres", "nobody"];
/// Where files go when that user may not enter the instance's folder; kept over a restart of the machine.
const AWAY: &str = "/var/lib";
/// In a folder there: whose it is, when it may go together with that one.
const DISPOSABLE: &str = "disposable";
/// What an instance's folder holds after its first start, also after one that failed.
const OURS: [&str; 2] = ["secrets.env", "postgres/lock"];
/// How deep folders of earlier versions may lie in each other.
const DEPTH_MAX: u32 = 16;

/// A user and its group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    pub(super) uid: Uid,
    pub(super) gid: Gid,
}

impl Identity {
    /// Whom the servers in `dir` run as when root starts them; nothing for other users, who run them as themselves.
    ///
    /// # Errors
    /// When the machine has none of the users.
    pub fn of(dir: &Path) -> anyhow::Result<Option<Self>> {
        if !geteuid().is_root() {
            return Ok(None);
        }
        // Postgres starts for the owner of its data only. No link counts: that user could lead it anywhere.
        if let Ok(data) = fs::symlink_metadata(place(dir, "postgres")?.join("data"))
            && data.uid() != 0
        {
            let (uid, gid) = (Uid::from_raw(data.uid()), Gid::from_raw(data.gid()));
            return Ok(Some(Self { uid, gid }));
        }
        for name in USERS {
            if let Some(user) = User::from_name(name).context("cannot read the machine's users")? {
                return Ok(Some(Self {
                    uid: user.uid,
                    gid: user.gid,
                }));
            }
        }
        bail!(
            "no server runs as root, and there is no other user to run it as; add one with `useradd --system flashsale`"
        )
    }

    /// The name of this user, if it is one that other programs may run as.
    #[must_use]
    pub fn shared(self) -> Option<&'static str> {
        let [_own, shared @ ..] = USERS;
        let is_it = |name: &&str| User::from_name(name).is_ok_and(|user| user.is_some_and(|user| user.uid == self.uid));
        shared.into_iter().find(is_it)
    }

    /// Gives the instance's folder to this user, with what root's Redis of an earlier version has left in it. That is done
    /// while the folder is root's alone, and nobody else can have put a link there. The folder goes last, so that what a crash
    /// interrupts is done again.
    ///
    /// # Errors
    /// When other things are in it, or it cannot be given.
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
        self.own_files_of_root(&dir.join("redis"), DEPTH_MAX)
            .and_then(|()| lchown(dir, Some(self.uid.as_raw()), Some(self.gid.as_raw())))
            .with_context(|| format!("cannot hand over {shown}"))
    }

    /// Gives this user a folder of root's and what is in it; nothing if it is no folder of root's.
    fn own_files_of_root(self, path: &Path, depth: u32) -> io::Result<()> {
        if !fs::symlink_metadata(path).is_ok_and(|found| found.is_dir() && found.uid() == 0) {
            return Ok(());
        }
        for entry in fs::read_dir(path)? {
            let entry = entry?;
            if entry.file_type()?.is_dir() && depth > 0 {
                self.own_files_of_root(&entry.path(), depth - 1)?;
            }
            lchown(entry.path(), Some(self.uid.as_raw()), Some(self.gid.as_raw()))?;
        }
        lchown(path, Some(self.uid.as_raw()), Some(self.gid.as_raw()))
    }

    /// Makes this process this user's, for good. Files and ports that only root may open are open by then.
    ///
    /// # Errors
    /// When the system refuses it.
    pub fn assume(self) -> anyhow::Result<()> {
        // A change of user has the kernel forget the signal for the death of our parent.
        let signal = prctl::get_pdeathsig().context("cannot read our own signals")?;
        setgroups(&[])
            .and_then(|()| setgid(self.gid))
            .and_then(|()| setuid(self.uid))
            .and_then(|()| prctl::set_pdeathsig(signal))
            .with_context(|| format!("cannot become user {}", self.uid))
    }
}

/// The folder that holds a server's files, and whom it must run as.
pub struct Home {
    pub path: PathBuf,
    pub identity: Option<Identity>,
}

impl Home {
    /// Opens `dir/SERVER`. Where the server's user may not enter that, it becomes a link to a folder under `/var/lib`; one
    /// that is not `durable` goes as soon as `dir` is gone.
    pub fn open(dir: &Path, server: &str, durable: bool) -> anyhow::Result<Self> {
        let Some(identity) = Identity::of(dir)? else {
            let place = dir.join(server);
            exists(&place, server)?;
            folder::private(&place)?;
            let path = place
                .canonicalize()
                .with_context(|| format!("cannot open {}", place.display()))?;
            return Ok(Self { path, identity: None });
        };
        let path = place(dir, server)?;
        // As long as the instance's folder is root's, nobody else can have put a link there.
        if fs::symlink_metadata(dir).is_ok_and(|found| found.uid() == 0) {
            identity
                .own_files_of_root(&path, DEPTH_MAX)
                .with_context(|| format!("cannot hand over {}", path.display()))?;
        }
        folder::private_for(&path, Some(identity))?;
        if path != dir.join(server) || may_write(&path, identity)? {
            let identity = Some(identity);
            return Ok(Self { path, identity });
        }
        let away = Path::new(AWAY).join(format!("flashsale-{}-{server}", folder::instance_id(dir)?));
        if away.exists() {
            remove_empty(&path)?;
        } else {
            sweep();
            fs::rename(&path, &away).with_context(|| {
                format!(
                    "user {} may not enter {}; let it with `chmod a+x` on each folder above",
                    identity.uid,
                    path.display()
                )
            })?;
        }
        folder::private_for(&away, Some(identity))?;
        if durable {
            stderr::line(format_args!(
                "user {} may not enter {}, so what {server} keeps is in {}",
                identity.uid,
                dir.display(),
                away.display()
            ));
        } else {
            let options = OpenOptions::new().write(true).create(true).clone();
            folder::open_file(&away.join(DISPOSABLE), options)
                .and_then(|mut file| file.write_all(dir.as_os_str().as_encoded_bytes()))
                .with_context(|| format!("cannot write in {}", away.display()))?;
        }
        symlink(&away, &path).with_context(|| format!("cannot create {}", path.display()))?;
        let identity = Some(identity);
        Ok(Self { path: away, identity })
    }
}

/// Where root finds a server's files: in the instance's folder, or where an earlier start as root has put them. The folder is
/// the servers' user's, so no other link in it is followed.
fn place(dir: &Path, server: &str) -> anyhow::Result<PathBuf> {
    let place = dir.join(server);
    exists(&place, server)?;
    match fs::read_link(&place) {
        Err(_) => Ok(place),
        // Nobody but root makes folders there.
        Ok(target) if target.parent() == Some(Path::new(AWAY)) && is_ours(&target) => Ok(target),
        Ok(target) => bail!(
            "{} leads to {}, where no start as root puts what {server} keeps; move that folder to {0}",
            place.display(),
            target.display()
        ),
    }
}

/// Refuses a link that leads nowhere.
fn exists(place: &Path, server: &str) -> anyhow::Result<()> {
    match fs::read_link(place) {
        Ok(target) if !target.exists() => bail!(
            "{} points to {}, which is gone and with it what {server} kept; restore it, or begin anew in another folder",
            place.display(),
            target.display()
        ),
        _ => Ok(()),
    }
}

fn is_ours(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default();
    name.to_string_lossy().starts_with("flashsale-")
}

/// Removes what tests left behind whose own folder is gone.
fn sweep() {
    for entry in fs::read_dir(AWAY).into_iter().flatten().flatten() {
        let path = entry.path();
        let Ok(origin) = fs::read_to_string(path.join(DISPOSABLE)) else {
            continue;
        };
        if is_ours(&path)
            && !Path::new(&origin).exists()
            && let Ok(_lock) = folder::lock(&path.join("lock"))
        {
            // Another sweep may be faster; what stays is for the next one.
            let _rest = fs::remove_dir_all(&path);
        }
    }
}

/// Removes the folder that we made a moment ago and found to be of no use.
fn remove_empty(place: &Path) -> anyhow::Result<()> {
    let _none = fs::remove_file(place.join("lock"));
    fs::remove_dir(place).with_context(|| format!("cannot replace {}", place.display()))
}

/// Whether a user may enter and write a folder, as the system itself sees it.
fn may_write(folder: &Path, identity: Identity) -> anyhow::Result<bool> {
    let mut command = child::command(Path::new("test"), "KILL", Some(identity));
    command.arg("-w").arg(folder);
    has_succeeded(command)
}

/// Removes files of a server's user as that user, where there is one: a link of theirs must not lead root to others' files.
pub(super) fn remove_files(files: &[PathBuf], identity: Option<Identity>) -> anyhow::Result<()> {
    let mut command = child::command(Path::new("rm"), "KILL", identity);
    command.arg("-f").args(files);
    if !has_succeeded(command)? {
        bail!(
            "cannot remove {}",
            files
                .iter()
                .map(|file| file.display().to_string())
                .collect::<Vec<_>>()
                .join(" or ")
        );
    }
    Ok(())
}

fn has_succeeded(mut command: Command) -> anyhow::Result<bool> {
    command.current_dir("/");
    Ok(child::spawn(command)?
        .wait()
        .context("cannot wait for a child")?
        .success())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt as _;

    #[test]
    fn what_root_made_before_goes_to_the_servers_user() {
        let Some(identity) = Identity::of(Path::new("/nowhere")).unwrap() else {
            return;
        };
        let above = tempfile::tempdir().unwrap();
        fs::set_permissions(above.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let dir = above.path().join("data");
        let file = dir.join("redis/appendonlydir/kept");
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(&file, "kept").unwrap();
        symlink("/etc/passwd", dir.join("redis/link")).unwrap();
        fs::write(dir.join("secrets.env"), "").unwrap();
        identity.own(&dir).unwrap();
        let home = Home::open(&dir, "redis", true).unwrap();
        assert_eq!(
            (home.path.as_path(), home.identity),
            (dir.join("redis").as_path(), Some(identity))
        );
        assert_eq!(fs::metadata(&file).unwrap().uid(), identity.uid.as_raw());
        assert_eq!(fs::metadata("/etc/passwd").unwrap().uid(), 0);
        // One that they may not enter goes where they may, with what is in it.
        fs::set_permissions(above.path(), fs::Permissions::from_mode(0o700)).unwrap();
        let home = Home::open(&dir, "redis", false).unwrap();
        assert!(home.path.starts_with(AWAY), "{}", home.path.display());
        assert_eq!(fs::read_to_string(&file).unwrap(), "kept");
        fs::remove_dir_all(home.path).unwrap();
        assert!(Home::open(&dir, "redis", false).is_err(), "what it kept is gone");
    }

    #[test]
    fn a_link_that_the_servers_user_made_gives_nothing_of_roots_away() {
        let Some(identity) = Identity::of(Path::new("/nowhere")).unwrap() else {
            return;
        };
        let (dir, precious) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        identity.own(dir.path()).unwrap();
        for server in ["redis", "postgres"] {
            let link = dir.path().join(server);
            symlink(precious.path(), &link).unwrap();
            assert!(Home::open(dir.path(), server, true).is_err());
            assert!(folder::private_for(&link, Some(identity)).is_err());
            fs::remove_file(&link).unwrap();
        }
        // Nor does a link to somebody's data choose whom everything runs as.
        fs::create_dir(dir.path().join("postgres")).unwrap();
        symlink("/nowhere", dir.path().join("postgres/data")).unwrap();
        std::os::unix::fs::lchown(dir.path().join("postgres/data"), Some(identity.uid.as_raw()), None).unwrap();
        assert_eq!(Identity::of(dir.path()).unwrap().unwrap().uid, identity.uid);
        assert_eq!(fs::metadata(precious.path()).unwrap().uid(), 0);
    }

    #[test]
    fn a_folder_with_other_files_is_not_given_away() {
        let Some(identity) = Identity::of(Path::new("/nowhere")).unwrap() else {
            return;
        };
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("letters"), "").unwrap();
        let error = identity.own(dir.path()).unwrap_err().to_string();
        assert!(error.contains("holds other files"), "{error}");
        assert_eq!(fs::metadata(dir.path()).unwrap().uid(), 0);
    }
}
