//! Writes a difference that is known and explained down, so that the next one can be seen.

use std::time::Duration;

use super::{Books, Reading};
use crate::{error::StoreError, ids::Partition};

/// What came of accepting.
#[derive(Debug, PartialEq, Eq)]
pub struct Accepted {
    /// What was written down, by partition.
    pub written: Vec<(Partition, i128)>,
    /// Partitions whose difference can't be told apart from plays on their way.
    pub moving: Vec<Partition>,
}

/// Takes the differences that are there to stay off the equation. Looks twice, `pause` apart, which is
/// longer than an instance waits before it reports: a play that is only not reported yet must not be
/// written down, or it would look lost once it is.
///
/// # Errors
/// A store is away.
pub async fn accept(books: &dyn Books, reason: &str, pause: Duration) -> Result<Accepted, StoreError> {
    let first = books.read().await?;
    tokio::time::sleep(pause).await;
    let second = books.read().await?;
    let accepted = lasting(&first, &second);
    if !accepted.written.is_empty() {
        books.adjust(&accepted.written, reason).await?;
    }
    Ok(accepted)
}

fn lasting(first: &Reading, second: &Reading) -> Accepted {
    let mut accepted = Accepted { written: Vec::new(), moving: Vec::new() };
    for partition in Partition::all() {
        let index = partition.index();
        let (Some(first), Some(second)) = (&first[index], &second[index]) else {
            accepted.moving.push(partition);
            continue;
        };
        // Plays on their way can only make it smaller, so the greater one is nearer to the truth.
        let difference = first.difference().max(second.difference());
        if difference > 0 || (difference < 0 && first == second) {
            accepted.written.push((partition, difference));
        } else if difference < 0 {
            accepted.moving.push(partition);
        }
    }
    accepted
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ids::PARTITIONS, plays::audit::Terms};

    fn reading(terms: [Option<(i128, i128)>; 4]) -> Reading {
        let mut reading = [Some(Terms::default()); PARTITIONS as usize];
        for (place, terms) in reading.iter_mut().zip(terms) {
            *place = terms.map(|(witnessed, views)| Terms { witnessed, views, ..Terms::default() });
        }
        reading
    }

    #[test]
    fn a_loss_is_accepted_and_too_many_plays_only_where_nothing_moves() {
        let first = reading([Some((10, 4)), Some((4, 10)), Some((4, 10)), Some((4, 10))]);
        let second = reading([Some((11, 6)), Some((4, 10)), Some((5, 11)), None]);
        let partitions: Vec<Partition> = Partition::all().collect();
        let wanted = Accepted {
            written: vec![(partitions[0], 6), (partitions[1], -6)],
            moving: vec![partitions[2], partitions[3]],
        };
        assert_eq!(lasting(&first, &second), wanted);
    }
}
