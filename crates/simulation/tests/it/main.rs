//! The simulation at the size of a test.

mod short;
