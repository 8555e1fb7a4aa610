//! The folders of private servers: their locks, their owners, their names and the places of their sockets. A lock
//! ends with the process that holds it, so a crash leaves no folder in use.

use super::identity::Identity;
use anyhow::{Context as _, bail};
use nix::fcntl::OFlag;
use nix::unistd::geteuid;
use std::fmt::Write as _;
use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, ErrorKind, Read as _, Seek as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _, fchown};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

/// The longest path that a Unix socket can be bound to.
const SOCKET_PATH_MAX: usize = 107;
/// How long a process may still hold its locks after a kill.
const DYING: Duration = Duration::from_secs(1);
/// The place of sockets whose own folder has too long a path. It is short, and exists on every machine.
const SHORT: &str = "/tmp";

/// Locks a file until the result is dropped, and writes the pid of this process into it. The lock also ends with the
/// process, however that ends. Fails when another process holds the lock; the error names the process.
pub fn lock(path: &Path) -> anyhow::Result<File> {
    let shown = path.display();
    let options = OpenOptions::new().read(true).write(true).create(true).clone();
    let mut file = open_file(path, options).with_context(|| format!("cannot open {shown}"))?;
    let deadline = Instant::now() + DYING;
    let locked = loop {
        match file.try_lock() {
            Err(TryLockError::WouldBlock) if Instant::now() < deadline => thread::sleep(Duration::from_millis(20)),
            outcome => break outcome,
        }
    };
    match locked {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => {
            let mut owner = String::new();
            // Only for the message: the owner may not have written its pid yet.
            let _unnamed = file.read_to_string(&mut owner);
            let folder = path.parent().unwrap_or(path).display();
            bail!(
                "{folder} is in use by process {}; stop that one first or choose another folder",
                owner.trim()
            );
        }
        Err(TryLockError::Error(error)) => return Err(error).context(format!("cannot lock {shown}")),
    }
    if !leads_to(path, &file) {
        bail!("another start has just removed {shown}; start again");
    }
    file.set_len(0)
        .and_then(|()| file.rewind())
        .with_context(|| format!("cannot write {shown}"))?;
    writeln!(file, "{}", std::process::id()).with_context(|| format!("cannot write {shown}"))?;
    Ok(file)
}

/// Whether a path still leads to this file. A start that fails removes a lock that it has made, and another process may
/// wait for that lock. The lock of a removed file would keep nobody out.
fn leads_to(path: &Path, file: &File) -> bool {
    let id = |metadata: io::Result<fs::Metadata>| metadata.ok().map(|it| (it.dev(), it.ino()));
    let held = id(file.metadata());
    held.is_some() && id(fs::metadata(path)) == held
}

/// Opens a file that only its owner can read, and refuses links and files of other users. Root also opens files in
/// folders of the user that runs its servers: a link there could lead to any file of the machine. Fails when the file
/// cannot be opened, is no plain file, or belongs to another user.
pub fn open_file(path: &Path, mut options: OpenOptions) -> io::Result<File> {
    let file = options.mode(0o600).custom_flags(OFlag::O_NOFOLLOW.bits()).open(path)?;
    let (metadata, folder) = (file.metadata()?, fs::metadata(path.parent().unwrap_or(path))?);
    let us = geteuid().as_raw();
    let is_own = [us, folder.uid()].contains(&metadata.uid());
    // In a folder of another user, a second hard link may be one to any file of the machine.
    let is_linked = folder.uid() != us && metadata.nlink() != 1;
    if !metadata.is_file() || !is_own || is_linked {
        return Err(io::Error::new(
            ErrorKind::PermissionDenied,
            "it is a link, or belongs to another user; remove it and start again",
        ));
    }
    Ok(file)
}

/// Creates a folder that only its owner can enter, if it is missing.
pub fn private(path: &Path) -> anyhow::Result<()> {
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(path)
        .with_context(|| format!("cannot create {}", path.display()))
}

/// The absolute path of an instance's folder. The folder is created if it is missing. Fails when the folder can be
/// neither opened nor created.
pub fn open(dir: &Path) -> anyhow::Result<PathBuf> {
    if !dir.exists() {
        fs::create_dir_all(dir).with_context(|| format!("cannot create {}", dir.display()))?;
        // Other users may enter, but not write: the Postgres user must reach its folder inside. Files with secrets
        // have stricter permissions.
        fs::set_permissions(dir, fs::Permissions::from_mode(0o755))
            .with_context(|| format!("cannot set the rights of {}", dir.display()))?;
    }
    dir.canonicalize()
        .with_context(|| format!("cannot open {}", dir.display()))
}

/// A random name that the folder keeps. Files that must be outside of the folder are named by it.
pub fn instance_id(dir: &Path) -> anyhow::Result<String> {
    let path = dir.join("instance-id");
    let valid = |id: &str| id.len() == 16 && id.bytes().all(|byte| byte.is_ascii_hexdigit());
    if let Ok(id) = fs::read_to_string(&path)
        && valid(id.trim())
    {
        return Ok(id.trim().to_owned());
    }
    let id: String = uuid::Uuid::new_v4().simple().to_string().chars().take(16).collect();
    // Two servers may start at once: the first to create the file names the instance.
    let fresh = path.with_extension(format!("{id}.new"));
    fs::write(&fresh, &id).with_context(|| format!("cannot write {}", fresh.display()))?;
    let linked = fs::hard_link(&fresh, &path);
    let _gone = fs::remove_file(&fresh);
    match linked {
        Ok(()) => Ok(id),
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {
            let id = fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
            if !valid(id.trim()) {
                bail!("{} is damaged; remove it and start again", path.display());
            }
            Ok(id.trim().to_owned())
        }
        Err(error) => Err(error).with_context(|| format!("cannot write {}", path.display())),
    }
}

/// The folder for a server's socket: `preferred`, or a folder under `/tmp` if that path is too long or unfit for a
/// URL. In a Postgres URL, a comma separates hosts.
pub fn socket_folder(dir: &Path, server: &str, preferred: &Path, socket: &str) -> anyhow::Result<PathBuf> {
    let can_be_told = preferred.to_str().is_some_and(|path| !path.contains(','));
    if can_be_told && preferred.as_os_str().len() + 1 + socket.len() <= SOCKET_PATH_MAX {
        return Ok(preferred.to_owned());
    }
    Ok(Path::new(SHORT).join(format!("flashsale-{}-{server}", instance_id(dir)?)))
}

/// The folder of a server's socket. The drop removes it if nothing else is in it: a folder of data stays.
#[derive(Debug)]
pub struct SocketFolder(pub PathBuf);

impl Drop for SocketFolder {
    fn drop(&mut self) {
        let _kept = fs::remove_dir(&self.0);
    }
}

/// Creates a folder that only `owner` can enter. A folder of another user is refused, since all users can write in
/// `/tmp`. The check and the change of owner use one open folder, which no other user can replace by a link in
/// between.
pub fn private_for(path: &Path, owner: Option<Identity>) -> anyhow::Result<()> {
    private(path)?;
    let shown = path.display();
    let folder = OpenOptions::new()
        .read(true)
        .custom_flags((OFlag::O_NOFOLLOW | OFlag::O_DIRECTORY).bits())
        .open(path)
        .with_context(|| format!("cannot open {shown}, which must be a folder and no link"))?;
    let metadata = folder.metadata().with_context(|| format!("cannot read {shown}"))?;
    let is_ours = metadata.uid() == geteuid().as_raw();
    if !is_ours && owner.is_none_or(|owner| metadata.uid() != owner.uid.as_raw()) {
        bail!("{shown} belongs to another user; start as that user, or choose another folder");
    }
    if let Some(owner) = owner {
        let (uid, gid) = (owner.uid.as_raw(), owner.gid.as_raw());
        fchown(&folder, Some(uid), Some(gid)).with_context(|| format!("cannot hand over {shown}"))?;
    }
    folder
        .set_permissions(fs::Permissions::from_mode(0o700))
        .with_context(|| format!("cannot set the rights of {shown}"))
}

/// A path, percent-encoded for a URL.
pub fn in_url(path: &Path) -> String {
    use std::os::unix::ffi::OsStrExt as _;
    let mut encoded = String::new();
    for &byte in path.as_os_str().as_bytes() {
        if byte.is_ascii_alphanumeric() || b"/-._~".contains(&byte) {
            encoded.push(char::from(byte));
        } else {
            // Writing to a String cannot fail.
            let _infallible = write!(encoded, "%{byte:02X}");
        }
    }
    encoded
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_locked_folder_is_refused_and_its_owner_named() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lock");
        let held = lock(&path).unwrap();
        let text = lock(&path).unwrap_err().to_string();
        assert!(
            text.contains(&format!("in use by process {};", std::process::id())),
            "{text}"
        );
        drop(held);
        lock(&path).unwrap();
    }

    #[test]
    fn a_lock_that_was_removed_keeps_nobody_out() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lock");
        let held = lock(&path).unwrap();
        assert!(leads_to(&path, &held));
        fs::remove_file(&path).unwrap();
        assert!(!leads_to(&path, &held));
        let _other = lock(&path).unwrap();
        assert!(!leads_to(&path, &held));
    }

    #[test]
    fn what_a_link_leads_to_is_not_opened() {
        let dir = tempfile::tempdir().unwrap();
        let (path, precious) = (dir.path().join("lock"), dir.path().join("precious"));
        fs::write(&precious, "kept").unwrap();
        std::os::unix::fs::symlink(&precious, &path).unwrap();
        lock(&path).unwrap_err();
        if geteuid().is_root() {
            std::os::unix::fs::chown(dir.path(), Some(65534), None).unwrap();
            fs::remove_file(&path).unwrap();
            fs::hard_link(&precious, &path).unwrap();
            let error = format!("{:#}", lock(&path).unwrap_err());
            assert!(error.contains("it is a link"), "{error}");
        }
        assert_eq!(fs::read_to_string(&precious).unwrap(), "kept");
    }

    #[test]
    fn an_instance_keeps_its_name() {
        let dir = tempfile::tempdir().unwrap();
        let first = instance_id(dir.path()).unwrap();
        assert_eq!(first, instance_id(dir.path()).unwrap());
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_long_path_moves_the_socket() {
        let dir = tempfile::tempdir().unwrap();
        let near = socket_folder(dir.path(), "redis", dir.path(), "redis.sock").unwrap();
        assert_eq!(near, dir.path());
        let long = dir.path().join("x".repeat(100));
        let far = socket_folder(dir.path(), "redis", &long, "redis.sock").unwrap();
        assert!(
            far.starts_with(SHORT) && far.to_string_lossy().ends_with("-redis"),
            "{}",
            far.display()
        );
    }

    #[test]
    fn a_path_is_encoded_for_a_url() {
        assert_eq!(in_url(Path::new("/a b/ü&?")), "/a%20b/%C3%BC%26%3F");
    }
}
