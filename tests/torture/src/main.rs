//! Kills everything around headcount at random and looks whether every play is counted once.

fn main() {}
