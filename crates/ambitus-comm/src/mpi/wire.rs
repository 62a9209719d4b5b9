//! Open MPI behind safe calls: the library, and messages that are under way.
//!
//! MPI's standard fixes a C interface, not a binary one. What is declared here is Open MPI's: handles are addresses of objects that
//! the library exports, and its `mpi.h` gives the constants and the status. They are the same in versions 4 and 5, whose
//! libraries have the same name; [`Wire::open`] refuses other versions.

use libloading::os::unix::{Library, RTLD_GLOBAL, RTLD_NOW, Symbol};
use std::collections::BTreeSet;
use std::ffi::{c_char, c_int, c_void};
use std::ops::Range;
use std::ptr::null_mut;

/// Open MPI 3 to 5.
const NAME: &str = "libmpi.so.40";
/// `MPI_THREAD_SERIALIZED`: any thread may call, one at a time.
const SERIALIZED: c_int = 2;
/// `MPI_ERR_TRUNCATE`: a message is longer than what waits for it.
const TRUNCATED: c_int = 15;
/// Of exchanges: MPI keeps the order of two ranks' messages of one tag.
const TAG: c_int = 1;
/// Of messages without bytes that say that a rank works.
const BEAT: c_int = 2;
/// `MPI_MAX_PROCESSOR_NAME`, `MPI_MAX_LIBRARY_VERSION_STRING` and `MPI_MAX_ERROR_STRING`.
const TEXT: usize = 256;

type Handle = *mut c_void;

/// `MPI_Status`: three public fields and Open MPI's own.
#[derive(Default)]
#[repr(C)]
struct Status {
    source: c_int,
    tag: c_int,
    error: c_int,
    cancelled: c_int,
    count: usize,
}

macro_rules! calls {
    ($($field:ident = $name:literal: fn($($arg:ty),*);)*) => {
        /// The functions that are called, and the objects that they take.
        struct Calls {
            $($field: unsafe extern "C" fn($($arg),*) -> c_int,)*
            world: Handle,
            byte: Handle,
            errors_return: Handle,
        }

        impl Calls {
            /// Looks everything up.
            fn of(library: &Library) -> Result<Calls, libloading::Error> {
                // SAFETY: the signatures are those of the MPI standard with Open MPI's types; the objects are only
                // used by their addresses. The library is never unloaded, so the addresses stay valid.
                unsafe {
                    let object = |name: &str| library.get::<Handle>(name).map(Symbol::into_raw);
                    Ok(Calls {
                        $($field: *library.get::<unsafe extern "C" fn($($arg),*) -> c_int>($name)?,)*
                        world: object("ompi_mpi_comm_world")?,
                        byte: object("ompi_mpi_byte")?,
                        errors_return: object("ompi_mpi_errors_return")?,
                    })
                }
            }
        }
    };
}

calls! {
    init_thread = "MPI_Init_thread": fn(*mut c_int, *mut *mut *mut c_char, c_int, *mut c_int);
    finalize = "MPI_Finalize": fn();
    abort = "MPI_Abort": fn(Handle, c_int);
    set_errhandler = "MPI_Comm_set_errhandler": fn(Handle, Handle);
    comm_rank = "MPI_Comm_rank": fn(Handle, *mut c_int);
    comm_size = "MPI_Comm_size": fn(Handle, *mut c_int);
    isend = "MPI_Isend": fn(*const c_void, c_int, Handle, c_int, c_int, Handle, *mut Handle);
    irecv = "MPI_Irecv": fn(*mut c_void, c_int, Handle, c_int, c_int, Handle, *mut Handle);
    recv = "MPI_Recv": fn(*mut c_void, c_int, Handle, c_int, c_int, Handle, *mut Status);
    iprobe = "MPI_Iprobe": fn(c_int, c_int, Handle, *mut c_int, *mut Status);
    test = "MPI_Test": fn(*mut Handle, *mut c_int, *mut Status);
    get_count = "MPI_Get_count": fn(*const Status, Handle, *mut c_int);
    processor_name = "MPI_Get_processor_name": fn(*mut c_char, *mut c_int);
    library_version = "MPI_Get_library_version": fn(*mut c_char, *mut c_int);
    error_string = "MPI_Error_string": fn(c_int, *mut c_char, *mut c_int);
}

/// A message under way.
struct Pending {
    request: Handle,
    rank: usize,
    /// Bytes that must come; `None` of what is sent.
    expected: Option<usize>,
}

/// A message that did not come as it should.
#[derive(Debug)]
pub enum Failure {
    /// This rank's message is of another length: its bytes, if MPI tells them.
    Length(usize, Option<usize>),
    /// This rank cannot be reached.
    Broken(usize, String),
}

/// This process's end of the world of MPI, and the bytes that travel.
///
/// Invariant: while a message is under way MPI may read `out` and write `got`; so nobody else touches them then, they are never
/// resized, and a `Wire` is never dropped (its owner is static). `&mut self` keeps calls one at a time.
pub struct Wire {
    calls: Calls,
    out: Box<[u8]>,
    got: Box<[u8]>,
    pending: Vec<Pending>,
    /// What says that this rank works, of 0 bytes, and has not left yet.
    beats: Vec<Pending>,
}

// SAFETY: the addresses are of static objects of the library and of requests; with MPI_THREAD_SERIALIZED, which `start` demands, any
// thread may use them as long as only one does, which `&mut self` ensures.
unsafe impl Send for Wire {}

impl std::fmt::Debug for Wire {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Wire").field("pending", &self.pending.len()).finish_non_exhaustive()
    }
}

/// Returns what a function writes as text of at most [`TEXT`] bytes and its length.
fn text(write: impl FnOnce(*mut c_char, *mut c_int) -> c_int) -> String {
    let (mut buffer, mut length) = ([0u8; TEXT], 0);
    let code = write(buffer.as_mut_ptr().cast(), &mut length);
    let length = if code == 0 { usize::try_from(length).unwrap_or(0).min(TEXT) } else { 0 };
    String::from_utf8_lossy(&buffer[..length]).trim_end_matches('\0').trim().to_owned()
}

impl Wire {
    /// Loads the library, for the rest of the process; nothing is started.
    ///
    /// # Errors
    /// Where it is not, or is another.
    pub fn open() -> Result<Wire, String> {
        // SAFETY: loading runs the library's start-up code: Open MPI's, which is what is asked for. Its components look for
        // its symbols among the global ones.
        let library = unsafe { Library::open(Some(NAME), RTLD_NOW | RTLD_GLOBAL) }.map_err(|e| {
            format!(
                "Open MPI ({NAME}) was not found: install it (Debian: apt install openmpi-bin), or name its folder in \
                 LD_LIBRARY_PATH ({e})"
            )
        })?;
        let calls = Calls::of(&library).map_err(|e| format!("{NAME} is not Open MPI's: {e}"))?;
        std::mem::forget(library);
        // SAFETY: this call is allowed before MPI is started; the buffer has the standard's length.
        let version = text(|to, n| unsafe { (calls.library_version)(to, n) });
        if !["Open MPI v4.", "Open MPI v5."].iter().any(|known| version.starts_with(known)) {
            let said = version.lines().next().unwrap_or("nothing");
            return Err(format!("{NAME} says that it is {said:?}; Open MPI 4 and 5 are known"));
        }
        Ok(Wire { calls, out: Box::default(), got: Box::default(), pending: Vec::new(), beats: Vec::new() })
    }

    /// Starts MPI: returns when all processes have.
    ///
    /// # Errors
    /// What MPI says.
    pub fn start(&mut self) -> Result<(), String> {
        let mut provided = 0;
        // SAFETY: null arguments are allowed; called once, before any other call that needs MPI.
        let code = unsafe { (self.calls.init_thread)(null_mut(), null_mut(), SERIALIZED, &mut provided) };
        self.check("MPI_Init_thread", code)?;
        if provided < SERIALIZED {
            return Err(format!("this Open MPI lets only one thread call it (level {provided})"));
        }
        // SAFETY: MPI is started, the handles are its own.
        let code = unsafe { (self.calls.set_errhandler)(self.calls.world, self.calls.errors_return) };
        self.check("MPI_Comm_set_errhandler", code)
    }

    /// Returns this rank, the number of ranks, and this rank's host.
    ///
    /// # Errors
    /// What MPI says.
    pub fn place(&mut self) -> Result<(usize, usize, String), String> {
        let (mut rank, mut ranks) = (0, 0);
        let c = &self.calls;
        // SAFETY: MPI is started, the handles are its own, results go to numbers of this frame.
        let codes = unsafe { [(c.comm_rank)(c.world, &mut rank), (c.comm_size)(c.world, &mut ranks)] };
        codes.into_iter().try_for_each(|code| self.check("MPI_Comm_rank", code))?;
        // SAFETY: the buffer has the standard's length.
        let host = text(|to, n| unsafe { (self.calls.processor_name)(to, n) });
        Ok((usize::try_from(rank).unwrap_or(0), usize::try_from(ranks).unwrap_or(1), host))
    }

    /// Makes room for messages, once.
    pub fn reserve(&mut self, bytes: usize) {
        if self.pending.is_empty() {
            self.out = vec![0; bytes].into();
            self.got = vec![0; bytes].into();
        }
    }

    /// Returns what will be sent; nothing while messages are under way.
    pub fn out(&mut self, part: Range<usize>) -> &mut [u8] {
        if self.pending.is_empty() { &mut self.out[part] } else { &mut [] }
    }

    /// Returns what has come; nothing while messages are under way.
    pub fn got(&self, part: Range<usize>) -> &[u8] {
        if self.pending.is_empty() { &self.got[part] } else { &[] }
    }

    /// Starts to send these bytes of `out` to a rank, and to receive as many at the same place of `got` from it.
    ///
    /// # Errors
    /// A rank that cannot be reached.
    pub fn exchange(&mut self, rank: usize, part: Range<usize>) -> Result<(), Failure> {
        let (Ok(to), Ok(n)) = (c_int::try_from(rank), c_int::try_from(part.len())) else {
            return Err(Failure::Broken(rank, "is beyond what MPI counts".to_owned()));
        };
        let (out, got) = (self.out[part.clone()].as_ptr(), self.got[part.clone()].as_mut_ptr());
        let Calls { world, byte, isend, irecv, .. } = self.calls;
        let mut request = null_mut();
        // SAFETY: the bytes lie inside `got`, which is not touched, moved or freed while the request is pending.
        let code = unsafe { irecv(got.cast(), n, byte, to, TAG, world, &mut request) };
        self.check("MPI_Irecv", code).map_err(|why| Failure::Broken(rank, why))?;
        self.pending.push(Pending { request, rank, expected: Some(part.len()) });
        let mut request = null_mut();
        // SAFETY: as above, of `out`, which MPI only reads.
        let code = unsafe { isend(out.cast(), n, byte, to, TAG, world, &mut request) };
        self.check("MPI_Isend", code).map_err(|why| Failure::Broken(rank, why))?;
        self.pending.push(Pending { request, rank, expected: None });
        Ok(())
    }

    /// Lets MPI work; true when a message has arrived or left.
    ///
    /// # Errors
    /// A message of another length, a rank that cannot be reached.
    pub fn poll(&mut self) -> Result<bool, Failure> {
        let mut moved = false;
        let mut at = 0;
        while let Some(p) = self.pending.get_mut(at) {
            let (mut done, mut status) = (0, Status::default());
            // SAFETY: the request was started by `exchange` and has not completed.
            let code = unsafe { (self.calls.test)(&mut p.request, &mut done, &mut status) };
            let (rank, expected) = (p.rank, p.expected);
            if code == TRUNCATED {
                return Err(Failure::Length(rank, None));
            }
            self.check("MPI_Test", code).map_err(|why| Failure::Broken(rank, why))?;
            if done == 0 {
                at += 1;
                continue;
            }
            moved = true;
            self.pending.swap_remove(at);
            let Some(expected) = expected else { continue };
            let mut n = 0;
            // SAFETY: the status is of the receive that has just completed.
            unsafe { (self.calls.get_count)(&status, self.calls.byte, &mut n) };
            let n = usize::try_from(n).unwrap_or(0);
            if n != expected {
                return Err(Failure::Length(rank, Some(n)));
            }
        }
        Ok(moved)
    }

    /// Starts to tell a rank that this one works, unless it still does.
    ///
    /// # Errors
    /// A rank that cannot be reached.
    pub fn beat(&mut self, rank: usize) -> Result<(), Failure> {
        let test = self.calls.test;
        self.beats.retain_mut(|p| {
            let (mut done, mut status) = (0, Status::default());
            // SAFETY: the request was started here and has not completed.
            unsafe { test(&mut p.request, &mut done, &mut status) == 0 && done == 0 }
        });
        if self.beats.iter().any(|p| p.rank == rank) {
            return Ok(());
        }
        let Calls { world, byte, isend, .. } = self.calls;
        let mut request = null_mut();
        // SAFETY: of no bytes, no address is needed.
        let code = unsafe { isend(null_mut(), 0, byte, rank as c_int, BEAT, world, &mut request) };
        self.check("MPI_Isend", code).map_err(|why| Failure::Broken(rank, why))?;
        self.beats.push(Pending { request, rank, expected: None });
        Ok(())
    }

    /// Takes what a rank has said of its work; true when it has said something.
    ///
    /// # Errors
    /// A rank that cannot be reached.
    pub fn heard(&mut self, rank: usize) -> Result<bool, Failure> {
        let Calls { world, byte, iprobe, recv, .. } = self.calls;
        for heard in 0.. {
            let (mut there, mut status) = (0, Status::default());
            // SAFETY: the results are of this frame; what is received is there, and has no bytes.
            let code = unsafe {
                match iprobe(rank as c_int, BEAT, world, &mut there, &mut status) {
                    0 if there != 0 => recv(null_mut(), 0, byte, rank as c_int, BEAT, world, &mut status),
                    code => code,
                }
            };
            self.check("MPI_Recv", code).map_err(|why| Failure::Broken(rank, why))?;
            if there == 0 {
                return Ok(heard > 0);
            }
        }
        Ok(true)
    }

    /// Returns the rank that is waited for, the first to be received from before those that have not taken what was sent.
    pub fn missing(&self) -> Option<usize> {
        self.pending.iter().map(|p| (p.expected.is_none(), p.rank)).min().map(|(_, rank)| rank)
    }

    /// Returns all ranks that something is under way to or from.
    pub fn all_missing(&self) -> BTreeSet<usize> {
        self.pending.iter().map(|p| p.rank).collect()
    }

    /// Ends MPI in an orderly way: returns when all processes have called it.
    ///
    /// # Errors
    /// What MPI says.
    pub fn finish(&mut self) -> Result<(), String> {
        // SAFETY: MPI is started, nothing is under way, and nothing is called afterwards.
        let code = unsafe { (self.calls.finalize)() };
        self.check("MPI_Finalize", code)
    }

    /// Ends all processes of the world with this code. Does not return if it works.
    pub fn abort(&mut self, code: u8) {
        // SAFETY: MPI is started; the handle is its own.
        unsafe { (self.calls.abort)(self.calls.world, code.into()) };
    }

    fn check(&self, call: &str, code: c_int) -> Result<(), String> {
        if code == 0 {
            return Ok(());
        }
        // SAFETY: the buffer has the standard's length.
        let why = text(|to, n| unsafe { (self.calls.error_string)(code, to, n) });
        Err(format!("{call}: {why} ({code})"))
    }
}
