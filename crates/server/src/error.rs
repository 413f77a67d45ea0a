//! What keeps a server from being one. What goes wrong with a request is its answer, and none of this.

use std::net::SocketAddr;

/// Why there is no server.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Nobody can listen there.
    #[error("nobody can listen on {address}")]
    Bind {
        /// Where.
        address: SocketAddr,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// Agents can't be served.
    #[error("agents can't be served")]
    Gateway(#[source] control::Error),
    /// Nothing can leave for the outside.
    #[error("nothing can be sent to the outside")]
    Outside(#[source] reqwest::Error),
}
