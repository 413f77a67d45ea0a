//! The first start: a catalogue, two accounts, a project, and contexts for the CLI. Every later start finds them there and
//! leaves them as they are; a token that still works is kept.

use std::collections::BTreeMap;

use anyhow::Context as _;
use control::account::{self, install};
use control::{Caller, Ctx, billing, catalogue};
use domain::policy::Scope;
use uuid::Uuid;

use super::place::{Place, read_json, write_json};
use crate::context::{self, Context, Contexts};
use crate::exit::Done;
use crate::moment::fresh_id;

const TOKEN_TTL_SECONDS: u32 = 365 * 86_400;
const PASSWORD_CHARS: usize = 24;
/// 32 signs that nobody takes for one another, so that five bits are one of them.
const ALPHABET: &[u8; 32] = b"abcdefghijkmnpqrstuvwxyz23456789";

/// Somebody who is there from the beginning.
struct Somebody {
    /// The name of their context, too.
    context: &'static str,
    email: &'static str,
    name: &'static str,
    operator: bool,
    scopes: &'static [Scope],
}

const DEMO: Somebody = Somebody {
    context: "demo",
    email: "demo@berth.local",
    name: "Demo",
    operator: false,
    scopes: &[Scope::Read, Scope::Write],
};

const OPERATOR: Somebody = Somebody {
    context: "operator",
    email: "operator@berth.local",
    name: "Operator",
    operator: true,
    scopes: &[Scope::Read, Scope::Write, Scope::Admin],
};

/// What the tenant has to try things with, in minor units.
const WELCOME_MINOR: i64 = 10_000;

/// What the installation has given us.
pub(super) struct Installed {
    /// The operator, to add nodes as.
    pub(super) operator: Caller,
    /// The tenant.
    pub(super) demo: Caller,
    /// Whether the context of the tenant is the current one.
    pub(super) current: bool,
}

/// Makes what is not there yet.
pub(super) async fn run(ctx: &Ctx, place: &Place, api: &str) -> Done<Installed> {
    catalogue::install(ctx, &catalogue::demonstration()).await.context("the catalogue")?;
    let passwords = passwords(place)?;
    let (demo, operator) =
        (user(ctx, &DEMO, &passwords).await?, user(ctx, &OPERATOR, &passwords).await?);
    let project = install::ensure_project(ctx, demo, "demo").await.context("the project")?;
    billing::account::welcome(ctx, demo, WELCOME_MINOR).await.context("the balance")?;
    let file = context::path()?;
    let known = Contexts::read(&file)?;
    let demo_token = token(ctx, &DEMO, demo, &known).await?;
    let operator_token = token(ctx, &OPERATOR, operator, &known).await?;
    let current = Contexts::change(&file, |contexts| {
        let fresh = !contexts.contexts.contains_key(DEMO.context);
        let project = Some(project.to_string());
        let demo = Context { api: api.to_owned(), token: Some(demo_token), project };
        let operator = Context { api: api.to_owned(), token: Some(operator_token), project: None };
        contexts.contexts.insert(DEMO.context.to_owned(), demo);
        contexts.contexts.insert(OPERATOR.context.to_owned(), operator);
        // Whoever has chosen another one since then is not overruled.
        let chosen =
            contexts.current.as_ref().is_some_and(|name| contexts.contexts.contains_key(name));
        if fresh || !chosen {
            contexts.current = Some(DEMO.context.to_owned());
        }
        Ok(contexts.current.as_deref() == Some(DEMO.context))
    })?;
    Ok(Installed { operator: caller(&OPERATOR, operator), demo: caller(&DEMO, demo), current })
}

fn caller(somebody: &Somebody, user_id: Uuid) -> Caller {
    Caller {
        user_id,
        email: somebody.email.to_owned(),
        name: somebody.name.to_owned(),
        operator: somebody.operator,
        token_id: Uuid::nil(),
        scopes: somebody.scopes.to_vec(),
        request_id: fresh_id(),
        source: None,
    }
}

async fn user(ctx: &Ctx, who: &Somebody, passwords: &BTreeMap<String, String>) -> Done<Uuid> {
    let password = passwords.get(who.email).map(String::as_str);
    let made = install::ensure_user(ctx, who.email, who.name, who.operator, password).await;
    Ok(made.with_context(|| format!("the account {}", who.email))?)
}

/// The token in the context of that name, if it is theirs and still works; else a new one.
async fn token(ctx: &Ctx, who: &Somebody, user: Uuid, known: &Contexts) -> Done<String> {
    let kept = known.contexts.get(who.context).and_then(|context| context.token.clone());
    if let Some(kept) = kept
        && let Ok(caller) = account::authenticate(ctx, &kept, request()).await
        && caller.user_id == user
    {
        return Ok(kept);
    }
    let issued = install::issue_token(ctx, user, "berth up", who.scopes, TOKEN_TTL_SECONDS).await;
    Ok(issued.with_context(|| format!("a token for {}", who.email))?.secret)
}

/// A question of ours, that nobody sent.
fn request() -> account::Request {
    account::Request { id: fresh_id(), source: None }
}

/// The passwords in the file, made up first if they are not there. They are kept before they are used, so that an account
/// never has a password that nobody knows.
fn passwords(place: &Place) -> Done<BTreeMap<String, String>> {
    let path = place.credentials();
    let mut passwords: BTreeMap<String, String> = read_json(&path)?.unwrap_or_default();
    let before = passwords.len();
    for who in [&DEMO, &OPERATOR] {
        if !passwords.contains_key(who.email) {
            passwords.insert(who.email.to_owned(), password()?);
        }
    }
    if passwords.len() > before {
        write_json(&path, &passwords)?;
    }
    Ok(passwords)
}

/// A text that nobody guesses.
pub(super) fn password() -> Done<String> {
    use std::io::Read as _;
    let mut random = [0_u8; PASSWORD_CHARS];
    let source = std::fs::File::open("/dev/urandom").context("there is no randomness")?;
    (&source).read_exact(&mut random).context("there is no randomness")?;
    Ok(random.iter().map(|byte| char::from(ALPHABET[usize::from(byte & 31)])).collect())
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::{ALPHABET, PASSWORD_CHARS, password};

    #[test]
    fn passwords_are_long_and_no_two_are_the_same() {
        let signs: HashSet<u8> = ALPHABET.iter().copied().collect();
        assert_eq!(signs.len(), ALPHABET.len());
        let made: HashSet<String> = (0..100).filter_map(|_| password().ok()).collect();
        assert_eq!(made.len(), 100);
        assert!(made.iter().all(|each| each.len() == PASSWORD_CHARS));
    }
}
