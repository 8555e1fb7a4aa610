//! `flashsale up`: starts a private Redis and Postgres, then does what `serve --role all` does. A kill -9 loses
//! nothing: the next start on the same folder goes on.

mod demo;
mod folder;
mod guide;
mod servers;

use crate::cli::Failure;
use crate::config::{self, Config, Settings};
use crate::embedded::secrets;
use crate::server::{self, Listeners, Role, ServedAddresses};
use anyhow::anyhow;
use folder::{DataFolder, RUN_FILE, remove};
use guide::Instance;
use servers::{Servers, Watch};
use std::io::{IsTerminal as _, Write as _};
use std::path::{Path, PathBuf};
use std::thread;
use tokio_util::sync::CancellationToken;

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
pub fn run(args: &Args) -> Result<(), Failure> {
    let mut settings = Settings::load()?;
    if let Some(listen) = &args.listen {
        settings.set(config::LISTEN, listen.clone(), "--listen".to_owned());
    }
    if settings.get(config::DEVELOPMENT).is_none() {
        settings.set(config::DEVELOPMENT, "auto".to_owned(), config::DEVELOPMENT.to_owned());
    }
    if let Some(log) = args.log(&settings) {
        settings.set(config::LOG, log.to_owned(), "--verbose".to_owned());
    }
    let mut folder = DataFolder::open(&args.data)?;
    let given = fill_in_secrets(&folder.dir, &mut settings)?;
    let ignored = ignored_variables(&settings);
    // Checked with placeholder URLs first, so that a wrong setting is reported before any server starts.
    settings.set_servers("unix:///".to_owned(), "postgres:///".to_owned());
    let config = Config::from_settings(&settings)?;
    let _telemetry = crate::cli::start_logging(&config, args.json)?;
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
    folder.keep();
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
    let on_ready = move |served: ServedAddresses| instance.announce(served, run);
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
