//! The keys of the installation: the authority over nodes, and what signs tasks, receipts and cursors. They are made once,
//! rest in the database, and no private half is ever shown, logged or sent.

mod authority;

use std::fmt;
use std::sync::{Arc, OnceLock};

use domain::ids::NodeId;
use jiff::Timestamp;
use store::Store;
use store::installation_keys::{self, StoredKey};
use wire::seal::{Purpose, SigningKey, VerifyingKey};

use crate::Error;
use authority::Authority;
pub use authority::{GATEWAY_NAME, GatewayCertificate, Issued};

const AUTHORITY: &str = "authority";

/// See the module.
pub struct Keys {
    /// Where agents reach the gateway, `https://host:port`. Set once it listens.
    pub gateway_url: Arc<OnceLock<String>>,
    authority: Authority,
    task: SigningKey,
    receipt: SigningKey,
    cursor: SigningKey,
}

impl fmt::Debug for Keys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Keys { gateway_url, authority: _, task, receipt, cursor } = self;
        f.debug_struct("Keys")
            .field("gateway_url", &gateway_url.get())
            .field("task", task)
            .field("receipt", receipt)
            .field("cursor", cursor)
            .finish_non_exhaustive()
    }
}

impl Keys {
    /// The keys of the installation whose database this is. Whichever process comes first makes them.
    ///
    /// # Errors
    /// When the store fails, or what it keeps is no key.
    pub async fn load_or_create(store: &Store) -> Result<Keys, Error> {
        let authority = load_or_create(store, AUTHORITY, Authority::generate).await?;
        Ok(Keys {
            gateway_url: Arc::default(),
            authority: Authority::load(&authority)?,
            task: signing(store, Purpose::Task).await?,
            receipt: signing(store, Purpose::Receipt).await?,
            cursor: signing(store, Purpose::Cursor).await?,
        })
    }

    /// Signs `bytes` with the key for `purpose`; the signature in URL-safe base64.
    pub fn sign(&self, purpose: Purpose, bytes: &[u8]) -> String {
        self.signing(purpose).sign(purpose, bytes)
    }

    /// Whether we signed `bytes` for `purpose`.
    pub fn verify(&self, purpose: Purpose, bytes: &[u8], signature: &str) -> bool {
        self.verifying(purpose).verifies(purpose, bytes, signature)
    }

    /// What others verify our signatures with.
    pub fn verifying(&self, purpose: Purpose) -> VerifyingKey {
        self.signing(purpose).verifying()
    }

    /// The certificate of the authority over nodes, PEM.
    pub fn authority_pem(&self) -> &str {
        self.authority.pem()
    }

    /// A certificate for the agent of `node`, from a request whose subject and names are ignored: what it says is decided
    /// here alone.
    ///
    /// # Errors
    /// [`Error::Invalid`] when it is no request, or not signed by the key it is for.
    pub fn issue_node_certificate(
        &self,
        node: NodeId,
        csr_pem: &str,
        not_before: Timestamp,
        not_after: Timestamp,
    ) -> Result<Issued, Error> {
        self.authority.issue_for_node(node, csr_pem, (not_before, not_after))
    }

    /// A new key and certificate for the gateway itself. They are not kept: another start, another key.
    ///
    /// # Errors
    /// When the machine has no randomness to give.
    pub fn gateway_certificate(
        &self,
        not_before: Timestamp,
        not_after: Timestamp,
    ) -> Result<GatewayCertificate, Error> {
        self.authority.issue_for_gateway((not_before, not_after))
    }

    fn signing(&self, purpose: Purpose) -> &SigningKey {
        match purpose {
            Purpose::Task => &self.task,
            Purpose::Receipt => &self.receipt,
            Purpose::Cursor => &self.cursor,
        }
    }
}

const fn name_of(purpose: Purpose) -> &'static str {
    match purpose {
        Purpose::Task => "task",
        Purpose::Receipt => "receipt",
        Purpose::Cursor => "cursor",
    }
}

async fn signing(store: &Store, purpose: Purpose) -> Result<SigningKey, Error> {
    let name = name_of(purpose);
    let generate = || {
        let (key, private) = SigningKey::generate().map_err(|_| no_randomness())?;
        Ok(StoredKey { private, public: key.verifying().text() })
    };
    let stored = load_or_create(store, name, generate).await?;
    SigningKey::from_pkcs8(&stored.private).map_err(|_| unreadable(name))
}

/// The key of that name. What is read back is used, never what was made: somebody else may have been first.
async fn load_or_create(
    store: &Store,
    name: &'static str,
    generate: impl FnOnce() -> Result<StoredKey, Error>,
) -> Result<StoredKey, Error> {
    if let Some(key) = installation_keys::find(store, name).await? {
        return Ok(key);
    }
    installation_keys::keep(store, name, &generate()?).await?;
    installation_keys::find(store, name).await?.ok_or_else(|| unreadable(name))
}

fn unreadable(name: &str) -> Error {
    Error::Broken(format!("the installation's key `{name}` can't be read"))
}

fn no_randomness() -> Error {
    Error::Broken("this machine has no randomness to make keys of".to_owned())
}
