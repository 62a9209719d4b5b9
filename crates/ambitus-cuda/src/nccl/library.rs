//! NCCL's functions that are called, looked up by name. (cudarc's binding knows `libnccl.so` by that name alone; packages and wheels
//! have `libnccl.so.2`.)

use crate::libraries::{self, Needed};
use cudarc::driver::sys::CUstream;
use libloading::Library;
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};

/// `ncclComm_t`.
pub(super) type Comm = *mut c_void;
/// `ncclSuccess`, `ncclRemoteError` and `ncclInProgress`.
pub(super) const SUCCESS: c_int = 0;
pub(super) const REMOTE_ERROR: c_int = 6;
pub(super) const IN_PROGRESS: c_int = 7;
/// `ncclUint8`.
pub(super) const BYTES: c_int = 1;
/// The first version with communicators that are polled (2.14.3).
const OLDEST: c_int = 21_403;

/// `ncclUniqueId`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct UniqueId(pub [u8; 128]);

/// The start of `ncclConfig_t` as of 2.14: later versions read `size` bytes, and take their defaults for what came after
/// `version` (src/init.cc, parseCommConfig, of 2.30.7).
#[repr(C)]
pub(super) struct Config {
    size: usize,
    magic: c_uint,
    version: c_uint,
    blocking: c_int,
}

impl Config {
    /// Returns a communicator whose calls return at once and are polled.
    pub fn polled() -> Config {
        Config { size: size_of::<Config>(), magic: 0xcafe_beef, version: 21_400, blocking: 0 }
    }
}

macro_rules! calls {
    ($($field:ident = $name:literal: fn($($arg:ty),*) -> $back:ty;)*) => {
        /// The functions, and the library that they lie in.
        pub(super) struct Calls {
            $(pub $field: unsafe extern "C" fn($($arg),*) -> $back,)*
            _library: Library,
        }

        impl Calls {
            fn of(library: Library) -> Result<Calls, libloading::Error> {
                // SAFETY: the signatures are those of nccl.h, the same since 2.14; the library is held as long as they are.
                unsafe {
                    Ok(Calls {
                        $($field: *library.get::<unsafe extern "C" fn($($arg),*) -> $back>($name)?,)*
                        _library: library,
                    })
                }
            }
        }
    };
}

calls! {
    version = "ncclGetVersion": fn(*mut c_int) -> c_int;
    unique_id = "ncclGetUniqueId": fn(*mut UniqueId) -> c_int;
    init = "ncclCommInitRankConfig": fn(*mut Comm, c_int, UniqueId, c_int, *mut Config) -> c_int;
    async_error = "ncclCommGetAsyncError": fn(Comm, *mut c_int) -> c_int;
    abort = "ncclCommAbort": fn(Comm) -> c_int;
    finalize = "ncclCommFinalize": fn(Comm) -> c_int;
    destroy = "ncclCommDestroy": fn(Comm) -> c_int;
    all_gather = "ncclAllGather": fn(*const c_void, *mut c_void, usize, c_int, Comm, CUstream) -> c_int;
    send = "ncclSend": fn(*const c_void, usize, c_int, c_int, Comm, CUstream) -> c_int;
    receive = "ncclRecv": fn(*mut c_void, usize, c_int, c_int, Comm, CUstream) -> c_int;
    group_start = "ncclGroupStart": fn() -> c_int;
    group_end = "ncclGroupEnd": fn() -> c_int;
    error_string = "ncclGetErrorString": fn(c_int) -> *const c_char;
    last_error = "ncclGetLastError": fn(Comm) -> *const c_char;
}

impl Calls {
    /// Loads the library.
    ///
    /// # Errors
    /// When it is nowhere, or too old.
    pub fn load() -> Result<Calls, String> {
        let library = libraries::open(Needed::Nccl).map_err(|e| e.to_string())?;
        let old =
            |e: libloading::Error| format!("NCCL (libnccl.so.2) is older than 2.14, which is needed: {e}");
        let calls = Calls::of(library).map_err(old)?;
        let mut version = 0;
        // SAFETY: the pointer is a live integer.
        if unsafe { (calls.version)(&mut version) } != SUCCESS || version < OLDEST {
            return Err(format!("NCCL {version} was found, and {OLDEST} (2.14.3) or newer is needed"));
        }
        Ok(calls)
    }

    /// Returns what a status means.
    pub fn words(&self, status: c_int) -> String {
        // SAFETY: the function takes any number and gives a static text.
        let text = unsafe { (self.error_string)(status) };
        string(text)
    }

    /// Returns the last thing that went wrong, of a communicator.
    pub fn last_words(&self, comm: Comm) -> String {
        // SAFETY: takes a live communicator, or null; gives a text that is valid until the next call.
        let text = unsafe { (self.last_error)(comm) };
        string(text)
    }
}

fn string(text: *const c_char) -> String {
    if text.is_null() {
        return String::new();
    }
    // SAFETY: NCCL's texts end with a zero, and nothing changes them while they are copied.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().trim().to_owned()
}
