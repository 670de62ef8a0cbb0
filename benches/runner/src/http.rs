//! As much of HTTP/1.1 as this bench needs: one kept connection, one answer after each request.

use std::{
    io::{Error, ErrorKind, Result},
    net::SocketAddr,
};

use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};

/// An answer; the body stays where it was read to.
#[derive(Debug)]
pub(crate) struct Answer<'a> {
    pub(crate) status: u16,
    pub(crate) has_retry_after: bool,
    /// The server will close the connection.
    pub(crate) is_last: bool,
    pub(crate) body: &'a [u8],
}

/// A connection that is kept.
pub(crate) struct Connection {
    stream: TcpStream,
    buffer: Vec<u8>,
}

impl Connection {
    pub(crate) async fn open(address: SocketAddr) -> Result<Self> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        Ok(Self { stream, buffer: Vec::with_capacity(4096) })
    }

    /// Sends what [`get`] or [`post`] made, and waits for its answer.
    pub(crate) async fn exchange(&mut self, request: &[u8]) -> Result<Answer<'_>> {
        self.stream.write_all(request).await?;
        self.buffer.clear();
        let head = loop {
            self.more().await?;
            if let Some(end) = find(&self.buffer, b"\r\n\r\n") {
                break end + 4;
            }
        };
        let text = std::str::from_utf8(&self.buffer[..head]).map_err(|_| wrong("its head is no text"))?;
        let status =
            text.get(9..12).and_then(|status| status.parse().ok()).ok_or_else(|| wrong("no status"))?;
        let mut length = 0;
        let (mut has_retry_after, mut is_last) = (false, false);
        for line in text.split("\r\n").skip(1) {
            let Some((name, value)) = line.split_once(':') else { continue };
            let value = value.trim();
            if name.eq_ignore_ascii_case("content-length") {
                length = value.parse().map_err(|_| wrong("no length"))?;
            }
            has_retry_after |= name.eq_ignore_ascii_case("retry-after");
            is_last |= name.eq_ignore_ascii_case("connection") && value.eq_ignore_ascii_case("close");
            if name.eq_ignore_ascii_case("transfer-encoding") {
                return self.rest_of_chunks(head, status, has_retry_after).await;
            }
        }
        while self.buffer.len() < head + length {
            self.more().await?;
        }
        Ok(Answer { status, has_retry_after, is_last, body: &self.buffer[head..head + length] })
    }

    /// Long answers come in pieces; the bench reads them as text, and the lengths between don't matter.
    async fn rest_of_chunks(
        &mut self,
        head: usize,
        status: u16,
        has_retry_after: bool,
    ) -> Result<Answer<'_>> {
        while !self.buffer.ends_with(b"\r\n0\r\n\r\n") {
            self.more().await?;
        }
        Ok(Answer { status, has_retry_after, is_last: true, body: &self.buffer[head..] })
    }

    async fn more(&mut self) -> Result<()> {
        if self.stream.read_buf(&mut self.buffer).await? == 0 {
            return Err(ErrorKind::UnexpectedEof.into());
        }
        Ok(())
    }
}

fn wrong(what: &str) -> Error {
    Error::new(ErrorKind::InvalidData, format!("not an answer: {what}"))
}

fn find(text: &[u8], what: &[u8]) -> Option<usize> {
    text.windows(what.len()).position(|window| window == what)
}

/// A GET.
pub(crate) fn get(path: &str) -> Vec<u8> {
    format!("GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n").into_bytes()
}

/// A POST with a JSON body.
pub(crate) fn post(path: &str, body: &str) -> Vec<u8> {
    let length = body.len();
    format!(
        "POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}"
    )
    .into_bytes()
}

/// Asks once, on a connection made for that.
pub(crate) async fn ask(address: SocketAddr, path: &str) -> anyhow::Result<(u16, String)> {
    let mut connection = Connection::open(address).await?;
    let answer = connection.exchange(&get(path)).await?;
    Ok((answer.status, String::from_utf8_lossy(answer.body).into_owned()))
}
