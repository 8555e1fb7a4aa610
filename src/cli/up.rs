//! `flashsale up`: starts a private Redis and Postgres, then does what `serve --role all` does. A kill -9 loses
//! nothing: the next start on the same folder goes on.

mod demo;

use super::client::own_url;
use super::{Failure, output};
use crate::config::tls::Tls;
use crate::config::{self, Config, Settings};
use crate::domain::development;
use crate::embedded::{self, Identity, PostgresOptions, PostgresServer, RedisOptions, RedisServer, secrets};
use crate::server::{self, Listeners, Role, Served};
use anyhow::{Context as _, anyhow};
use demo::DemoSale;
use std::fs;
use std::io::{IsTerminal as _, Write as _};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};
use tokio_util::sync::CancellationToken;
use ureq::http::Uri;

/// How often the process checks that the two servers still run.
const WATCH_EVERY: Duration = Duration::from_millis(200);
/// How long the process may take to end after a server has ended. Its jobs may hang on that server.
const END_LIMIT: Duration = Duration::from_secs(15);

/// The file with the addresses and process ids of a running instance.
const RUN_FILE: &str = "run.json";

/// The secrets that an instance needs, each with the function that makes it.
const SECRETS: [(&str, secrets::Make); 3] = [
    (config::ADMIN_KEY, secrets::random_key),
    (config::JWT_SECRET, secrets::random_key),
    (config::WEBHOOK_SECRET, secrets::random_webhook_secret),
];

#[derive(clap::Args)]
#[command(after_help = "\
On a loopback address without trusted proxies it is in development mode, unless FLASHSALE_DEVELOPMENT is false. On a
terminal it logs only warnings, unless FLASHSALE_LOG or -v asks for more.

Examples:
  flashsale up
  flashsale up --data /var/lib/flashsale --listen 0.0.0.0:8080
  flashsale up --json 2> log | jq -r .http")]
pub struct Args {
    /// The folder of the data, the logs and the secrets.
    #[arg(long, value_name = "DIR", default_value = "data")]
    data: PathBuf,
    /// Address of HTTP as IP:PORT; port 0 takes a free port [env: FLASHSALE_LISTEN] [default: 127.0.0.1:8080].
    #[arg(long, value_name = "ADDR")]
    listen: Option<String>,
    /// Print one line of JSON when the instance is ready, instead of lines to paste, and log JSON lines.
    #[arg(long)]
    json: bool,
    /// Log more on a terminal: -v as elsewhere, -vv for debugging. It overrides FLASHSALE_LOG.
    #[arg(short, long, action = clap::ArgAction::Count)]
    verbose: u8,
}

impl Args {
    /// The filter of the log, if these arguments or the terminal decide it.
    fn log(&self, settings: &Settings) -> Option<&'static str> {
        let is_quiet = settings.get(config::LOG).is_none() && !self.json && std::io::stderr().is_terminal();
        match self.verbose {
            0 => is_quiet.then_some("warn"),
            1 => Some("info"),
            _ => Some("debug"),
        }
    }
}

/// Serves until SIGINT or SIGTERM.
///
/// # Errors
/// `Usage` when a setting is wrong, `Fault` when an address is taken, or a server does not start or ends by itself.
pub fn run(args: &Args) -> Result<(), Failure> {
    let mut settings = Settings::load()?;
    if let Some(listen) = &args.listen {
        settings.set_listen(listen.clone());
    }
    if settings.get(config::DEVELOPMENT).is_none() {
        settings.set(config::DEVELOPMENT, "auto".to_owned(), config::DEVELOPMENT.to_owned());
    }
    if let Some(log) = args.log(&settings) {
        settings.set(config::LOG, log.to_owned(), "--verbose".to_owned());
    }
    let folder = DataFolder::open(&args.data)?;
    let given = fill_in_secrets(&folder.dir, &mut settings)?;
    let ignored = ignored_variables(&settings);
    // Checked with placeholder URLs first, so that a wrong setting is reported before any server starts.
    settings.set_servers("unix:///".to_owned(), "postgres:///".to_owned());
    let config = Config::from_settings(&settings)?;
    let _telemetry = super::start_logging(&config, args.json)?;
    for name in ignored {
        tracing::warn!(
            "{name} is set but ignored: `up` runs its own servers (`flashsale serve` connects to other servers)"
        );
    }

    let listeners = Listeners::bind(&config, Role::All)?;
    folder.warn_of_others();
    if !args.json {
        // Output without a reader is no error.
        let _unread = writeln!(
            std::io::stdout(),
            "Starting Redis and Postgres in {} …",
            folder.dir.display()
        );
    }
    let servers = Servers::start(&folder.dir)?;
    settings.set_servers(servers.redis.url(), servers.database_url.clone());
    let config = Config::from_settings(&settings)?;
    let certificate = settings.get(config::TLS_CERT).map(PathBuf::from);
    let certificate = certificate.map(|file| file.canonicalize().unwrap_or(file));
    folder.enter()?;
    let instance = Instance {
        dir: folder.dir.clone(),
        admin_key: config.admin_key.clone(),
        given,
        tls: config.tls.clone().zip(certificate),
        json: args.json,
        development: config.development.then(|| config.jwt_secret.clone()),
    };
    serve(&config, listeners, &servers, instance)
}

/// Serves until a signal, or until a server ends by itself. Then stops the servers.
fn serve(config: &Config, listeners: Listeners, servers: &Servers, instance: Instance) -> Result<(), Failure> {
    let run = servers.run_file();
    let on_ready = move |served: Served| instance.announce(served, run);
    let stop = CancellationToken::new();
    let watch = Watch::default();
    let outcome = thread::scope(|scope| {
        scope.spawn(|| watch.run(servers, &stop));
        // A guard, so that a panic also ends the watch: the scope waits for it.
        let _finished = watch.finished.clone().drop_guard();
        server::run_until_signal(config, Role::All, listeners, true, &stop, on_ready)
    });
    remove(Path::new(RUN_FILE))?;
    servers.stop();
    match watch.into_death() {
        Some(death) => Err(Failure::Fault(anyhow!(death))),
        None => Ok(outcome?),
    }
}

/// The variables that are set and that `up` ignores, because they name other servers.
fn ignored_variables(settings: &Settings) -> Vec<&'static str> {
    let of_other_servers = [
        config::REDIS_URL,
        config::REDIS_CACERT,
        config::REDIS_CERT,
        config::REDIS_KEY,
        config::DATABASE_URL,
    ];
    let ignored = of_other_servers.into_iter();
    ignored.filter(|name| settings.get(name).is_some()).collect()
}

/// The folder of an instance, which this process owns as long as it runs.
struct DataFolder {
    dir: PathBuf,
    /// The user of the servers and, once it serves, of this process.
    identity: Option<Identity>,
    is_first_start: bool,
    /// Whether the folder had files before any instance used it.
    has_other_files: bool,
    _lock: fs::File,
}

impl DataFolder {
    fn open(data: &Path) -> Result<Self, Failure> {
        if data.exists() && !data.is_dir() {
            return Err(Failure::Usage(format!(
                "--data names {}, which is a file: name a folder",
                data.display()
            )));
        }
        let dir = embedded::open_folder(data)?;
        let has_other_files = !dir.join("lock").exists() && has_files(&dir)?;
        let lock = embedded::lock(&dir.join("lock"))?;
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
            _lock: lock,
        })
    }

    /// Warns of other files in the folder, and of a user that other programs share.
    fn warn_of_others(&self) {
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
    fn enter(&self) -> anyhow::Result<()> {
        std::env::set_current_dir(&self.dir).with_context(|| format!("cannot enter {}", self.dir.display()))?;
        self.identity.map_or(Ok(()), Identity::assume)
    }
}

/// Whether a folder has files, apart from the one that file systems keep there.
fn has_files(dir: &Path) -> anyhow::Result<bool> {
    let entries = fs::read_dir(dir).with_context(|| format!("cannot read {}", dir.display()))?;
    Ok(entries.flatten().any(|entry| entry.file_name() != "lost+found"))
}

/// Adds the secrets that neither the environment nor `flashsale.toml` sets. Returns the names of the secrets that
/// they set.
fn fill_in_secrets(dir: &Path, settings: &mut Settings) -> anyhow::Result<Vec<&'static str>> {
    let (given, wanted): (Vec<_>, Vec<_>) = SECRETS.into_iter().partition(|(name, _)| settings.get(name).is_some());
    let origin = secrets::path(dir);
    for (name, value) in secrets::load_or_make(dir, &wanted)? {
        settings.set(name, value, format!("{}: {name}", origin.display()));
    }
    Ok(given.into_iter().map(|(name, _)| name).collect())
}

/// The servers that this process runs.
struct Servers {
    redis: RedisServer,
    postgres: PostgresServer,
    database_url: String,
}

impl Servers {
    fn start(dir: &Path) -> anyhow::Result<Self> {
        thread::scope(|scope| {
            let redis = scope.spawn(|| RedisServer::start(dir, &RedisOptions::default()));
            let postgres = PostgresServer::start(dir, &PostgresOptions::default());
            let redis = redis
                .join()
                .map_err(|_panic| anyhow!("the start of redis-server panicked"))?;
            let (redis, postgres) = (redis?, postgres?);
            Ok(Self {
                database_url: postgres.owner_url()?,
                redis,
                postgres,
            })
        })
    }

    /// What `run.json` says about the servers and this process.
    fn run_file(&self) -> serde_json::Value {
        serde_json::json!({
            "http": "",
            "redis_url": self.redis.url(),
            "database_url": self.database_url,
            "pid": std::process::id(),
            "redis_pid": self.redis.pid(),
            "postgres_pid": self.postgres.pid(),
        })
    }

    /// Why a server has ended by itself, if one has.
    fn ended(&self) -> Option<String> {
        self.redis.ended().or_else(|| self.postgres.ended())
    }

    fn stop(&self) {
        self.redis.stop();
        self.postgres.stop();
    }
}

/// Watches the two servers while the process serves.
#[derive(Default)]
struct Watch {
    death: Mutex<Option<String>>,
    finished: CancellationToken,
}

impl Watch {
    /// Returns when serving has finished. If a server ends first, keeps the reason and cancels `stop`. If serving
    /// then does not finish within [`END_LIMIT`], exits the process.
    fn run(&self, servers: &Servers, stop: &CancellationToken) {
        let death = loop {
            if self.finished.is_cancelled() {
                return;
            }
            if let Some(death) = servers.ended() {
                break death;
            }
            thread::sleep(WATCH_EVERY);
        };
        tracing::error!("a server ended by itself; stopping");
        *self.death.lock().unwrap_or_else(PoisonError::into_inner) = Some(death);
        stop.cancel();
        let deadline = Instant::now() + END_LIMIT;
        while !self.finished.is_cancelled() {
            if Instant::now() > deadline {
                tracing::error!("the process hangs on the server that ended; giving up");
                servers.stop();
                std::process::exit(1);
            }
            thread::sleep(WATCH_EVERY);
        }
    }

    fn into_death(self) -> Option<String> {
        self.death.into_inner().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What `run.json` and the printed guide say about a running instance.
struct Instance {
    dir: PathBuf,
    admin_key: config::Secret<String>,
    /// The names of the secrets that the environment or `flashsale.toml` sets.
    given: Vec<&'static str>,
    /// The certificate and key of HTTPS, and the certificate's file; `None` with plain HTTP.
    tls: Option<(Tls, PathBuf)>,
    /// Whether to print JSON instead of the guide.
    json: bool,
    /// In development mode, the secret from which the key of the printed link is derived.
    development: Option<config::Secret<String>>,
}

impl Instance {
    /// Writes `run.json`. Then, on a thread of its own, makes sure of the demo sale and prints the guide.
    fn announce(self, served: Served, mut run: serde_json::Value) {
        let (url, admin_url) = (self.reached_at(served.shop), self.reached_at(served.admin));
        run["http"] = url.clone().into();
        run["admin"] = admin_url.clone().into();
        if let Err(error) = secrets::write_private(Path::new(RUN_FILE), &format!("{run}\n")) {
            tracing::error!("{error:#}");
        }
        // On a thread: HTTP answers only after this function returns, and the demo sale is made over HTTP.
        // At the address that this process has bound: by a name, another process of this machine might get the key.
        let bound = own_url(served.admin, self.tls.is_some());
        thread::spawn(move || {
            let sale = demo::ensure(Path::new("."), &bound, self.admin_key.expose()).unwrap_or_else(|error| {
                tracing::warn!("there is no demo sale: {error:#}");
                None
            });
            let said = if self.json {
                let (id, sku) = (sale.as_ref().map(|it| &it.id), sale.as_ref().map(|it| &it.sku));
                let said =
                    serde_json::json!({"http": url, "admin": admin_url, "data": self.dir, "sale_id": id, "sku": sku});
                format!("{said}\n")
            } else {
                self.guide(&url, &admin_url, sale.as_ref())
            };
            // Output without a reader is no error.
            let _unread = std::io::stdout().write_all(said.as_bytes());
        });
    }

    /// The URL of the instance. It names `localhost` if the certificate is for that name and not for the address.
    fn reached_at(&self, address: SocketAddr) -> String {
        let url = own_url(address, self.tls.is_some());
        let by_name = format!("https://localhost:{}", address.port());
        let is_own = address.ip().is_loopback() || address.ip().is_unspecified();
        if is_own && !self.is_trusted_at(&url) && self.is_trusted_at(&by_name) {
            return by_name;
        }
        url
    }

    /// Whether the certificate, if there is one, is for the host in this address.
    fn is_trusted_at(&self, url: &str) -> bool {
        self.tls.as_ref().is_none_or(|(tls, _)| {
            let host = url.parse::<Uri>().ok().and_then(|uri| uri.host().map(str::to_owned));
            host.is_some_and(|host| tls.is_for(host.trim_matches(['[', ']'])))
        })
    }

    /// The printed guide: the addresses, and lines to paste into another shell.
    fn guide(&self, url: &str, admin_url: &str, sale: Option<&DemoSale>) -> String {
        let mut text = format!(
            "\nFlashsale is ready at {url} (data in {dir}, Ctrl-C stops it)\n",
            dir = self.dir.display(),
        );
        let Some(sale) = sale else {
            return text + &self.console_line(&format!("{admin_url}/console"));
        };
        text += &self.shop_line(&format!("{url}/sales/{}", sale.id));
        text += &self.console_line(&format!("{admin_url}/console/sales/{}", sale.id));
        text += "\nTo try it, paste into another terminal:\n\n";
        text += &self.prepare_lines(url, admin_url);
        text += &purchase_lines(url, admin_url, sale);
        text
    }

    /// Where operators sign in, and with which key. Not the key itself: printed output is often kept.
    fn console_line(&self, console: &str) -> String {
        let key = if self.given.contains(&config::ADMIN_KEY) {
            "sign in with the FLASHSALE_ADMIN_KEY that this instance was given".to_owned()
        } else {
            let file = secrets::path(&self.dir);
            format!("sign in with FLASHSALE_ADMIN_KEY from {}", file.display())
        };
        format!("Console  {console} ({key})\n")
    }

    /// The page of a sale, and how shoppers sign in there.
    fn shop_line(&self, page: &str) -> String {
        let shop = match &self.development {
            Some(_) if output::goes_to_journal() => format!("{page} ({})", output::LINK_NOT_KEPT),
            Some(secret) => format!(
                "{}\n         DEVELOPMENT MODE: with this link, anyone can sign in as any shopper and pay with nothing",
                development::link(page, secret.expose())
            ),
            None => format!(
                "{page} (sign in with a token: prepare as below, then {} token --user alice)",
                program()
            ),
        };
        format!("Shop     {shop}\n")
    }

    /// The lines that set what the next ones need.
    fn prepare_lines(&self, url: &str, admin_url: &str) -> String {
        // The secrets file does not have the given secrets, or has other values for them.
        let mut prepare = match self.given.as_slice() {
            [] => format!(
                "set -a; . {}; set +a",
                quoted(&secrets::path(&self.dir).to_string_lossy())
            ),
            names => format!("# export {} as this instance has them", names.join(", ")),
        };
        if !self.is_trusted_at(url) {
            prepare += "\n# the certificate is for another host than the one in this address: write that host below";
        }
        // No public list has a self-signed certificate or a private authority.
        let trusting = self.tls.as_ref();
        let trusting = trusting.map(|(_, file)| format!(" FLASHSALE_CACERT={}", quoted(&file.to_string_lossy())));
        format!(
            "# prepare\n\
             {prepare}\n\
             export FLASHSALE_URL={admin_url}{}\n",
            trusting.unwrap_or_default()
        )
    }
}

/// The lines that buy a unit, pay for it, and watch the sale.
fn purchase_lines(url: &str, admin_url: &str, DemoSale { id, sku }: &DemoSale) -> String {
    let program = program();
    // Operators' commands use FLASHSALE_URL, which may not serve shoppers.
    let shop = if url == admin_url {
        String::new()
    } else {
        format!(" --url {url}")
    };
    format!(
        "# buy\n\
         ORDER=$({program} buy {id} {sku} --user alice{shop} -q); echo \"order $ORDER\"\n\
         # pay for it, if it was not refused\n\
         [ -z \"$ORDER\" ] || {program} pay $ORDER\n\
         # watch\n\
         {program} sale watch {id}\n\n"
    )
}

/// This program, as a word of the shell.
fn program() -> String {
    let program = std::env::current_exe().unwrap_or_else(|_unknown| PathBuf::from("flashsale"));
    quoted(&program.to_string_lossy())
}

/// A word as a POSIX shell reads it back, in quotes if needed.
fn quoted(word: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "/._-+:@".contains(c);
    if word.chars().all(is_plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', "'\\''"))
    }
}

fn remove(path: &Path) -> anyhow::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("cannot remove {}", path.display()))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_survives_the_shell() {
        assert_eq!(quoted("/a/b.env"), "/a/b.env");
        assert_eq!(quoted("/it's here"), r"'/it'\''s here'");
    }

    fn instance(tls: Option<(Tls, PathBuf)>) -> Instance {
        Instance {
            dir: "/data".into(),
            admin_key: config::Secret::new("hunter2".to_owned()),
            given: Vec::new(),
            tls,
            json: false,
            development: None,
        }
    }

    fn with_certificate_for(host: &str) -> Instance {
        let folder = tempfile::tempdir().unwrap();
        let made = rcgen::generate_simple_self_signed([host.to_owned()]).unwrap();
        let file = |name: &str, text: String| {
            let path = folder.path().join(name);
            fs::write(&path, text).unwrap();
            path.to_str().unwrap().to_owned()
        };
        let (cert, key) = (
            file("cert.pem", made.cert.pem()),
            file("key.pem", made.signing_key.serialize_pem()),
        );
        let tls = Tls::new(
            config::tls::certificates(&cert).unwrap(),
            config::tls::key(&key).unwrap(),
        );
        instance(Some((tls.unwrap(), "/etc/a b.pem".into())))
    }

    fn sale() -> DemoSale {
        DemoSale {
            id: "ID".to_owned(),
            sku: "SKU".to_owned(),
        }
    }

    #[test]
    fn what_is_printed_buys_and_pays_by_command() {
        let plain = instance(None);
        let url = plain.reached_at(([0, 0, 0, 0], 80).into());
        let guide = plain.guide(&url, &url, Some(&sale()));
        assert!(guide.contains(" buy ID SKU --user alice -q); echo"), "{guide}");
        assert!(guide.contains(" pay $ORDER\n"), "{guide}");
        assert!(!guide.contains("CACERT") && !guide.contains("hunter2"), "{guide}");
        let apart = plain.guide(&url, "http://127.0.0.1:81", Some(&sale()));
        assert!(apart.contains("export FLASHSALE_URL=http://127.0.0.1:81\n"), "{apart}");
        assert!(apart.contains(" --user alice --url http://127.0.0.1:80 -q"), "{apart}");
    }

    #[test]
    fn what_is_printed_trusts_a_certificate_of_ones_own() {
        let at = |host: &str| with_certificate_for(host).reached_at(([127, 0, 0, 1], 8443).into());
        assert_eq!(at("localhost"), "https://localhost:8443");
        assert_eq!(at("127.0.0.1"), "https://127.0.0.1:8443");
        assert_eq!(at("shop.example.org"), "https://127.0.0.1:8443");
        let local = with_certificate_for("localhost");
        let guide = local.guide("https://localhost:8443", "https://localhost:8443", Some(&sale()));
        assert!(
            guide.contains("export FLASHSALE_URL=https://localhost:8443 FLASHSALE_CACERT='/etc/a b.pem'\n"),
            "{guide}"
        );
        assert!(!guide.contains("another host"), "{guide}");
        // The URL of another machine's address never says `localhost`.
        assert_eq!(local.reached_at(([192, 0, 2, 1], 80).into()), "https://192.0.2.1:80");
        let url = "https://127.0.0.1:8443";
        let elsewhere = with_certificate_for("shop.example.org").guide(url, url, Some(&sale()));
        assert!(
            elsewhere.contains("# the certificate is for another host"),
            "{elsewhere}"
        );
    }
}
