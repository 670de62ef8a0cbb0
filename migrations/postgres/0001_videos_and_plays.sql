-- One row a video that was played. Ids are ASCII: "C" compares bytes, as the service does when it
-- sorts a batch, so that every transaction locks rows in the same order.
create table videos (
    video_id text collate "C" primary key,
    views bigint not null default 0 check (views >= 0),
    -- Null until a viewer was seen: plays may come without one, and 0 would be made up then.
    unique_viewers bigint check (unique_viewers >= 0),
    -- The HyperLogLog behind unique_viewers, in Redis's own format.
    viewer_sketch bytea,
    created_at timestamptz not null default now(),
    updated_at timestamptz not null default now()
);

-- Plays by day, as plays.timezone tells days apart.
create table video_daily (
    video_id text collate "C" not null,
    day date not null,
    views bigint not null default 0 check (views >= 0),
    primary key (video_id, day)
);

-- The batches that are in videos already: one that comes again is not added again.
create table play_batch (
    id uuid primary key,
    partition smallint not null,
    -- Videos whose plays were not added, because their row couldn't take them.
    refused text[] not null default '{}',
    applied_at timestamptz not null default now()
);

create index play_batch_by_age on play_batch (partition, applied_at, id);
