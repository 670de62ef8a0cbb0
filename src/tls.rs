//! The cryptography behind TLS, chosen once for the process.
//!
//! The libraries that speak TLS here bring no provider of their own and panic without one.

/// Chooses the provider, unless somebody has. To be called before a TLS connection is prepared.
pub fn choose_provider() {
    // An error says that there is one already, and any will do.
    let _ = rustls::crypto::ring::default_provider().install_default();
}
