//! HTTPS: served by configuration, to clients that trust the certificate, and to no others.

use crate::support::app::{ADMIN_KEY, CANARIES, Instance, Ran, TestApp, environment, program};
use crate::support::servers;
use rcgen::{CertifiedKey, KeyPair, generate_simple_self_signed};
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, RootCertStore};
use serde_json::Value;
use std::collections::BTreeMap;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::Duration;
use ureq::Agent;
use ureq::tls::{Certificate, RootCerts, TlsConfig};

/// A certificate for `localhost` with its key, in files.
pub struct Files {
    folder: tempfile::TempDir,
    made: CertifiedKey<KeyPair>,
}

impl Files {
    pub fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let made = generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        std::fs::write(folder.path().join("cert.pem"), made.cert.pem()).unwrap();
        std::fs::write(folder.path().join("key.pem"), made.signing_key.serialize_pem()).unwrap();
        Self { folder, made }
    }

    pub fn path(&self, name: &str) -> String {
        self.folder.path().join(name).to_str().unwrap().to_owned()
    }

    /// A client that trusts this certificate and no other.
    pub fn client(&self) -> Agent {
        let certificate = Certificate::from_der(self.made.cert.der()).to_owned();
        let tls = TlsConfig::builder().root_certs(RootCerts::new_with_certs(&[certificate]));
        let config = Agent::config_builder().proxy(None).http_status_as_error(false);
        config.tls_config(tls.build()).build().into()
    }

    /// The protocol that a server chooses of these, and the version of TLS.
    fn chosen(&self, address: &str, protocols: &[&str]) -> (String, String) {
        let mut roots = RootCertStore::empty();
        roots.add(self.made.cert.der().clone()).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        config.alpn_protocols = protocols.iter().map(|it| it.as_bytes().to_vec()).collect();
        let name = ServerName::try_from("localhost").unwrap();
        let mut connection = ClientConnection::new(Arc::new(config), name).unwrap();
        let mut socket = TcpStream::connect(address).unwrap();
        while connection.is_handshaking() {
            connection.complete_io(&mut socket).unwrap();
        }
        let chosen = String::from_utf8_lossy(connection.alpn_protocol().unwrap_or_default()).into_owned();
        (chosen, format!("{:?}", connection.protocol_version().unwrap()))
    }
}

fn with_tls(files: &Files) -> BTreeMap<String, String> {
    let mut environment = environment("redis://127.0.0.1:1", "postgres://user@127.0.0.1:1/x");
    environment.insert("FLASHSALE_TLS_CERT".to_owned(), files.path("cert.pem"));
    environment.insert("FLASHSALE_TLS_KEY".to_owned(), files.path("key.pem"));
    environment
}

/// The reply of a port to these bytes, until it is closed.
fn answer(address: &str, request: &[u8]) -> Vec<u8> {
    let mut socket = TcpStream::connect(address).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    socket.write_all(request).unwrap();
    let mut answer = Vec::new();
    // A reset is an end like any other.
    let _end = socket.read_to_end(&mut answer);
    answer
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn https_is_served_to_clients_that_trust_the_certificate_and_http_is_not() {
    let files = Files::new();
    let (cert, key) = (files.path("cert.pem"), files.path("key.pem"));
    let variables = [
        ("FLASHSALE_TLS_CERT", cert.as_str()),
        ("FLASHSALE_TLS_KEY", key.as_str()),
    ];
    let app = TestApp::with("api", &variables).await;
    let address = app.url.trim_start_matches("http://").to_owned();
    let port = address.rsplit(':').next().unwrap();
    let url = format!("https://localhost:{port}/v1/admin/sales");

    let asked = files
        .client()
        .get(&url)
        .header("Authorization", &format!("Bearer {ADMIN_KEY}"));
    let mut answered = asked.call().unwrap();
    let body: Value = answered.body_mut().read_json().unwrap();
    assert_eq!(
        (answered.status().as_u16(), &body["has_more"]),
        (200, &Value::Bool(false))
    );
    // Problems are the same as without.
    let unknown = files.client().get(&url).call().unwrap();
    assert_eq!(unknown.status().as_u16(), 401);
    // A client that trusts another certificate does not connect.
    assert!(Files::new().client().get(&url).call().is_err());

    for (offered, expected) in [
        (&["h2", "http/1.1"][..], "http/1.1"),
        (&["http/1.1"], "http/1.1"),
        (&[], ""),
    ] {
        assert_eq!(
            files.chosen(&address, offered),
            (expected.to_owned(), "TLSv1_3".to_owned())
        );
    }
    let plain = answer(
        &address,
        b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
    );
    assert!(!plain.starts_with(b"HTTP/"), "{}", String::from_utf8_lossy(&plain));

    // The instance's own command asks by its address, which no certificate names.
    let mut environment = app.environment.clone();
    environment.insert("FLASHSALE_LISTEN".to_owned(), address.clone());
    Ran::of(program(&environment, &["healthcheck"]).output().unwrap()).ended(0);
    // Other clients get an error that it is not trusted.
    environment.insert("FLASHSALE_URL".to_owned(), format!("https://localhost:{port}"));
    let ran = Ran::of(program(&environment, &["sale", "list"]).output().unwrap()).ended(1);
    assert!(
        ran.stderr.contains("certificate")
            && ran.stderr.contains("FLASHSALE_CACERT")
            && ran.stderr.lines().count() == 1,
        "{ran:?}"
    );
    // With a file that has it, the certificate is trusted.
    for args in [&["sale", "list"][..], &["sale", "list", "--cacert", &cert]] {
        let mut trusting = environment.clone();
        if args.len() == 2 {
            trusting.insert("FLASHSALE_CACERT".to_owned(), cert.clone());
        }
        Ran::of(program(&trusting, args).output().unwrap()).ended(0);
    }
    environment.insert("FLASHSALE_CACERT".to_owned(), cert.clone());
    environment.insert("FLASHSALE_URL".to_owned(), format!("https://{address}"));
    let ran = Ran::of(program(&environment, &["sale", "list"]).output().unwrap()).ended(1);
    assert!(
        ran.stderr
            .contains("name it in --url or FLASHSALE_URL as its certificate does"),
        "{ran:?}"
    );
    environment.insert("FLASHSALE_URL".to_owned(), format!("http://{address}"));
    let ran = Ran::of(program(&environment, &["sale", "list"]).output().unwrap()).ended(1);
    assert!(
        ran.stderr.contains("if that port speaks HTTPS, write https://"),
        "{ran:?}"
    );
    environment.insert("FLASHSALE_CACERT".to_owned(), "/no/such/file".to_owned());
    let ran = Ran::of(program(&environment, &["sale", "list"]).output().unwrap()).ended(2);
    assert!(ran.stderr.contains("FLASHSALE_CACERT names /no/such/file"), "{ran:?}");
}

#[tokio::test]
async fn without_a_certificate_http_is_served_as_ever() {
    let environment = environment(&servers::redis(), &servers::database().await);
    let instance = Instance::start(&environment, "api");
    let address = instance.url.trim_start_matches("http://");
    let plain = answer(
        address,
        b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
    );
    assert!(
        plain.starts_with(b"HTTP/1.1 200"),
        "{}",
        String::from_utf8_lossy(&plain)
    );
}

#[test]
fn certificates_and_keys_that_cannot_be_are_named_in_one_line_before_anything_is_started() {
    let (files, other) = (Files::new(), Files::new());
    std::fs::write(files.folder.path().join("empty.pem"), "").unwrap();
    std::fs::write(files.folder.path().join("canary.pem"), CANARIES.join("\n")).unwrap();
    let (cert, key) = ("FLASHSALE_TLS_CERT", "FLASHSALE_TLS_KEY");
    let cases = [
        (cert, String::new(), key, "set both to serve HTTPS, or neither"),
        (key, String::new(), cert, "set both to serve HTTPS, or neither"),
        (cert, "/no/such/file".to_owned(), cert, "cannot be read"),
        (key, "/no/such/file".to_owned(), key, "cannot be read"),
        (cert, files.path("empty.pem"), cert, "in which there is none"),
        (cert, files.path("key.pem"), cert, "in which there is none"),
        (key, files.path("cert.pem"), key, "in which there is none"),
        (key, files.path("canary.pem"), key, "in which there is none"),
        (
            key,
            other.path("key.pem"),
            key,
            "is not the key of the first certificate",
        ),
    ];
    for (changed, value, named, expected) in cases {
        let mut environment = with_tls(&files);
        environment.insert(changed.to_owned(), value.clone());
        for command in [&["serve"][..], &["healthcheck"]] {
            let ran = Ran::of(program(&environment, command).output().unwrap()).ended(2);
            let line = ran.stderr.trim_end();
            assert!(
                !line.contains('\n') && line.contains(named) && line.contains(expected),
                "{value}: {ran:?}"
            );
        }
    }
}
