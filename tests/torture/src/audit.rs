//! The service's own word: whether every play that was counted is still somewhere.

use anyhow::Context as _;
use serde_json::Value;

use crate::{
    instance::Instance,
    tally::{Tally, Wrong},
};

/// What the equation is made of, as `headcount audit --json` names it.
const TERMS: [&str; 9] = [
    "witnessed",
    "imported",
    "views",
    "pending",
    "refused",
    "adjustments",
    "difference",
    "lost",
    "unreported",
];

/// Prints the equation: nothing may be lost, and no more unreported than `tail`, which killed instances
/// may have left behind.
pub(crate) async fn hold(instance: &Instance, tally: &Tally, tail: u64) -> anyhow::Result<()> {
    let output =
        instance.command(&["audit", "--json"]).output().await.context("can't run headcount audit")?;
    let answer: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
    if !answer["totals"].is_object() {
        let said = String::from_utf8_lossy(&output.stderr);
        tally.wrong(Wrong::Promise, &format!("headcount audit ended with {} and said {said}", output.status));
        return Ok(());
    }
    let totals = &answer["totals"];
    let terms: Vec<String> = TERMS.iter().map(|term| format!("{term} {}", totals[term])).collect();
    println!("audit: {}; unreported may be {tail}", terms.join(", "));

    if answer["verified"] != true {
        tally.wrong(Wrong::Promise, "headcount audit can't verify the equation though nothing moves");
    }
    if totals["lost"] != 0 {
        tally.wrong(Wrong::Lost, &format!("headcount audit misses {} plays", totals["lost"]));
    }
    if totals["unreported"].as_u64().is_none_or(|unreported| unreported > tail) {
        let what = format!(
            "headcount audit knows of {} unreported plays, at most {tail} can be",
            totals["unreported"]
        );
        tally.wrong(Wrong::Double, &what);
    }
    Ok(())
}
