//! Certificates of a test's own: an authority, and what it signs.

use std::path::{Path, PathBuf};

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair, date_time_ymd};

/// Signs certificates. Its own is what clients are told to trust.
pub struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
    folder: tempfile::TempDir,
}

/// A certificate and its key, in files that go when this is dropped.
pub struct Issued {
    folder: tempfile::TempDir,
}

impl Authority {
    /// A new one, whom nobody trusts yet.
    #[must_use]
    pub fn new(name: &str) -> Self {
        let mut wanted = CertificateParams::new(Vec::new()).unwrap();
        wanted.distinguished_name.push(DnType::CommonName, name);
        wanted.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let issuer = CertifiedIssuer::self_signed(wanted, KeyPair::generate().unwrap()).unwrap();
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("ca.pem"), issuer.pem()).unwrap();
        Self { issuer, folder }
    }

    /// The file with its certificate.
    #[must_use]
    pub fn file(&self) -> PathBuf {
        self.folder.path().join("ca.pem")
    }

    /// A certificate for `host`, a name or an address.
    #[must_use]
    pub fn issue(&self, host: &str) -> Issued {
        self.sign(host, (2020, 4000))
    }

    /// One that was good for a year, long ago.
    #[must_use]
    pub fn issue_expired(&self, host: &str) -> Issued {
        self.sign(host, (2020, 2021))
    }

    fn sign(&self, host: &str, (from, to): (i32, i32)) -> Issued {
        let mut wanted = CertificateParams::new(vec![host.to_owned()]).unwrap();
        wanted.not_before = date_time_ymd(from, 1, 1);
        wanted.not_after = date_time_ymd(to, 1, 1);
        let key = KeyPair::generate().unwrap();
        let certificate = wanted.signed_by(&key, &self.issuer).unwrap();
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("certificate.pem"), certificate.pem()).unwrap();
        std::fs::write(folder.path().join("key.pem"), key.serialize_pem()).unwrap();
        Issued { folder }
    }
}

impl Issued {
    /// The file with the certificate.
    #[must_use]
    pub fn certificate(&self) -> PathBuf {
        self.folder.path().join("certificate.pem")
    }

    /// The file with its key.
    #[must_use]
    pub fn key(&self) -> PathBuf {
        self.folder.path().join("key.pem")
    }
}

/// A path as an argument of a server.
pub(crate) fn text(path: &Path) -> String {
    path.to_str().expect("paths of tests are UTF-8").to_owned()
}
