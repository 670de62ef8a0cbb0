//! headcount answers two questions for a video site: how many people are watching this video now,
//! and how often was it played.

pub mod simulate;
