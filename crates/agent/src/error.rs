//! Why an agent ends, in words an operator can act on.

use std::io;
use std::path::PathBuf;

use uuid::Uuid;

use crate::client::GatewayError;

/// Why an agent ended, or could not begin.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// It has neither a certificate nor a token to get one.
    #[error(
        "there is no certificate in {directory} and no join token: create the node or a new token \
         for it in the control plane, and start the agent with --join <token>"
    )]
    NotEnrolled {
        /// Where it looked.
        directory: PathBuf,
    },
    /// The certificate ended while the agent was away.
    #[error(
        "the certificate in {directory} ended at {ended}: create a new join token for the node, \
         and start the agent with --join <token>"
    )]
    CertificateEnded {
        /// Where it lies.
        directory: PathBuf,
        /// When it ended.
        ended: jiff::Timestamp,
    },
    /// The join token is not one.
    #[error(
        "the join token can't be read: copy it whole, as the control plane printed it, in one line"
    )]
    Token,
    /// The token is for another node than the one that lives in the directory.
    #[error(
        "the join token is for node {token}, but {directory} belongs to node {stored}: use another \
         directory, or a token for node {stored}"
    )]
    OtherNode {
        /// The directory.
        directory: PathBuf,
        /// Whose it is.
        stored: Uuid,
        /// Whose the token is.
        token: Uuid,
    },
    /// The gateway did not take the token.
    #[error(
        "the gateway did not enrol the node (a token works once, and not for long): create a new \
         one if this one was used or is old"
    )]
    Enrolment(#[source] GatewayError),
    /// The key, certificate or address at hand can't be used.
    #[error("the identity of the node can't be used: {0}")]
    Identity(String),
    /// A file of the agent could not be read or written.
    #[error("the agent's file {path} can't be used")]
    File {
        /// Which.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// Another agent works in the directory.
    #[error("another agent works in {directory}: stop it first")]
    Busy {
        /// The directory.
        directory: PathBuf,
    },
    /// The journal has a line that does not hold, and it is not the last.
    #[error(
        "line {line} of the journal {path} is damaged ({why}), and lines follow it: what was begun \
         here is not known for certain; set the node to maintenance and look at the machine"
    )]
    Journal {
        /// The journal.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
        /// What is wrong with it.
        why: String,
    },
    /// A part of the agent panicked.
    #[error("a part of the agent panicked")]
    Panicked(#[source] tokio::task::JoinError),
    /// The fault `crash` struck.
    #[error("the agent crashed, as a fault told it to")]
    Crashed,
    /// The simulated machine reboots, and its agent went down with it.
    #[error("the machine reboots: its agent is started again, and goes on when the machine is up")]
    Rebooting,
}

impl Error {
    /// An [`Error::File`] about `path`.
    pub(crate) fn file(path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Error {
        let path = path.into();
        move |source| Error::File { path, source }
    }
}
