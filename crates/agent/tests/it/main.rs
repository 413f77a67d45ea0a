//! The agent as the control plane sees it: a gateway in memory on one side, a simulated machine on the other.
//! Time is virtual wherever it plays a part, and nothing sleeps.

#![expect(
    clippy::expect_used,
    reason = "a step that can't be taken fails the test, and says which"
)]

mod crashes;
mod cuts;
mod fences;
mod gateway;
mod house;
mod journal;
mod outage;
mod outcomes;
mod poisoned;
mod process;
mod random;
mod reconciler;
mod restarts;
mod session;
mod storm;
mod stubborn;
mod tls;
mod verify;
