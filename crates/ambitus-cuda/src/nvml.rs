//! Who uses the cards: NVIDIA's management library, loaded at run time. It needs no CUDA context, so asking takes none of
//! the card's memory. (The crate `nvml-wrapper` brings second versions of two of our dependencies for eight calls.)

use libloading::Library;
use std::ffi::{CStr, c_char, c_uint, c_void};

/// One card, as its driver sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CardUse {
    /// Name.
    pub name: String,
    /// PCI address, e.g. `00000000:01:00.0`.
    pub pci: String,
    /// Bytes of memory.
    pub total_bytes: u64,
    /// Bytes that are free.
    pub free_bytes: u64,
    /// Processes that hold memory, largest first. Empty in containers, which hide them.
    pub holders: Vec<Holder>,
}

/// A process with memory on a card.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    /// Process id.
    pub pid: u32,
    /// Name, where it can be seen.
    pub name: String,
    /// Bytes, where the driver tells.
    pub bytes: Option<u64>,
}

/// The library, initialised.
pub struct Nvml {
    library: Library,
}

type Status = c_uint;
type Handle = *mut c_void;

/// `nvmlMemory_t`.
#[repr(C)]
#[derive(Default)]
struct Memory {
    total: u64,
    free: u64,
    used: u64,
}

/// `nvmlProcessInfo_v2_t`, the layout of the calls that end in `_v2` and `_v3`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct ProcessInfo {
    pid: c_uint,
    used: u64,
    instance: c_uint,
    compute_instance: c_uint,
}

/// The start of `nvmlPciInfo_t`, and its end.
#[repr(C)]
struct PciInfo {
    legacy: [c_char; 16],
    numbers: [c_uint; 5],
    bus_id: [c_char; 32],
}

/// `used` of a process whose memory the driver does not tell.
const NOT_AVAILABLE: u64 = u64::MAX;
/// Processes that are asked for.
const MOST: usize = 64;

impl Nvml {
    /// Loads the library.
    ///
    /// # Errors
    /// No driver, or one that does not answer.
    pub fn load() -> Result<Nvml, String> {
        let named = std::env::var_os(crate::libraries::FOLDERS_VARIABLE);
        let folders: Vec<_> = named.iter().flat_map(std::env::split_paths).collect();
        let paths = folders.iter().flat_map(|f| [f.join("libnvidia-ml.so.1"), f.join("libnvidia-ml.so")]);
        let paths =
            paths.filter(|p| p.exists()).chain(["libnvidia-ml.so.1".into(), "libnvidia-ml.so".into()]);
        // SAFETY: the vendor's library by its name; its start-up code is its own.
        let mut loaded = paths.map(|path| unsafe { Library::new(path) });
        let library = loaded.find_map(Result::ok).ok_or(
            "the NVIDIA driver (libnvidia-ml.so.1) was not found: no NVIDIA GPU, or its driver is not installed",
        )?;
        let nvml = Nvml { library };
        // SAFETY: the signature is the documented one.
        unsafe { nvml.call(b"nvmlInit_v2\0", |f: &unsafe extern "C" fn() -> Status| f()) }?;
        Ok(nvml)
    }

    /// Calls a function of the library.
    ///
    /// # Safety
    /// `F` must be the function's signature, and `run` must call it as documented.
    unsafe fn call<F>(&self, name: &[u8], run: impl FnOnce(&F) -> Status) -> Result<(), String> {
        let shown = String::from_utf8_lossy(name).trim_end_matches('\0').to_owned();
        // SAFETY: by the caller.
        let function = unsafe { self.library.get::<F>(name) }.map_err(|e| format!("{shown}: {e}"))?;
        match run(&function) {
            0 => Ok(()),
            status => Err(format!("{shown} failed with status {status}")),
        }
    }

    /// Returns the driver's version, e.g. `550.54.15`.
    ///
    /// # Errors
    /// When the driver does not answer.
    pub fn driver_version(&self) -> Result<String, String> {
        let mut text = [0 as c_char; 96];
        // SAFETY: the signature is the documented one; the buffer has the length that is said.
        unsafe {
            self.call(
                b"nvmlSystemGetDriverVersion\0",
                |f: &unsafe extern "C" fn(*mut c_char, c_uint) -> Status| {
                    f(text.as_mut_ptr(), text.len() as c_uint)
                },
            )
        }?;
        Ok(string(&text))
    }

    /// Returns every card with its use.
    ///
    /// # Errors
    /// When the driver does not answer.
    pub fn cards(&self) -> Result<Vec<CardUse>, String> {
        let mut count = 0;
        // SAFETY: the signature is the documented one.
        unsafe {
            self.call(b"nvmlDeviceGetCount_v2\0", |f: &unsafe extern "C" fn(*mut c_uint) -> Status| {
                f(&mut count)
            })
        }?;
        (0..count).map(|i| self.card(i)).collect()
    }

    fn card(&self, index: c_uint) -> Result<CardUse, String> {
        let mut card: Handle = std::ptr::null_mut();
        let mut name = [0 as c_char; 96];
        let mut memory = Memory::default();
        let mut pci = PciInfo { legacy: [0; 16], numbers: [0; 5], bus_id: [0; 32] };
        // SAFETY: the signatures are the documented ones; buffers have the lengths that are said.
        unsafe {
            self.call(
                b"nvmlDeviceGetHandleByIndex_v2\0",
                |f: &unsafe extern "C" fn(c_uint, *mut Handle) -> Status| f(index, &mut card),
            )?;
            self.call(
                b"nvmlDeviceGetName\0",
                |f: &unsafe extern "C" fn(Handle, *mut c_char, c_uint) -> Status| {
                    f(card, name.as_mut_ptr(), name.len() as c_uint)
                },
            )?;
            self.call(
                b"nvmlDeviceGetMemoryInfo\0",
                |f: &unsafe extern "C" fn(Handle, *mut Memory) -> Status| f(card, &mut memory),
            )?;
            self.call(
                b"nvmlDeviceGetPciInfo_v3\0",
                |f: &unsafe extern "C" fn(Handle, *mut PciInfo) -> Status| f(card, &mut pci),
            )?;
        }
        let mut holders = Vec::new();
        // Graphics processes hold memory too: the desktop.
        for list in ["nvmlDeviceGetComputeRunningProcesses", "nvmlDeviceGetGraphicsRunningProcesses"] {
            for holder in self.processes(card, list) {
                if holders.iter().all(|h: &Holder| h.pid != holder.pid) {
                    holders.push(holder);
                }
            }
        }
        holders.sort_by_key(|h| std::cmp::Reverse(h.bytes));
        Ok(CardUse {
            name: string(&name),
            pci: string(&pci.bus_id).to_lowercase(),
            total_bytes: memory.total,
            free_bytes: memory.free,
            holders,
        })
    }

    /// Returns the processes of a list; empty if the driver does not tell.
    fn processes(&self, card: Handle, list: &str) -> Vec<Holder> {
        let mut found = [ProcessInfo::default(); MOST];
        let mut count = MOST as c_uint;
        let mut ask = |version: &str| {
            let name = format!("{list}{version}\0");
            count = MOST as c_uint;
            // SAFETY: both versions have this signature and layout; the buffer has the length that is said.
            unsafe {
                self.call(
                    name.as_bytes(),
                    |f: &unsafe extern "C" fn(Handle, *mut c_uint, *mut ProcessInfo) -> Status| {
                        f(card, &mut count, found.as_mut_ptr())
                    },
                )
            }
        };
        if ask("_v3").or_else(|_| ask("_v2")).is_err() {
            return Vec::new();
        }
        let known = &found[..(count as usize).min(MOST)];
        let holder = |p: &ProcessInfo| {
            let name = std::fs::read_to_string(format!("/proc/{}/comm", p.pid)).unwrap_or_default();
            Holder {
                pid: p.pid,
                name: name.trim().to_owned(),
                bytes: (p.used != NOT_AVAILABLE).then_some(p.used),
            }
        };
        known.iter().map(holder).collect()
    }
}

impl Drop for Nvml {
    fn drop(&mut self) {
        // SAFETY: the signature is the documented one. What fails here leaves a counter of the library too high.
        let _ = unsafe { self.call(b"nvmlShutdown\0", |f: &unsafe extern "C" fn() -> Status| f()) };
    }
}

/// Returns the text of a C buffer.
fn string(buffer: &[c_char]) -> String {
    let bytes: Vec<u8> = buffer.iter().map(|c| *c as u8).chain([0]).collect();
    CStr::from_bytes_until_nul(&bytes).map(|s| s.to_string_lossy().into_owned()).unwrap_or_default()
}

/// Returns the use of the card at a PCI address, as CUDA writes it (`0000:01:00.0`).
///
/// # Errors
/// No driver, or no such card.
pub fn card_at(pci: &str) -> Result<CardUse, String> {
    let cards = Nvml::load()?.cards()?;
    let found = cards.into_iter().find(|c| c.pci.ends_with(&pci.to_lowercase()));
    found.ok_or_else(|| format!("the driver's management library does not know the GPU at {pci}"))
}
