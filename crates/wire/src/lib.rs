//! Every shape that leaves a process: HTTP bodies, the catalogue of messages, the node protocol. Types only: nothing
//! here knows how anything is done.
//!
//! What comes from outside is strict (`deny_unknown_fields`); what Berth answers may gain fields.

pub mod bus;
mod code;
pub mod http;
pub mod node;
pub mod problem;
pub mod receipt;
pub mod seal;

pub use code::Coded;
