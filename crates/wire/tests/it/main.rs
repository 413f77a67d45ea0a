//! What leaves a process stays what others have learnt to read.

#![expect(
    clippy::expect_used,
    reason = "a step that can't be taken fails the test, and says which"
)]

mod golden;
