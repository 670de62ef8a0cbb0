//! Redis's sketch of different viewers, reckoned without Redis: the same bytes count the same in both.
//!
//! A window changes the sketch in the transaction that counts it, so a rebuild gives the same again and
//! Redis may be away. The column holds what Redis's `GET` of a `HyperLogLog` gives: a header of 16 bytes,
//! then 16,384 registers, dense (6 bits each) or sparse (runs).

/// Registers, and how many bits of a hash choose one.
const REGISTERS: usize = 1 << INDEX_BITS;
const INDEX_BITS: u32 = 14;

/// Bits of a hash that are left, and so the highest rank but one.
const RANK_BITS: usize = 50;

const HEADER: usize = 16;
const DENSE: usize = HEADER + REGISTERS * 6 / 8;
const MAGIC: &[u8] = b"HYLL";

/// Redis keeps a sketch sparse up to this many bytes, unless it is set otherwise.
const LONGEST_SPARSE: usize = 3_000;

/// The highest rank that a run can tell.
const HIGHEST_SPARSE: u8 = 32;

/// What Redis seeds its hash with: anything else would count the same viewer twice.
const SEED: u64 = 0xadc8_3b19;

/// The sketch of one video.
pub(in crate::plays) struct HyperLogLog {
    registers: Vec<u8>,
}

/// Bytes that are no sketch.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("it is no HyperLogLog of Redis's")]
pub(in crate::plays) struct NoSketch;

impl HyperLogLog {
    /// One that has seen nobody.
    pub(in crate::plays) fn new() -> Self {
        Self { registers: vec![0; REGISTERS] }
    }

    /// Reads what Redis wrote, or [`HyperLogLog::bytes`].
    pub(in crate::plays) fn read(bytes: &[u8]) -> Result<Self, NoSketch> {
        let (header, body) = bytes.split_at_checked(HEADER).ok_or(NoSketch)?;
        if !header.starts_with(MAGIC) {
            return Err(NoSketch);
        }
        let registers = match header[MAGIC.len()] {
            0 if bytes.len() == DENSE => dense(body),
            1 => sparse(body)?,
            _ => return Err(NoSketch),
        };
        Ok(Self { registers })
    }

    /// Adds one; says whether that changed anything.
    pub(in crate::plays) fn add(&mut self, viewer: &[u8]) -> bool {
        let hash = murmur(viewer);
        let index = usize::try_from(hash % REGISTERS as u64).expect("a remainder of 16,384 fits");
        // The bit behind the last ends the count.
        let rest = (hash >> INDEX_BITS) | (1 << RANK_BITS);
        let rank = u8::try_from(rest.trailing_zeros() + 1).expect("at most 51");
        let register = &mut self.registers[index];
        let grows = rank > *register;
        *register = rank.max(*register);
        grows
    }

    /// About how many it has seen, as `PFCOUNT` says.
    pub(in crate::plays) fn count(&self) -> i64 {
        let mut ranks = [0_u32; RANK_BITS + 2];
        for register in &self.registers {
            // What Redis wrote has none above; anything else would be no sketch.
            ranks[usize::from(*register).min(RANK_BITS + 1)] += 1;
        }
        #[expect(clippy::cast_precision_loss, reason = "16,384")]
        let all = REGISTERS as f64;
        let mut sum = all * tau((all - f64::from(ranks[RANK_BITS + 1])) / all);
        for rank in ranks[1..=RANK_BITS].iter().rev() {
            sum = 0.5 * (sum + f64::from(*rank));
        }
        sum += all * sigma(f64::from(ranks[0]) / all);
        let estimate = (0.5 / std::f64::consts::LN_2) * all * all / sum;
        #[expect(clippy::cast_possible_truncation, reason = "far below 2^63")]
        let estimate = estimate.round() as i64;
        estimate
    }

    /// As Redis keeps it: small ones sparse.
    pub(in crate::plays) fn bytes(&self) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        // Encoding, three bytes of nothing, and the count, whose highest bit says that it is not known.
        bytes.extend([1, 0, 0, 0]);
        bytes.extend([0, 0, 0, 0, 0, 0, 0, 0x80]);
        if self.write_sparse(&mut bytes) {
            return bytes;
        }
        bytes.resize(HEADER, 0);
        bytes.resize(DENSE, 0);
        bytes[MAGIC.len()] = 0;
        for (index, register) in self.registers.iter().enumerate() {
            let (byte, shift) = (HEADER + index * 6 / 8, index * 6 % 8);
            let [low, high] = (u16::from(*register) << shift).to_le_bytes();
            bytes[byte] |= low;
            if high > 0 {
                bytes[byte + 1] |= high;
            }
        }
        bytes
    }

    fn write_sparse(&self, bytes: &mut Vec<u8>) -> bool {
        let byte = |number: usize| u8::try_from(number).expect("a run is written in parts of a byte");
        for run in self.registers.chunk_by(|left, right| left == right) {
            let (rank, mut left) = (run[0], run.len());
            if rank > HIGHEST_SPARSE {
                return false;
            }
            while left > 0 {
                let length = if rank > 0 {
                    let length = left.min(4);
                    bytes.push(0x80 | ((rank - 1) << 2) | byte(length - 1));
                    length
                } else if left <= 64 {
                    bytes.push(byte(left - 1));
                    left
                } else {
                    bytes.extend([0x40 | byte((left - 1) >> 8), byte((left - 1) & 0xff)]);
                    left
                };
                left -= length;
            }
            if bytes.len() > LONGEST_SPARSE {
                return false;
            }
        }
        true
    }
}

fn dense(body: &[u8]) -> Vec<u8> {
    let register = |index: usize| {
        let (byte, shift) = (index * 6 / 8, index * 6 % 8);
        let high = body.get(byte + 1).copied().unwrap_or(0);
        let [low, _] = (u16::from_le_bytes([body[byte], high]) >> shift).to_le_bytes();
        low & 0x3f
    };
    (0..REGISTERS).map(register).collect()
}

fn sparse(body: &[u8]) -> Result<Vec<u8>, NoSketch> {
    let mut registers = Vec::with_capacity(REGISTERS);
    let mut body = body.iter();
    while let Some(byte) = body.next() {
        let (rank, length) = match byte >> 6 {
            0 => (0, usize::from(*byte & 0x3f) + 1),
            1 => {
                let low = body.next().ok_or(NoSketch)?;
                (0, ((usize::from(*byte & 0x3f) << 8) | usize::from(*low)) + 1)
            }
            _ => (((*byte >> 2) & 0x1f) + 1, usize::from(*byte & 3) + 1),
        };
        registers.resize(registers.len() + length, rank);
        if registers.len() > REGISTERS {
            return Err(NoSketch);
        }
    }
    if registers.len() == REGISTERS { Ok(registers) } else { Err(NoSketch) }
}

/// `MurmurHash64A`.
fn murmur(bytes: &[u8]) -> u64 {
    const M: u64 = 0xc6a4_a793_5bd1_e995;
    const R: u32 = 47;
    let mut hash = SEED ^ (bytes.len() as u64).wrapping_mul(M);
    let (words, rest) = bytes.as_chunks::<8>();
    for word in words {
        let mut word = u64::from_le_bytes(*word).wrapping_mul(M);
        word ^= word >> R;
        hash = (hash ^ word.wrapping_mul(M)).wrapping_mul(M);
    }
    if !rest.is_empty() {
        let mut last = [0; 8];
        last[..rest.len()].copy_from_slice(rest);
        hash = (hash ^ u64::from_le_bytes(last)).wrapping_mul(M);
    }
    hash ^= hash >> R;
    hash = hash.wrapping_mul(M);
    hash ^ (hash >> R)
}

/// The two series of Ertl's estimator ("New cardinality estimation algorithms for `HyperLogLog` sketches"),
/// which Redis uses: for registers at the end of their range, and for those that saw nobody.
fn tau(share: f64) -> f64 {
    if share <= 0.0 || share >= 1.0 {
        return 0.0;
    }
    let (mut x, mut weight, mut sum) = (share, 1.0, 1.0 - share);
    loop {
        let before = sum;
        x = x.sqrt();
        weight *= 0.5;
        sum -= (1.0 - x) * (1.0 - x) * weight;
        if before.to_bits() == sum.to_bits() {
            return sum / 3.0;
        }
    }
}

fn sigma(share: f64) -> f64 {
    if share >= 1.0 {
        return f64::INFINITY;
    }
    let (mut x, mut weight, mut sum) = (share, 1.0, share);
    loop {
        let before = sum;
        x *= x;
        sum += x * weight;
        weight += weight;
        if before.to_bits() == sum.to_bits() {
            return sum;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn it_is_what_redis_makes_of_the_same_viewers() {
        let mut redis =
            headcount_support::redis_connection(&headcount_support::service("TEST_REDIS_URL")).await.unwrap();
        let keys = ["a", "b"].map(|key| format!("sketch:{}:{key}", uuid::Uuid::now_v7()));
        let mut ours = HyperLogLog::new();
        let mut told = 0;
        for (upto, is_sparse) in [(0, true), (1, true), (10, true), (900, true), (20_000, false)] {
            let viewers: Vec<String> = (told..upto).map(|n| format!("{}{n}", "v".repeat(n % 17))).collect();
            told = upto;
            for viewer in &viewers {
                ours.add(viewer.as_bytes());
            }
            redis::cmd("PFADD").arg(&keys[0]).arg(&viewers).exec_async(&mut redis).await.unwrap();
            let theirs: Vec<u8> = redis::cmd("GET").arg(&keys[0]).query_async(&mut redis).await.unwrap();
            let theirs = HyperLogLog::read(&theirs).unwrap();
            assert_eq!(theirs.registers, ours.registers, "{upto}");
            let bytes = ours.bytes();
            assert_eq!(bytes.len() < DENSE, is_sparse, "{upto}");
            assert_eq!(HyperLogLog::read(&bytes).unwrap().registers, ours.registers, "{upto}");
            redis::cmd("SET").arg(&keys[1]).arg(&bytes).exec_async(&mut redis).await.unwrap();
            for key in &keys {
                let count: i64 = redis::cmd("PFCOUNT").arg(key).query_async(&mut redis).await.unwrap();
                assert_eq!(count, ours.count(), "{upto}");
            }
        }
        redis::cmd("DEL").arg(&keys).exec_async(&mut redis).await.unwrap();
    }

    #[test]
    fn a_viewer_again_changes_nothing_and_what_is_no_sketch_is_refused() {
        let mut sketch = HyperLogLog::new();
        assert!(sketch.add(b"ann") && !sketch.add(b"ann"));
        assert_eq!(sketch.count(), 1);
        let good = sketch.bytes();
        for bad in [&good[..good.len() - 1], &good[1..], b"HYLL", b""] {
            assert_eq!(HyperLogLog::read(bad).err(), Some(NoSketch));
        }
        // The highest rank there is: only dense ones can tell it.
        sketch.registers[7] = 51;
        assert_eq!(HyperLogLog::read(&sketch.bytes()).unwrap().registers, sketch.registers);
    }
}
