//! The certificates for connections to Redis over TLS, as PEM.

/// The authorities that we trust, and our own certificate.
#[derive(Clone, Default)]
pub struct RedisCertificates {
    /// The authorities that may sign a server's certificate; the public ones if none are given.
    pub authorities: Option<Vec<u8>>,
    /// Our client certificate, if we have one.
    pub client: Option<ClientCertificate>,
}

#[derive(Clone)]
pub struct ClientCertificate {
    /// The client's certificate first, then those that lead from it to its authority.
    pub certificates: Vec<u8>,
    /// The private key of the first certificate.
    pub key: Vec<u8>,
}
