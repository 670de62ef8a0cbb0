//! `/audit`: whether every play that was counted is still somewhere.

use std::sync::Arc;

use axum::extract::State;
use serde::Serialize;
use utoipa::ToSchema;

use super::{
    Api,
    answer::{Answer, Time},
    health::brief,
    problem::{ApiError, Problem},
};
use crate::{
    error::StoreError,
    plays::audit::{Audited, Terms},
};

/// What became of every play that was counted. In each partition `witnessed` + `imported` = `views` +
/// `pending` + `refused` + `adjustments` + `difference`.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct ConservationAnswer {
    /// When the books were read.
    #[schema(value_type = Option<String>)]
    as_of: Option<Time>,
    /// Whether every partition is verified.
    verified: bool,
    /// Sums over all partitions; null in each field unless all are verified.
    totals: TermsAnswer,
    partitions: Vec<PartitionAnswer>,
}

#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
struct PartitionAnswer {
    /// 0 to 15.
    partition: u16,
    /// Whether the numbers are of one moment. If not, plays moved under each try, and all of them are
    /// null.
    verified: bool,
    #[serde(flatten)]
    terms: TermsAnswer,
}

#[derive(Debug, Default, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
struct TermsAnswer {
    /// Plays that instances know to have been counted.
    #[schema(value_type = Option<i64>)]
    witnessed: Option<i128>,
    /// Plays that came into the database in other ways.
    #[schema(value_type = Option<i64>)]
    imported: Option<i128>,
    /// Plays in the database.
    #[schema(value_type = Option<i64>)]
    views: Option<i128>,
    /// Plays on their way to the database.
    #[schema(value_type = Option<i64>)]
    pending: Option<i128>,
    /// Plays that the database refused.
    #[schema(value_type = Option<i64>)]
    refused: Option<i128>,
    /// Plays that an operator knows to be gone.
    #[schema(value_type = Option<i64>)]
    adjustments: Option<i128>,
    /// What is left over: `lost` less `unreported`.
    #[schema(value_type = Option<i64>)]
    difference: Option<i128>,
    /// Plays that were counted and that nobody has any more.
    #[schema(value_type = Option<i64>)]
    lost: Option<i128>,
    /// Plays that are there and that nobody has reported: those of the last seconds, the last ones of
    /// an instance that was killed, and any that were counted twice.
    #[schema(value_type = Option<i64>)]
    unreported: Option<i128>,
}

impl From<&Terms> for TermsAnswer {
    fn from(terms: &Terms) -> Self {
        let difference = terms.difference();
        Self {
            witnessed: Some(terms.witnessed),
            imported: Some(terms.imported),
            views: Some(terms.views),
            pending: Some(terms.pending),
            refused: Some(terms.refused),
            adjustments: Some(terms.adjustments),
            difference: Some(difference),
            lost: Some(difference.max(0)),
            unreported: Some((-difference).max(0)),
        }
    }
}

impl From<&Audited> for ConservationAnswer {
    fn from(audited: &Audited) -> Self {
        let partitions = audited.by_partition().zip(0_u16..).map(|((_, terms), partition)| {
            let verified = terms.is_some();
            PartitionAnswer { partition, verified, terms: terms.map(TermsAnswer::from).unwrap_or_default() }
        });
        let totals = audited.totals().as_ref().map(|totals| TermsAnswer {
            lost: Some(audited.lost()),
            unreported: Some(audited.unreported()),
            ..TermsAnswer::from(totals)
        });
        Self {
            as_of: Some(Time(audited.as_of)),
            verified: totals.is_some(),
            totals: totals.unwrap_or_default(),
            partitions: partitions.collect(),
        }
    }
}

/// What was found, as `/audit` answers it, for people to read.
#[must_use]
pub fn audit_json(audited: &Audited) -> String {
    let answer = ConservationAnswer::from(audited);
    serde_json::to_string_pretty(&answer).expect("text and numbers always serialize")
}

/// Whether every play that was counted is still somewhere.
///
/// Reads all totals once, so it takes its time on a large site; who asks meanwhile is answered the
/// same. Safe under full load.
#[utoipa::path(
    get,
    path = "/audit",
    operation_id = "audit",
    tag = "operators",
    responses(
        (status = 200, description = "What was found.", body = ConservationAnswer,
            headers(("Cache-Control" = String, description = "`no-store`"))),
        (status = 500, description = "A store holds what can't be read.", body = Problem,
            content_type = "application/problem+json",
            headers(("Cache-Control" = String, description = "`no-store`"))),
        (status = 503, description = "A store is away; `parts` names it.", body = Problem,
            content_type = "application/problem+json",
            headers(
                ("Cache-Control" = String, description = "`no-store`"),
                ("Retry-After" = String, description = "Seconds to wait, 1 to 5."),
            )),
    ),
)]
pub(super) async fn read(State(api): State<Arc<Api>>) -> Result<Answer<ConservationAnswer>, ApiError> {
    // A look may take longer than the service has to stop.
    let looked = api.draining.run_until_cancelled(api.audit.read()).await.ok_or(ApiError::Draining)?;
    let audited = looked.map_err(|error| match error {
        StoreError::Unexpected { .. } => ApiError::from(error),
        away => ApiError::NotReady { parts: vec![away.part().name()], what: brief(&away) },
    })?;
    Ok(Answer::private(ConservationAnswer::from(audited.as_ref())))
}
