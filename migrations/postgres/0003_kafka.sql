-- How far each part of a Kafka topic is counted. It moves in the transaction that counts, so that no
-- record is counted twice or left out, whoever reads the log and however often.
create table kafka_offset (
    topic text not null,
    partition integer not null check (partition >= 0),
    -- Kafka's own id of the topic: one that is made anew under the same name begins at 0.
    topic_id uuid not null,
    next_offset bigint not null default 0 check (next_offset >= 0),
    -- A short name of this row, for play_seen.
    position integer generated always as identity unique,
    -- As whom its plays stand in play_witness.
    witness uuid not null,
    -- The earliest time of a record in the last window: what is seen is forgotten by it.
    reached timestamptz,
    -- The earliest time of a play that Redis's totals may lack; null where they lack none.
    unraised_since timestamptz,
    updated_at timestamptz not null default now(),
    primary key (topic, partition, topic_id)
);

-- Who was counted when, by the times of the records: what comes again within the dedupe window counts
-- nothing. Only of plays that came through Kafka.
create table play_seen (
    video_id text collate "C" not null,
    -- "u:" and the viewer, or "p:" and the playId.
    viewer text collate "C" not null,
    counted_at timestamptz not null,
    -- Of kafka_offset: where the play stood in the log.
    position integer not null,
    primary key (video_id, viewer)
);

create index play_seen_by_age on play_seen (position, counted_at);

-- Plays out of the log that a row couldn't take. They are tried again with the next play of the video.
create table play_refused (
    video_id text collate "C" not null,
    day date not null,
    partition smallint not null check (partition between 0 and 15),
    plays bigint not null check (plays > 0),
    primary key (video_id, day)
);
