//! What clients send, for the OpenAPI document alone: `extract.rs` reads it field by field, from
//! more places than JSON and more leniently than a derived reader would.
#![expect(dead_code, reason = "only their schemas are used")]

use std::borrow::Cow;

use utoipa::{
    PartialSchema, ToSchema,
    openapi::{
        RefOr,
        schema::{ObjectBuilder, Schema, SchemaType, Type},
    },
};

use super::answer::Id;
use crate::ids::MAX_ID_BYTES;

/// An id of the site's own: text, or an integer in place of its digits.
pub(super) struct SiteId;

impl PartialSchema for SiteId {
    fn schema() -> RefOr<Schema> {
        ObjectBuilder::new()
            .schema_type(SchemaType::from_iter([Type::String, Type::Integer]))
            .min_length(Some(1))
            .max_length(Some(MAX_ID_BYTES))
            .pattern(Some("^[!-~]+$"))
            .description(Some("Visible ASCII, or an integer, which is read as its digits."))
            .into()
    }
}

impl ToSchema for SiteId {
    fn name() -> Cow<'static, str> {
        "SiteId".into()
    }
}

/// Who watches.
#[derive(ToSchema)]
#[schema(rename_all = "camelCase")]
pub(super) struct ViewerSent {
    user_id: SiteId,
    /// Needed where each device of a user is a viewer.
    #[schema(required = false)]
    device_id: SiteId,
}

/// Who played, or which playback it was: at least one of `userId` and `playId`.
#[derive(ToSchema)]
#[schema(rename_all = "camelCase")]
#[expect(clippy::struct_field_names, reason = "they are named for the clients")]
pub(super) struct PlaySent {
    #[schema(required = false)]
    user_id: SiteId,
    /// Needed beside `userId` where each device of a user is a viewer.
    #[schema(required = false)]
    device_id: SiteId,
    /// Names one playback: sent again it counts nothing.
    #[schema(required = false)]
    play_id: SiteId,
}

/// Many beats.
#[derive(ToSchema)]
pub(super) struct BeatsSent {
    #[schema(max_items = 1000)]
    beats: Vec<BeatSent>,
}

/// One of many beats.
#[derive(ToSchema)]
#[schema(rename_all = "camelCase")]
#[expect(clippy::struct_field_names, reason = "they are named for the clients")]
pub(super) struct BeatSent {
    video_id: Id,
    user_id: SiteId,
    /// Needed where each device of a user is a viewer.
    #[schema(required = false)]
    device_id: SiteId,
}

/// Many ids.
#[derive(ToSchema)]
pub(super) struct IdsSent {
    #[schema(max_items = 500)]
    ids: Vec<SiteId>,
}
