//! How a delivery is signed: `t=…,v1=…`, where `v1` is the HMAC-SHA256 of `t.body` with the text of a secret, in hexadecimal. The
//! time is part of what is signed, so that a receiver can refuse what is old; during a rotation there is a `v1` for each secret.

use std::fmt::Write as _;

use aws_lc_rs::hmac;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;

use crate::Error;
use crate::account::secret::fill;

/// What every secret begins with, so that scanners of leaked secrets know it.
const PREFIX: &str = "berth_whsec_";
const RANDOM_BYTES: usize = 32;

/// A new secret, as text: the whole text is the key.
pub(super) fn fresh() -> Result<String, Error> {
    let mut random = [0_u8; RANDOM_BYTES];
    fill(&mut random)?;
    Ok(format!("{PREFIX}{}", URL_SAFE_NO_PAD.encode(random)))
}

/// The header for a body that leaves at that second of the epoch.
pub fn header(secrets: &[String], second: i64, body: &[u8]) -> String {
    let signed = [second.to_string().as_bytes(), b".", body].concat();
    let mut text = format!("t={second}");
    for secret in secrets {
        let key = hmac::Key::new(hmac::HMAC_SHA256, secret.as_bytes());
        let _ = write!(text, ",v1={}", hex(hmac::sign(&key, &signed).as_ref()));
    }
    text
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(2 * bytes.len()), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

#[cfg(test)]
mod tests {
    use super::{fresh, header};

    #[test]
    fn a_signature_is_what_anybody_computes_from_the_time_and_the_body() {
        // printf '%s' '1700000000.{"a":1}' | openssl dgst -sha256 -hmac secret
        let expected = "49f24e537407743fa4a0242bb63b94b9a47ee99cbbe071ccd8a22550ae411686";
        let signed = header(&["secret".to_owned()], 1_700_000_000, b"{\"a\":1}");
        assert_eq!(signed, format!("t=1700000000,v1={expected}"));
        let both = header(&["secret".to_owned(), "old".to_owned()], 1_700_000_000, b"{\"a\":1}");
        assert!(both.starts_with(&signed) && both.matches("v1=").count() == 2, "{both}");
        assert_ne!(header(&["secret".to_owned()], 1_700_000_001, b"{\"a\":1}")[13..], signed[13..]);
    }

    #[test]
    fn no_two_secrets_are_the_same() {
        let (one, other) = (fresh().expect("a secret"), fresh().expect("a secret"));
        assert!(
            one != other && one.starts_with("berth_whsec_") && one.len() == 55,
            "{}",
            one.len()
        );
    }
}
