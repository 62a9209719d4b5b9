//! Reads a file as a program would, counting every allocation: never a panic, never memory that the file's real size
//! does not justify.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::path::Path;

use ambitus_store::TensorFile;

thread_local! {
    static LIVE: Cell<i64> = const { Cell::new(0) };
    static PEAK: Cell<i64> = const { Cell::new(0) };
}

struct Counting;

fn count(bytes: i64) {
    // During the end of a thread the counters may be gone; nothing is measured then.
    let _ = LIVE.try_with(|live| {
        live.set(live.get() + bytes);
        PEAK.with(|peak| peak.set(peak.get().max(live.get())));
    });
}

// SAFETY: every call is passed on to the system allocator unchanged; counting allocates nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as i64);
        // SAFETY: the caller upholds the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        count(-(layout.size() as i64));
        // SAFETY: the pointer came from `alloc` above with this layout.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// Memory that opening a file of `len` bytes may take at its peak: each byte of a description may become at most this
/// many bytes of index, for small files; a large file may take twice its length above the reader's floor.
fn allowed(len: u64) -> i64 {
    const PER_BYTE: u64 = 160;
    const FLOOR: u64 = 18 << 20; // budget of 16 MiB, a stack of 64 Ki values
    const SMALL: u64 = 64 << 10; // paths, messages, lists of a few entries
    (SMALL + PER_BYTE * len).min(FLOOR + 2 * len) as i64
}

/// Opens the file and reads all that it offers; returns the error, if any.
pub fn exercise(path: &Path) -> Option<String> {
    let len = std::fs::metadata(path).unwrap().len();
    let before = LIVE.get();
    PEAK.set(before);
    let opened = TensorFile::open(path);
    let peak = PEAK.get() - before;
    assert!(peak <= allowed(len), "{len} bytes of file took {peak} bytes of memory");
    let file = match opened {
        Ok(file) => file,
        Err(e) => return Some(e.to_string()),
    };
    let mut scratch = [0u8; 64];
    let mut error = None;
    for info in file.tensors() {
        // A caller may trust the size of one tensor: it is in the file.
        assert!(info.bytes() as u64 <= len, "{info:?}");
        let mut values = vec![0.0; info.elements()];
        error = error.or(file.read_into(info.name(), &mut values, &mut scratch).err());
    }
    for key in file.top_level() {
        let _ = file.section(key);
    }
    error.map(|e| e.to_string())
}
