//! Who the node is: its key, its certificate, what it pins. One file, so that they always belong together.
//! The key is made here and never leaves the machine.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use rcgen::{CertificateParams, DistinguishedName, KeyPair};
use serde::{Deserialize, Serialize};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;
use wire::node::{Certificate, Enrolment, JoinToken, PROTOCOL};
use wire::seal::{VerifyingKey, sha256_hex};

use crate::backoff::Backoff;
use crate::client::{self, Address, GatewayError, chain};
use crate::clock::{Dice, Paused, foretold, pause};
use crate::durable::{self, Outlives};
use crate::{Config, Error};

const FILE: &str = "identity.json";

/// What a node shows to the gateway, and what it believes.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    /// The node.
    pub node_id: Uuid,
    /// Where the gateway listens, `https://host:port`.
    pub gateway: String,
    /// The private key, PEM.
    pub key: String,
    /// The certificate, PEM.
    pub certificate: String,
    /// The only authority that is trusted, PEM.
    pub authority: String,
    /// The only keys whose tasks are done.
    pub task_keys: Vec<String>,
    /// When the certificate came, by the node's clock.
    pub issued_at: Timestamp,
    /// When it ends.
    pub not_after: Timestamp,
    /// The SHA-256 of the join token it was got with.
    pub token_sha256: String,
}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Identity(node {}, until {})", self.node_id, self.not_after)
    }
}

impl Identity {
    /// The identity kept in `directory`.
    ///
    /// # Errors
    /// When the file is there and can't be read.
    pub fn find(directory: &Path) -> Result<Option<Identity>, Error> {
        let path = path(directory);
        let Some(bytes) = durable::find(&path).map_err(Error::file(&path))? else {
            return Ok(None);
        };
        serde_json::from_slice(&bytes)
            .map(Some)
            .map_err(|_| Error::Identity(format!("{} can't be read", path.display())))
    }

    /// Keeps it in `directory`, in place of the one before.
    ///
    /// # Errors
    /// When the file can't be written.
    pub fn keep(&self, directory: &Path) -> Result<(), Error> {
        let path = path(directory);
        let bytes = serde_json::to_vec_pretty(self)
            .map_err(|error| Error::Identity(format!("it can't be written: {error}")))?;
        durable::replace(&path, &bytes, Outlives::Power).map_err(Error::file(path))
    }

    /// The keys that sign tasks.
    ///
    /// # Errors
    /// When one of them is none.
    pub fn verifying_keys(&self) -> Result<Vec<VerifyingKey>, Error> {
        let parse = |text: &String| VerifyingKey::parse(text);
        let keys: Result<Vec<_>, _> = self.task_keys.iter().map(parse).collect();
        keys.map_err(|error| Error::Identity(format!("a task key: {error}")))
    }

    /// When it is to be renewed: in the fifth of its life that ends with its half. Where in it is the node's and the
    /// certificate's own, so that those who were certified at one moment are not at another, nor after the agent was started
    /// again.
    pub fn renewal_due(&self) -> Timestamp {
        let life = self.not_after.duration_since(self.issued_at);
        let (high, low) = self.node_id.as_u64_pair();
        let own = foretold(&[high, low, self.issued_at.as_second().unsigned_abs()]);
        let due = SignedDuration::try_from_secs_f64(life.as_secs_f64() * (0.3 + 0.2 * own));
        let due = due.ok().and_then(|due| self.issued_at.saturating_add(due).ok());
        due.unwrap_or(self.not_after)
    }

    /// The identity with a new key and certificate.
    pub(crate) fn renewed(&self, key: String, certificate: Certificate, now: Timestamp) -> Self {
        Identity {
            key,
            certificate: certificate.certificate,
            authority: certificate.authority,
            task_keys: certificate.task_keys,
            issued_at: now,
            not_after: certificate.not_after,
            ..self.clone()
        }
    }
}

fn path(directory: &Path) -> PathBuf {
    directory.join(FILE)
}

/// A new key and a request to certify it, both PEM.
pub(crate) struct Request {
    /// The private key.
    pub(crate) key: String,
    /// The request.
    pub(crate) csr: String,
}

impl Request {
    /// A request for a key that did not exist before.
    pub(crate) fn make() -> Result<Request, Error> {
        let wrong = |error: rcgen::Error| Error::Identity(format!("no new key: {error}"));
        let key = KeyPair::generate().map_err(wrong)?;
        let mut params = CertificateParams::default();
        // The gateway decides what the certificate says.
        params.distinguished_name = DistinguishedName::new();
        let csr = params.serialize_request(&key).map_err(wrong)?.pem().map_err(wrong)?;
        Ok(Request { key: key.serialize_pem(), csr })
    }
}

/// The identity in the directory, or a new one for the join token. A token that was not used here before wins over the
/// certificate at hand: it is how an operator enrols a node again. `None` when asked to stop meanwhile.
pub(crate) async fn establish(
    config: &Config,
    stop: &CancellationToken,
) -> Result<Option<Identity>, Error> {
    let directory = &config.directory;
    fs::create_dir_all(directory).map_err(Error::file(directory))?;
    let stored = Identity::find(directory)?;
    let token = match &config.join {
        Some(text) => Some((JoinToken::parse(text).ok_or(Error::Token)?, token_sha256(text))),
        None => None,
    };
    match (stored, token) {
        (Some(stored), Some((token, _))) if stored.node_id != token.node_id => {
            Err(Error::OtherNode {
                directory: directory.clone(),
                stored: stored.node_id,
                token: token.node_id,
            })
        }
        (Some(stored), Some((_, sha256))) if stored.token_sha256 == sha256 => {
            unended(stored, directory, config.clock.now())
        }
        (Some(stored), None) => unended(stored, directory, config.clock.now()),
        (_, Some((token, sha256))) => enrol(config, &token, sha256, stop).await,
        (None, None) => Err(Error::NotEnrolled { directory: directory.clone() }),
    }
}

fn token_sha256(text: &str) -> String {
    sha256_hex(text.trim().as_bytes())
}

fn unended(
    identity: Identity,
    directory: &Path,
    now: Timestamp,
) -> Result<Option<Identity>, Error> {
    if identity.not_after <= now {
        let directory = directory.to_owned();
        return Err(Error::CertificateEnded { directory, ended: identity.not_after });
    }
    Ok(Some(identity))
}

async fn enrol(
    config: &Config,
    token: &JoinToken,
    token_sha256: String,
    stop: &CancellationToken,
) -> Result<Option<Identity>, Error> {
    let address = Address::parse(&token.gateway)?;
    let mut backoff = Backoff::new(Arc::new(Dice::fresh()));
    let (request, certificate) = loop {
        let request = Request::make()?;
        let enrolment = Enrolment {
            protocol: PROTOCOL,
            node_id: token.node_id,
            secret: token.secret.clone(),
            csr: request.csr.clone(),
        };
        let error = match client::enrol(&address, &token.authority, &enrolment).await {
            Ok(certificate) => break (request, certificate),
            Err(Error::Enrolment(error)) if passes(&error) => error,
            Err(error) => return Err(error),
        };
        let delay = backoff.after(&error);
        tracing::warn!(error = chain(&error), ?delay, "enrolment has to wait");
        if pause(delay, stop).await == Paused::Stopped {
            return Ok(None);
        }
    };
    let now = config.clock.now();
    let identity = Identity {
        node_id: token.node_id,
        gateway: token.gateway.clone(),
        key: request.key,
        certificate: certificate.certificate,
        authority: certificate.authority,
        task_keys: certificate.task_keys,
        issued_at: now,
        not_after: certificate.not_after,
        token_sha256,
    };
    identity.verifying_keys()?;
    identity.keep(&config.directory)?;
    tracing::info!(node = %identity.node_id, until = %identity.not_after, "enrolled");
    Ok(Some(identity))
}

/// Whether an error may pass by itself: the token was not judged.
fn passes(error: &GatewayError) -> bool {
    match error {
        GatewayError::Unreachable(_) => true,
        GatewayError::Refused { status, .. } => *status == 429 || *status >= 500,
        GatewayError::Revoked { .. } | GatewayError::Unreadable(_) => false,
    }
}
