-- What each instance counted, told by the instance itself: a counter beside the plays would be
-- rewound together with them.
create table play_witness (
    -- Nil: what instances counted that are long gone.
    instance uuid not null,
    partition smallint not null check (partition between 0 and 15),
    plays bigint not null check (plays >= 0),
    reported_at timestamptz not null default now(),
    primary key (instance, partition)
);

create index play_witness_by_age on play_witness (reported_at);

-- Plays that came or went in other ways. numeric, because a sum of totals may be over any bigint, and
-- no flush may fail for it.
create table play_adjustment (
    id bigint generated always as identity primary key,
    partition smallint not null check (partition between 0 and 15),
    plays numeric not null check (plays = trunc(plays)),
    -- imported: plays that came from elsewhere. adjusted: plays that an operator knows to be gone;
    -- negative where there are more than anybody counted.
    kind text not null check (kind in ('imported', 'adjusted')),
    reason text not null,
    made_at timestamptz not null default now()
);

-- Null for a row that no flush made: one of before this step, or an operator's. Which partition a
-- video is of can't be told in SQL; the service fills it in and notes the row's plays as imported.
alter table videos add column partition smallint;

-- Only of what is left to fill in. While it is built plays wait in Redis: about a second for a million
-- rows.
create index videos_without_partition on videos (video_id) where partition is null;
