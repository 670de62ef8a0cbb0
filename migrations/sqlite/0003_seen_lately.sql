-- What was counted since rows were last moved from here to play_seen. There each key lies beside the others
-- of its video, so that nearly every play would write a page of its own to the disk before its answer;
-- here those of many plays follow each other. A key may stand here more than once: the last one holds.
create table play_seen_lately (
    id integer primary key not null,
    video_id text not null,
    key text not null,
    counted_at integer not null
) strict;

-- What is too old is found by a walk over the table in its own order: an index by time would cost each play
-- as much as the table itself, and half of the file.
drop index play_seen_by_time;
