//! Matrix views: row-major, with a row pitch.

use std::marker::PhantomData;
use std::ops::Range;

/// A read-only matrix view: row r is `data[r * pitch..][..cols]`.
#[derive(Clone, Copy, Debug)]
pub struct Mat<'a, E = f32> {
    /// Elements; at least `(rows - 1) * pitch + cols`.
    pub data: &'a [E],
    /// Number of rows.
    pub rows: usize,
    /// Number of columns that count.
    pub cols: usize,
    /// Elements from one row to the next, at least `cols`.
    pub pitch: usize,
}

/// Returns the elements a view must cover.
fn extent(rows: usize, cols: usize, pitch: usize) -> usize {
    if rows == 0 { 0 } else { (rows - 1) * pitch + cols }
}

impl<'a, E: Copy> Mat<'a, E> {
    /// Returns a view with a row pitch; panics when `data` is too short or `pitch < cols`.
    pub fn new(data: &'a [E], rows: usize, cols: usize, pitch: usize) -> Self {
        assert!(
            pitch >= cols && data.len() >= extent(rows, cols, pitch),
            "matrix view {rows}x{cols} with pitch {pitch} over {} elements",
            data.len()
        );
        Self { data, rows, cols, pitch }
    }

    /// Returns a view without pads.
    pub fn dense(data: &'a [E], rows: usize, cols: usize) -> Self {
        Self::new(data, rows, cols, cols)
    }

    /// Returns row `r`, `cols` long.
    #[inline(always)]
    pub fn row(&self, r: usize) -> &'a [E] {
        &self.data[r * self.pitch..][..self.cols]
    }

    /// Returns the columns `range` of every row.
    pub fn cols_range(&self, range: Range<usize>) -> Mat<'a, E> {
        assert!(range.start <= range.end && range.end <= self.cols);
        Mat {
            data: self.data.get(range.start..).unwrap_or(&[]),
            rows: self.rows,
            cols: range.len(),
            pitch: self.pitch,
        }
    }

    /// Returns the rows `range`.
    pub fn rows_range(&self, range: Range<usize>) -> Mat<'a, E> {
        assert!(range.start <= range.end && range.end <= self.rows);
        Mat { data: self.data.get(range.start * self.pitch..).unwrap_or(&[]), rows: range.len(), ..*self }
    }
}

/// A mutable matrix view. It owns `owned >= cols` columns of each row: the columns `cols..owned` are pads, which kernels zero.
#[derive(Debug)]
pub struct MatMut<'a, E = f32> {
    ptr: *mut E,
    /// Number of rows.
    pub rows: usize,
    /// Number of columns that count.
    pub cols: usize,
    /// Elements from one row to the next.
    pub pitch: usize,
    owned: usize,
    life: PhantomData<&'a mut [E]>,
}

// SAFETY: a MatMut is an exclusive borrow of its elements; shared access goes only through the unsafe `row_shared`.
unsafe impl<E: Send> Send for MatMut<'_, E> {}
// SAFETY: as above.
unsafe impl<E: Send> Sync for MatMut<'_, E> {}

impl<'a, E: Copy + Default> MatMut<'a, E> {
    /// Returns a view that owns its pads (they are written as zero; the last row's only as far as `data` goes).
    pub fn new(data: &'a mut [E], rows: usize, cols: usize, pitch: usize) -> Self {
        let full = data.len() >= rows * pitch;
        let mut view = Self::view(data, rows, cols, pitch);
        if full {
            view.owned = pitch;
        }
        view
    }

    /// Returns a view without pads.
    pub fn dense(data: &'a mut [E], rows: usize, cols: usize) -> Self {
        Self::view(data, rows, cols, cols)
    }

    /// Returns a view that leaves the elements between its rows alone.
    pub fn view(data: &'a mut [E], rows: usize, cols: usize, pitch: usize) -> Self {
        assert!(
            pitch >= cols && data.len() >= extent(rows, cols, pitch),
            "matrix view {rows}x{cols} with pitch {pitch} over {} elements",
            data.len()
        );
        Self { ptr: data.as_mut_ptr(), rows, cols, pitch, owned: cols, life: PhantomData }
    }

    /// Returns this view for a shorter time.
    pub fn reborrow(&mut self) -> MatMut<'_, E> {
        MatMut { life: PhantomData, ..*self }
    }

    /// Returns the rows `range`.
    pub fn rows_range(self, range: Range<usize>) -> MatMut<'a, E> {
        assert!(range.start <= range.end && range.end <= self.rows);
        let ptr = if range.is_empty() {
            self.ptr
        } else {
            // SAFETY: row range.start exists.
            unsafe { self.ptr.add(range.start * self.pitch) }
        };
        MatMut { ptr, rows: range.len(), ..self }
    }

    /// Returns the columns `..at` (without pads) and `at..` (with this view's pads).
    pub fn split_cols(self, at: usize) -> (MatMut<'a, E>, MatMut<'a, E>) {
        assert!(at <= self.cols);
        let left = MatMut { cols: at, owned: at, ..self };
        let ptr = if self.rows == 0 {
            self.ptr
        } else {
            // SAFETY: at <= cols, so the pointer stays inside (or one past) the first row.
            unsafe { self.ptr.add(at) }
        };
        let right = MatMut { ptr, cols: self.cols - at, owned: self.owned - at, ..self };
        (left, right)
    }

    /// Returns the columns written per row: `cols` and the pads.
    pub fn owned(&self) -> usize {
        self.owned
    }

    /// First element.
    pub(super) fn ptr(&self) -> *mut E {
        self.ptr
    }

    /// Returns row `r` (`cols` long) with its pads zeroed.
    pub fn row_mut(&mut self, r: usize) -> &mut [E] {
        // SAFETY: `&mut self` is exclusive.
        unsafe { self.row_shared(r) }
    }

    /// Returns row `r` (`cols` long) with its pads zeroed, for tasks that share the view.
    ///
    /// # Safety
    /// No other live slice may cover this row.
    #[inline(always)]
    #[allow(clippy::mut_from_ref)]
    pub(super) unsafe fn row_shared(&self, r: usize) -> &'a mut [E] {
        assert!(r < self.rows);
        // SAFETY: r < rows and owned <= pitch (and the data was checked to hold it): inside the borrow; exclusive by the caller.
        let whole = unsafe { std::slice::from_raw_parts_mut(self.ptr.add(r * self.pitch), self.owned) };
        let (row, pad) = whole.split_at_mut(self.cols);
        pad.fill(E::default());
        row
    }

    /// Returns columns `c..c + n` of row `r`, for tasks that share the row; the one that takes the last column zeroes the pads.
    ///
    /// # Safety
    /// No other live slice may cover these elements.
    #[allow(clippy::mut_from_ref)]
    pub(super) unsafe fn part_shared(&self, r: usize, c: usize, n: usize) -> &'a mut [E] {
        assert!(r < self.rows && c <= self.cols && n <= self.cols - c);
        let pads = if c + n == self.cols { self.owned - self.cols } else { 0 };
        // SAFETY: inside row r (see `row_shared`); exclusive by the caller.
        let whole = unsafe { std::slice::from_raw_parts_mut(self.ptr.add(r * self.pitch + c), n + pads) };
        let (part, pad) = whole.split_at_mut(n);
        pad.fill(E::default());
        part
    }

    /// Zeroes the pads of all rows.
    pub(super) fn zero_pads(&mut self) {
        if self.owned > self.cols {
            for r in 0..self.rows {
                self.row_mut(r);
            }
        }
    }
}

/// Returns the rows of segment `s`.
#[inline]
pub fn segment(seg: &[i32], s: usize) -> Range<usize> {
    seg[s] as usize..seg[s + 1] as usize
}

/// Returns the number of segments; panics when the table is not ascending from 0 or passes `rows`.
pub fn check_segments(seg: &[i32], rows: usize) -> usize {
    assert!(
        seg.first() == Some(&0) && seg.is_sorted() && seg.last().is_some_and(|&end| end as usize <= rows),
        "segment offsets must ascend from 0 to at most {rows}"
    );
    seg.len() - 1
}

/// Returns the segment of row `t`, if any (empty segments hold no row).
#[inline]
pub fn segment_of(seg: &[i32], t: usize) -> Option<usize> {
    let s = seg.partition_point(|&start| start as usize <= t);
    (s < seg.len()).then(|| s - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segments_of_rows() {
        let seg = [0, 0, 3, 3, 5];
        let of: Vec<_> = (0..7).map(|t| segment_of(&seg, t)).collect();
        assert_eq!(of, [Some(1), Some(1), Some(1), Some(3), Some(3), None, None]);
    }

    #[test]
    fn pads_are_zeroed_only_when_owned() {
        let mut data = vec![1.0; 8];
        MatMut::new(&mut data, 2, 3, 4).zero_pads();
        assert_eq!(data, [1.0, 1.0, 1.0, 0.0, 1.0, 1.0, 1.0, 0.0]);
        let mut data = vec![1.0; 8];
        let (mut left, mut right) = MatMut::new(&mut data, 2, 3, 4).split_cols(1);
        left.row_mut(1)[0] = 2.0;
        right.row_mut(0).fill(3.0);
        assert_eq!(data, [1.0, 3.0, 3.0, 0.0, 2.0, 1.0, 1.0, 1.0]);
    }
}
