//! How truth travels: the relay, the bus and the workflows, each with its engines under one trait. Nothing here knows
//! what any message means.
//!
//! Everything is pushed ([`Wake`]) and swept as a safety net: a lost wake-up costs a moment, never work.

mod assembly;
pub mod bus;
mod clock;
mod error;
mod pump;
pub mod relay;
pub mod timer;
pub mod together;
pub mod wake;
pub mod workflow;

pub use assembly::{Duties, Spine};
pub use clock::Clock;
pub use error::Error;
pub use together::Together;
pub use wake::Wake;
