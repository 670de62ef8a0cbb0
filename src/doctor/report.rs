//! Findings as a table for people, and as JSON for programs.

use comfy_table::{ContentArrangement, Table, presets};
use serde_json::json;

use super::{Finding, Verdict};

/// What an examination found.
#[derive(Clone, Debug)]
pub struct Report {
    /// One for each check, in the order they were made.
    pub findings: Vec<Finding>,
}

impl Report {
    /// The worst of the verdicts.
    #[must_use]
    pub fn verdict(&self) -> Verdict {
        self.findings.iter().map(|finding| finding.verdict).max().unwrap_or(Verdict::Ok)
    }

    /// A table, as wide as the terminal.
    #[must_use]
    pub fn table(&self) -> String {
        let mut table = Table::new();
        table.load_style(presets::NOTHING).set_content_arrangement(ContentArrangement::Dynamic).set_header([
            "",
            "check",
            "found",
            "what to do",
        ]);
        for finding in &self.findings {
            table.add_row([finding.verdict.name(), finding.check, &finding.found, &finding.advice]);
        }
        table.trim_fmt()
    }

    /// `{"verdict": …, "findings": [{"check", "verdict", "found", "advice"}…]}`
    #[must_use]
    pub fn json(&self) -> String {
        let findings: Vec<_> = self
            .findings
            .iter()
            .map(|finding| {
                json!({
                    "check": finding.check,
                    "verdict": finding.verdict.name(),
                    "found": finding.found,
                    "advice": finding.advice,
                })
            })
            .collect();
        format!("{:#}", json!({ "verdict": self.verdict().name(), "findings": findings }))
    }
}
