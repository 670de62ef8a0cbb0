//! Whether every play that was counted is still somewhere.
//!
//! In each partition: witnessed + imported = views + pending + refused + adjustments + difference.
//! What is witnessed is kept apart from what is counted, so that a store that came back older can't
//! take both along. A difference above 0 is what nobody has any more; below 0 there are plays that
//! nobody has reported, which is so for a moment after each play.

mod accept;
mod job;

use std::{ops::AddAssign, sync::Arc};

use async_trait::async_trait;
use futures::{
    FutureExt as _,
    future::{BoxFuture, Shared, WeakShared},
};
use parking_lot::Mutex;

pub use self::{
    accept::{Accepted, accept},
    job::AuditJob,
};
use crate::{
    clock::{Clock, Timestamp},
    error::StoreError,
    ids::{PARTITIONS, Partition},
};

/// The sides of the equation, but for the difference.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Terms {
    /// Plays that some instance knows to have been counted.
    pub witnessed: i128,
    /// Plays that came into the database in other ways.
    pub imported: i128,
    /// Plays in the database.
    pub views: i128,
    /// Plays on their way to the database.
    pub pending: i128,
    /// Plays that the database refused; they wait for an operator.
    pub refused: i128,
    /// Plays that an operator knows to be gone.
    pub adjustments: i128,
}

impl Terms {
    /// What the equation leaves over.
    #[must_use]
    pub fn difference(&self) -> i128 {
        let known = self.witnessed + self.imported;
        known - self.views - self.pending - self.refused - self.adjustments
    }
}

impl AddAssign<&Self> for Terms {
    fn add_assign(&mut self, other: &Self) {
        self.witnessed += other.witnessed;
        self.imported += other.imported;
        self.views += other.views;
        self.pending += other.pending;
        self.refused += other.refused;
        self.adjustments += other.adjustments;
    }
}

/// What a look found, by partition; `None` where plays moved under each try, so that no number can
/// be vouched for.
pub type Reading = [Option<Terms>; PARTITIONS as usize];

/// Where all of it is written down.
#[async_trait]
pub trait Books: Send + Sync {
    /// Looks at every term, with such care that plays that are moving can't make a difference above 0.
    /// Costs one walk over all videos: not for every request.
    ///
    /// # Errors
    /// A store is away.
    async fn read(&self) -> Result<Reading, StoreError>;

    /// Writes differences down as known, all or none.
    ///
    /// # Errors
    /// The store is away; whether they are written is unknown.
    async fn adjust(&self, differences: &[(Partition, i128)], reason: &str) -> Result<(), StoreError>;
}

/// A reading and its time.
#[derive(Clone, Debug)]
pub struct Audited {
    /// By partition.
    pub partitions: Reading,
    /// When the reading began.
    pub as_of: Timestamp,
}

impl Audited {
    /// Each partition with what was found there.
    pub fn by_partition(&self) -> impl Iterator<Item = (Partition, Option<&Terms>)> {
        Partition::all().map(|partition| (partition, self.partitions[partition.index()].as_ref()))
    }

    /// The sums over all partitions; `None` unless each is verified.
    #[must_use]
    pub fn totals(&self) -> Option<Terms> {
        let mut totals = Terms::default();
        for (_, terms) in self.by_partition() {
            totals += terms?;
        }
        Some(totals)
    }

    /// Plays that nobody has any more, of the partitions that are verified.
    #[must_use]
    pub fn lost(&self) -> i128 {
        self.partitions.iter().flatten().map(|terms| terms.difference().max(0)).sum()
    }

    /// Plays that nobody has reported, of the partitions that are verified.
    #[must_use]
    pub fn unreported(&self) -> i128 {
        self.partitions.iter().flatten().map(|terms| (-terms.difference()).max(0)).sum()
    }

    /// The partitions of which nothing can be said.
    pub fn unverified(&self) -> impl Iterator<Item = Partition> {
        self.by_partition().filter(|(_, terms)| terms.is_none()).map(|(partition, _)| partition)
    }
}

type Answer = BoxFuture<'static, Result<Arc<Audited>, StoreError>>;

/// Reads the books, once at a time however many ask.
pub struct Audit {
    books: Arc<dyn Books>,
    clock: Arc<dyn Clock>,
    /// Weak, so that a reading that nobody waits for any more ends.
    under_way: Mutex<Option<WeakShared<Answer>>>,
}

impl Audit {
    /// Over these books.
    #[must_use]
    pub fn new(books: Arc<dyn Books>, clock: Arc<dyn Clock>) -> Arc<Self> {
        Arc::new(Self { books, clock, under_way: Mutex::default() })
    }

    /// What is found now, or by the reading that is under way.
    ///
    /// # Errors
    /// A store is away.
    pub async fn read(&self) -> Result<Arc<Audited>, StoreError> {
        self.join().await
    }

    fn join(&self) -> Shared<Answer> {
        let mut under_way = self.under_way.lock();
        // One that is over is not joined: who asks now wants to know what is now.
        let joined = under_way.as_ref().and_then(WeakShared::upgrade).filter(|read| read.peek().is_none());
        joined.unwrap_or_else(|| {
            let (books, as_of) = (self.books.clone(), self.clock.now());
            let read = async move { Ok(Arc::new(Audited { partitions: books.read().await?, as_of })) };
            let read = read.boxed().shared();
            *under_way = read.downgrade();
            read
        })
    }
}

#[cfg(test)]
mod tests;
