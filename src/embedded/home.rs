//! The place of a server's files, and the user that runs the server. No server runs as root.

use super::identity::{Identity, USERS};
use super::{child, folder};
use crate::stderr;
use anyhow::{Context as _, bail};
use nix::unistd::{Gid, Uid, User, geteuid};
use std::fs::{self, OpenOptions};
use std::io::Write as _;
use std::os::unix::fs::{MetadataExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

/// The place of a server's files if its user may not enter the instance's folder. It outlasts a reboot.
const AWAY: &str = "/var/lib";
/// A file in a folder there that may be deleted. It names the instance's folder: once that is gone, this folder may
/// go too.
const DISPOSABLE: &str = "disposable";

impl Identity {
    /// The user that runs the servers in `dir` if root starts them. `None` if another user starts them: that user runs
    /// them. Fails when the machine has none of the users.
    pub fn of(dir: &Path) -> anyhow::Result<Option<Self>> {
        if !geteuid().is_root() {
            return Ok(None);
        }
        // Postgres starts only for the owner of its data. Links are not followed: the servers' user could point one
        // anywhere.
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
}

/// The folder of a server's files, and the user that must run the server.
pub struct Home {
    pub path: PathBuf,
    pub identity: Option<Identity>,
}

impl Home {
    /// Opens `dir/SERVER`. If the server's user may not enter it, it becomes a link to a folder under `/var/lib`. If
    /// that is not `durable`, a later start removes it once `dir` is gone.
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
        // As long as root owns the instance's folder, no other user can have put a link there.
        if fs::symlink_metadata(dir).is_ok_and(|found| found.uid() == 0) {
            identity
                .own_files_of_root(&path)
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
            remove_leftovers();
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
                "user {} may not enter {}, so the files of {server} are in {}",
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

/// The place of a server's files for root: in the instance's folder, or where an earlier start as root has put them.
/// The servers' user owns the instance's folder, so root follows no other link in it.
fn place(dir: &Path, server: &str) -> anyhow::Result<PathBuf> {
    let place = dir.join(server);
    exists(&place, server)?;
    match fs::read_link(&place) {
        Err(_) => Ok(place),
        // Only root can create folders there.
        Ok(target) if target.parent() == Some(Path::new(AWAY)) && is_ours(&target) => Ok(target),
        Ok(target) => bail!(
            "{} is a link to {}, where no start as root puts the files of {server}; move that folder to {0}",
            place.display(),
            target.display()
        ),
    }
}

/// Refuses a broken link.
fn exists(place: &Path, server: &str) -> anyhow::Result<()> {
    match fs::read_link(place) {
        Ok(target) if !target.exists() => bail!(
            "{} is a link to {}, which is gone with the files of {server}; restore it, or start in another folder",
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

/// Removes the folders under [`AWAY`] that tests left behind and whose instance's folder is gone.
fn remove_leftovers() {
    for entry in fs::read_dir(AWAY).into_iter().flatten().flatten() {
        let path = entry.path();
        let Ok(origin) = fs::read_to_string(path.join(DISPOSABLE)) else {
            continue;
        };
        if is_ours(&path)
            && !Path::new(&origin).exists()
            && let Ok(_lock) = folder::lock(&path.join("lock"))
        {
            // Another process may remove it at the same time. A later start removes the rest.
            let _rest = fs::remove_dir_all(&path);
        }
    }
}

/// Removes a folder that this start created and does not need.
fn remove_empty(place: &Path) -> anyhow::Result<()> {
    let _none = fs::remove_file(place.join("lock"));
    fs::remove_dir(place).with_context(|| format!("cannot replace {}", place.display()))
}

/// Whether a user may enter and write a folder. The system decides: a process of that user tests it.
fn may_write(folder: &Path, identity: Identity) -> anyhow::Result<bool> {
    let mut command = child::command(Path::new("test"), "KILL", Some(identity));
    command.arg("-w").arg(folder);
    has_succeeded(command)
}

/// Removes files as the server's user, if there is one. Root could follow that user's links to files of others.
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

    /// The servers' user, if root runs the tests.
    fn of_root() -> Option<Identity> {
        Identity::of(Path::new("/nowhere")).unwrap()
    }

    #[test]
    fn what_root_made_before_goes_to_the_servers_user() {
        let Some(identity) = of_root() else { return };
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
        // A folder that the servers' user may not enter is moved to a place that the user may enter, with its files.
        fs::set_permissions(above.path(), fs::Permissions::from_mode(0o700)).unwrap();
        let home = Home::open(&dir, "redis", false).unwrap();
        assert!(home.path.starts_with(AWAY), "{}", home.path.display());
        assert_eq!(fs::read_to_string(&file).unwrap(), "kept");
        fs::remove_dir_all(home.path).unwrap();
        assert!(Home::open(&dir, "redis", false).is_err(), "what it kept is gone");
    }

    #[test]
    fn a_link_that_the_servers_user_made_gives_nothing_of_roots_away() {
        let Some(identity) = of_root() else { return };
        let (dir, precious) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        identity.own(dir.path()).unwrap();
        for server in ["redis", "postgres"] {
            let link = dir.path().join(server);
            symlink(precious.path(), &link).unwrap();
            assert!(Home::open(dir.path(), server, true).is_err());
            assert!(folder::private_for(&link, Some(identity)).is_err());
            fs::remove_file(&link).unwrap();
        }
        // A link in place of the data folder does not choose the user either.
        fs::create_dir(dir.path().join("postgres")).unwrap();
        symlink("/nowhere", dir.path().join("postgres/data")).unwrap();
        std::os::unix::fs::lchown(dir.path().join("postgres/data"), Some(identity.uid.as_raw()), None).unwrap();
        assert_eq!(Identity::of(dir.path()).unwrap().unwrap().uid, identity.uid);
        assert_eq!(fs::metadata(precious.path()).unwrap().uid(), 0);
    }

    #[test]
    fn no_file_of_root_is_removed_by_a_link_that_the_servers_user_made() {
        let Some(identity) = of_root() else { return };
        let (dir, precious) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        identity.own(dir.path()).unwrap();
        for folder in [&dir, &precious] {
            fs::write(folder.path().join("redis.sock"), "").unwrap();
        }
        let link = dir.path().join("redis");
        symlink(precious.path(), &link).unwrap();
        assert!(remove_files(&[link.join("redis.sock")], Some(identity)).is_err());
        assert!(precious.path().join("redis.sock").exists());
        remove_files(&[dir.path().join("redis.sock")], Some(identity)).unwrap();
        assert!(!dir.path().join("redis.sock").exists());
    }

    #[test]
    fn a_folder_with_other_files_is_not_given_away() {
        let Some(identity) = of_root() else { return };
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("letters"), "").unwrap();
        let error = identity.own(dir.path()).unwrap_err().to_string();
        assert!(error.contains("holds other files"), "{error}");
        assert_eq!(fs::metadata(dir.path()).unwrap().uid(), 0);
    }
}
