//! Whoever asks, as cheaply as possible: HTTP/1.1 written by hand over a connection that is kept, because the cores on which it runs
//! are those that carry what is measured.

use anyhow::{Context as _, ensure};
use serde_json::Value;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use uuid::Uuid;

use crate::product::Product;

/// One connection.
pub(crate) struct Client {
    stream: TcpStream,
    host: String,
    token: String,
    /// What has been read and not been used.
    read: Vec<u8>,
}

/// One answer.
#[derive(Clone, Debug)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    /// When to come back, in seconds, if that is said.
    pub(crate) retry_after: Option<u64>,
    pub(crate) body: Vec<u8>,
}

impl Reply {
    pub(crate) fn json(&self) -> anyhow::Result<Value> {
        Ok(serde_json::from_slice(&self.body)?)
    }

    /// The answer in words, for who did not expect it.
    pub(crate) fn words(&self) -> String {
        format!("{} {}", self.status, String::from_utf8_lossy(&self.body))
    }
}

impl Client {
    /// Connects as the tenant of a product.
    pub(crate) async fn connect(product: &Product) -> anyhow::Result<Client> {
        Client::connect_to(&product.host(), &product.token).await
    }

    /// Connects with a token.
    pub(crate) async fn connect_to(host: &str, token: &str) -> anyhow::Result<Client> {
        let stream = TcpStream::connect(host).await?;
        stream.set_nodelay(true)?;
        let read = Vec::with_capacity(8_192);
        Ok(Client { stream, host: host.to_owned(), token: token.to_owned(), read })
    }

    /// `POST` with a key; the answer whatever it is.
    pub(crate) async fn post(
        &mut self,
        path: &str,
        key: Uuid,
        body: &str,
    ) -> anyhow::Result<Reply> {
        let request = format!(
            "POST /api/v1{path} HTTP/1.1\r\nhost: {}\r\nauthorization: Bearer {}\r\nidempotency-key: {key}\r\n\
             content-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
            self.host,
            self.token,
            body.len()
        );
        self.stream.write_all(request.as_bytes()).await?;
        self.reply().await
    }

    /// `GET` of a path from the root, as nobody.
    pub(crate) async fn get(&mut self, path: &str) -> anyhow::Result<Reply> {
        let request = format!("GET {path} HTTP/1.1\r\nhost: {}\r\n\r\n", self.host);
        self.stream.write_all(request.as_bytes()).await?;
        self.reply().await
    }

    async fn reply(&mut self) -> anyhow::Result<Reply> {
        loop {
            if let Some(end) = find(&self.read, b"\r\n\r\n") {
                let Head { status, length, retry_after } = head(&self.read[..end])?;
                let whole = end + 4 + length;
                if self.read.len() >= whole {
                    let body = self.read[end + 4..whole].to_vec();
                    self.read.drain(..whole);
                    return Ok(Reply { status, retry_after, body });
                }
            }
            let more = self.stream.read_buf(&mut self.read).await?;
            ensure!(more > 0, "the connection was closed before there was an answer");
        }
    }
}

fn find(bytes: &[u8], words: &[u8]) -> Option<usize> {
    bytes.windows(words.len()).position(|window| window == words)
}

/// What an answer says of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Head {
    status: u16,
    length: usize,
    retry_after: Option<u64>,
}

fn head(bytes: &[u8]) -> anyhow::Result<Head> {
    let text = std::str::from_utf8(bytes)?;
    let mut lines = text.split("\r\n");
    let status = lines.next().and_then(|line| line.split(' ').nth(1)).context("a status")?;
    let (mut length, mut retry_after) = (None, None);
    for line in lines {
        let Some((name, value)) = line.split_once(':') else { continue };
        if name.eq_ignore_ascii_case("content-length") {
            length = Some(value.trim().parse()?);
        } else if name.eq_ignore_ascii_case("retry-after") {
            retry_after = Some(value.trim().parse()?);
        }
    }
    let length = length.with_context(|| format!("an answer without a length: {text}"))?;
    Ok(Head { status: status.parse()?, length, retry_after })
}

#[cfg(test)]
mod tests {
    use super::{Head, find, head};

    #[test]
    fn an_answer_says_its_status_and_how_long_its_body_is() {
        let bytes = b"HTTP/1.1 201 Created\r\nContent-Length: 17\r\ndate: now\r\n\r\n{}";
        let end = find(bytes, b"\r\n\r\n").expect("there is an end");
        let read = head(&bytes[..end]).expect("it can be read");
        assert_eq!(read, Head { status: 201, length: 17, retry_after: None });
        let away = head(b"HTTP/1.1 503 Not now\r\nretry-after: 3\r\ncontent-length: 0");
        assert_eq!(away.expect("it can be read").retry_after, Some(3));
        assert!(head(b"HTTP/1.1 201 Created\r\ntransfer-encoding: chunked").is_err());
    }
}
