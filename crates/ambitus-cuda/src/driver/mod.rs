//! A card: context, modules, the two arenas, transfers. Only this folder calls the driver.

mod algorithms;
mod cards;
mod exchange;
mod graphs;
mod products;
mod timing;

pub use cards::{CardInfo, OLDEST, card, cards};
pub(crate) use exchange::come;
pub use graphs::Graph;
pub(crate) use graphs::Piece;
pub(crate) use timing::Spare;

use crate::kernels::{FAMILIES, Family};
use crate::libraries::{self, Needed};
use crate::nvrtc::{self, Compiled};
use ambitus_exec::executor::ExecError;
use cudarc::driver::result::{self, DriverError};
use cudarc::driver::sys;
use products::Products;
use std::collections::HashMap;
use std::ffi::{CString, c_void};
use std::path::Path;

pub(crate) fn failed(doing: &str, e: DriverError) -> String {
    format!("{doing}: {e:?}")
}

fn device_error(doing: &str, e: DriverError) -> ExecError {
    ExecError::Device(failed(doing, e))
}

/// An opened card: everything is loaded, no arena is taken yet.
pub struct Card {
    info: CardInfo,
    device: sys::CUdevice,
    context: sys::CUcontext,
    /// All work of the card that is not a copy of a program; it waits for nothing else by itself.
    main: sys::CUstream,
    /// Streams of the plan's copy queues.
    copies: HashMap<u32, sys::CUstream>,
    modules: Vec<sys::CUmodule>,
    functions: HashMap<&'static str, sys::CUfunction>,
    /// The constant 1 on the card.
    one: u64,
    /// Freed before the context; `None` only while opening fails.
    products: Option<Products>,
    arenas: Arenas,
    staging: Staging,
}

/// Page-locked host memory through which small writes pass, one after another, so that nobody waits for them.
#[derive(Default)]
struct Staging {
    at: u64,
    used: usize,
}

/// Bytes of [`Staging`]: the inputs of some micro-batches.
const STAGING: usize = 256 << 10;

/// A rectangle of memory: `rows` runs of `width` bytes, `pitch` bytes apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rect {
    /// Address of the first byte.
    pub at: u64,
    /// Runs.
    pub rows: usize,
    /// Bytes of a run.
    pub width: usize,
    /// Bytes from one run's start to the next's.
    pub pitch: usize,
}

/// Start addresses of the two arenas.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arenas {
    /// In the card's memory.
    pub device: u64,
    /// In page-locked host memory.
    pub host: u64,
}

impl Card {
    /// Opens card `index`: makes a context, compiles or fetches every kernel, and loads all libraries.
    ///
    /// # Errors
    /// A missing or old card, driver or library: what to do is in the text.
    pub fn open(index: usize) -> Result<Card, ExecError> {
        Card::open_with(index, nvrtc::cache().as_deref()).map_err(ExecError::Device)
    }

    /// Opens card `index` with compiled kernels kept in the folder `cache`. See [`Card::open`].
    ///
    /// # Errors
    /// As [`Card::open`].
    pub fn open_with(index: usize, cache: Option<&Path>) -> Result<Card, String> {
        let info = card(index)?;
        libraries::find(Needed::CublasLt).map_err(|e| e.to_string())?;
        let architecture = nvrtc::architecture(info.capability)?;
        let device = result::device::get(index as i32).map_err(|e| failed("the card", e))?;
        // Who waits sleeps: otherwise waiting takes a core that the loader needs. Refused where another library of the process has the
        // context already; it is only as fast as it was then.
        let sleeps = sys::CUctx_flags_enum::CU_CTX_SCHED_BLOCKING_SYNC as u32;
        // SAFETY: the device was just given by the driver.
        let _ = unsafe { sys::cuDevicePrimaryCtxSetFlags_v2(device, sleeps) };
        // SAFETY: as above.
        let context =
            unsafe { result::primary_ctx::retain(device) }.map_err(|e| failed("making a context", e))?;
        let mut card = Card {
            info,
            device,
            context,
            main: std::ptr::null_mut(),
            copies: HashMap::new(),
            modules: Vec::new(),
            functions: HashMap::new(),
            one: 0,
            products: None,
            arenas: Arenas { device: 0, host: 0 },
            staging: Staging::default(),
        };
        card.enter().map_err(|e| failed("entering the context", e))?;
        let stream = result::stream::create(result::stream::StreamKind::NonBlocking);
        card.main = stream.map_err(|e| failed("making a stream", e))?;
        card.load_kernels(&architecture, cache)?;
        // SAFETY: fresh memory, written below; freed in `drop`.
        card.one = unsafe { result::malloc_sync(256) }.map_err(|e| failed("taking memory", e))?;
        let constant = Rect { at: card.one, rows: 1, width: 4, pitch: 4 };
        card.write(constant, &1.0f32.to_ne_bytes()).map_err(|e| e.to_string())?;
        // SAFETY: fresh memory, written before it is read; freed in `drop`.
        let staging = unsafe { result::malloc_host(STAGING, 0) };
        card.staging.at = staging.map_err(|e| failed("locking host memory", e))? as u64;
        let (major, minor) = card.info.capability;
        let kind = format!("{}, {major}.{minor}", card.info.name);
        card.products = Some(Products::new(card.one, &kind, cache)?);
        Ok(card)
    }

    /// Returns this card with matrix products that read fp32 operands as TF32, which cards from capability 8.0 on can.
    pub fn with_tf32(mut self) -> Card {
        self.products.iter_mut().for_each(|p| p.tf32 = true);
        self
    }

    fn products(&mut self) -> Result<&mut Products, ExecError> {
        self.products.as_mut().ok_or_else(|| ExecError::Device("cuBLASLt is not loaded".to_owned()))
    }

    /// Loads every family's kernels.
    fn load_kernels(&mut self, architecture: &str, cache: Option<&Path>) -> Result<(), String> {
        let compiled = std::thread::scope(|s| {
            let jobs: Vec<_> =
                FAMILIES.iter().map(|f| s.spawn(|| nvrtc::compile_cached(f, architecture, cache))).collect();
            let joined =
                jobs.into_iter().map(|j| j.join().map_err(|_| "compiling kernels failed".to_owned())?);
            joined.collect::<Result<Vec<_>, String>>()
        })?;
        for (family, code) in FAMILIES.iter().zip(compiled) {
            let module = match load_module(&code) {
                // A damaged file of the cache is no reason to fail.
                Err(_) if code.kept => {
                    let fresh = nvrtc::compile_anew(family, architecture, cache)?;
                    load_module(&fresh).map_err(|e| self.unloadable(family, e))
                }
                loaded => loaded.map_err(|e| self.unloadable(family, e)),
            }?;
            self.modules.push(module);
            for kernel in family.kernels {
                let name = CString::new(kernel.name).map_err(|e| e.to_string())?;
                // SAFETY: the module stays loaded until `drop`.
                let function = unsafe { result::module::get_function(module, name) };
                let function = function.map_err(|e| failed(kernel.name, e))?;
                if kernel.shared > 0 {
                    let most =
                        sys::CUfunction_attribute_enum::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
                    // Cards without as much have no use for the kernel, and never launch it.
                    // SAFETY: the function was just loaded.
                    let _ = unsafe {
                        result::function::set_function_attribute(function, most, kernel.shared as i32)
                    };
                }
                self.functions.insert(kernel.name, function);
            }
        }
        Ok(())
    }

    fn unloadable(&self, family: &Family, e: DriverError) -> String {
        let ((major, minor), (has, can)) = (nvrtc::version().unwrap_or_default(), self.info.driver);
        let doing = format!(
            "loading {}.cu, compiled by NVRTC {major}.{minor}; the driver is for CUDA {has}.{can}. If that is older, update \
             the driver, or put the folder of an older libnvrtc.so first in LD_LIBRARY_PATH",
            family.name
        );
        failed(&doing, e)
    }

    fn enter(&self) -> Result<(), DriverError> {
        // SAFETY: the context is retained until `drop`.
        unsafe { result::ctx::set_current(self.context) }
    }

    /// Returns what kind of card it is.
    pub fn info(&self) -> &CardInfo {
        &self.info
    }

    /// Allocates both arenas, zeroed, of exactly `device_bytes` and `host_bytes`. Called once; nothing is allocated after that.
    ///
    /// # Errors
    /// When the card or the system has too little left.
    pub fn allocate(&mut self, device_bytes: u64, host_bytes: u64) -> Result<Arenas, ExecError> {
        self.enter().map_err(|e| device_error("entering the context", e))?;
        let (free, _) = result::mem_get_info().map_err(|e| device_error("reading free memory", e))?;
        if device_bytes > free as u64 {
            return Err(ExecError::Device(format!(
                "the plan needs {device_bytes} bytes of {}, {free} are free: other programs took memory since it was made; \
                 end them, or leave out --memory to plan for what is free",
                self.info.name
            )));
        }
        // Never zero bytes: the driver refuses that.
        let size = device_bytes.max(256) as usize;
        // SAFETY: fresh memory, zeroed before anything reads it; freed by `release`.
        self.arenas.device =
            unsafe { result::malloc_sync(size) }.map_err(|e| device_error("taking the arena", e))?;
        self.fill(0, size)?;
        if host_bytes > 0 {
            let size = host_bytes as usize;
            // SAFETY: as above; page-locked, mapped for the card by unified addressing.
            let host = unsafe { result::malloc_host(size, 0) };
            let host = host.map_err(|e| device_error("locking host memory for the host arena", e))?;
            // SAFETY: the host arena has `size` bytes.
            unsafe { std::ptr::write_bytes(host.cast::<u8>(), 0, size) };
            self.arenas.host = host as u64;
        }
        Ok(self.arenas)
    }

    /// Fills the first `bytes` of the device arena.
    pub(crate) fn fill(&mut self, value: u8, bytes: usize) -> Result<(), ExecError> {
        self.enter().map_err(|e| device_error("entering the context", e))?;
        // SAFETY: callers ensure that the arena has `bytes` bytes.
        unsafe { result::memset_d8_async(self.arenas.device, value, bytes, self.main) }
            .map_err(|e| device_error("clearing the arena", e))?;
        self.wait()
    }

    /// Copies host bytes, row after row, into a rectangle of an arena, in order with all programs. Waits only for what is large.
    ///
    /// # Errors
    /// When the card fails.
    pub fn write(&mut self, to: Rect, data: &[u8]) -> Result<(), ExecError> {
        assert_eq!(data.len(), to.rows * to.width, "a rectangle's bytes");
        if self.staging.at == 0 || data.len() > STAGING / 4 {
            self.copy(to, data.as_ptr() as u64, true)?;
            return self.wait();
        }
        if self.staging.used + data.len() > STAGING {
            self.wait()?;
            self.staging.used = 0;
        }
        let from = self.staging.at + self.staging.used as u64;
        self.staging.used += data.len();
        // SAFETY: the staging memory has these bytes, and no copy that is under way reads them: they were used for the last time
        // before the wait above.
        unsafe { std::ptr::copy_nonoverlapping(data.as_ptr(), from as *mut u8, data.len()) };
        self.copy(to, from, true)
    }

    /// Copies a rectangle of an arena to host bytes, row after row.
    ///
    /// # Errors
    /// When the card fails.
    pub fn read(&self, from: Rect, out: &mut [u8]) -> Result<(), ExecError> {
        assert_eq!(out.len(), from.rows * from.width, "a rectangle's bytes");
        self.copy(from, out.as_mut_ptr() as u64, false)?;
        self.wait()
    }

    /// Starts copying between a rectangle and `host`, in order with all programs: on their stream. Callers wait before `host` is
    /// used otherwise.
    fn copy(&self, rect: Rect, host: u64, to_card: bool) -> Result<(), ExecError> {
        if rect.rows * rect.width == 0 {
            return Ok(());
        }
        self.enter().map_err(|e| device_error("entering the context", e))?;
        let (to, from) = if to_card { (rect.at, host) } else { (host, rect.at) };
        let put = if rect.rows == 1 || rect.pitch == rect.width {
            // SAFETY: the rectangle lies in an arena by the plan's check; the host side has as many bytes (checked by the
            // callers) and outlives the copy.
            unsafe { sys::cuMemcpyAsync(to, from, rect.rows * rect.width, self.main) }
        } else {
            let kind = sys::CUmemorytype::CU_MEMORYTYPE_UNIFIED;
            let (to_pitch, from_pitch) =
                if to_card { (rect.pitch, rect.width) } else { (rect.width, rect.pitch) };
            let (card, mine) = (kind, sys::CUmemorytype::CU_MEMORYTYPE_HOST);
            let copy = sys::CUDA_MEMCPY2D {
                srcXInBytes: 0,
                srcY: 0,
                srcMemoryType: if to_card { mine } else { card },
                srcHost: if to_card { from as *const c_void } else { std::ptr::null() },
                srcDevice: if to_card { 0 } else { from },
                srcArray: std::ptr::null_mut(),
                srcPitch: from_pitch,
                dstXInBytes: 0,
                dstY: 0,
                dstMemoryType: if to_card { card } else { mine },
                dstHost: if to_card { std::ptr::null_mut() } else { to as *mut c_void },
                dstDevice: if to_card { to } else { 0 },
                dstArray: std::ptr::null_mut(),
                dstPitch: to_pitch,
                WidthInBytes: rect.width,
                Height: rect.rows,
            };
            // SAFETY: as above.
            unsafe { sys::cuMemcpy2DAsync_v2(&copy, self.main) }
        };
        put.result().map_err(|e| device_error("moving data", e))
    }

    /// Waits for everything that was put on the card: all copies of programs are joined by the stream of the programs.
    fn wait(&self) -> Result<(), ExecError> {
        // SAFETY: the stream is live.
        unsafe { result::stream::synchronize(self.main) }.map_err(|e| device_error("waiting for the card", e))
    }

    /// Gives the arenas back.
    pub(crate) fn release(&mut self) {
        let _ = self.enter();
        for stream in self.copies.values().chain([&self.main]) {
            // SAFETY: the streams are live.
            let _ = unsafe { result::stream::synchronize(*stream) };
        }
        // SAFETY: each was taken by `allocate` and is given back once; nothing runs, as everything was waited for. What fails
        // here is freed with the process.
        unsafe {
            if self.arenas.device != 0 {
                let _ = result::free_sync(self.arenas.device);
            }
            if self.arenas.host != 0 {
                let _ = result::free_host(self.arenas.host as *mut c_void);
            }
        }
        self.arenas = Arenas { device: 0, host: 0 };
    }
}

fn load_module(code: &Compiled) -> Result<sys::CUmodule, DriverError> {
    // SAFETY: the image is what NVRTC made: machine code, which says its own length, or PTX with a final zero.
    unsafe { result::module::load_data(code.image.as_ptr().cast()) }
}

impl Drop for Card {
    fn drop(&mut self) {
        self.release();
        self.products = None;
        // SAFETY: each was made by this card and is freed once; nothing runs, as everything is waited for. What fails while
        // ending is freed with the process.
        unsafe {
            if self.one != 0 {
                let _ = result::free_sync(self.one);
            }
            if self.staging.at != 0 {
                let _ = result::free_host(self.staging.at as *mut c_void);
            }
            for module in &self.modules {
                let _ = result::module::unload(*module);
            }
            for stream in self.copies.values().chain([&self.main]).filter(|s| !s.is_null()) {
                let _ = result::stream::destroy(*stream);
            }
            let _ = result::primary_ctx::release(self.device);
        }
    }
}
