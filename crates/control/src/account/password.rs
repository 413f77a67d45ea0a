//! Passwords: argon2id, away from the threads that serve requests, a few at a time. An address that nobody has costs as
//! much as one that somebody has.

use std::sync::atomic::{AtomicU64, Ordering};

use argon2::{Algorithm, Argon2, Params, PasswordHash, PasswordHasher as _, PasswordVerifier as _};
use tokio::sync::Semaphore;

use super::secret;
use crate::Error;

const MEMORY_KIB: u32 = 19_456;
const PASSES: u32 = 2;
const LANES: u32 = 1;

/// Nobody's password: what is compared when there is nothing to compare.
const NOBODY: &str = "$argon2id$v=19$m=19456,t=2,p=1$bm9ib2R5J3Mgc2FsdCE$AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8";

/// Each hash takes 19 MiB, and a flood of logins must not take them all at once.
static AT_WORK: Semaphore = Semaphore::const_new(4);
static HASHED: AtomicU64 = AtomicU64::new(0);

/// How many passwords this process has hashed: the work that logins cost.
pub fn hashed() -> u64 {
    HASHED.load(Ordering::Relaxed)
}

/// The hash of a password, in PHC form.
pub(crate) async fn hash(password: &str) -> Result<String, Error> {
    let mut salt = [0_u8; 16];
    secret::fill(&mut salt)?;
    let password = password.to_owned();
    let hash = at_work(move || argon2()?.hash_password_with_salt(password.as_bytes(), &salt));
    let hash = hash.await?.map_err(|_| Error::Broken("a password can't be hashed".to_owned()))?;
    Ok(hash.to_string())
}

/// Whether this is the password with that hash. Without a hash it is not, after the same work.
pub(crate) async fn verify(password: &str, hash: Option<String>) -> Result<bool, Error> {
    let password = password.to_owned();
    let known = hash.is_some();
    let same = at_work(move || {
        let hash = PasswordHash::new(hash.as_deref().unwrap_or(NOBODY))?;
        argon2()?.verify_password(password.as_bytes(), &hash)
    });
    Ok(same.await?.is_ok() && known)
}

fn argon2() -> Result<Argon2<'static>, argon2::password_hash::Error> {
    let params = Params::new(MEMORY_KIB, PASSES, LANES, None)?;
    Ok(Argon2::new(Algorithm::Argon2id, argon2::Version::V0x13, params))
}

async fn at_work<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, Error> {
    let broken = |_| Error::Broken("passwords can't be hashed any more".to_owned());
    let _turn = AT_WORK.acquire().await.map_err(broken)?;
    HASHED.fetch_add(1, Ordering::Relaxed);
    let done = tokio::task::spawn_blocking(work).await;
    done.map_err(|_| Error::Broken("hashing a password was broken off".to_owned()))
}

#[cfg(test)]
mod tests {
    use argon2::PasswordHash;

    use super::{NOBODY, hash, verify};

    #[tokio::test]
    async fn a_password_is_recognised_and_nobodys_costs_the_same() {
        let kept = hash("a long sentence").await.expect("it can be hashed");
        assert!(kept.starts_with("$argon2id$v=19$m=19456,t=2,p=1$"), "{kept}");
        assert!(verify("a long sentence", Some(kept.clone())).await.expect("it answers"));
        assert!(!verify("a short one", Some(kept.clone())).await.expect("it answers"));
        assert!(!verify("a long sentence", None).await.expect("it answers"));
        let (ours, nobodys) = (PasswordHash::new(&kept), PasswordHash::new(NOBODY));
        let (ours, nobodys) = (ours.expect("it is one"), nobodys.expect("it is one"));
        assert_eq!((ours.algorithm, ours.params), (nobodys.algorithm, nobodys.params));
    }
}
