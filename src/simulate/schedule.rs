//! What is to happen when: one heap for the whole audience, instead of a timer for each viewer.

use std::{cmp::Ordering, collections::BinaryHeap, time::Duration};

use tokio::time::Instant;

/// Things to come, the earliest first; those of one moment in the order in which they were put in.
#[derive(Debug)]
pub(super) struct Schedule<T> {
    heap: BinaryHeap<Entry<T>>,
    /// Times are counted from here: a million viewers have two things each to come.
    begun: Instant,
    pushed: u64,
}

#[derive(Debug)]
struct Entry<T> {
    /// In nanoseconds.
    at: u64,
    order: u64,
    what: T,
}

impl<T> Schedule<T> {
    pub(super) fn new() -> Self {
        Self { heap: BinaryHeap::new(), begun: Instant::now(), pushed: 0 }
    }

    /// Makes room for what is about to be put in.
    pub(super) fn reserve(&mut self, more: usize) {
        self.heap.reserve_exact(more);
    }

    pub(super) fn push(&mut self, at: Instant, what: T) {
        let at = at.saturating_duration_since(self.begun).as_nanos();
        let at = u64::try_from(at).unwrap_or(u64::MAX);
        self.heap.push(Entry { at, order: self.pushed, what });
        self.pushed += 1;
    }

    /// When the next thing is to happen.
    pub(super) fn next_at(&self) -> Option<Instant> {
        self.heap.peek().map(|entry| self.begun + Duration::from_nanos(entry.at))
    }

    /// The next thing that was to happen by `now`, with the moment it was meant for.
    pub(super) fn pop_due(&mut self, now: Instant) -> Option<(Instant, T)> {
        if self.next_at()? > now {
            return None;
        }
        self.heap.pop().map(|entry| (self.begun + Duration::from_nanos(entry.at), entry.what))
    }

    /// Drops what `keep` is false for.
    pub(super) fn retain(&mut self, mut keep: impl FnMut(&T) -> bool) {
        self.heap.retain(|entry| keep(&entry.what));
    }
}

/// Bytes that each thing to come takes.
#[cfg(test)]
pub(super) fn size_of_entry<T>() -> usize {
    size_of::<Entry<T>>()
}

// A `BinaryHeap` gives the greatest first, so the earliest has to be the greatest.
impl<T> Ord for Entry<T> {
    fn cmp(&self, other: &Self) -> Ordering {
        (other.at, other.order).cmp(&(self.at, self.order))
    }
}

impl<T> PartialOrd for Entry<T> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<T> PartialEq for Entry<T> {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl<T> Eq for Entry<T> {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_earliest_comes_first_and_equals_keep_their_order() {
        let mut schedule = Schedule::new();
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        for (seconds, what) in [(3, "late"), (1, "first"), (2, "second"), (1, "first too")] {
            schedule.push(at(seconds), what);
        }

        assert_eq!(schedule.next_at(), Some(at(1)));
        assert_eq!(schedule.pop_due(at(0)), None);
        assert_eq!(schedule.pop_due(at(2)), Some((at(1), "first")));
        assert_eq!(schedule.pop_due(at(2)), Some((at(1), "first too")));
        assert_eq!(schedule.pop_due(at(2)), Some((at(2), "second")));
        assert_eq!(schedule.pop_due(at(2)), None);
    }

    #[test]
    fn what_is_not_kept_does_not_happen() {
        let mut schedule = Schedule::new();
        let start = Instant::now();
        for number in 0..10 {
            schedule.push(start, number);
        }
        schedule.retain(|number| number % 2 == 0);

        let left: Vec<_> = std::iter::from_fn(|| schedule.pop_due(start)).map(|(_, number)| number).collect();
        assert_eq!(left, [0, 2, 4, 6, 8]);
    }
}
