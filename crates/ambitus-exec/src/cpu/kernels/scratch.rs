//! Cuts a workspace into aligned pieces.

/// Floats per cache line; vectors that cross lines load at half speed.
pub const LINE: usize = 16;

/// `n` rounded up to whole cache lines.
pub const fn padded(n: usize) -> usize {
    n.next_multiple_of(LINE)
}

/// Floats a workspace needs beyond its pieces, so that it may start anywhere.
pub const SLACK: usize = LINE;

/// The rest of a workspace.
pub struct Scratch<'a>(&'a mut [f32]);

impl<'a> Scratch<'a> {
    /// Starts at the first cache line of `ws`.
    pub fn new(ws: &'a mut [f32]) -> Self {
        let skip = ws.as_ptr().align_offset(LINE * size_of::<f32>());
        Scratch(ws.get_mut(skip.min(LINE)..).unwrap_or(&mut []))
    }

    /// Returns the next `n` floats, on a cache line of their own. Panics when the workspace is too small.
    pub fn take(&mut self, n: usize) -> &'a mut [f32] {
        let whole = std::mem::take(&mut self.0);
        assert!(
            padded(n) <= whole.len(),
            "kernel workspace too small: {n} more floats wanted, {} left",
            whole.len()
        );
        let (piece, rest) = whole.split_at_mut(padded(n));
        self.0 = rest;
        &mut piece[..n]
    }

    /// Returns all that is left.
    pub fn rest(self) -> &'a mut [f32] {
        self.0
    }
}
