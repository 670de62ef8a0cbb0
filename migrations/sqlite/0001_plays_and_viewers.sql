-- What the embedded backend keeps on disk. Times are Unix milliseconds.
--
-- STRICT, because SQLite would turn a total that overflows into a float without a word.

-- With videos.unknown = "reject" a row is what makes an id a video, so one can be made from its id
-- alone.
create table videos (
    video_id text primary key not null,
    views integer not null default 0 check (views >= 0),
    unique_viewers integer not null default 0 check (unique_viewers >= 0),
    created_at integer not null default (unixepoch() * 1000),
    updated_at integer not null default (unixepoch() * 1000),
    -- A HyperLogLog sketch, up to 16 KB. The last column, so that reading a total doesn't read it.
    viewer_sketch blob
) strict;

-- A day is written YYYY-MM-DD, as it is in plays.timezone.
create table video_daily (
    video_id text not null references videos (video_id),
    day text not null,
    views integer not null check (views >= 0),
    primary key (video_id, day)
) strict, without rowid;

-- What was counted within the dedupe window: "u:<viewer>" and "p:<playId>".
create table play_seen (
    video_id text not null,
    key text not null,
    counted_at integer not null,
    primary key (video_id, key)
) strict, without rowid;

create index play_seen_by_time on play_seen (counted_at);

-- Who was watching, by shard of the map in memory; the blob's layout is in presence/in_memory/snapshot.rs.
create table viewer_snapshot (
    shard integer primary key not null,
    viewers blob not null
) strict;

-- When viewers were last saved, until when their number couldn't be vouched for then, and whether that
-- was at a stop, so that none came after.
create table viewer_snapshot_saved (
    id integer primary key not null check (id = 1),
    saved_at integer not null,
    doubted_until integer not null,
    complete integer not null
) strict;

-- Written and read by the readiness probe.
create table probe (
    id integer primary key not null check (id = 1),
    times integer not null
) strict;
