//! Some of what was gathered, counted in one transaction.

use super::Taken;
use crate::plays::in_kafka::window::Window;

/// A window and the offsets of its plays.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Piece {
    offsets: Vec<i64>,
    pub(super) window: Window,
}

impl Piece {
    /// The plays of `taken` from the offset `from` on.
    pub(super) fn of(began: i64, next: i64, from: i64, taken: Vec<Taken>) -> Self {
        let taken = taken.into_iter().filter(|taken| taken.offset >= from);
        let (offsets, plays) = taken.filter_map(|taken| Some((taken.offset, taken.content.ok()?))).unzip();
        Self { offsets, window: Window { began, next, plays } }
    }

    /// How many plays it holds.
    pub(super) fn plays(&self) -> usize {
        self.offsets.len()
    }

    /// The first half of its plays, and the second.
    pub(super) fn halves(mut self) -> (Self, Self) {
        let middle = self.plays() / 2;
        let plays = self.window.plays.split_off(middle);
        let offsets = self.offsets.split_off(middle);
        let began = offsets.first().copied().unwrap_or(self.window.next);
        let second = Self { offsets, window: Window { began, next: self.window.next, plays } };
        self.window.next = began;
        (self, second)
    }

    /// Leaves out what is before this offset, up to which others have counted.
    pub(super) fn skip_to(&mut self, offset: i64) {
        if self.window.began < offset {
            let known = self.offsets.partition_point(|known| *known < offset);
            self.offsets.drain(..known);
            self.window.plays.drain(..known);
            self.window.began = offset;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plays::in_kafka::{
        consumer::dead_letters::Letter, record::Unreadable, window::tests::received,
    };

    fn taken(offset: i64) -> Taken {
        let play = received("film", "", &format!("p{offset}"), 0);
        let is_play = offset != 13;
        let letter = || Box::new(Letter::new(Unreadable::NoKey, None, None, None));
        Taken { offset, content: if is_play { Ok(play) } else { Err(letter()) } }
    }

    #[test]
    fn halves_are_the_whole_and_one_begins_where_the_other_ends() {
        let piece = Piece::of(8, 16, 11, (10..16).map(taken).collect());
        assert_eq!(piece.offsets, [11, 12, 14, 15], "what is before it and what is no play isn't in it");
        let (first, second) = piece.halves();
        assert_eq!((first.window.began, first.window.next, &first.offsets[..]), (8, 14, &[11, 12][..]));
        assert_eq!((second.window.began, second.window.next, &second.offsets[..]), (14, 16, &[14, 15][..]));
        assert_eq!((first.window.plays.len(), second.window.plays.len()), (2, 2));
    }

    #[test]
    fn what_others_have_counted_is_left_out() {
        let mut piece = Piece::of(10, 16, 10, (10..16).map(taken).collect());
        piece.skip_to(14);
        assert_eq!((piece.window.began, piece.window.next, &piece.offsets[..]), (14, 16, &[14, 15][..]));
        piece.skip_to(10);
        assert_eq!(piece.plays(), 2);
        piece.skip_to(99);
        assert_eq!((piece.plays(), piece.window.plays.len()), (0, 0));
    }
}
