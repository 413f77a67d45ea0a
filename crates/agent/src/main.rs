//! The agent of one node.

fn main() {}
