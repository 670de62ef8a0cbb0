//! Checks the protocol of plays in many small worlds, and that the check bites.

mod check;
mod clauses;
mod settings;
mod worlds;
