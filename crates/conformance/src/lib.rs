//! What every bus and every workflow engine must do: suites that each of them is held to, on a real Postgres, whatever else
//! carries the word.

#![expect(
    clippy::expect_used,
    reason = "a step that can't be taken fails the test, and says which"
)]
#![expect(clippy::missing_panics_doc, reason = "everything here panics when it does not hold")]

pub mod bed;
pub mod bus_conformance;
pub mod bus_failures;
pub mod workflow_conformance;
pub mod workflow_faults;
