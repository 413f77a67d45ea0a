//! The secrets of tokens: 256 random bits as text, of which the SHA-256 is kept.

use aws_lc_rs::{digest, rand};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;

use crate::Error;

/// What every token begins with, so that scanners of leaked secrets know it.
const PREFIX: &str = "berth_";
const RANDOM_BYTES: usize = 32;

/// The text of a new token, and the hash that is kept.
pub(crate) fn fresh() -> Result<(String, [u8; 32]), Error> {
    let mut random = [0_u8; RANDOM_BYTES];
    fill(&mut random)?;
    let text = format!("{PREFIX}{}", URL_SAFE_NO_PAD.encode(random));
    let hash = sha256(text.as_bytes());
    Ok((text, hash))
}

/// The hash by which the token with this text is found; none when it can't be a token of ours.
pub(crate) fn hash_of(text: &str) -> Option<[u8; 32]> {
    let random = URL_SAFE_NO_PAD.decode(text.strip_prefix(PREFIX)?).ok()?;
    (random.len() == RANDOM_BYTES).then(|| sha256(text.as_bytes()))
}

/// Fills `bytes` with randomness.
pub(crate) fn fill(bytes: &mut [u8]) -> Result<(), Error> {
    rand::fill(bytes).map_err(|_| Error::Broken("there is no randomness to be had".to_owned()))
}

/// The SHA-256 of `bytes`.
pub(crate) fn sha256(bytes: &[u8]) -> [u8; 32] {
    let mut hash = [0; 32];
    hash.copy_from_slice(digest::digest(&digest::SHA256, bytes).as_ref());
    hash
}

#[cfg(test)]
mod tests {
    use super::{fresh, hash_of};

    #[test]
    fn a_token_is_known_by_its_hash_and_by_nothing_shorter() {
        let (text, hash) = fresh().expect("a token");
        assert_eq!(hash_of(&text), Some(hash));
        assert_ne!(fresh().expect("another").0, text);
        for wrong in ["", "berth_", &text[6..], &text[..48], &format!("{text}A"), "berth_%%%"] {
            assert_eq!(hash_of(wrong), None, "{wrong}");
        }
    }
}
