//! Passwords: argon2id, away from the threads that serve requests, a few at a time. An address that nobody has costs as
//! much as one that somebody has.

use std::sync::atomic::{AtomicU64, Ordering};

use argon2::password_hash::phc::{Output, ParamsString, Salt};
use argon2::{Algorithm, Argon2, Block, Params, PasswordHash, Version, password_hash};
use tokio::sync::Semaphore;

use super::secret;
use crate::Error;

const MEMORY_KIB: u32 = 19_456;
const PASSES: u32 = 2;
const LANES: u32 = 1;

/// Nobody's password: what is compared when there is nothing to compare.
const NOBODY: &str = "$argon2id$v=19$m=19456,t=2,p=1$bm9ib2R5J3Mgc2FsdCE$AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8";

/// A piece of memory as large as this goes back to the system as soon as it is dropped; of a smaller one the C library would keep
/// all 19 MiB for the next hash, once for every thread that ever made one. What is asked for and never written takes no memory.
const NEVER_KEPT_BYTES: usize = 40 << 20;

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
    let hash = at_work(move || hashed_with(password.as_bytes(), &salt));
    let hash = hash.await?.map_err(|_| Error::Broken("a password can't be hashed".to_owned()))?;
    Ok(hash.to_string())
}

/// Whether this is the password with that hash. Without a hash it is not, after the same work.
pub(crate) async fn verify(password: &str, hash: Option<String>) -> Result<bool, Error> {
    let password = password.to_owned();
    let known = hash.is_some();
    let same = at_work(move || {
        let hash = PasswordHash::new(hash.as_deref().unwrap_or(NOBODY))?;
        is_of(password.as_bytes(), &hash)
    });
    Ok(same.await?.unwrap_or(false) && known)
}

fn hashed_with(password: &[u8], salt: &[u8]) -> Result<PasswordHash, password_hash::Error> {
    let params = Params::new(MEMORY_KIB, PASSES, LANES, None)?;
    let (algorithm, version) = (Algorithm::Argon2id, Version::V0x13);
    let output = digest(&Argon2::new(algorithm, version, params.clone()), password, salt)?;
    Ok(PasswordHash {
        algorithm: algorithm.ident(),
        version: Some(version.into()),
        params: ParamsString::try_from(&params)?,
        salt: Some(Salt::new(salt)?),
        hash: Some(output),
    })
}

fn is_of(password: &[u8], hash: &PasswordHash) -> Result<bool, password_hash::Error> {
    let (Some(salt), Some(expected)) = (&hash.salt, &hash.hash) else { return Ok(false) };
    let algorithm = Algorithm::try_from(hash.algorithm.as_str())?;
    let version = hash.version.map(Version::try_from).transpose()?.unwrap_or_default();
    let argon2 = Argon2::new(algorithm, version, Params::try_from(hash)?);
    // Outputs are compared in a time that does not depend on where they differ.
    Ok(digest(&argon2, password, salt)? == *expected)
}

/// The work itself, in memory that goes back to the system with the last use of it.
fn digest(
    argon2: &Argon2<'_>,
    password: &[u8],
    salt: &[u8],
) -> Result<Output, password_hash::Error> {
    let blocks = argon2.params().block_count();
    let mut memory = Vec::with_capacity(blocks.max(NEVER_KEPT_BYTES / Block::SIZE));
    memory.resize(blocks, Block::new());
    let length = argon2.params().output_len().unwrap_or(Params::DEFAULT_OUTPUT_LEN);
    let mut output = vec![0; length];
    argon2.hash_password_into_with_memory(password, salt, &mut output, &mut memory)?;
    Ok(Output::new(&output)?)
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
