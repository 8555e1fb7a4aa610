//! `./dev` as an ordinary user: its message where it may not install, and `up` where the packages are installed.

use crate::support::app::{Client, Who, program_path};
use crate::support::crowd::spawn;
use crate::support::poll;
use crate::support::servers::signal;
use serde_json::Value;
use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown, symlink};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// Debian's `nobody`.
const NOBODY: u32 = 65534;

/// A checkout that belongs to an ordinary user: to `nobody` where root runs the tests.
struct Checkout {
    folder: tempfile::TempDir,
    user: u32,
}

impl Checkout {
    fn new() -> Self {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        let folder = tempfile::tempdir().unwrap();
        for part in ["bin", "target", "target/release"] {
            fs::create_dir(folder.path().join(part)).unwrap();
        }
        fs::copy(root.join("dev"), folder.path().join("dev")).unwrap();
        let user = match fs::metadata("/proc/self").unwrap().uid() {
            0 => NOBODY,
            own => own,
        };
        for part in ["", "dev", "bin", "target", "target/release"] {
            // Root alone may do so; anybody else owns them already.
            let _owned = chown(folder.path().join(part), Some(user), None);
        }
        Self { folder, user }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Puts these programs of this machine into the folder `bin`.
    fn link(&self, programs: &[&str]) {
        for name in programs {
            let found = std::env::split_paths(&std::env::var_os("PATH").unwrap())
                .map(|folder| folder.join(name))
                .find(|path| path.is_file());
            symlink(
                found.unwrap_or_else(|| panic!("no {name}")),
                self.path("bin").join(name),
            )
            .unwrap();
        }
    }

    /// A program of the folder `bin` with this script.
    fn script(&self, name: &str, text: &str) {
        let path = self.path("bin").join(name);
        fs::write(&path, format!("#!/bin/sh\n{text}\n")).unwrap();
        fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
    }

    /// A program that this user starts with nothing in its environment but a home and a path.
    fn command(&self, program: &Path, path: &str) -> Command {
        let mut command = Command::new(program);
        command
            .current_dir(self.folder.path())
            .env_clear()
            .env("HOME", self.folder.path())
            .env("PATH", path)
            .env("CARGO_TARGET_DIR", self.path("target"))
            .stdin(Stdio::null());
        if fs::metadata("/proc/self").unwrap().uid() == 0 {
            command.uid(self.user).gid(self.user);
        }
        command
    }

    /// The output of `./dev` when it finds only the programs of the folder `bin`, and gives up.
    fn refusal(&self, command: &str) -> String {
        let bin = self.path("bin").display().to_string();
        let output = self.command(&self.path("dev"), &bin).arg(command).output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        assert_eq!(String::from_utf8_lossy(&output.stdout), "");
        String::from_utf8(output.stderr).unwrap()
    }
}

#[test]
fn an_ordinary_user_reads_the_command_that_installs_missing_packages() {
    let checkout = Checkout::new();
    checkout.link(&["sh", "dirname", "id", "ls"]);
    // Present, so that it is not the missing program; and never run.
    for name in ["cargo", "cc", "initdb"] {
        checkout.script(name, "echo ran >&2; exit 99");
    }
    let start = "dev: please run: sudo apt-get install -y --no-install-recommends";
    checkout.script("apt-get", "echo ran >&2; exit 99");
    assert_eq!(checkout.refusal("up"), format!("{start} redis-server\n"));
    assert_eq!(
        checkout.refusal("check"),
        format!("{start} lua-check redis-server nodejs npm\n")
    );
    // A user who may use sudo, but not without a password.
    checkout.script("sudo", "[ \"$*\" = '-n true' ] || echo ran >&2; exit 1");
    assert_eq!(checkout.refusal("up"), format!("{start} redis-server\n"));
    // And on another system.
    fs::remove_file(checkout.path("bin/apt-get")).unwrap();
    assert_eq!(
        checkout.refusal("up"),
        "dev: please install what Debian calls redis-server, then run this again\n"
    );
}

/// It ends when this is dropped.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        if self.0.try_wait().unwrap().is_none() {
            signal("INT", &[self.0.id()]);
            let _status = self.0.wait();
        }
    }
}

#[tokio::test]
async fn an_ordinary_user_with_the_packages_runs_everything_as_that_user() {
    let checkout = Checkout::new();
    // Only the build is left out: `./dev up` runs the program that was built with the tests.
    checkout.script("cargo", "[ \"$*\" = 'build --profile release --locked' ]");
    fs::copy(program_path(), checkout.path("target/release/flashsale")).unwrap();
    let path = format!("{}:{}", checkout.path("bin").display(), std::env::var("PATH").unwrap());
    let mut command = checkout.command(Path::new("setpriv"), &path);
    let log = fs::File::create(checkout.path("up.log")).unwrap();
    command
        .args(["--pdeathsig", "KILL", "--", "./dev", "up", "--listen", "127.0.0.1:0"])
        .stdout(log.try_clone().unwrap())
        .stderr(log);
    let mut up = Running(spawn(command));
    let said = || fs::read_to_string(checkout.path("up.log")).unwrap();
    let mut run = None::<Value>;
    // Both servers are set up first.
    poll::within(Duration::from_secs(60), "everything is up", async || {
        assert!(
            Path::new(&format!("/proc/{}/exe", up.0.id())).exists(),
            "it has ended: {}",
            said()
        );
        let written = fs::read_to_string(checkout.path("data/run.json"));
        run = written.ok().and_then(|text| serde_json::from_str(&text).ok());
        run.is_some()
    })
    .await;
    let run = run.unwrap();
    for server in ["pid", "redis_pid", "postgres_pid"] {
        let process = fs::metadata(format!("/proc/{}", run[server])).unwrap();
        assert_eq!(process.uid(), checkout.user, "{server}: {}", said());
    }
    let client = Client::at(run["http"].as_str().unwrap());
    poll::answer("it is ready", || async {
        (client.get(Who::Nobody, "/readyz").await.status == 200).then_some(())
    })
    .await;
    signal("INT", &[up.0.id()]);
    assert!(up.0.wait().unwrap().success(), "{}", said());
}
