//! The certificates of connections to Redis over TLS, as PEM.

/// Whom we trust, and who we are.
#[derive(Clone, Default)]
pub struct RedisCertificates {
    /// The authorities that may have signed a server's certificate; the public ones if there is none.
    pub authorities: Option<Vec<u8>>,
    /// The client certificate, if there is one.
    pub client: Option<ClientCertificate>,
}

/// A certificate with its private key.
#[derive(Clone)]
pub struct ClientCertificate {
    /// First the client's certificate, then those that lead from it to its authority.
    pub certificates: Vec<u8>,
    /// The private key of the first.
    pub key: Vec<u8>,
}
