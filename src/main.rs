//! The `headcount` binary.

fn main() {}
