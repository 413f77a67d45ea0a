//! Nodes: enrolment, heartbeats, tasks.

pub mod admin;
pub mod dispatch;
pub mod drain;
pub mod enrol;
pub mod heartbeat;

pub mod roll_call;
mod rounds;
pub mod task;
