//! TLS, as far as it is the same for every store: the cryptography, chosen once for the process, and
//! what its errors mean to whoever runs this.

/// Chooses the provider, unless somebody has. To be called before a TLS connection is prepared: the
/// libraries that speak TLS here bring none of their own and panic without one.
pub fn choose_provider() {
    // An error says that there is one already, and any will do.
    let _ = rustls::crypto::ring::default_provider().install_default();
}

/// An error of a store's client, with what is to be done where TLS is what failed: the words of the
/// library are for who knows the protocol. `authority` names the setting that says whom to trust.
#[must_use]
pub fn explained(error: &str, authority: &str) -> String {
    let hint = if error.contains("UnknownIssuer") {
        format!("no authority that is trusted here has signed its certificate; is {authority} the right one?")
    } else if error.contains("InvalidContentType") || error.contains("server does not support TLS") {
        "it doesn't speak TLS at this port".to_owned()
    } else if error.contains("CertificateRequired") {
        "it wants a client's certificate".to_owned()
    } else {
        return error.to_owned();
    };
    format!("{error} ({hint})")
}
