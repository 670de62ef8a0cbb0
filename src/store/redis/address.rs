//! How an address becomes a client, whichever server of a deployment it is of: the same certificates
//! for all of them, read once, at the start.
//!
//! No error names an address with its password in it.

use std::path::Path;

use redis::{ClientTlsConfig, ConnectionAddr, TlsCertificates};
use rustls::{
    ClientConfig, RootCertStore,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _},
};

use crate::{
    config::{self, SecretUrl},
    error::{Part, StoreError},
    tls,
};

const AUTHORITY: &str = "redis.ca_file";
const CERTIFICATE: &str = "redis.client_cert_file";
const KEY: &str = "redis.client_key_file";

/// What the system says where the other side has ended a connection.
const HUNG_UP: [&str; 3] = ["roken pipe", "reset by peer", "close_notify"];

/// Whom Redis servers are known by, and what they know this client by.
#[derive(Clone, Debug)]
pub struct Certificates {
    authority: Option<Vec<u8>>,
    client: Option<ClientTlsConfig>,
}

impl Certificates {
    /// Reads the files of the settings.
    ///
    /// # Errors
    /// One can't be read or isn't what it should be; the setting is named.
    pub fn read(settings: &config::Redis) -> Result<Self, StoreError> {
        tls::choose_provider();
        let authority = file(AUTHORITY, &settings.ca_file)?;
        let mut trusted = RootCertStore::empty();
        if let Some(authority) = &authority {
            for certificate in certificates(AUTHORITY, authority)? {
                trusted.add(certificate).map_err(|error| unusable(AUTHORITY, error))?;
            }
        }
        let certificate = file(CERTIFICATE, &settings.client_cert_file)?;
        let key = file(KEY, &settings.client_key_file)?;
        // That neither comes alone is checked with the settings.
        let client = certificate.zip(key);
        if let Some((certificate, key)) = &client {
            let chain = certificates(CERTIFICATE, certificate)?;
            let key = PrivateKeyDer::from_pem_slice(key).map_err(|error| unusable(KEY, error))?;
            // The driver would find out with each connection whether they belong together.
            ClientConfig::builder()
                .with_root_certificates(trusted)
                .with_client_auth_cert(chain, key)
                .map_err(|error| unusable(KEY, format!("with {CERTIFICATE}: {error}")))?;
        }
        let client = client.map(|(client_cert, client_key)| ClientTlsConfig { client_cert, client_key });
        Ok(Self { authority, client })
    }

    /// A client of the server at `url`. Nothing is sent yet.
    ///
    /// # Errors
    /// It is no Redis address.
    pub fn client(&self, url: &SecretUrl) -> Result<redis::Client, StoreError> {
        let client = if url.is_tls() {
            redis::Client::build_with_tls(url.expose(), self.for_driver())
        } else {
            redis::Client::open(url.expose())
        };
        let client = client.and_then(|client| {
            let info = client.get_connection_info().clone();
            // The driver would tell its name by a command that Redis 7.0 doesn't know and no ACL for it
            // can allow.
            let settings = info.redis_settings().clone().set_skip_set_lib_name();
            redis::Client::open(info.set_redis_settings(settings))
        });
        // The error's own text may repeat the URL, and the URL may hold a password.
        client.map_err(|error| {
            let shown = url.redacted();
            StoreError::unexpected(Part::Redis, format!("{shown} is no redis address: {}", error.category()))
        })
    }

    /// The same, for a driver that makes clients by itself. Without an authority the public ones are
    /// trusted, which the driver brings.
    #[must_use]
    pub fn for_driver(&self) -> TlsCertificates {
        TlsCertificates { client_tls: self.client.clone(), root_cert: self.authority.clone() }
    }
}

/// Why there is no connection, for whoever runs this.
#[must_use]
pub fn explained(error: &str, client: &redis::Client) -> String {
    let is_tls = matches!(client.get_connection_info().addr(), ConnectionAddr::TcpTls { .. });
    let hint = match error {
        // To Redis, what TLS begins with is the beginning of a command: it waits for the rest.
        _ if is_tls && error.contains("timed out") => "at a port that doesn't speak TLS nobody would answer",
        // It may have hung up before anybody read why.
        _ if is_tls && HUNG_UP.iter().any(|word| error.contains(word)) => {
            "perhaps it wants a client's certificate"
        }
        _ => return tls::explained(error, AUTHORITY),
    };
    format!("{error} ({hint})")
}

/// What the file holds; nothing where none is named.
fn file(setting: &str, path: &Path) -> Result<Option<Vec<u8>>, StoreError> {
    if path.as_os_str().is_empty() {
        return Ok(None);
    }
    match std::fs::read(path) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(error) => Err(unusable(setting, format!("{} can't be read: {error}", path.display()))),
    }
}

fn certificates(setting: &str, pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, StoreError> {
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    let found = found.map_err(|error| unusable(setting, error))?;
    if found.is_empty() {
        return Err(unusable(setting, "there is no certificate in it (PEM)"));
    }
    Ok(found)
}

fn unusable(setting: &str, reason: impl std::fmt::Display) -> StoreError {
    StoreError::unexpected(Part::Redis, format!("{setting} can't be used: {reason}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(change: impl FnOnce(&mut config::Redis)) -> config::Redis {
        let loaded = config::load::load(None, Some(std::collections::HashMap::new())).unwrap();
        let mut settings = loaded.config.redis;
        change(&mut settings);
        settings
    }

    fn complaint(change: impl FnOnce(&mut config::Redis)) -> String {
        Certificates::read(&settings(change)).map(drop).unwrap_err().to_string()
    }

    #[test]
    fn a_file_that_is_none_of_certificates_is_told_with_its_setting() {
        let folder = tempfile::tempdir().unwrap();
        let (gone, empty) = (folder.path().join("gone.pem"), folder.path().join("empty.pem"));
        std::fs::write(&empty, "nothing here").unwrap();
        let text = complaint(|redis| redis.ca_file = gone.clone());
        assert!(text.contains("redis.ca_file") && text.contains("gone.pem"), "{text}");
        let text = complaint(|redis| redis.ca_file = empty.clone());
        assert!(text.contains("redis.ca_file") && text.contains("no certificate"), "{text}");
        let text = complaint(|redis| {
            redis.client_cert_file = empty.clone();
            redis.client_key_file = empty.clone();
        });
        assert!(text.contains("redis.client_cert_file"), "{text}");
    }

    #[test]
    fn an_address_that_is_none_is_told_without_its_password() {
        let certificates = Certificates::read(&settings(|_| {})).unwrap();
        for address in ["rediss://u:hunter2@0.0.0.0", "redis://u:hunter2@h/first", "hunter2"] {
            let text = certificates.client(&SecretUrl::new(address)).map(drop).unwrap_err().to_string();
            assert!(text.contains("no redis address") && !text.contains("hunter2"), "{text}");
        }
    }
}
