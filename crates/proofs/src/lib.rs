//! Proofs that take longer than a test, or need more than one crate. `make prove` runs them all; `make test` runs
//! each of them at a small size.

pub mod model;
pub mod money;
pub mod mutation;
pub mod reference;
pub mod walk;
