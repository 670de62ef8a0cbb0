//! Viewers on disk, so that a restart finds them again: a blob for each shard of the map.
//!
//! A blob is one byte for the layout's version, the viewers in postcard, and their XXH3-64.

use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_64;

use super::viewers::Copied;
use crate::{
    clock::Timestamp,
    ids::{VideoId, ViewerId},
    store::sqlite::Sqlite,
};

/// The layout of a blob.
const VERSION: u8 = 1;

/// Why a blob can't be read.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub(super) enum Unreadable {
    /// Written by another version.
    #[error("its layout is version {0}, not {VERSION}")]
    Version(u8),
    /// Cut off or changed.
    #[error("it is damaged")]
    Damaged,
}

/// The times in it count back from the latest one, which makes them short.
#[derive(Serialize, Deserialize)]
struct Image<'a> {
    latest: i64,
    #[serde(borrow)]
    videos: Vec<(&'a str, Vec<(&'a str, u64)>)>,
}

/// The blob for the viewers of a shard.
pub(super) fn encode(viewers: &Copied) -> Vec<u8> {
    let times = viewers.iter().flat_map(|(_, viewers)| viewers.iter().map(|(_, last)| last.millis()));
    let latest = times.max().unwrap_or(0);
    let image = Image {
        latest,
        videos: viewers
            .iter()
            .map(|(video, viewers)| {
                let ages =
                    viewers.iter().map(|(viewer, last)| (viewer.as_str(), latest.abs_diff(last.millis())));
                (video.as_str(), ages.collect())
            })
            .collect(),
    };
    let blob = postcard::to_extend(&image, vec![VERSION]);
    let mut blob = blob.expect("text and numbers can be written to memory");
    let sum = xxh3_64(&blob);
    blob.extend(sum.to_le_bytes());
    blob
}

/// The viewers in a blob.
pub(super) fn decode(blob: &[u8]) -> Result<Copied, Unreadable> {
    let (blob, sum) = blob.split_last_chunk().ok_or(Unreadable::Damaged)?;
    let (version, body) = blob.split_first().ok_or(Unreadable::Damaged)?;
    if xxh3_64(blob) != u64::from_le_bytes(*sum) {
        return Err(Unreadable::Damaged);
    }
    if *version != VERSION {
        return Err(Unreadable::Version(*version));
    }
    let image: Image<'_> = postcard::from_bytes(body).map_err(|_| Unreadable::Damaged)?;
    let time = |age: u64| {
        let age = i64::try_from(age).unwrap_or(i64::MAX);
        Timestamp::from_millis(image.latest.saturating_sub(age))
    };
    image
        .videos
        .into_iter()
        .map(|(video, viewers)| {
            let video = VideoId::parse(video).map_err(|_| Unreadable::Damaged)?;
            let viewers = viewers.into_iter().map(|(viewer, age)| (ViewerId::from_stored(viewer), time(age)));
            Ok((video, viewers.collect()))
        })
        .collect()
}

/// What a snapshot says of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Saved {
    /// What came after is not in it.
    pub(super) at: Timestamp,
    /// Until then its numbers could not be vouched for.
    pub(super) doubted_until: Timestamp,
    /// Whether it was saved at a stop: a crash forgets who came after it.
    pub(super) complete: bool,
}

/// A snapshot as it was found.
#[derive(Debug, Default)]
pub(super) struct Found {
    /// `None` before the first was complete.
    pub(super) saved: Option<Saved>,
    pub(super) viewers: Copied,
    /// Whether a part of it could not be read.
    pub(super) damaged: bool,
}

/// Reads the snapshot.
pub(super) async fn load(sqlite: &Sqlite) -> Result<Found, sqlx::Error> {
    let mut found = Found::default();
    let blobs: Vec<(i64, Vec<u8>)> =
        sqlx::query_as("select shard, viewers from viewer_snapshot").fetch_all(sqlite.readers()).await?;
    for (shard, blob) in blobs {
        match decode(&blob) {
            Ok(viewers) => found.viewers.extend(viewers),
            Err(error) => {
                found.damaged = true;
                tracing::warn!(
                    snapshot.shard = shard,
                    error = %error,
                    "a part of the saved viewers can't be used: {error}"
                );
            }
        }
    }
    let saved: Option<(i64, i64, bool)> =
        sqlx::query_as("select saved_at, doubted_until, complete from viewer_snapshot_saved")
            .fetch_optional(sqlite.readers())
            .await?;
    found.saved = saved.map(|(at, doubted_until, complete)| Saved {
        at: Timestamp::from_millis(at),
        doubted_until: Timestamp::from_millis(doubted_until),
        complete,
    });
    found.damaged |= found.saved.is_none() && !found.viewers.is_empty();
    Ok(found)
}

/// Writes blobs in one transaction, and with the last of them what the snapshot says of itself.
pub(super) async fn store(
    sqlite: &Sqlite,
    blobs: Vec<(i64, Vec<u8>)>,
    saved: Option<Saved>,
) -> Result<(), sqlx::Error> {
    let mut transaction = sqlite.write().await?;
    for (shard, blob) in blobs {
        sqlx::query(
            "insert into viewer_snapshot (shard, viewers) values (?, ?) \
             on conflict do update set viewers = excluded.viewers",
        )
        .bind(shard)
        .bind(blob)
        .execute(&mut *transaction)
        .await?;
    }
    if let Some(saved) = saved {
        sqlx::query(
            "insert into viewer_snapshot_saved (id, saved_at, doubted_until, complete) values (1, ?, ?, ?) \
             on conflict do update set saved_at = excluded.saved_at, doubted_until = excluded.doubted_until, \
             complete = excluded.complete",
        )
        .bind(saved.at.millis())
        .bind(saved.doubted_until.millis())
        .bind(saved.complete)
        .execute(&mut *transaction)
        .await?;
    }
    transaction.commit().await
}

#[cfg(test)]
mod tests {
    use super::*;

    fn viewers() -> Copied {
        let video = |id| VideoId::parse(id).unwrap();
        let viewer = |text, secs| (ViewerId::from_stored(text), Timestamp::from_secs(secs));
        vec![
            (video("film"), vec![viewer("ann", 1_800_000_000), viewer("tv:bob", 1_799_999_400)]),
            (video("show"), vec![viewer(&"x".repeat(64), 1_800_000_001)]),
        ]
    }

    #[test]
    fn what_was_written_is_read() {
        for viewers in [viewers(), Copied::new()] {
            assert_eq!(decode(&encode(&viewers)), Ok(viewers));
        }
    }

    #[test]
    fn a_damaged_blob_is_never_taken_for_viewers() {
        let blob = encode(&viewers());
        for length in 0..blob.len() {
            assert_eq!(decode(&blob[..length]), Err(Unreadable::Damaged), "{length}");
        }
        for place in 0..blob.len() {
            let mut damaged = blob.clone();
            damaged[place] ^= 1;
            assert_eq!(decode(&damaged), Err(Unreadable::Damaged), "{place}");
        }
    }

    #[test]
    fn another_layout_is_said_to_be_one() {
        let mut blob = vec![9, 1, 2, 3];
        blob.extend(xxh3_64(&blob).to_le_bytes());
        assert_eq!(decode(&blob), Err(Unreadable::Version(9)));
    }
}
