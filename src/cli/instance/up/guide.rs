//! What a ready instance prints and writes down: its addresses, and lines to paste into another shell.

use super::demo::{self, DemoSale};
use super::folder::RUN_FILE;
use crate::cli::shared::client::own_url;
use crate::cli::shared::output;
use crate::config;
use crate::config::tls::Tls;
use crate::domain::deployment::development;
use crate::embedded::secrets;
use crate::server::ServedAddresses;
use std::io::Write as _;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::thread;
use ureq::http::Uri;

/// What `run.json` and the printed guide say about a running instance.
pub(super) struct Instance {
    pub(super) dir: PathBuf,
    pub(super) admin_key: config::Secret<String>,
    /// The names of the secrets that the environment or `flashsale.toml` sets.
    pub(super) given: Vec<&'static str>,
    /// The certificate and key of HTTPS, and the certificate's file; `None` with plain HTTP.
    pub(super) tls: Option<(Tls, PathBuf)>,
    /// Whether to print JSON instead of the guide.
    pub(super) json: bool,
    /// In development mode, the secret from which the key of the printed link is derived.
    pub(super) development: Option<config::Secret<String>>,
}

impl Instance {
    /// Writes `run.json`. Then, on a thread of its own, makes sure of the demo sale and prints the guide.
    pub(super) fn announce(self, served: ServedAddresses, mut run: serde_json::Value) {
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
        let docs = format!("API      {url}/docs\n");
        let Some(sale) = sale else {
            return text + &self.console_line(&format!("{admin_url}/console")) + &docs;
        };
        text += &self.shop_line(&format!("{url}/sales/{}", sale.id));
        text += &self.console_line(&format!("{admin_url}/console/sales/{}", sale.id));
        text += &docs;
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

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
        assert!(guide.contains("\nAPI      http://127.0.0.1:80/docs\n"), "{guide}");
        assert!(
            plain
                .guide(&url, &url, None)
                .ends_with("\nAPI      http://127.0.0.1:80/docs\n")
        );
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
