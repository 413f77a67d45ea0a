//! As much of Postgres's protocol as is needed to tell one statement from the next.

use std::collections::HashMap;
use std::io;

use tokio::io::{AsyncBufRead, AsyncReadExt as _};

/// The request for encryption, which a client may begin with.
const ENCRYPTION: u32 = 80_877_103;
/// More than any message of ours has.
const LENGTH_MAX: usize = 64 << 20;

/// One message: its tag, and its bytes from the tag on.
pub(super) struct Frame {
    pub(super) tag: u8,
    pub(super) bytes: Vec<u8>,
}

/// Reads one message; none when the other side has hung up.
pub(super) async fn read(from: &mut (impl AsyncBufRead + Unpin)) -> io::Result<Option<Frame>> {
    let tag = match from.read_u8().await {
        Ok(tag) => tag,
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        Err(error) => return Err(error),
    };
    let mut bytes = vec![tag];
    read_body(from, &mut bytes).await?;
    Ok(Some(Frame { tag, bytes }))
}

/// Reads the first message of a client, which has no tag. A wish for encryption is answered by the caller.
pub(super) async fn read_first(from: &mut (impl AsyncBufRead + Unpin)) -> io::Result<First> {
    let mut bytes = Vec::new();
    read_body(from, &mut bytes).await?;
    let wish = bytes.len() == 8 && bytes[4..8] == ENCRYPTION.to_be_bytes();
    Ok(if wish { First::Encryption } else { First::Startup(bytes) })
}

/// What a client begins with.
pub(super) enum First {
    Encryption,
    Startup(Vec<u8>),
}

async fn read_body(from: &mut (impl AsyncBufRead + Unpin), into: &mut Vec<u8>) -> io::Result<()> {
    let length = from.read_u32().await?;
    let rest = (length as usize).saturating_sub(4);
    if rest > LENGTH_MAX {
        return Err(io::Error::other("a message that is too long"));
    }
    into.extend(length.to_be_bytes());
    let start = into.len();
    into.resize(start + rest, 0);
    from.read_exact(&mut into[start..]).await?;
    Ok(())
}

/// What a client asks for in one go: everything up to the word after which it waits.
#[derive(Default)]
pub(super) struct Request {
    pub(super) bytes: Vec<u8>,
    /// The statement, if one is to be carried out. To prepare one is not.
    pub(super) statement: Option<String>,
    /// Whether it only wants to know that it is still there.
    pub(super) is_ping: bool,
    pub(super) is_goodbye: bool,
}

/// Reads requests of one connection, and remembers what it has prepared.
#[derive(Default)]
pub(super) struct Reader {
    prepared: HashMap<Vec<u8>, String>,
}

impl Reader {
    pub(super) async fn request(
        &mut self,
        from: &mut (impl AsyncBufRead + Unpin),
    ) -> io::Result<Option<Request>> {
        let mut request = Request { is_ping: true, ..Request::default() };
        let mut bound = None;
        loop {
            let Some(frame) = read(from).await? else {
                return Ok(None);
            };
            match frame.tag {
                b'P' => {
                    let (name, rest) = word(&frame.bytes[5..]);
                    let (sql, _) = word(rest);
                    let sql = String::from_utf8_lossy(sql).into_owned();
                    self.prepared.insert(name.to_vec(), sql);
                }
                b'B' => {
                    let (_, rest) = word(&frame.bytes[5..]);
                    bound = self.prepared.get(word(rest).0).cloned();
                }
                b'E' => request.statement = bound.take(),
                b'Q' => {
                    let (sql, _) = word(&frame.bytes[5..]);
                    request.statement = Some(String::from_utf8_lossy(sql).into_owned());
                }
                _ => {}
            }
            request.is_ping &= frame.tag == b'S';
            request.is_goodbye = frame.tag == b'X';
            request.bytes.extend(frame.bytes);
            if matches!(frame.tag, b'S' | b'Q' | b'X') {
                return Ok(Some(request));
            }
        }
    }
}

/// The text before the first zero, and what follows it.
fn word(bytes: &[u8]) -> (&[u8], &[u8]) {
    let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    (&bytes[..end], bytes.get(end + 1..).unwrap_or_default())
}

/// `ready`, in a transaction or not.
pub(super) fn ready(status: u8) -> [u8; 6] {
    [b'Z', 0, 0, 0, 5, status]
}

/// A statement as a message of its own.
pub(super) fn simple(sql: &str) -> Vec<u8> {
    let length = u32::try_from(sql.len() + 5).unwrap_or(u32::MAX);
    let mut bytes = vec![b'Q'];
    bytes.extend(length.to_be_bytes());
    bytes.extend(sql.as_bytes());
    bytes.push(0);
    bytes
}
