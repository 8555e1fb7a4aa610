//! A certificate authority of the test's own, with the files of a Redis that speaks TLS and of its client.

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;

/// The authority's certificate, and a certificate with its key for a server at 127.0.0.1 and for a client.
pub struct Authority {
    folder: tempfile::TempDir,
}

impl Authority {
    pub fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, text: String| {
            let path = folder.path().join(name);
            fs::write(&path, text).unwrap();
            // Redis runs as another user if we are root, and reads these of the server.
            let mode = if name.starts_with("client") { 0o600 } else { 0o644 };
            fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
        };
        fs::set_permissions(folder.path(), Permissions::from_mode(0o755)).unwrap();
        // A certificate whose subject is its issuer's counts as signed by itself.
        let named = |name: &str, hosts: Vec<String>| {
            let mut params = CertificateParams::new(hosts).unwrap();
            params.distinguished_name.push(DnType::CommonName, name);
            params
        };
        let mut authority = named("authority", Vec::new());
        authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let authority = CertifiedIssuer::self_signed(authority, KeyPair::generate().unwrap()).unwrap();
        write("ca.pem", authority.pem());
        for (name, host) in [("server", "127.0.0.1"), ("client", "flashsale")] {
            let key = KeyPair::generate().unwrap();
            let certificate = named(name, vec![host.to_owned()]).signed_by(&key, &authority).unwrap();
            write(&format!("{name}.pem"), certificate.pem());
            write(&format!("{name}-key.pem"), key.serialize_pem());
        }
        Self { folder }
    }

    pub fn path(&self, name: &str) -> String {
        self.folder.path().join(name).to_str().unwrap().to_owned()
    }

    /// The settings of a Redis that speaks TLS at this port and nothing else over the network, to clients with a certificate.
    pub fn of_redis(&self, port: u16) -> Vec<(String, String)> {
        let settings = [
            ("port", "0".to_owned()),
            ("tls-port", port.to_string()),
            ("tls-ca-cert-file", self.path("ca.pem")),
            ("tls-cert-file", self.path("server.pem")),
            ("tls-key-file", self.path("server-key.pem")),
            ("tls-auth-clients", "yes".to_owned()),
            ("tls-replication", "yes".to_owned()),
            ("tls-cluster", "yes".to_owned()),
        ];
        settings.map(|(name, value)| (name.to_owned(), value)).into()
    }

    /// The variables of an instance that asks such a Redis.
    pub fn of_client(&self) -> [(String, String); 3] {
        [
            ("FLASHSALE_REDIS_CACERT", "ca.pem"),
            ("FLASHSALE_REDIS_CERT", "client.pem"),
            ("FLASHSALE_REDIS_KEY", "client-key.pem"),
        ]
        .map(|(name, file)| (name.to_owned(), self.path(file)))
    }
}
