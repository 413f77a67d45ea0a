//! How an agent becomes known, and stays it.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

/// `POST /agent/v1/enroll`, without a certificate: the token is the proof.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Enrolment {
    /// The version of the protocol.
    pub protocol: u16,
    /// The node the token is for.
    pub node_id: Uuid,
    /// The secret of the join token.
    pub secret: String,
    /// A certificate signing request, PEM. Its subject and names are ignored.
    pub csr: String,
}

/// The certificate an agent gets, and what it pins.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Certificate {
    /// The certificate, PEM.
    pub certificate: String,
    /// When it ends.
    pub not_after: Timestamp,
    /// The authority's certificate, PEM.
    pub authority: String,
    /// The keys that sign tasks, in URL-safe base64.
    pub task_keys: Vec<String>,
}

/// `POST /agent/v1/certificate`, over mTLS: a new key each time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Renewal {
    /// A certificate signing request, PEM.
    pub csr: String,
}

/// What an operator hands to a node: everything its agent needs to enrol, as one text.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct JoinToken {
    /// The node.
    pub node_id: Uuid,
    /// The secret, single use.
    pub secret: String,
    /// Where the gateway listens, `https://host:port`.
    pub gateway: String,
    /// The authority's certificate, PEM, so that the first contact is authenticated too.
    pub authority: String,
}

impl JoinToken {
    /// The token as one text without white space.
    ///
    /// # Errors
    /// Never for this type; serde's signature.
    pub fn text(&self) -> serde_json::Result<String> {
        Ok(URL_SAFE_NO_PAD.encode(serde_json::to_vec(self)?))
    }

    /// The token in such a text; `None` when it is none.
    pub fn parse(text: &str) -> Option<JoinToken> {
        let bytes = URL_SAFE_NO_PAD.decode(text.trim()).ok()?;
        serde_json::from_slice(&bytes).ok()
    }
}
