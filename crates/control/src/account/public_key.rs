//! SSH public keys, read strictly: one line, one key, of a sort that is still good. What is kept is the key alone, so that
//! neither a comment nor an option of `authorized_keys` comes along.

use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, STANDARD_NO_PAD};

use super::secret::sha256;

const RSA_BITS: std::ops::RangeInclusive<usize> = 2_048..=16_384;
const TEXT_BYTES_MAX: usize = 16_384;

/// A public key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PublicKey {
    /// `ssh-ed25519 AAAA…`
    pub(super) text: String,
    /// Its first word.
    pub(super) algorithm: String,
    /// `SHA256:…`
    pub(super) fingerprint: String,
}

/// Why a text is no key that can be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NotAKey {
    TooLong,
    Private,
    SeveralLines,
    OtherAlgorithm,
    Malformed,
    RsaSize,
}

impl fmt::Display for NotAKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            NotAKey::TooLong => "must have at most 16384 characters",
            NotAKey::Private => {
                "this is a private key, which nobody should ever have but you: send the one that ends in .pub"
            }
            NotAKey::SeveralLines => "must be one key on one line",
            NotAKey::OtherAlgorithm => {
                "must begin with ssh-ed25519, ecdsa-sha2-nistp256, -384 or -521, ssh-rsa, or one of the sk- sorts of these"
            }
            NotAKey::Malformed => "is not a key of the sort that it says it is",
            NotAKey::RsaSize => "must have 2048 bits at least, and 16384 at most",
        })
    }
}

/// The curve of an ECDSA key: its name, and the length of an uncompressed point on it.
type Curve = (&'static str, usize);

impl PublicKey {
    /// The key in a text as of `id_ed25519.pub`.
    pub(super) fn parse(text: &str) -> Result<PublicKey, NotAKey> {
        if text.len() > TEXT_BYTES_MAX {
            return Err(NotAKey::TooLong);
        }
        let line = text.trim();
        if line.contains("PRIVATE KEY") {
            return Err(NotAKey::Private);
        }
        if line.chars().any(char::is_control) {
            return Err(NotAKey::SeveralLines);
        }
        let mut words = line.split(' ').filter(|word| !word.is_empty());
        let (algorithm, encoded) =
            (words.next().unwrap_or_default(), words.next().unwrap_or_default());
        let blob = match algorithm {
            "ssh-ed25519" | "ssh-rsa" | "sk-ssh-ed25519@openssh.com" => other(algorithm, encoded)?,
            "ecdsa-sha2-nistp256" => ecdsa(algorithm, encoded, ("nistp256", 65))?,
            "ecdsa-sha2-nistp384" => ecdsa(algorithm, encoded, ("nistp384", 97))?,
            "ecdsa-sha2-nistp521" => ecdsa(algorithm, encoded, ("nistp521", 133))?,
            "sk-ecdsa-sha2-nistp256@openssh.com" => ecdsa(algorithm, encoded, ("nistp256", 65))?,
            _ => return Err(NotAKey::OtherAlgorithm),
        };
        Ok(PublicKey {
            text: format!("{algorithm} {}", STANDARD.encode(&blob)),
            algorithm: algorithm.to_owned(),
            fingerprint: format!("SHA256:{}", STANDARD_NO_PAD.encode(sha256(&blob))),
        })
    }
}

/// A key that the library reads.
fn other(algorithm: &str, encoded: &str) -> Result<Vec<u8>, NotAKey> {
    let key = ssh_key::PublicKey::from_openssh(&format!("{algorithm} {encoded}"))
        .map_err(|_| NotAKey::Malformed)?;
    if let Some(rsa) = key.key_data().rsa() {
        let modulus = rsa.n.as_positive_bytes().ok_or(NotAKey::Malformed)?;
        let unused = modulus.first().map_or(0, |first| first.leading_zeros() as usize);
        if !RSA_BITS.contains(&(modulus.len() * 8 - unused)) {
            return Err(NotAKey::RsaSize);
        }
    }
    key.to_bytes().map_err(|_| NotAKey::Malformed)
}

/// A key on a curve of NIST's, which the library reads only with a whole implementation of the curves: its name, the curve,
/// an uncompressed point, and for a security key the application.
fn ecdsa(algorithm: &str, encoded: &str, (curve, point): Curve) -> Result<Vec<u8>, NotAKey> {
    let blob = STANDARD.decode(encoded).map_err(|_| NotAKey::Malformed)?;
    let mut rest = blob.as_slice();
    let fits = field(&mut rest) == Some(algorithm.as_bytes())
        && field(&mut rest) == Some(curve.as_bytes())
        && field(&mut rest).is_some_and(|q| q.len() == point && q[0] == 4)
        && (!algorithm.starts_with("sk-") || field(&mut rest).is_some())
        && rest.is_empty();
    if fits { Ok(blob) } else { Err(NotAKey::Malformed) }
}

/// The next string of SSH's encoding: its length in four bytes, then itself.
fn field<'b>(rest: &mut &'b [u8]) -> Option<&'b [u8]> {
    let (length, after) = rest.split_first_chunk::<4>()?;
    let length = usize::try_from(u32::from_be_bytes(*length)).ok()?;
    let (field, after) = after.split_at_checked(length)?;
    *rest = after;
    Some(field)
}

#[cfg(test)]
mod tests {
    use super::{NotAKey, PublicKey};

    const ED25519: &str = "AAAAC3NzaC1lZDI1NTE5AAAAIONoj+DjRgs4ysgCkrssa1Zg1bdxWd8wA2Zl1YfDBlzg";
    const P256: &str = "AAAAE2VjZHNhLXNoYTItbmlzdHAyNTYAAAAIbmlzdHAyNTYAAABBBC2MB8p/YZmDAeec7nZBvI5KEnLtbqHFVn5Ts1kolucr2B3mYSezBv81IZv4qZdHWvpVoa5/gYaiY2kJzaZmDI8=";
    const RSA_2048: &str = "AAAAB3NzaC1yc2EAAAADAQABAAABAQDA3pLLSapfggzVCugut76pWCS5RANsUgL45kFNKVl46PFAe/wgUC6l8EkwcK2BJH+KqFKzi/Ay4mNxf+wp56DOeR2GSBSQmRbFk0X3MlUsRwbAytW2qiHS/46VaNYPnFwoi7ThgH7jdulZVCgcC6ZhGB9XYyEEvNR9BObmbuemUocvUUN9vZTJxlwDIYIRNOk9eOlySpRvcGyCbfFJiOv280MGSDxyu1YrhSqAt9//uuzo9gKWyM3NKHIdkTK+re5F5S44Rggcr6N6ncn2U7qXeWWRjsfQUljpjKClBxDkC5CogfI+WaLTaFEUAc89+LxYqvg3JN3bMylfVkLWX4mF";
    const RSA_1024: &str = "AAAAB3NzaC1yc2EAAAADAQABAAAAgQDbqBnfpkUdnAZTmcJPmki+b/f2XMUFGRLFWS5EOHLD37cJT0SQG7i+eUFikFzUAmkfC8/c2Igq9vqYX9EsPcB54PLASUj2FhqbhtBk/ygasEAzTVyvddtOcCGMKqGGtqGe68caOLb4sz9nPaEpjIDOTCt/bLlYQbgHpoUs84+/vQ==";

    #[test]
    fn a_key_is_kept_without_its_comment_and_known_by_its_fingerprint() {
        // The fingerprints are those of `ssh-keygen -l`.
        let known = [
            ("ssh-ed25519", ED25519, "SHA256:k32rEi4FEqtvVUL55nNWLq8cXj3Ug8DKC/oePFw4asE"),
            ("ecdsa-sha2-nistp256", P256, "SHA256:yZe4bhXWv5kLtkdl+qS7QYE7bqxyqN7AHFyYeuMGWjk"),
            ("ssh-rsa", RSA_2048, "SHA256:i7WTHfw3aJBNIY08ITlg3Jk5CAkp3vpjbnqcQ7iC7lU"),
        ];
        for (algorithm, encoded, fingerprint) in known {
            let given = format!(" {algorithm}  {encoded} somebody@their-machine with words\n");
            let key = PublicKey::parse(&given).expect(algorithm);
            assert_eq!(key.text, format!("{algorithm} {encoded}"));
            assert_eq!(
                (key.algorithm.as_str(), key.fingerprint.as_str()),
                (algorithm, fingerprint)
            );
        }
    }

    #[test]
    fn what_is_not_one_good_public_key_is_refused() {
        let ed25519 = format!("ssh-ed25519 {ED25519}");
        let refused = [
            (String::new(), NotAKey::OtherAlgorithm),
            (format!("{ed25519}\n{ed25519}"), NotAKey::SeveralLines),
            (format!("{ed25519} comment\u{0}"), NotAKey::SeveralLines),
            (format!("command=\"sh\" {ed25519}"), NotAKey::OtherAlgorithm),
            (format!("ssh-dss {ED25519}"), NotAKey::OtherAlgorithm),
            (format!("ssh-rsa {ED25519}"), NotAKey::Malformed),
            (format!("ssh-rsa {RSA_1024}"), NotAKey::RsaSize),
            (format!("ssh-ed25519 {}", &ED25519[..60]), NotAKey::Malformed),
            (format!("ssh-ed25519 {ED25519}AAAA"), NotAKey::Malformed),
            (format!("ecdsa-sha2-nistp384 {P256}"), NotAKey::Malformed),
            (format!("sk-ecdsa-sha2-nistp256@openssh.com {P256}"), NotAKey::Malformed),
            (format!("ecdsa-sha2-nistp256 {}", &P256[..100]), NotAKey::Malformed),
            ("ssh-ed25519".to_owned(), NotAKey::Malformed),
            ("-----BEGIN OPENSSH PRIVATE KEY-----\nAAAA".to_owned(), NotAKey::Private),
            (format!("{ed25519} {}", "c".repeat(20_000)), NotAKey::TooLong),
        ];
        for (text, why) in refused {
            assert_eq!(PublicKey::parse(&text), Err(why), "{text:.60}");
        }
    }
}
