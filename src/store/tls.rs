//! The cryptography behind TLS, chosen once for the process.
//!
//! Two of our dependencies bring a provider each, and rustls panics at the first connection rather
//! than choose between them.

/// Chooses the provider, unless somebody has. To be called before a TLS connection is prepared.
pub fn choose_provider() {
    // An error says that there is one already, and any will do.
    let _ = rustls::crypto::ring::default_provider().install_default();
}
