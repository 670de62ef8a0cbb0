//! `headcount healthcheck`: asks a running service whether it is ready.
//!
//! A container runtime calls it every few seconds, so it starts no runtime and speaks just enough
//! HTTP. It ends with 0 or 1 and nothing else: Docker reserves 2.

use std::{
    io::{Read as _, Write as _},
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream, ToSocketAddrs as _},
    path::Path,
    process::ExitCode,
    time::{Duration, Instant},
};

use anyhow::{Context as _, bail, ensure};
use url::Url;

use super::{complain, print};
use crate::config::load::load;

/// The whole check takes no longer.
const PATIENCE: Duration = Duration::from_secs(3);

/// More of an answer isn't read; it is a line of JSON.
const MOST: u64 = 4 * 1024;

/// What `headcount healthcheck` can be told.
#[derive(Debug, clap::Args)]
pub(super) struct Options {
    /// The service to ask, instead of the one at `ops.listen`, such as <http://127.0.0.1:9180>.
    #[arg(long)]
    url: Option<Url>,
}

#[expect(clippy::unnecessary_wraps, reason = "it stands beside commands that fail")]
pub(super) fn run(file: Option<&Path>, options: &Options) -> anyhow::Result<ExitCode> {
    Ok(match check(file, options) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            complain(&error);
            ExitCode::FAILURE
        }
    })
}

fn check(file: Option<&Path>, options: &Options) -> anyhow::Result<()> {
    let url = match &options.url {
        Some(url) => url.clone(),
        None => local(load(file, None)?.config.ops.listen)?,
    };
    let (status, body) = get(&url, PATIENCE)?;
    ensure!(status == 200, "{url} answered {status}: {body}");
    print(&body)
}

/// The address by which this host reaches a listener of its own.
fn local(listen: SocketAddr) -> anyhow::Result<Url> {
    ensure!(listen.port() != 0, "ops.listen has port 0, so only the service knows its port: give --url");
    let ip = match listen.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => IpAddr::V4(Ipv4Addr::LOCALHOST),
        IpAddr::V6(ip) if ip.is_unspecified() => IpAddr::V6(Ipv6Addr::LOCALHOST),
        ip => ip,
    };
    Ok(Url::parse(&format!("http://{}/readyz", SocketAddr::new(ip, listen.port())))?)
}

/// Status and body of a GET, `/readyz` where the address names no path.
fn get(url: &Url, patience: Duration) -> anyhow::Result<(u16, String)> {
    ensure!(url.scheme() == "http", "--url must begin with http://: this speaks no TLS");
    let until = Instant::now() + patience;
    let left = || until.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
    let host = url.host_str().context("--url names no host")?;
    let port = url.port_or_known_default().context("--url names no port")?;
    let path = if url.path() == "/" { "/readyz" } else { url.path() };

    // `host_str` keeps the brackets of an IPv6 address, which a resolver doesn't know.
    let name = host.trim_start_matches('[').trim_end_matches(']');
    let mut connected = Err(anyhow::anyhow!("{host} has no address"));
    for address in (name, port).to_socket_addrs().with_context(|| format!("can't look up {host}"))? {
        connected = TcpStream::connect_timeout(&address, left()).context(format!("can't reach {address}"));
        if connected.is_ok() {
            break;
        }
    }
    let mut stream = connected?;
    stream.set_write_timeout(Some(left()))?;
    stream.write_all(
        format!("GET {path} HTTP/1.1\r\nHost: {host}:{port}\r\nConnection: close\r\n\r\n").as_bytes(),
    )?;
    let mut answer = Vec::new();
    let mut rest = stream.take(MOST);
    loop {
        // Each read may take what is left, so that a trickle doesn't last for ever.
        rest.get_ref().set_read_timeout(Some(left()))?;
        let mut piece = [0; 1024];
        match rest.read(&mut piece) {
            Ok(0) => break,
            Ok(count) => answer.extend_from_slice(&piece[..count]),
            Err(error) => return Err(error).with_context(|| format!("{url} doesn't answer")),
        }
        if Instant::now() >= until {
            bail!("{url} doesn't answer");
        }
    }
    parse(&String::from_utf8_lossy(&answer)).with_context(|| format!("{url} doesn't speak HTTP"))
}

fn parse(answer: &str) -> Option<(u16, String)> {
    let (head, body) = answer.split_once("\r\n\r\n")?;
    let status = head.strip_prefix("HTTP/1.")?.split(' ').nth(1)?.parse().ok()?;
    Some((status, body.trim().to_owned()))
}

#[cfg(test)]
mod tests {
    use std::{net::TcpListener, thread};

    use super::*;

    /// Serves one connection with `answer` and gives the address.
    fn serve(answer: &'static str) -> Url {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut request = [0; 1024];
            let count = stream.read(&mut request).unwrap();
            assert!(request[..count].starts_with(b"GET /readyz HTTP/1.1\r\n"));
            stream.write_all(answer.as_bytes()).unwrap();
        });
        Url::parse(&url).unwrap()
    }

    fn asked(url: Url) -> anyhow::Result<()> {
        check(None, &Options { url: Some(url) })
    }

    #[test]
    fn two_hundred_is_healthy_and_all_else_is_not() {
        asked(serve("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}")).unwrap();
        let error =
            asked(serve("HTTP/1.1 503 Service Unavailable\r\n\r\n{\"code\":\"draining\"}")).unwrap_err();
        assert!(error.to_string().contains("503") && error.to_string().contains("draining"), "{error:#}");
        asked(serve("SSH-2.0-OpenSSH_9.2\r\n")).unwrap_err();
        asked(serve("")).unwrap_err();
    }

    #[test]
    fn a_service_that_is_not_there_is_not_healthy() {
        let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let error = asked(Url::parse(&format!("http://{free}")).unwrap()).unwrap_err();
        assert!(format!("{error:#}").contains("can't reach"), "{error:#}");
    }

    #[test]
    fn one_that_never_answers_is_given_up() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = Url::parse(&format!("http://{}", listener.local_addr().unwrap())).unwrap();
        let error = get(&url, Duration::from_millis(50)).unwrap_err();
        assert!(format!("{error:#}").contains("doesn't answer"), "{error:#}");
    }

    #[test]
    fn a_listener_on_all_addresses_is_reached_on_the_loopback_one() {
        for (listen, url) in [
            ("0.0.0.0:9180", "http://127.0.0.1:9180/readyz"),
            ("[::]:9180", "http://[::1]:9180/readyz"),
            ("10.1.2.3:80", "http://10.1.2.3/readyz"),
        ] {
            assert_eq!(local(listen.parse().unwrap()).unwrap().as_str(), url);
        }
        local("127.0.0.1:0".parse().unwrap()).unwrap_err();
    }
}
