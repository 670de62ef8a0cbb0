//! The keys the service writes to Redis that this program looks at or lets run out.

use crate::ledger::VIDEOS;

/// Into how many partitions the service splits videos.
const PARTITIONS: usize = 16;

/// What the service keeps of the database's totals.
pub(crate) fn totals() -> Vec<String> {
    of_videos("total")
}

/// The locks of its jobs.
pub(crate) fn locks() -> Vec<String> {
    of_partitions(&["task:lock:flush", "task:lock:sweep"])
}

/// Everything in which a play is that isn't in the database.
pub(crate) fn pending() -> Vec<String> {
    let mut keys = of_partitions(&["video:views:dirty", "video:views:batch", "video:views:refused"]);
    keys.append(&mut of_videos("delta"));
    keys
}

fn of_partitions(names: &[&str]) -> Vec<String> {
    let of = |name: &&str| (0..PARTITIONS).map(move |partition| format!("{name}:{{{partition}}}")).collect();
    names.iter().flat_map(|name| -> Vec<String> { of(name) }).collect()
}

/// In which partition a video is, is the service's own matter: all are named.
fn of_videos(name: &str) -> Vec<String> {
    let of = |video: usize| {
        (0..PARTITIONS).map(move |partition| format!("video:views:{name}:{{{partition}}}:video-{video}"))
    };
    (0..VIDEOS).flat_map(of).collect()
}
