//! Requests, parsed: past these extractors every id is one and every limit was kept.

use std::sync::Arc;

use axum::{
    extract::{FromRequest, FromRequestParts, RawPathParams, Request},
    http::request::Parts,
};
use serde_json::value::RawValue;

use super::{
    Api,
    body::Sent,
    fields::{self, Field, Fields},
    problem::ApiError,
};
use crate::{
    config::Identity,
    ids::{InvalidId, VideoId},
    plays::Play,
    presence::Beat,
};

/// Videos in one GET.
const MAX_IDS_IN_QUERY: usize = 100;

/// Videos in one POST.
const MAX_IDS_IN_BODY: usize = 500;

/// Beats in one POST.
const MAX_BEATS: usize = 1_000;

/// The most watched videos in one answer, and how many there are unless asked otherwise.
const MAX_LIMIT: usize = 100;
const DEFAULT_LIMIT: usize = 20;

/// The video a path names.
#[derive(Debug)]
pub(super) struct OneVideo(pub(super) VideoId);

impl FromRequestParts<Arc<Api>> for OneVideo {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, api: &Arc<Api>) -> Result<Self, ApiError> {
        let params = RawPathParams::from_request_parts(parts, api).await;
        // What isn't UTF-8 holds bytes that no video id may hold.
        let id = match params.as_ref().map(|params| params.iter().next()) {
            Ok(Some((_, raw))) => VideoId::parse(raw),
            Ok(None) | Err(_) => Err(InvalidId::VideoCharacter),
        };
        id.map(Self).map_err(|reason| ApiError::InvalidId { field: Field::Video, reason })
    }
}

/// "This viewer is playing this video": the video from the path, the viewer from anywhere.
#[derive(Debug)]
pub(super) struct OneBeat(pub(super) Beat);

impl FromRequest<Arc<Api>> for OneBeat {
    type Rejection = ApiError;

    async fn from_request(request: Request, api: &Arc<Api>) -> Result<Self, ApiError> {
        let (video, sent) = about_one_video(request, api).await?;
        let fields = sent.fields(&[Field::User, Field::Device])?;
        let viewer = fields.viewer(api.identity)?.ok_or(ApiError::Missing(Field::User))?;
        Ok(Self(Beat { video, viewer }))
    }
}

/// One play of the video in the path.
#[derive(Debug)]
pub(super) struct OnePlay(pub(super) Play);

impl FromRequest<Arc<Api>> for OnePlay {
    type Rejection = ApiError;

    async fn from_request(request: Request, api: &Arc<Api>) -> Result<Self, ApiError> {
        let (video, sent) = about_one_video(request, api).await?;
        let fields = sent.fields(&[Field::User, Field::Device, Field::Play])?;
        let (viewer, play_id) = (fields.viewer(api.identity)?, fields.play()?);
        if viewer.is_none() && play_id.is_none() {
            return Err(ApiError::MissingUserOrPlay);
        }
        Ok(Self(Play { video, viewer, play_id }))
    }
}

async fn about_one_video(request: Request, api: &Arc<Api>) -> Result<(VideoId, Sent), ApiError> {
    let (mut parts, body) = request.into_parts();
    let OneVideo(video) = OneVideo::from_request_parts(&mut parts, api).await?;
    let sent = Sent::read(Request::from_parts(parts, body), api.body_timeout).await?;
    Ok((video, sent))
}

/// Beats of many viewers, each taken or refused for itself.
#[derive(Debug)]
pub(super) struct ManyBeats(pub(super) Vec<Result<Beat, ApiError>>);

impl FromRequest<Arc<Api>> for ManyBeats {
    type Rejection = ApiError;

    async fn from_request(request: Request, api: &Arc<Api>) -> Result<Self, ApiError> {
        let sent = Sent::read(request, api.body_timeout).await?;
        let beats = sent.list("beats")?.ok_or(ApiError::MissingBeats)?;
        if beats.len() > MAX_BEATS {
            return Err(ApiError::TooManyBeats { given: beats.len(), max: MAX_BEATS });
        }
        Ok(Self(beats.into_iter().map(|beat| one_of_many(beat, api.identity)).collect()))
    }
}

fn one_of_many(beat: &RawValue, identity: Identity) -> Result<Beat, ApiError> {
    let mut fields = Fields::new(&[Field::Video, Field::User, Field::Device]);
    fields.add_object(beat.get())?;
    let video = fields.video()?;
    let viewer = fields.viewer(identity)?.ok_or(ApiError::Missing(Field::User))?;
    Ok(Beat { video, viewer })
}

/// One of many videos that are asked for.
#[derive(Debug)]
pub(super) enum Asked {
    /// An id.
    Video(VideoId),
    /// What was sent in the place of one.
    Wrong(String),
}

impl Asked {
    fn parse(raw: &str) -> Self {
        VideoId::parse(raw).map_or_else(|_| Self::Wrong(raw.to_owned()), Self::Video)
    }
}

/// `?ids=a,b,c`
#[derive(Debug)]
pub(super) struct IdsInQuery(pub(super) Vec<Asked>);

impl FromRequestParts<Arc<Api>> for IdsInQuery {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _api: &Arc<Api>) -> Result<Self, ApiError> {
        let mut ids: Option<Vec<Asked>> = None;
        for pair in fields::pairs(parts.uri.query().unwrap_or_default().as_bytes()) {
            let (name, value) = pair.map_err(|_| ApiError::InvalidQuery)?;
            if name == "ids" {
                let ids = ids.get_or_insert_default();
                if !value.is_empty() {
                    ids.extend(value.split(',').map(Asked::parse));
                }
            }
        }
        within(ids, MAX_IDS_IN_QUERY).map(Self)
    }
}

/// `{"ids":["a","b","c"]}`
#[derive(Debug)]
pub(super) struct IdsInBody(pub(super) Vec<Asked>);

impl FromRequest<Arc<Api>> for IdsInBody {
    type Rejection = ApiError;

    async fn from_request(request: Request, api: &Arc<Api>) -> Result<Self, ApiError> {
        let sent = Sent::read(request, api.body_timeout).await?;
        let ids = sent.list("ids")?.map(|ids| {
            let asked = |id| {
                fields::text_of(id).map_or_else(|| Asked::Wrong(id.get().to_owned()), |id| Asked::parse(&id))
            };
            ids.into_iter().map(asked).collect()
        });
        within(ids, MAX_IDS_IN_BODY).map(Self)
    }
}

fn within(ids: Option<Vec<Asked>>, max: usize) -> Result<Vec<Asked>, ApiError> {
    let ids = ids.ok_or(ApiError::MissingIds)?;
    if ids.len() > max { Err(ApiError::TooManyIds { given: ids.len(), max }) } else { Ok(ids) }
}

/// `?limit=20`
#[derive(Debug)]
pub(super) struct Limit(pub(super) usize);

impl FromRequestParts<Arc<Api>> for Limit {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _api: &Arc<Api>) -> Result<Self, ApiError> {
        let mut limit = None;
        for pair in fields::pairs(parts.uri.query().unwrap_or_default().as_bytes()) {
            let (name, value) = pair.map_err(|_| ApiError::InvalidQuery)?;
            if name == "limit" {
                let given = value.parse().ok().filter(|given| (1..=MAX_LIMIT).contains(given));
                if given.is_none() || limit.is_some_and(|limit| Some(limit) != given) {
                    return Err(ApiError::InvalidLimit { max: MAX_LIMIT });
                }
                limit = given;
            }
        }
        Ok(Self(limit.unwrap_or(DEFAULT_LIMIT)))
    }
}
