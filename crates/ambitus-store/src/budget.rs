//! Memory that describing a file may take: no more than the file's real length, above a small floor.

/// Every file may use this much, so that small files with many small tensors open.
const FLOOR: u64 = 16 << 20;

/// Counts bytes of index kept in memory against the length of the file they describe.
pub(crate) struct Budget {
    left: u64,
}

impl Budget {
    pub(crate) fn for_file(len: u64) -> Self {
        Self { left: len.saturating_add(FLOOR) }
    }

    /// Takes `bytes`, or says that the file describes more than its size justifies.
    pub(crate) fn take(&mut self, bytes: usize) -> Result<(), String> {
        self.left = self.left.checked_sub(bytes as u64).ok_or(
            "describes more objects than its size justifies: it is damaged, or made to exhaust memory",
        )?;
        Ok(())
    }
}
