//! The proofs at a size that a test run can afford.

mod model;
mod mutation;
mod prove;
mod walk;
