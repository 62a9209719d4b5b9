//! The independent verifier of a plan: shares nothing with the solver but the problem's types.

use std::collections::BTreeMap;

use thiserror::Error;

use super::problem::{Problem, Solution};

/// One way in which a plan is wrong. Buffers are named by index, ranges are `start..end` in bytes.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Violation {
    /// Not one offset per buffer.
    #[error("{buffers} buffers but {offsets} offsets")]
    CountMismatch {
        /// Buffers in the problem.
        buffers: usize,
        /// Offsets in the solution.
        offsets: usize,
    },
    /// An offset that is not a multiple of the buffer's alignment.
    #[error("buffer {buffer}: offset {offset} is not a multiple of {align}")]
    Misaligned {
        /// Index of the buffer.
        buffer: usize,
        /// Its offset.
        offset: u64,
        /// Its alignment.
        align: u64,
    },
    /// A buffer that ends beyond the arena, or beyond any 64-bit address.
    #[error("buffer {buffer}: {footprint} bytes at {offset} end beyond the arena's {height}")]
    BeyondHeight {
        /// Index of the buffer.
        buffer: usize,
        /// Its offset.
        offset: u64,
        /// Its size rounded up to its alignment.
        footprint: u64,
        /// Bytes of the arena.
        height: u64,
    },
    /// Two buffers that are live at one instant and share bytes.
    #[error("buffers {a} ({a_start}..{a_end}) and {b} ({b_start}..{b_end}) overlap at instant {instant}")]
    Overlap {
        /// The buffer that was live first.
        a: usize,
        /// Its first byte.
        a_start: u64,
        /// One past its last byte.
        a_end: u64,
        /// The buffer that became live on it.
        b: usize,
        /// Its first byte.
        b_start: u64,
        /// One past its last byte.
        b_end: u64,
        /// The first instant at which both are live.
        instant: u32,
    },
}

/// Verifies that every buffer is aligned, inside the arena and shares no byte of its footprint with
/// another at any instant of its life. O(n log n): one sweep over time that keeps the live ranges in
/// address order, where a newcomer can only overlap its two neighbours.
pub fn check(problem: &Problem, solution: &Solution) -> Result<(), Violation> {
    let buffers = problem.buffers();
    let offsets = &solution.offsets;
    if buffers.len() != offsets.len() {
        return Err(Violation::CountMismatch { buffers: buffers.len(), offsets: offsets.len() });
    }
    let height = solution.height;
    for (buffer, (b, &offset)) in buffers.iter().zip(offsets).enumerate() {
        if offset % b.align != 0 {
            return Err(Violation::Misaligned { buffer, offset, align: b.align });
        }
        let footprint = b.footprint();
        if offset.checked_add(footprint).is_none_or(|end| end > height) {
            return Err(Violation::BeyondHeight { buffer, offset, footprint, height });
        }
    }

    // Empty buffers own no byte: they cannot overlap, and would hide a neighbour at their offset.
    let solid: Vec<usize> = (0..buffers.len()).filter(|&i| buffers[i].size > 0).collect();
    let mut starts = solid.clone();
    starts.sort_by_key(|&i| (buffers[i].first, i));
    let mut ends = solid;
    ends.sort_by_key(|&i| (buffers[i].last, i));
    let mut ends = ends.into_iter().peekable();

    // Live ranges by first byte: (one past the last byte, buffer).
    let mut live: BTreeMap<u64, (u64, usize)> = BTreeMap::new();
    for b in starts {
        let instant = buffers[b].first;
        while let Some(gone) = ends.next_if(|&i| buffers[i].last < instant) {
            live.remove(&offsets[gone]);
        }
        let (b_start, b_end) = (offsets[b], offsets[b] + buffers[b].footprint());
        if let Some((&a_start, &(a_end, a))) = live.range(..b_end).next_back()
            && a_end > b_start
        {
            return Err(Violation::Overlap { a, a_start, a_end, b, b_start, b_end, instant });
        }
        live.insert(b_start, (b_end, b));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::problem::Buffer;
    use super::*;

    /// Two buffers that meet at instant 2, one that comes after, one that is empty.
    fn plan() -> (Problem, Solution) {
        let b = |first, last, size, align| Buffer { first, last, size, align };
        let problem = Problem::new(vec![b(0, 2, 100, 64), b(2, 4, 64, 64), b(5, 5, 192, 64), b(0, 9, 0, 1)]);
        (problem.unwrap(), Solution { offsets: vec![0, 128, 0, 64], height: 192 })
    }

    #[test]
    fn accepts_a_valid_plan_and_names_each_fault() {
        let (problem, good) = plan();
        assert_eq!(check(&problem, &good), Ok(()));
        let with = |buffer: usize, offset: u64| {
            let mut bad = good.clone();
            bad.offsets[buffer] = offset;
            check(&problem, &bad).unwrap_err()
        };
        // Inside the rounded tail of buffer 0 (its 100 bytes own 128).
        assert_eq!(
            with(1, 64),
            Violation::Overlap { a: 0, a_start: 0, a_end: 128, b: 1, b_start: 64, b_end: 128, instant: 2 }
        );
        assert_eq!(with(1, 96), Violation::Misaligned { buffer: 1, offset: 96, align: 64 });
        assert_eq!(
            with(2, 64),
            Violation::BeyondHeight { buffer: 2, offset: 64, footprint: 192, height: 192 }
        );
        assert_eq!(
            with(0, u64::MAX - 63),
            Violation::BeyondHeight { buffer: 0, offset: u64::MAX - 63, footprint: 128, height: 192 }
        );
        let mut bad = good.clone();
        bad.offsets.pop();
        assert_eq!(check(&problem, &bad), Err(Violation::CountMismatch { buffers: 4, offsets: 3 }));
        let low = Solution { height: 191, ..good.clone() };
        assert!(matches!(check(&problem, &low), Err(Violation::BeyondHeight { buffer: 1, .. })));
    }

    #[test]
    fn ends_are_inclusive_up_to_the_last_instant() {
        let b = |first, last| Buffer { first, last, size: 8, align: 8 };
        let same_bytes = Solution { offsets: vec![0, 0], height: 8 };
        let meet = Problem::new(vec![b(0, u32::MAX), b(u32::MAX, u32::MAX)]).unwrap();
        assert!(matches!(check(&meet, &same_bytes), Err(Violation::Overlap { .. })));
        let follow = Problem::new(vec![b(0, u32::MAX - 1), b(u32::MAX, u32::MAX)]).unwrap();
        assert_eq!(check(&follow, &same_bytes), Ok(()));
    }
}
