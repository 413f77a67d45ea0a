//! The signature of a webhook: an HMAC over the time and the very bytes of the body, compared in constant time. Each of several
//! secrets may have signed it, so that they can be changed without losing a word; what is older than the tolerance is refused,
//! so that what somebody has recorded can't be told again later.

use aws_lc_rs::hmac::{self, HMAC_SHA256};
use control::Error;
use jiff::Timestamp;

use super::Secret;

/// The header that it comes in.
pub const SIGNATURE: &str = "stripe-signature";
/// How far the time of a signature may be from ours, in seconds.
const TOLERANCE_SECONDS: u64 = 300;
/// So many signatures of one scheme are looked at: Stripe sends one for each secret, of which there are two at most.
const LOOKED_AT_MAX: usize = 8;
const DIGEST_BYTES: usize = 32;

/// Whether one of `secrets` has signed `body`, just now.
pub(super) fn verify(
    header: Option<&str>,
    body: &[u8],
    secrets: &[Secret],
    now: Timestamp,
) -> Result<(), Error> {
    let header = header.ok_or(Error::Unproven("there is no signature"))?;
    let (time, digests) = read(header).ok_or(Error::Unproven("the signature can't be read"))?;
    let signs = |secret: &&Secret| {
        let key = hmac::Key::new(HMAC_SHA256, secret.bytes());
        let mut signed = time.as_bytes().to_vec();
        signed.push(b'.');
        signed.extend_from_slice(body);
        digests.iter().any(|digest| hmac::verify(&key, &signed, digest).is_ok())
    };
    if !secrets.iter().any(|secret| signs(&secret)) {
        return Err(Error::Unproven("the signature is not of a secret that we know"));
    }
    let at: i64 = time.parse().map_err(|_| Error::Unproven("the signature can't be read"))?;
    if now.as_second().abs_diff(at) > TOLERANCE_SECONDS {
        return Err(Error::Unproven("the signature is too old, or from the future"));
    }
    Ok(())
}

/// The time, as it was signed, and the digests of the scheme that we know.
fn read(header: &str) -> Option<(&str, Vec<[u8; DIGEST_BYTES]>)> {
    let mut time = None;
    let mut digests = Vec::new();
    for part in header.split(',') {
        match part.trim().split_once('=')? {
            ("t", text) if time.is_none() => time = Some(text),
            ("t", _) => return None,
            ("v1", text) if digests.len() < LOOKED_AT_MAX => digests.extend(unhexed(text)),
            // Schemes that are not ours, and more than anybody sends.
            (_, _) => {}
        }
    }
    let time = time.filter(|time| !time.is_empty() && time.bytes().all(|b| b.is_ascii_digit()))?;
    Some((time, digests))
}

fn unhexed(text: &str) -> Option<[u8; DIGEST_BYTES]> {
    let mut digest = [0; DIGEST_BYTES];
    if text.len() != 2 * DIGEST_BYTES {
        return None;
    }
    for (byte, pair) in digest.iter_mut().zip(text.as_bytes().chunks_exact(2)) {
        let digit = |at: usize| char::from(pair[at]).to_digit(16);
        *byte = u8::try_from(digit(0)? * 16 + digit(1)?).ok()?;
    }
    Some(digest)
}

#[cfg(test)]
mod tests {
    use control::Error;
    use jiff::{SignedDuration, Timestamp};

    use super::{Secret, verify};

    const BODY: &[u8] = br#"{"id":"evt_1","object":"event"}"#;
    const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
    const AT: i64 = 1_760_000_000;
    /// Of that time, body and secret; by `openssl dgst -sha256 -hmac`.
    const DIGEST: &str = "113ccbc7b68f72e3b2ab8ab117a54a5e4c6e90fe0f3a125cb85ef8553ac685bd";

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(seconds).expect("a moment")
    }

    fn secrets(texts: &[&str]) -> Vec<Secret> {
        texts.iter().map(|text| Secret::new(text)).collect()
    }

    fn verdict(header: &str, known: &[&str], now: i64) -> Result<(), String> {
        verify(Some(header), BODY, &secrets(known), at(now)).map_err(|error| error.to_string())
    }

    #[test]
    fn what_another_implementation_signs_is_accepted_for_five_minutes_either_way() {
        let header = format!("t={AT},v1={DIGEST}");
        for ahead in [0, 300, -300] {
            assert_eq!(verdict(&header, &[SECRET], AT + ahead), Ok(()), "{ahead}");
        }
        for ahead in [301, -301, 86_400] {
            assert!(verdict(&header, &[SECRET], AT + ahead).is_err(), "{ahead}");
        }
        let long = at(AT).checked_add(SignedDuration::from_hours(1)).expect("a moment");
        assert!(verify(Some(&header), BODY, &secrets(&[SECRET]), long).is_err());
    }

    #[test]
    fn each_of_several_secrets_and_each_of_several_signatures_will_do() {
        let other = "0".repeat(64);
        let header = format!("t={AT},v1={other},v1={DIGEST},v0=abc");
        assert_eq!(verdict(&header, &["whsec_old", SECRET], AT), Ok(()));
        assert_eq!(verdict(&header, &[SECRET, "whsec_new"], AT), Ok(()));
        assert!(verdict(&header, &["whsec_old", "whsec_new"], AT).is_err());
        assert!(verdict(&header, &[], AT).is_err(), "nobody's secret signs nothing");
    }

    #[test]
    fn what_is_not_signed_for_this_time_and_these_bytes_is_refused() {
        let good = format!("t={AT},v1={DIGEST}");
        let now = at(AT);
        let known = secrets(&[SECRET]);
        assert!(verify(Some(&good), BODY, &known, now).is_ok());
        let mut spaced = BODY.to_vec();
        spaced.push(b'\n');
        assert!(verify(Some(&good), &spaced, &known, now).is_err(), "the very bytes are signed");
        assert!(matches!(verify(None, BODY, &known, now), Err(Error::Unproven(_))));
        let short = &DIGEST[..62];
        for header in [
            "".to_owned(),
            "nonsense".to_owned(),
            format!("v1={DIGEST}"),
            format!("t={AT}"),
            format!("t={},v1={DIGEST}", AT + 1),
            format!("t={AT},t={AT},v1={DIGEST}"),
            format!("t={AT}x,v1={DIGEST}"),
            format!("t=-{AT},v1={DIGEST}"),
            format!("t={AT},v0={DIGEST}"),
            format!("t={AT},v1={short}"),
            format!("t={AT},v1={short}zz"),
        ] {
            assert!(verify(Some(&header), BODY, &known, now).is_err(), "{header}");
        }
    }

    #[test]
    fn a_secret_is_not_printed() {
        assert_eq!(format!("{:?}", Secret::new(SECRET)), "Secret(***)");
    }
}
