//! The few fields a client may send, read from a query string, a form or a JSON object.
//!
//! A field may come from several of them and under two spellings, as long as every mention says the
//! same. Ids are text; an integer is its decimal digits, however many there are.

use std::borrow::Cow;

use percent_encoding::percent_decode;
use serde::{
    Deserialize, Deserializer as _,
    de::{IgnoredAny, MapAccess, Visitor},
};
use serde_json::value::RawValue;

use super::code::Code;
use super::problem::ApiError;
use crate::{
    config::Identity,
    ids::{DeviceId, InvalidId, PlayId, UserId, VideoId, ViewerId},
};

/// One of the fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Field {
    Video,
    User,
    Device,
    Play,
}

const FIELDS: usize = 4;

impl Field {
    fn named(name: &str) -> Option<Self> {
        match name {
            "videoId" | "video_id" => Some(Self::Video),
            "userId" | "user_id" => Some(Self::User),
            "deviceId" | "device_id" => Some(Self::Device),
            "playId" | "play_id" => Some(Self::Play),
            _ => None,
        }
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Video => "videoId",
            Self::User => "userId",
            Self::Device => "deviceId",
            Self::Play => "playId",
        }
    }

    pub(super) fn invalid(self) -> Code {
        match self {
            Self::Video => Code::InvalidVideoId,
            Self::User => Code::InvalidUserId,
            Self::Device => Code::InvalidDeviceId,
            Self::Play => Code::InvalidPlayId,
        }
    }

    pub(super) fn missing(self) -> Code {
        match self {
            Self::Video => Code::MissingVideoId,
            Self::User => Code::MissingUserId,
            Self::Device => Code::MissingDeviceId,
            Self::Play => Code::MissingUserOrPlayId,
        }
    }

    pub(super) fn conflicting(self) -> Code {
        match self {
            Self::Video => Code::ConflictingVideoId,
            Self::User => Code::ConflictingUserId,
            Self::Device => Code::ConflictingDeviceId,
            Self::Play => Code::ConflictingPlayId,
        }
    }
}

/// What was sent for each field that this request knows; the others are passed over.
#[derive(Debug)]
pub(super) struct Fields<'a> {
    known: &'static [Field],
    values: [Option<Cow<'a, str>>; FIELDS],
}

impl<'a> Fields<'a> {
    pub(super) fn new(known: &'static [Field]) -> Self {
        Self { known, values: [const { None }; FIELDS] }
    }

    fn known(&self, name: &str) -> Option<Field> {
        Field::named(name).filter(|field| self.known.contains(field))
    }

    fn put(&mut self, field: Field, value: Cow<'a, str>) -> Result<(), ApiError> {
        let slot = &mut self.values[field as usize];
        if slot.as_ref().is_some_and(|there| *there != value) {
            return Err(ApiError::Conflict(field));
        }
        *slot = Some(value);
        Ok(())
    }

    /// Adds what a query string says.
    pub(super) fn add_query(&mut self, query: &'a [u8]) -> Result<(), ApiError> {
        self.add_pairs(query, || ApiError::InvalidQuery)
    }

    /// Adds what a form body says.
    pub(super) fn add_form(&mut self, body: &'a [u8]) -> Result<(), ApiError> {
        self.add_pairs(body, || ApiError::InvalidBody("the form must be UTF-8".into()))
    }

    fn add_pairs(&mut self, text: &'a [u8], not_utf8: fn() -> ApiError) -> Result<(), ApiError> {
        for pair in pairs(text) {
            let (name, value) = pair.map_err(|NotUtf8| not_utf8())?;
            if let Some(field) = self.known(&name) {
                self.put(field, value)?;
            }
        }
        Ok(())
    }

    /// Adds what a JSON object says.
    pub(super) fn add_object(&mut self, object: &'a str) -> Result<(), ApiError> {
        each_member(object, |name, value| {
            let Some(field) = self.known(name) else { return Ok(()) };
            let value = text_of(value).ok_or(ApiError::NotText(field))?;
            self.put(field, value)
        })
    }

    fn parsed<T>(
        &self,
        field: Field,
        parse: fn(&str) -> Result<T, InvalidId>,
    ) -> Result<Option<T>, ApiError> {
        let Some(raw) = &self.values[field as usize] else { return Ok(None) };
        parse(raw).map(Some).map_err(|reason| ApiError::InvalidId { field, reason })
    }

    pub(super) fn video(&self) -> Result<VideoId, ApiError> {
        self.parsed(Field::Video, VideoId::parse)?.ok_or(ApiError::Missing(Field::Video))
    }

    pub(super) fn play(&self) -> Result<Option<PlayId>, ApiError> {
        self.parsed(Field::Play, PlayId::parse)
    }

    /// Who watches, where a user is named.
    pub(super) fn viewer(&self, identity: Identity) -> Result<Option<ViewerId>, ApiError> {
        let user = self.parsed(Field::User, UserId::parse)?;
        let device = self.parsed(Field::Device, DeviceId::parse)?;
        let Some(user) = user else { return Ok(None) };
        match (identity, device) {
            (Identity::User, _) => Ok(Some(ViewerId::of_user(&user))),
            (Identity::Device, Some(device)) => Ok(Some(ViewerId::of_device(&device, &user))),
            (Identity::Device, None) => Err(ApiError::MissingDevice),
        }
    }
}

/// Bytes that should be text and aren't.
#[derive(Debug)]
pub(super) struct NotUtf8;

/// The names and values of a query string or form, decoded.
pub(super) fn pairs(text: &[u8]) -> impl Iterator<Item = Result<(Cow<'_, str>, Cow<'_, str>), NotUtf8>> {
    text.split(|byte| *byte == b'&').filter(|pair| !pair.is_empty()).map(|pair| {
        let at = pair.iter().position(|byte| *byte == b'=').unwrap_or(pair.len());
        let value = pair.get(at + 1..).unwrap_or_default();
        Ok((decoded(&pair[..at])?, decoded(value)?))
    })
}

fn decoded(text: &[u8]) -> Result<Cow<'_, str>, NotUtf8> {
    if !text.contains(&b'+') {
        return percent_decode(text).decode_utf8().map_err(|_| NotUtf8);
    }
    let spaced: Vec<u8> = text.iter().map(|byte| if *byte == b'+' { b' ' } else { *byte }).collect();
    let text = percent_decode(&spaced).decode_utf8().map_err(|_| NotUtf8)?;
    Ok(Cow::Owned(text.into_owned()))
}

/// A JSON body as text.
pub(super) fn json_text(body: &[u8]) -> Result<&str, ApiError> {
    std::str::from_utf8(body).map_err(|_| ApiError::InvalidBody("the body must be UTF-8".into()))
}

/// Hands every member of a JSON object to `visit`, names that stand twice included.
///
/// The object is read to its end before the first refusal counts: what is no JSON at all is told
/// as that.
pub(super) fn each_member<'a>(
    object: &'a str,
    visit: impl FnMut(&str, &'a RawValue) -> Result<(), ApiError>,
) -> Result<(), ApiError> {
    let mut members = Members { visit, refused: None };
    let mut reader = serde_json::Deserializer::from_str(object);
    match reader.deserialize_map(&mut members).and_then(|()| reader.end()) {
        Ok(()) => members.refused.map_or(Ok(()), Err),
        // The message would repeat whatever was sent instead of an object.
        Err(error) if error.is_data() => Err(ApiError::InvalidBody("a JSON object is expected".into())),
        Err(error) => Err(ApiError::InvalidBody(format!("this is no JSON: {error}"))),
    }
}

struct Members<F> {
    visit: F,
    refused: Option<ApiError>,
}

impl<'a, F: FnMut(&str, &'a RawValue) -> Result<(), ApiError>> Visitor<'a> for &mut Members<F> {
    type Value = ();

    fn expecting(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("an object")
    }

    fn visit_map<A: MapAccess<'a>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some(Name(name)) = map.next_key()? {
            if self.refused.is_some() {
                map.next_value::<IgnoredAny>()?;
            } else {
                self.refused = (self.visit)(&name, map.next_value()?).err();
            }
        }
        Ok(())
    }
}

#[derive(Deserialize)]
struct Name<'a>(#[serde(borrow)] Cow<'a, str>);

/// A JSON text, or a JSON integer as its digits; `None` for any other value.
pub(super) fn text_of(value: &RawValue) -> Option<Cow<'_, str>> {
    let json = value.get();
    let digits = json.strip_prefix('-').unwrap_or(json);
    if digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return Some(Cow::Borrowed(json));
    }
    let inner = json.strip_prefix('"')?.strip_suffix('"')?;
    if inner.contains('\\') {
        serde_json::from_str(json).ok().map(Cow::Owned)
    } else {
        Some(Cow::Borrowed(inner))
    }
}
