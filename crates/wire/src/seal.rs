//! Signatures: Ed25519 over the exact bytes that travel, with the purpose in front, so that what was signed for one thing
//! is never taken for another.

use aws_lc_rs::signature::{self, Ed25519KeyPair, KeyPair as _};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;

/// What a signature is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// A task for a node.
    Task,
    /// A receipt for a tenant.
    Receipt,
    /// A cursor that a client brings back.
    Cursor,
}

impl Purpose {
    const fn prefix(self) -> &'static [u8] {
        match self {
            Purpose::Task => b"berth task v1\0",
            Purpose::Receipt => b"berth receipt v1\0",
            Purpose::Cursor => b"berth cursor v1\0",
        }
    }

    fn message(self, bytes: &[u8]) -> Vec<u8> {
        [self.prefix(), bytes].concat()
    }
}

/// Why a key could not be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KeyError {
    /// It is no Ed25519 key.
    #[error("this is not an Ed25519 key")]
    Malformed,
}

/// A private key that signs. It has no `Debug` of its content, and is never serialised.
pub struct SigningKey {
    pair: Ed25519KeyPair,
}

impl std::fmt::Debug for SigningKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "SigningKey({})", self.verifying().id())
    }
}

impl SigningKey {
    /// A new key: the key, and its PKCS#8 document to be kept.
    ///
    /// # Errors
    /// When the machine has no randomness to give.
    pub fn generate() -> Result<(SigningKey, Vec<u8>), KeyError> {
        let pair = Ed25519KeyPair::generate().map_err(|_| KeyError::Malformed)?;
        let document = pair.to_pkcs8().map_err(|_| KeyError::Malformed)?;
        Ok((SigningKey { pair }, document.as_ref().to_vec()))
    }

    /// The key in a PKCS#8 document.
    ///
    /// # Errors
    /// [`KeyError::Malformed`] when it is none.
    pub fn from_pkcs8(document: &[u8]) -> Result<SigningKey, KeyError> {
        let pair = Ed25519KeyPair::from_pkcs8(document).map_err(|_| KeyError::Malformed)?;
        Ok(SigningKey { pair })
    }

    /// The public half.
    pub fn verifying(&self) -> VerifyingKey {
        VerifyingKey { bytes: self.pair.public_key().as_ref().to_vec() }
    }

    /// Signs `bytes` for `purpose`; the signature in URL-safe base64.
    pub fn sign(&self, purpose: Purpose, bytes: &[u8]) -> String {
        URL_SAFE_NO_PAD.encode(self.pair.sign(&purpose.message(bytes)))
    }
}

/// A public key that verifies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VerifyingKey {
    bytes: Vec<u8>,
}

impl VerifyingKey {
    /// The key as text, in URL-safe base64.
    pub fn text(&self) -> String {
        URL_SAFE_NO_PAD.encode(&self.bytes)
    }

    /// The key in such a text.
    ///
    /// # Errors
    /// [`KeyError::Malformed`] when it is none.
    pub fn parse(text: &str) -> Result<VerifyingKey, KeyError> {
        let bytes = URL_SAFE_NO_PAD.decode(text).map_err(|_| KeyError::Malformed)?;
        if bytes.len() != 32 {
            return Err(KeyError::Malformed);
        }
        Ok(VerifyingKey { bytes })
    }

    /// A short name of the key: the beginning of its text.
    pub fn id(&self) -> String {
        self.text().chars().take(12).collect()
    }

    /// Whether `signature` is this key's, over `bytes`, for `purpose`.
    pub fn verifies(&self, purpose: Purpose, bytes: &[u8], signature: &str) -> bool {
        let Ok(signature) = URL_SAFE_NO_PAD.decode(signature) else {
            return false;
        };
        let key = signature::UnparsedPublicKey::new(&signature::ED25519, &self.bytes);
        key.verify(&purpose.message(bytes), &signature).is_ok()
    }
}

/// The SHA-256 of `bytes`, in hexadecimal.
pub fn sha256_hex(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    let digest = aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, bytes);
    digest.as_ref().iter().fold(String::with_capacity(64), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

#[cfg(test)]
mod tests {
    use super::{Purpose, SigningKey, VerifyingKey};

    #[test]
    fn a_signature_holds_for_its_bytes_its_purpose_and_its_key_alone() {
        let (key, document) = SigningKey::generate().expect("a key");
        let signature = key.sign(Purpose::Task, b"the task");
        let public = VerifyingKey::parse(&key.verifying().text()).expect("it is one");
        assert!(public.verifies(Purpose::Task, b"the task", &signature));
        assert!(!public.verifies(Purpose::Task, b"the tasK", &signature));
        assert!(!public.verifies(Purpose::Receipt, b"the task", &signature));
        let (other, _) = SigningKey::generate().expect("a key");
        assert!(!other.verifying().verifies(Purpose::Task, b"the task", &signature));
        let again = SigningKey::from_pkcs8(&document).expect("it was kept");
        assert_eq!(again.verifying(), public);
    }
}
