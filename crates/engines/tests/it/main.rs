//! The engines for more than one machine, on real servers: held to what every engine does, and to what only these can suffer.

#![expect(
    clippy::expect_used,
    reason = "a step that can't be taken fails the test, and says which"
)]

mod bed;
mod nats;
mod outages;
mod replay;
mod temporal;
