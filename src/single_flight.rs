//! Reads of the same video that are asked for at the same time are done once.
//!
//! A write that is acknowledged while a read is under way bars it: who asks from then on starts a
//! read of its own, and what the barred one finds is not kept.

use std::{collections::HashMap, future::Future, sync::Arc};

use futures::{
    FutureExt,
    future::{BoxFuture, Shared, WeakShared},
};
use parking_lot::Mutex;

use crate::{error::StoreError, ids::VideoId};

type Answer<V> = BoxFuture<'static, Result<Arc<[V]>, StoreError>>;

/// Reads under way, each of one or many videos. Clones share them.
pub struct SingleFlight<V> {
    under_way: Arc<Mutex<UnderWay<V>>>,
}

struct UnderWay<V> {
    started: u64,
    places: HashMap<VideoId, Place<V>>,
}

/// Where the answer for one video will be.
struct Place<V> {
    flight: u64,
    index: usize,
    /// Weak, so that a read nobody waits for any more ends, and its places with it.
    answer: WeakShared<Answer<V>>,
}

impl<V> Clone for SingleFlight<V> {
    fn clone(&self) -> Self {
        Self { under_way: self.under_way.clone() }
    }
}

impl<V> Default for SingleFlight<V> {
    fn default() -> Self {
        Self { under_way: Arc::new(Mutex::new(UnderWay { started: 0, places: HashMap::new() })) }
    }
}

impl<V: Clone + Send + Sync + 'static> SingleFlight<V> {
    /// A value for each of `videos`, in order. Those that nobody reads yet are handed to `read`,
    /// all at once, which answers one value each, in order; `keep` then takes those not barred.
    ///
    /// # Errors
    /// Each value carries the failure of the read it came from.
    pub async fn read<R, F, K>(&self, videos: &[VideoId], read: R, keep: K) -> Vec<Result<V, StoreError>>
    where
        R: FnOnce(Arc<[VideoId]>) -> F + Send + 'static,
        F: Future<Output = Result<Vec<V>, StoreError>> + Send + 'static,
        K: Fn(&VideoId, &V) + Send + 'static,
    {
        let mut answers = Vec::with_capacity(videos.len());
        for (answer, index) in self.join(videos, read, keep) {
            answers.push(answer.await.map(|values| values[index].clone()));
        }
        answers
    }

    /// Keeps the reads of `video` that are under way from being kept or joined, and runs `and`
    /// before another can be kept.
    pub fn bar(&self, video: &VideoId, and: impl FnOnce()) {
        let mut under_way = self.under_way.lock();
        under_way.places.remove(video);
        and();
    }

    fn join<R, F, K>(&self, videos: &[VideoId], read: R, keep: K) -> Vec<(Shared<Answer<V>>, usize)>
    where
        R: FnOnce(Arc<[VideoId]>) -> F + Send + 'static,
        F: Future<Output = Result<Vec<V>, StoreError>> + Send + 'static,
        K: Fn(&VideoId, &V) + Send + 'static,
    {
        let mut under_way = self.under_way.lock();
        let joined: Vec<_> = videos
            .iter()
            .map(|video| {
                let place = under_way.places.get(video)?;
                Some((place.answer.upgrade()?, place.index))
            })
            .collect();
        let unread: Arc<[VideoId]> = videos
            .iter()
            .zip(&joined)
            .filter(|(_, place)| place.is_none())
            .map(|(video, _)| video.clone())
            .collect();
        if unread.is_empty() {
            return joined.into_iter().flatten().collect();
        }
        under_way.started += 1;
        let flight = Flight { number: under_way.started, videos: unread.clone(), of: self.clone() };
        let number = flight.number;
        let own = flight.run(read, keep).boxed().shared();
        if let Some(answer) = own.downgrade() {
            for (index, video) in unread.iter().enumerate() {
                let place = Place { flight: number, index, answer: answer.clone() };
                under_way.places.insert(video.clone(), place);
            }
        }
        let mut places = Vec::with_capacity(videos.len());
        let mut own_index = 0;
        for place in joined {
            places.push(place.unwrap_or_else(|| {
                own_index += 1;
                (own.clone(), own_index - 1)
            }));
        }
        places
    }
}

/// One read; its places are given up when it ends, however it ends.
struct Flight<V> {
    number: u64,
    videos: Arc<[VideoId]>,
    of: SingleFlight<V>,
}

impl<V: Clone + Send + Sync + 'static> Flight<V> {
    async fn run<R, F, K>(self, read: R, keep: K) -> Result<Arc<[V]>, StoreError>
    where
        R: FnOnce(Arc<[VideoId]>) -> F,
        F: Future<Output = Result<Vec<V>, StoreError>>,
        K: Fn(&VideoId, &V),
    {
        let values = read(self.videos.clone()).await?;
        let mut under_way = self.of.under_way.lock();
        for (video, value) in self.videos.iter().zip(&values) {
            if under_way.places.get(video).is_some_and(|place| place.flight == self.number) {
                under_way.places.remove(video);
                keep(video, value);
            }
        }
        drop(under_way);
        Ok(values.into())
    }
}

impl<V> Drop for Flight<V> {
    fn drop(&mut self) {
        let mut under_way = self.of.under_way.lock();
        for video in self.videos.iter() {
            if under_way.places.get(video).is_some_and(|place| place.flight == self.number) {
                under_way.places.remove(video);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use futures::future::join_all;
    use tokio::sync::Semaphore;

    use super::*;
    use crate::error::Part;

    /// A table that answers when it is let, with how often it was read by then.
    struct Table {
        flights: SingleFlight<u64>,
        let_through: Arc<Semaphore>,
        reads: Arc<AtomicU64>,
        kept: Arc<Mutex<Vec<(VideoId, u64)>>>,
    }

    impl Table {
        fn new() -> Arc<Self> {
            Arc::new(Self {
                flights: SingleFlight::default(),
                let_through: Arc::new(Semaphore::new(0)),
                reads: Arc::default(),
                kept: Arc::default(),
            })
        }

        async fn read(&self, videos: &[VideoId]) -> Vec<Result<u64, StoreError>> {
            let (gate, reads, kept) = (self.let_through.clone(), self.reads.clone(), self.kept.clone());
            let read = move |videos: Arc<[VideoId]>| async move {
                let number = reads.fetch_add(1, Ordering::SeqCst) + 1;
                gate.acquire().await.unwrap().forget();
                if number == 13 {
                    Err(StoreError::unavailable(Part::Sqlite, "unlucky"))
                } else {
                    Ok(vec![number; videos.len()])
                }
            };
            let keep = move |video: &VideoId, value: &u64| kept.lock().push((video.clone(), *value));
            self.flights.read(videos, read, keep).await
        }

        fn places(&self) -> usize {
            self.flights.under_way.lock().places.len()
        }
    }

    fn video(id: &str) -> VideoId {
        VideoId::parse(id).unwrap()
    }

    fn values(answers: Vec<Result<u64, StoreError>>) -> Vec<u64> {
        answers.into_iter().map(Result::unwrap).collect()
    }

    #[tokio::test]
    async fn reads_at_the_same_time_are_one_read() {
        let table = Table::new();
        let (film, show) = ([video("film")], [video("show"), video("film")]);
        let mut readers = join_all((0..10).map(|_| table.read(&film)));
        assert!(futures::poll!(&mut readers).is_pending());
        let mut both = Box::pin(table.read(&show));
        assert!(futures::poll!(&mut both).is_pending());
        table.let_through.add_permits(2);
        for answer in readers.await {
            assert_eq!(values(answer), [1]);
        }
        assert_eq!(values(both.await), [2, 1]);
        assert_eq!(*table.kept.lock(), [(video("film"), 1), (video("show"), 2)]);
        assert_eq!(table.places(), 0);
    }

    #[tokio::test]
    async fn a_read_that_was_barred_is_neither_joined_nor_kept() {
        let table = Table::new();
        let film = [video("film")];
        let mut before = Box::pin(table.read(&film));
        assert!(futures::poll!(&mut before).is_pending());
        table.flights.bar(&film[0], || {});
        let mut after = Box::pin(table.read(&film));
        assert!(futures::poll!(&mut after).is_pending());
        table.let_through.add_permits(2);
        assert_eq!(values(before.await), [1]);
        assert_eq!(values(after.await), [2]);
        assert_eq!(*table.kept.lock(), [(video("film"), 2)]);
        assert_eq!(table.places(), 0);
    }

    #[tokio::test]
    async fn a_reader_who_gives_up_takes_nobody_along_and_leaves_nothing() {
        let table = Table::new();
        let film = [video("film")];
        let mut first = Box::pin(table.read(&film));
        let mut second = Box::pin(table.read(&film));
        assert!(futures::poll!(&mut first).is_pending());
        assert!(futures::poll!(&mut second).is_pending());
        drop(first);
        table.let_through.add_permits(1);
        assert_eq!(values(second.await), [1]);

        let mut alone = Box::pin(table.read(&film));
        assert!(futures::poll!(&mut alone).is_pending());
        assert_eq!(table.places(), 1);
        drop(alone);
        assert_eq!(table.places(), 0);
    }

    #[tokio::test]
    async fn a_failure_is_told_to_all_who_waited_and_not_kept() {
        let table = Table::new();
        table.reads.store(12, Ordering::SeqCst);
        let film = [video("film")];
        let mut readers = join_all([table.read(&film), table.read(&film)]);
        assert!(futures::poll!(&mut readers).is_pending());
        table.let_through.add_permits(2);
        for answer in readers.await {
            assert!(answer[0].as_ref().unwrap_err().is_transient());
        }
        assert_eq!(values(table.read(&film).await), [14]);
        assert_eq!(*table.kept.lock(), [(video("film"), 14)]);
    }
}
