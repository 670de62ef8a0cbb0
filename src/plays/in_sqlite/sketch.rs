//! How many different viewers a video had, estimated: one `HyperLogLog` sketch a video.
//!
//! Reported, never used to decide. Hash and bytes are those of Apache `DataSketches`, the same in
//! every process and in every language it exists for.

use datasketches::{
    hash::value::raw_bytes,
    hll::{HllSketch, HllType},
};

use crate::ids::ViewerId;

/// 2^15 registers: one estimate in three is off by over 0.5 %, one in 60,000 by over 2 %. Up to
/// about 3,000 viewers are counted nearly exactly.
const LG_REGISTERS: u8 = 15;

/// Four bits a register, 16 KB at most: less to write with each play than the quicker forms.
const REGISTERS: HllType = HllType::Hll4;

/// The viewers of one video.
#[derive(Clone, Debug)]
pub(super) struct ViewerSketch(HllSketch);

/// Bytes that are no sketch.
#[derive(Debug, thiserror::Error)]
#[error("not a sketch of viewers: {0}")]
pub(super) struct NotASketch(String);

impl ViewerSketch {
    pub(super) fn empty() -> Self {
        Self(HllSketch::new(LG_REGISTERS, REGISTERS).expect("the number of registers is in range"))
    }

    pub(super) fn from_bytes(bytes: &[u8]) -> Result<Self, NotASketch> {
        HllSketch::deserialize(bytes).map(Self).map_err(|error| NotASketch(error.to_string()))
    }

    pub(super) fn to_bytes(&self) -> Vec<u8> {
        self.0.serialize()
    }

    /// Takes in a viewer and tells whether that changed anything.
    pub(super) fn insert(&mut self, viewer: &ViewerId) -> bool {
        let before = self.0.estimate();
        self.0.update(raw_bytes::from_str(viewer.as_str()));
        // Each change of a register raises the estimate.
        self.0.estimate() > before
    }

    /// About how many viewers were inserted; never falls.
    pub(super) fn estimate(&self) -> u64 {
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "estimates are ≥ 0 and far below 2^53"
        )]
        let rounded = self.0.estimate().round() as u64;
        rounded
    }

    /// Bytes in memory, about.
    pub(super) fn size(&self) -> usize {
        self.0.estimated_size()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn viewer(number: u64) -> ViewerId {
        ViewerId::from_stored(&format!("user-{number}"))
    }

    #[test]
    fn few_viewers_are_counted_exactly_and_none_twice() {
        let mut sketch = ViewerSketch::empty();
        for number in 0..1_000 {
            assert!(sketch.insert(&viewer(number)));
            assert!(!sketch.insert(&viewer(number)));
            assert_eq!(sketch.estimate(), number + 1);
        }
    }

    #[test]
    fn estimates_are_within_two_percent_and_never_fall() {
        let mut sketch = ViewerSketch::empty();
        let mut last = 0;
        for number in 1..=200_000_u64 {
            sketch.insert(&viewer(number));
            let estimate = sketch.estimate();
            assert!(estimate >= last);
            assert!(estimate.abs_diff(number) * 50 <= number, "{estimate} of {number}");
            last = estimate;
        }
    }

    #[test]
    fn bytes_come_back_as_the_same_sketch_and_other_bytes_are_refused() {
        for viewers in [0, 1, 7, 8, 100, 5_000, 50_000] {
            let mut sketch = ViewerSketch::empty();
            for number in 0..viewers {
                sketch.insert(&viewer(number));
            }
            let bytes = sketch.to_bytes();
            let mut back = ViewerSketch::from_bytes(&bytes).unwrap();
            assert_eq!(back.estimate(), sketch.estimate());
            assert_eq!(back.insert(&viewer(3)), sketch.insert(&viewer(3)));
            assert!(ViewerSketch::from_bytes(&bytes[..bytes.len() / 2]).is_err() || viewers == 0);
        }
        assert!(ViewerSketch::from_bytes(b"").is_err());
        assert!(ViewerSketch::from_bytes(b"nonsense, and long enough to hold a header").is_err());
    }

    /// Bytes written by one version must mean the same to the next.
    #[test]
    fn the_hash_of_a_viewer_is_the_same_in_every_process() {
        let mut sketch = ViewerSketch::empty();
        sketch.insert(&viewer(1));
        assert_eq!(sketch.to_bytes(), [2, 1, 7, 15, 3, 8, 1, 0, 118, 66, 44, 6]);
    }
}
