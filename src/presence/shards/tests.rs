use proptest::prelude::*;

use super::{
    entry::{MOST, Number},
    *,
};
use crate::ids::UserId;

fn viewer(number: u64) -> ViewerId {
    ViewerId::of_user(&UserId::parse(&format!("u{number}")).unwrap())
}

fn at(secs: i64) -> Timestamp {
    Timestamp::from_secs(secs)
}

fn entry(stored: &str) -> Entry {
    Entry::parse(stored).unwrap()
}

fn places(every: &str, own: &str) -> Places {
    Places::of_entries(Entry::parse(every).as_ref(), Entry::parse(own).as_ref())
}

/// [S7]
#[test]
fn every_viewer_has_one_place_below_the_number_of_shards_whatever_the_sign_of_its_hash() {
    for shards in [1, 2, 16, 1_024, MOST] {
        let places = places("", &shards.to_string());
        let mut signs = std::collections::BTreeSet::new();
        for viewer in (0..20_000).map(viewer) {
            assert!(places.of(&viewer) < shards);
            assert_eq!(places.of(&viewer), places.of(&viewer));
            signs.insert(viewer.hash64() >> 63);
        }
        assert_eq!(signs.len(), 2);
    }
}

#[test]
fn what_no_sweep_has_written_is_no_entry() {
    for stored in [
        "", "x", "0", "12", "-1", "131072", "64 1", "64 1:", "64 1:x", "64 3:5", "64  1:5", " 64", "auto x:1",
    ] {
        assert_eq!(Entry::parse(stored), None, "{stored:?}");
    }
    assert_eq!(entry("65536").number(), Number::Of(65_536));
    assert_eq!(entry("auto 16:7").number().to_string(), "auto");
}

#[test]
fn a_count_covers_the_largest_number_that_is_minded_and_comes_last_to_where_viewers_go() {
    let places = places("", "4 8:100 2:50");
    let order = |now| places.walk(at(now)).order().collect::<Vec<_>>();
    assert_eq!(order(40), [4, 5, 6, 7, 0, 1, 2, 3]);
    assert_eq!(order(99), [4, 5, 6, 7, 0, 1, 2, 3]);
    assert_eq!(order(100), [0, 1, 2, 3]);
    assert!(places.walk(at(99)).moving && !places.walk(at(100)).moving);
}

#[test]
fn the_entry_of_every_video_and_its_own_are_one() {
    let now = |every, own| places(every, own).now();
    assert_eq!([now("", ""), now("auto", ""), now("", "8"), now("auto", "8")], [1, 1, 8, 8]);
    assert_eq!([now("16", ""), now("16", "8"), now("16 auto:9", "8")], [16, 16, 16]);
    // Under a number of the operator's, what the audience decided is a former number for a while.
    assert_eq!(places("16 auto:9", "8 4:7").walk(at(5)).order().count(), 16);
    assert_eq!(places("4 auto:9", "8 4:7").walk(at(5)).order().count(), 8);
    assert_eq!(places("4 auto:9", "8 4:7").walk(at(9)).order().count(), 4);
    assert_eq!(places("auto 16:9", "8").walk(at(5)).order().count(), 16);
    // Without an entry of its own it had one shard.
    assert!(places("16 auto:9", "").are_moving(at(8)));
    assert!(!places("1 auto:9", "").are_moving(at(8)), "it still has one");
    assert!(places("auto 16:9", "").are_moving(at(8)) && places("auto 16:9", "").are_single(at(9)));
}

#[test]
fn shards_follow_the_audience_straight_up_and_down_by_half() {
    let next = |stored: &str, viewers| {
        change(None, Entry::parse(stored).as_ref(), !stored.is_empty(), viewers, 100, at(10))
    };
    assert_eq!(next("", 0), None);
    assert_eq!(next("", 100), None);
    assert_eq!(next("", 101), Some(Change::To(2)));
    assert_eq!(next("", 100_000), Some(Change::To(1_024)));
    assert_eq!(next("", u64::MAX), Some(Change::To(MOST)));
    assert_eq!(next("65536", u64::MAX), None);
    assert_eq!(next("64", 6_400), None);
    assert_eq!(next("64", 6_401), Some(Change::To(128)));
    assert_eq!(next("64", 1_600), None);
    assert_eq!(next("64", 1_599), Some(Change::To(32)));
    assert_eq!(next("64", 0), Some(Change::To(32)));
    assert_eq!(next("2", 0), Some(Change::To(1)));
    assert_eq!(next("64 1:20", 8_000), None, "some may be met twice");
    assert_eq!(next("64 1:20", 8_001), Some(Change::To(128)));
    assert_eq!(next("64 1:10", 6_401), Some(Change::To(128)), "nobody is on the move any more");
    assert_eq!(next("1 2:20", 0), None, "viewers may still be there");
    assert_eq!(next("1 2:10", 0), Some(Change::Forget));
    assert_eq!(next("garbage", 0), Some(Change::Forget));
    assert_eq!(next("garbage", 500), Some(Change::Forget));
}

#[test]
fn where_the_operator_decides_entries_go_once_nobody_is_where_they_say() {
    let next = |every, stored: &str| {
        let own = Entry::parse(stored);
        change(Some(&entry(every)), own.as_ref(), !stored.is_empty(), 1_000_000, 100, at(10))
    };
    assert_eq!(next("16", ""), None);
    assert_eq!(next("16 auto:20", "64"), None);
    assert_eq!(next("16 auto:10", "64 1:20"), None);
    assert_eq!(next("16 auto:10", "64 1:10"), Some(Change::Forget));
    assert_eq!(next("16 auto:10", "garbage"), Some(Change::Forget));
}

proptest! {
    /// Each former place once, never the one that was just written, all within what a count covers, and
    /// before the place of now in its order unless it is the same.
    #[test]
    fn a_viewers_former_places_are_told_apart_and_walked_before_its_new_one(
        number in any::<u64>(),
        now in 0_u32..8,
        formers in proptest::collection::vec((0_u32..8, 0_i64..100), 0..6),
    ) {
        let formers: Vec<String> =
            formers.iter().map(|(power, until)| format!(" {}:{until}", 1 << power)).collect();
        let places = places("", &format!("{}{}", 1 << now, formers.concat()));
        let viewer = viewer(number);
        let order: Vec<u32> = places.walk(at(50)).order().collect();
        let position = |place: u32| order.iter().position(|shard| *shard == place).unwrap();
        let mut seen = vec![places.of(&viewer)];
        for former in places.formers_of(&viewer, at(50)) {
            prop_assert!(!seen.contains(&former), "{former} twice or just written: {seen:?}");
            prop_assert!(position(former) < position(places.of(&viewer)), "{former} in {order:?}");
            seen.push(former);
        }
        prop_assert_eq!(seen.len() > 1, places.formers_of(&viewer, at(50)).count() > 0);
    }
}
