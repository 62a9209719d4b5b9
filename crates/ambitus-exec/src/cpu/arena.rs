//! The executor's memory: one allocation, of exactly the planned size, filled at open.

use crate::executor::ExecError;
use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ptr::NonNull;

/// Alignment of the arena, and step of the pages that are touched at open.
const PAGE: usize = 4096;

/// Something with that alignment, for the address of an empty arena.
#[repr(align(4096))]
struct Page;

/// A zeroed, page-aligned stretch of memory whose every page is resident.
#[derive(Debug)]
pub struct Arena {
    base: NonNull<u8>,
    layout: Layout,
}

// SAFETY: the arena owns its bytes; access needs `&self` (reads) or `&mut self` (writes).
unsafe impl Send for Arena {}
// SAFETY: as above.
unsafe impl Sync for Arena {}

impl Arena {
    /// Allocates and touches `bytes` bytes; 0 allocates nothing.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn new(bytes: u64) -> Result<Arena, ExecError> {
        let refused = || ExecError::OutOfMemory { bytes };
        let size = usize::try_from(bytes).map_err(|_| refused())?;
        let layout = Layout::from_size_align(size, PAGE).map_err(|_| refused())?;
        if size == 0 {
            return Ok(Arena { base: NonNull::<Page>::dangling().cast(), layout });
        }
        // SAFETY: the size is not zero.
        let base = NonNull::new(unsafe { alloc_zeroed(layout) }).ok_or_else(refused)?;
        for at in (0..size).step_by(PAGE) {
            // A fresh zero page is not resident until it is written: the peak must be paid here, not in the first step.
            // SAFETY: `at` is inside the allocation, which nothing else refers to yet.
            unsafe { base.as_ptr().add(at).write_volatile(0) };
        }
        Ok(Arena { base, layout })
    }

    /// Returns the bytes allocated.
    pub fn bytes(&self) -> u64 {
        self.layout.size() as u64
    }

    /// First byte, for writing through the plan's places.
    pub(super) fn base(&mut self) -> *mut u8 {
        self.base.as_ptr()
    }

    /// Returns the bytes at an offset.
    ///
    /// # Panics
    /// Outside the arena.
    pub(super) fn raw(&self, offset: u64, len: usize) -> &[u8] {
        assert!(offset <= self.bytes() && len as u64 <= self.bytes() - offset, "outside the arena");
        // SAFETY: inside the allocation (just checked); `&self` keeps writers away.
        unsafe { std::slice::from_raw_parts(self.base.as_ptr().add(offset as usize), len) }
    }

    /// Returns the bytes at an offset, to write.
    ///
    /// # Panics
    /// Outside the arena.
    pub(super) fn raw_mut(&mut self, offset: u64, len: usize) -> &mut [u8] {
        assert!(offset <= self.bytes() && len as u64 <= self.bytes() - offset, "outside the arena");
        // SAFETY: inside the allocation (just checked); `&mut self` is exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.base.as_ptr().add(offset as usize), len) }
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        if self.layout.size() > 0 {
            // SAFETY: allocated in `new` with this layout, freed once.
            unsafe { dealloc(self.base.as_ptr(), self.layout) }
        }
    }
}

/// Gives back to the system what the allocator keeps of freed memory, and the pages of the program's code: a run does not call
/// again what prepared and planned it, and the rest is mapped again when it is called.
pub fn return_freed() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    {
        unsafe extern "C" {
            /// The first byte of the program as it is mapped, and the end of its code: given by the linker.
            static __executable_start: u8;
            static etext: u8;
        }
        let start = (&raw const __executable_start).addr().next_multiple_of(PAGE);
        let end = (&raw const etext).addr() / PAGE * PAGE;
        // SAFETY: the first takes no pointer, and is safe to call while other threads allocate. The second drops pages of a private
        // mapping that nothing writes to: a touch maps them from the file again, as after the system itself dropped them.
        unsafe {
            libc::malloc_trim(0);
            libc::madvise(start as *mut libc::c_void, end.saturating_sub(start), libc::MADV_DONTNEED);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zeroed_aligned_and_bounded() {
        let mut a = Arena::new(3 * PAGE as u64 + 8).unwrap();
        assert_eq!(a.base() as usize % PAGE, 0);
        assert!(a.raw(0, 3 * PAGE + 8).iter().all(|&x| x == 0));
        a.raw_mut(4, 1)[0] = 2;
        assert_eq!(a.raw(3, 3), [0, 2, 0]);
        assert_eq!(Arena::new(0).unwrap().bytes(), 0);
        assert!(matches!(Arena::new(u64::MAX), Err(ExecError::OutOfMemory { .. })));
        assert!(std::panic::catch_unwind(|| a.raw(3 * PAGE as u64 + 4, 5).len()).is_err());
    }
}
