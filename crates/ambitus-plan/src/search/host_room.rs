//! The room for what is offloaded.

use super::Verdict;

/// The memory that offloaded tensors may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostRoom {
    /// Bytes.
    pub bytes: u64,
    /// The plan's own memory is part of it.
    pub with_peak: bool,
}

impl HostRoom {
    /// As much as is wanted.
    pub const ALL: HostRoom = HostRoom { bytes: u64::MAX, with_peak: false };

    /// Returns whether there is room for `host` bytes next to a plan's `peak`.
    pub fn holds(&self, host: u64, peak: u64) -> bool {
        let beside = if self.with_peak { peak } else { 0 };
        host == 0 || host.saturating_add(beside) <= self.bytes
    }

    /// Returns what becomes of a plan by its peak and its bytes in the host's memory; at best slower than another.
    pub(super) fn verdict(&self, (peak, host): (u64, u64), budget: u64) -> Verdict {
        match (peak <= budget, self.holds(host, peak)) {
            (true, true) => Verdict::Slower,
            (true, false) => Verdict::HostTooSmall,
            (false, _) => Verdict::TooLarge,
        }
    }
}
