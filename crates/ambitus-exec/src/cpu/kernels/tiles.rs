//! Row tiles for reductions over rows: partial sums per tile, then one sum over tiles in order.

use super::pool::DisjointMut;
use super::simd::{At, Simd, dispatch, each_vector};
use super::{Pool, RowsMut, Stage, segment};
use std::ops::Range;

/// Rows of a tile.
pub const TILE: usize = 64;
/// Columns per task when partial sums are added.
const COLS: usize = 256;

/// Returns the number of tiles of `rows` rows.
pub const fn tiles(rows: usize) -> usize {
    rows.div_ceil(TILE)
}

/// Returns the rows of tile `i`.
pub fn tile(rows: usize, i: usize) -> Range<usize> {
    i * TILE..rows.min((i + 1) * TILE)
}

/// The tiles of a segment table (each inside one segment), and after them those of the rows of no segment.
#[derive(Clone, Copy)]
pub struct SegmentTiles<'a> {
    seg: &'a [i32],
    rows: usize,
    height: usize,
}

impl<'a> SegmentTiles<'a> {
    pub fn new(seg: &'a [i32], rows: usize) -> Self {
        Self::with_height(seg, rows, TILE)
    }

    /// Returns the tiles of up to `height` rows instead of [`TILE`].
    pub fn with_height(seg: &'a [i32], rows: usize, height: usize) -> Self {
        super::check_segments(seg, rows);
        Self { seg, rows, height }
    }

    fn count(&self, s: usize) -> usize {
        segment(self.seg, s).len().div_ceil(self.height)
    }

    pub fn segments(&self) -> usize {
        self.seg.len() - 1
    }

    /// Most tiles of any table of `segments` segments over `rows` rows, without those of no segment.
    pub const fn most(rows: usize, segments: usize) -> usize {
        rows / TILE + segments
    }

    /// Returns the tiles of segment `s`, numbered through all segments.
    pub fn of(&self, s: usize) -> Range<usize> {
        let first: usize = (0..s).map(|s| self.count(s)).sum();
        first..first + self.count(s)
    }

    /// Returns the tiles inside segments.
    pub fn inside(&self) -> usize {
        (0..self.segments()).map(|s| self.count(s)).sum()
    }

    /// Returns all tiles, also those of no segment.
    pub fn all(&self) -> usize {
        self.inside() + (self.rows - self.end()).div_ceil(self.height)
    }

    fn end(&self) -> usize {
        self.seg[self.segments()] as usize
    }

    /// Segment (None: outside) and rows of tile `i`.
    pub fn get(&self, mut i: usize) -> (Option<usize>, Range<usize>) {
        for s in 0..self.segments() {
            let rows = segment(self.seg, s);
            if i < self.count(s) {
                let start = rows.start + i * self.height;
                return (Some(s), start..rows.end.min(start + self.height));
            }
            i -= self.count(s);
        }
        let start = self.end() + i * self.height;
        (None, start..self.rows.min(start + self.height))
    }
}

dispatch! {
    /// `out = acc * out + Σ parts`, where part i is `partial[i * stride..][..out.len()]`; no parts give `acc * out`.
    pub fn add_parts(partial: &[f32], stride: usize, parts: usize, acc: f32, out: &mut [f32]) = add_parts_body
}

#[inline(always)]
fn add_parts_body<S: Simd>(s: S, partial: &[f32], stride: usize, parts: usize, acc: f32, out: &mut [f32]) {
    each_vector!(S, out.len(), |at| {
        let mut sum = s.zero();
        for i in 0..parts {
            let part = &partial[i * stride..];
            sum = s.add(sum, at.load(s, &part[..out.len()]));
        }
        if acc != 0.0 {
            sum = s.fma(s.splat(acc), at.load(s, out), sum);
        }
        at.store(s, out, sum);
    });
}

/// `out = acc * out + Σ_i partial[i]` for `parts` partial rows of `out.len()` floats, `stride` apart.
pub fn reduce(pool: &Pool, partial: &[f32], stride: usize, parts: usize, acc: f32, out: &mut [f32]) {
    let n = out.len();
    let (isa, out) = (pool.isa(), DisjointMut::new(out));
    pool.run(n.div_ceil(COLS), |i| {
        let c = i * COLS;
        // SAFETY: one chunk of columns per task.
        let out = unsafe { out.slice(c, COLS.min(n - c)) };
        add_parts(isa, partial.get(c..).unwrap_or(&[]), stride, parts, acc, out);
    });
}

/// Row s of `out` = sum of the partial rows (`stride` apart) of the tiles of segment s.
pub fn reduce_segments(pool: &Pool, tiles: SegmentTiles, partial: &[f32], stride: usize, out: RowsMut) {
    let isa = pool.isa();
    pool.run(tiles.segments(), |s| {
        let of = tiles.of(s);
        let first = partial.get(of.start * stride..).unwrap_or(&[]);
        let mut stage = Stage::new();
        // SAFETY: one row per task.
        unsafe { out.write(isa, s, &mut stage, |row| add_parts(isa, first, stride, of.len(), 0.0, row)) };
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tiles_cover_all_rows_once() {
        let seg = [0, 0, 130, 131, 131, 200];
        let t = SegmentTiles::new(&seg, 270);
        let mut next = 0;
        for i in 0..t.all() {
            let (s, rows) = t.get(i);
            assert!(rows.start == next && !rows.is_empty() && rows.len() <= TILE);
            assert_eq!(s, super::super::segment_of(&seg, rows.start));
            assert!(s.is_none_or(|s| t.of(s).contains(&i)));
            next = rows.end;
        }
        assert_eq!(next, 270);
        assert!(t.inside() <= SegmentTiles::most(270, 5));
    }
}
