-- What was counted, written together with it.
create table play_witness (
    partition integer primary key not null check (partition between 0 and 15),
    plays integer not null check (plays >= 0)
) strict;

-- Plays that came or went in other ways: "imported" from elsewhere, or "adjusted" by an operator who
-- knows them to be gone (negative where there are more than anybody counted).
create table play_adjustment (
    id integer primary key not null,
    partition integer not null check (partition between 0 and 15),
    plays integer not null,
    kind text not null check (kind in ('imported', 'adjusted')),
    reason text not null,
    made_at integer not null default (unixepoch() * 1000)
) strict;

-- Null for a row that was not made by counting a play: one of before this step, or an operator's. It
-- lies behind the sketch, so it is looked for in the index below and never read otherwise.
alter table videos add column partition integer;

create index videos_without_partition on videos (video_id) where partition is null;
