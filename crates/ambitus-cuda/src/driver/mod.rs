//! A real card: context, modules, streams, graphs and the two arenas. The only file that calls the driver.

mod products;

use crate::kernels::FAMILIES;
use crate::libraries::{self, Needed};
use crate::nvrtc;
use crate::step::{Launch, Step};
use crate::target::Rates;
use ambitus_exec::executor::ExecError;
use cudarc::driver::result::{self, DriverError};
use cudarc::driver::sys;
use products::Products;
use std::collections::HashMap;
use std::ffi::{CString, c_void};
use std::path::Path;
use std::time::Instant;

/// Oldest compute capability with what the kernels need (Turing).
pub const OLDEST: (u32, u32) = (7, 5);

/// A card that can be opened.
#[derive(Clone, Debug, PartialEq)]
pub struct CardInfo {
    /// Number for `--device cuda:N`.
    pub index: usize,
    /// Name.
    pub name: String,
    /// Compute capability (major, minor).
    pub capability: (u32, u32),
    /// Bytes of its memory.
    pub total_bytes: u64,
    /// CUDA version that the driver supports, e.g. (12, 4).
    pub driver: (u32, u32),
    /// PCI address, e.g. `0000:01:00.0`.
    pub pci: String,
    /// Rates by its clocks and units.
    pub rates: Rates,
}

/// What a card's rates follow from.
struct Units {
    multiprocessors: u32,
    kilohertz: u32,
    memory_kilohertz: u32,
    memory_bits: u32,
}

impl Units {
    /// Two operations a cycle and fp32 unit (64 of them a multiprocessor on Turing and the A100, 128 on the others), two
    /// transfers a memory cycle; 85 % of either is what good code reaches.
    fn rates(&self, capability: (u32, u32)) -> Rates {
        let lanes = if matches!(capability, (7, _) | (8, 0)) { 64.0 } else { 128.0 };
        let cycles = f64::from(self.multiprocessors) * f64::from(self.kilohertz) * 1e3;
        let transfers = 2.0 * f64::from(self.memory_kilohertz) * 1e3 * f64::from(self.memory_bits) / 8.0;
        let good = |x: f64| (0.85 * x).max(1e9);
        Rates { gemm: good(2.0 * lanes * cycles), bytes: good(transfers) }
    }
}

fn failed(doing: &str, e: DriverError) -> String {
    format!("{doing}: {e:?}")
}

fn device_error(doing: &str, e: DriverError) -> ExecError {
    ExecError::Device(failed(doing, e))
}

/// The cards of this machine.
///
/// # Errors
/// No driver, or no card: what to do is in the text.
pub fn cards() -> Result<Vec<CardInfo>, String> {
    libraries::find(Needed::Driver).map_err(|e| e.to_string())?;
    result::init().map_err(|e| match e.0 {
        sys::CUresult::CUDA_ERROR_NO_DEVICE => {
            "the NVIDIA driver finds no card: is one built in, and visible (CUDA_VISIBLE_DEVICES, the container's --gpus)?"
                .to_owned()
        }
        _ => failed("the NVIDIA driver does not start", e),
    })?;
    let mut version = 0;
    // SAFETY: the pointer is a live integer.
    unsafe { sys::cuDriverGetVersion(&mut version) }
        .result()
        .map_err(|e| failed("the driver's version", e))?;
    let driver = (version as u32 / 1000, version as u32 % 1000 / 10);
    let count = result::device::get_count().map_err(|e| failed("counting cards", e))?;
    (0..count).map(|i| card_info(i, driver).map_err(|e| failed(&format!("card {i}"), e))).collect()
}

/// The card of a number, if the kernels run on it.
///
/// # Errors
/// As [`cards`]; no such card, or an old one.
pub fn card(index: usize) -> Result<CardInfo, String> {
    let cards = cards()?;
    let count = cards.len();
    let info = cards.into_iter().nth(index).ok_or_else(|| {
        format!("there is no card cuda:{index}: this machine has {count} (`ambitus doctor` lists them)")
    })?;
    if info.capability < OLDEST {
        let (major, minor) = info.capability;
        return Err(format!(
            "{} has compute capability {major}.{minor}; the kernels need 7.5 (Turing) or newer",
            info.name
        ));
    }
    Ok(info)
}

fn card_info(index: i32, driver: (u32, u32)) -> Result<CardInfo, DriverError> {
    use sys::CUdevice_attribute_enum as Attribute;
    let device = result::device::get(index)?;
    // SAFETY: the device was just given by the driver.
    let attribute = |a| unsafe { result::device::get_attribute(device, a) }.map(|x| x as u32);
    let capability = (
        attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
        attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
    );
    // SAFETY: as above.
    let total_bytes = unsafe { result::device::total_mem(device) }? as u64;
    let mut pci = [0; 32];
    // SAFETY: as above; the buffer has the length that is said.
    unsafe { sys::cuDeviceGetPCIBusId(pci.as_mut_ptr(), pci.len() as i32, device) }.result()?;
    let pci: String = pci.iter().take_while(|c| **c != 0).map(|c| *c as u8 as char).collect();
    let name = result::device::get_name(device)?;
    let units = Units {
        multiprocessors: attribute(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?,
        kilohertz: attribute(Attribute::CU_DEVICE_ATTRIBUTE_CLOCK_RATE)?,
        memory_kilohertz: attribute(Attribute::CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE)?,
        memory_bits: attribute(Attribute::CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH)?,
    };
    let rates = units.rates(capability);
    Ok(CardInfo { index: index as usize, name, capability, total_bytes, driver, pci, rates })
}

/// An opened card: everything is loaded, no arena is taken yet.
pub struct Card {
    info: CardInfo,
    device: sys::CUdevice,
    context: sys::CUcontext,
    main: sys::CUstream,
    /// Streams of the plan's copy queues.
    copies: HashMap<u32, sys::CUstream>,
    functions: HashMap<&'static str, sys::CUfunction>,
    /// Freed before the context; `None` only while opening fails.
    products: Option<Products>,
    arenas: Arenas,
    /// Bytes that the card had free when everything was loaded.
    free_bytes: u64,
}

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

/// A program as a CUDA graph.
pub struct Graph(sys::CUgraphExec);

impl Drop for Graph {
    fn drop(&mut self) {
        // SAFETY: instantiated by `record`, destroyed once; the card outlives its executor's graphs.
        let _ = unsafe { result::graph::exec_destroy(self.0) };
    }
}

impl Card {
    /// Opens card `index`: makes a context, compiles or fetches every kernel, and loads all libraries.
    ///
    /// # Errors
    /// A missing or old card, driver or library: what to do is in the text.
    pub fn open(index: usize) -> Result<Card, ExecError> {
        Card::open_with(index, nvrtc::cache().as_deref()).map_err(ExecError::Device)
    }

    /// As [`Card::open`], with compiled kernels kept in the folder `cache`.
    ///
    /// # Errors
    /// As [`Card::open`].
    pub fn open_with(index: usize, cache: Option<&Path>) -> Result<Card, String> {
        let info = card(index)?;
        libraries::find(Needed::CublasLt).map_err(|e| e.to_string())?;
        let nvrtc = nvrtc::version()?;
        let device = result::device::get(index as i32).map_err(|e| failed("the card", e))?;
        // SAFETY: the device was just given by the driver.
        let context =
            unsafe { result::primary_ctx::retain(device) }.map_err(|e| failed("making a context", e))?;
        let mut card = Card {
            info,
            device,
            context,
            main: std::ptr::null_mut(),
            copies: HashMap::new(),
            functions: HashMap::new(),
            products: None,
            arenas: Arenas { device: 0, host: 0 },
            free_bytes: 0,
        };
        card.enter().map_err(|e| failed("entering the context", e))?;
        let stream = result::stream::create(result::stream::StreamKind::NonBlocking);
        card.main = stream.map_err(|e| failed("making a stream", e))?;
        let one = card.load(nvrtc, cache)?;
        card.products = Some(Products::new(one)?);
        card.free_bytes = card.free()?;
        Ok(card)
    }

    /// Loads every family's kernels; gives the address of the constant 1.
    fn load(&mut self, (major, minor): (i32, i32), cache: Option<&Path>) -> Result<u64, String> {
        let architecture = nvrtc::architecture(self.info.capability);
        let compiled = std::thread::scope(|s| {
            let jobs: Vec<_> =
                FAMILIES.iter().map(|f| s.spawn(|| nvrtc::compile_cached(f, &architecture, cache))).collect();
            let joined =
                jobs.into_iter().map(|j| j.join().map_err(|_| "compiling kernels failed".to_owned())?);
            joined.collect::<Result<Vec<_>, String>>()
        })?;
        let mut one = 0;
        for (family, code) in FAMILIES.iter().zip(compiled) {
            // SAFETY: the image is a whole cubin, which says its own length.
            let module = unsafe { result::module::load_data(code.cubin.as_ptr().cast()) }.map_err(|e| {
                let (has, can) = self.info.driver;
                let doing = format!(
                    "loading {} (compiled by NVRTC {major}.{minor}; the driver is for CUDA {has}.{can}: if it is older, \
                     update it)",
                    family.name
                );
                failed(&doing, e)
            })?;
            for kernel in family.kernels {
                let name = CString::new(kernel.name).map_err(|e| e.to_string())?;
                // SAFETY: the module stays loaded as long as the context.
                let function = unsafe { result::module::get_function(module, name) };
                let function = function.map_err(|e| failed(kernel.name, e))?;
                self.functions.insert(kernel.name, function);
            }
            if family.name == crate::kernels::matmul::FAMILY.name {
                let name = CString::from(crate::kernels::matmul::ONE);
                // SAFETY: as above.
                one = unsafe { result::module::get_global(module, name) }
                    .map_err(|e| failed("a constant", e))?
                    .0;
            }
        }
        Ok(one)
    }

    fn enter(&self) -> Result<(), DriverError> {
        // SAFETY: the context is retained until `drop`.
        unsafe { result::ctx::set_current(self.context) }
    }

    fn free(&self) -> Result<u64, String> {
        result::mem_get_info().map(|(free, _)| free as u64).map_err(|e| failed("reading free memory", e))
    }

    /// What kind of card it is.
    pub fn info(&self) -> &CardInfo {
        &self.info
    }

    /// Bytes that were free when everything but the arena was loaded.
    pub fn free_bytes(&self) -> u64 {
        self.free_bytes
    }

    fn launch(&self, l: &Launch) -> Result<(), String> {
        let function = *self.functions.get(l.kernel).ok_or_else(|| format!("no kernel {}", l.kernel))?;
        // Arguments are read as a C struct: aligned.
        let mut args = vec![0u64; l.args.len().div_ceil(8)];
        for (word, bytes) in args.iter_mut().zip(l.args.chunks(8)) {
            let mut whole = [0; 8];
            whole[..bytes.len()].copy_from_slice(bytes);
            *word = u64::from_ne_bytes(whole);
        }
        let mut parameters = [args.as_mut_ptr().cast::<c_void>()];
        let (grid, block) = ((l.grid[0], l.grid[1], 1), (l.block, 1, 1));
        // SAFETY: the kernel takes this one struct, declared from the same Rust type; the driver copies it before the call
        // returns; addresses in it lie in the arenas by the plan's check.
        unsafe { result::launch_kernel(function, grid, block, 0, self.main, &mut parameters) }
            .map_err(|e| failed(l.kernel, e))
    }

    /// The stream of a copy queue.
    fn queue(&mut self, queue: u32) -> Result<sys::CUstream, DriverError> {
        if let Some(stream) = self.copies.get(&queue) {
            return Ok(*stream);
        }
        let stream = result::stream::create(result::stream::StreamKind::NonBlocking)?;
        self.copies.insert(queue, stream);
        Ok(stream)
    }

    /// Makes `after` wait for all work put on `before` so far.
    fn order(before: sys::CUstream, after: sys::CUstream) -> Result<(), DriverError> {
        let event = result::event::create(sys::CUevent_flags_enum::CU_EVENT_DISABLE_TIMING)?;
        // SAFETY: event and streams are live. An event may be destroyed while work waits for it; while capturing it only
        // stands for an edge of the graph.
        unsafe {
            result::event::record(event, before)?;
            let flags = sys::CUevent_wait_flags_enum::CU_EVENT_WAIT_DEFAULT;
            result::stream::wait_event(after, event, flags)?;
            result::event::destroy(event)
        }
    }

    /// Puts one step on the streams. `running` has the queue of every copy that is not joined yet, by its destination.
    fn put(&mut self, step: &Step, running: &mut HashMap<u64, u32>) -> Result<(), String> {
        match step {
            Step::Launch(l) => self.launch(l),
            Step::Gemm(g) => {
                let main = self.main;
                self.products.as_mut().ok_or("cuBLASLt is not loaded")?.launch(g, main)
            }
            Step::Fork { queue, from, to, bytes } => {
                running.insert(*to, *queue);
                let copy = |stream| {
                    // SAFETY: both ranges lie in the arenas by the plan's check, which are mapped for the card.
                    unsafe { sys::cuMemcpyAsync(*to, *from, *bytes as usize, stream) }.result()
                };
                let stream = self.queue(*queue);
                stream
                    .and_then(|s| Card::order(self.main, s).and_then(|()| copy(s)))
                    .map_err(|e| failed("copying", e))
            }
            Step::Join { to } => {
                let queue = running.remove(to).ok_or("a copy is waited for that was not started")?;
                let stream = self.queue(queue).map_err(|e| failed("waiting for a copy", e))?;
                Card::order(stream, self.main).map_err(|e| failed("waiting for a copy", e))
            }
        }
    }

    fn capture(&mut self, steps: &[Step]) -> Result<sys::CUgraph, (usize, String)> {
        let whole = |e| (steps.len(), failed("recording a program", e));
        // Relaxed: kernels of libraries may be loaded while recording.
        let mode = sys::CUstreamCaptureMode_enum::CU_STREAM_CAPTURE_MODE_RELAXED;
        // SAFETY: the stream is live and not recording.
        unsafe { result::stream::begin_capture(self.main, mode) }.map_err(whole)?;
        let mut running = HashMap::new();
        let fault =
            steps.iter().enumerate().find_map(|(i, s)| self.put(s, &mut running).err().map(|e| (i, e)));
        // SAFETY: the stream is recording.
        let graph = unsafe { result::stream::end_capture(self.main) };
        match fault {
            Some(fault) => Err(fault),
            None => graph.map_err(whole),
        }
    }

    fn copy(&self, rect: Rect, host: *mut c_void, to_card: bool) -> Result<(), ExecError> {
        self.enter().map_err(|e| device_error("entering the context", e))?;
        let (card, mine) = (sys::CUmemorytype::CU_MEMORYTYPE_UNIFIED, sys::CUmemorytype::CU_MEMORYTYPE_HOST);
        // SAFETY: all-zero bytes are a valid descriptor: null pointers, zero offsets; the enum's fields are set below.
        let mut c: sys::CUDA_MEMCPY2D = unsafe {
            let mut raw = std::mem::MaybeUninit::<sys::CUDA_MEMCPY2D>::zeroed();
            (*raw.as_mut_ptr()).srcMemoryType = if to_card { mine } else { card };
            (*raw.as_mut_ptr()).dstMemoryType = if to_card { card } else { mine };
            raw.assume_init()
        };
        if to_card {
            (c.srcHost, c.srcPitch, c.dstDevice, c.dstPitch) = (host, rect.width, rect.at, rect.pitch);
        } else {
            (c.dstHost, c.dstPitch, c.srcDevice, c.srcPitch) = (host, rect.width, rect.at, rect.pitch);
        }
        (c.WidthInBytes, c.Height) = (rect.width, rect.rows);
        // SAFETY: the rectangle lies in an arena by the plan's check; the host side has rows * width bytes (checked by the
        // callers). Programs have ended: `replay` waits for them.
        unsafe { sys::cuMemcpy2DUnaligned_v2(&c) }.result().map_err(|e| device_error("moving data", e))
    }
}

impl Card {
    /// Takes both arenas, of exactly so many bytes and zeroed, once. Nothing is taken after that.
    ///
    /// # Errors
    /// When the card or the system has too little left.
    pub fn allocate(&mut self, device_bytes: u64, host_bytes: u64) -> Result<Arenas, ExecError> {
        self.enter().map_err(|e| device_error("entering the context", e))?;
        let free = self.free().map_err(ExecError::Device)?;
        if device_bytes > free {
            return Err(ExecError::Device(format!(
                "the plan needs {device_bytes} bytes of {}, {free} are free: other programs took memory since it was made; \
                 end them, or leave out --memory to plan for what is free",
                self.info.name
            )));
        }
        // Never zero bytes: the driver refuses that.
        let size = device_bytes.max(256) as usize;
        // SAFETY: fresh memory, zeroed before anything reads it; freed in `drop`.
        self.arenas.device =
            unsafe { result::malloc_sync(size) }.map_err(|e| device_error("taking the arena", e))?;
        // SAFETY: the arena has so many bytes.
        unsafe { result::memset_d8_sync(self.arenas.device, 0, size) }
            .map_err(|e| device_error("clearing the arena", e))?;
        if host_bytes > 0 {
            let size = host_bytes as usize;
            // SAFETY: as above; page-locked, mapped for the card by unified addressing.
            let host = unsafe { result::malloc_host(size, 0) };
            let host = host.map_err(|e| device_error("locking host memory for the host arena", e))?;
            // SAFETY: the host arena has so many bytes.
            unsafe { std::ptr::write_bytes(host.cast::<u8>(), 0, size) };
            self.arenas.host = host as u64;
        }
        Ok(self.arenas)
    }

    /// Records steps as a graph.
    ///
    /// # Errors
    /// Steps that the card refuses, by index.
    pub fn record(&mut self, steps: &[Step]) -> Result<Graph, (usize, String)> {
        let whole = |e| (steps.len(), failed("recording a program", e));
        self.enter().map_err(whole)?;
        let graph = self.capture(steps)?;
        let flags = sys::CUgraphInstantiate_flags_enum(0);
        // SAFETY: the graph was just recorded; it is not needed once instantiated.
        let made = unsafe {
            let made = result::graph::instantiate(graph, flags);
            let _ = result::graph::destroy(graph);
            made
        };
        let made = Graph(made.map_err(whole)?);
        // Its memory on the card is taken now, not at the first step.
        // SAFETY: graph and stream are live.
        unsafe {
            result::graph::upload(made.0, self.main).and_then(|()| result::stream::synchronize(self.main))
        }
        .map_err(whole)?;
        Ok(made)
    }

    /// Runs recorded steps to their end.
    ///
    /// # Errors
    /// When the card fails.
    pub fn replay(&mut self, recorded: &Graph) -> Result<(), ExecError> {
        self.enter().map_err(|e| device_error("entering the context", e))?;
        // SAFETY: graph and stream are live.
        unsafe {
            result::graph::launch(recorded.0, self.main).and_then(|()| result::stream::synchronize(self.main))
        }
        .map_err(|e| device_error("running a program", e))
    }

    /// Copies host bytes, row after row, into a rectangle of an arena.
    ///
    /// # Errors
    /// When the card fails.
    pub fn write(&mut self, to: Rect, data: &[u8]) -> Result<(), ExecError> {
        assert_eq!(data.len(), to.rows * to.width, "a rectangle's bytes");
        self.copy(to, data.as_ptr().cast_mut().cast(), true)
    }

    /// Copies a rectangle of an arena to host bytes, row after row.
    ///
    /// # Errors
    /// When the card fails.
    pub fn read(&self, from: Rect, out: &mut [u8]) -> Result<(), ExecError> {
        assert_eq!(out.len(), from.rows * from.width, "a rectangle's bytes");
        self.copy(from, out.as_mut_ptr().cast(), false)
    }
}

impl Card {
    /// Seconds of one run of `steps`, out of `repeats` in a row, after one that does not count.
    pub(crate) fn time(&mut self, steps: &[Step], repeats: u32) -> Result<f64, ExecError> {
        self.enter().map_err(|e| device_error("entering the context", e))?;
        let repeats = repeats.max(1);
        let mut start = Instant::now();
        for round in 0..=repeats {
            if round == 1 {
                self.wait()?;
                start = Instant::now();
            }
            let mut running = HashMap::new();
            for step in steps {
                // The start of a copy and the wait for it may be timed apart.
                if matches!(step, Step::Join { to } if !running.contains_key(to)) {
                    continue;
                }
                self.put(step, &mut running).map_err(ExecError::Device)?;
            }
        }
        self.wait()?;
        Ok(start.elapsed().as_secs_f64() / f64::from(repeats))
    }

    fn wait(&self) -> Result<(), ExecError> {
        let mut streams = self.copies.values().chain([&self.main]);
        streams
            // SAFETY: the streams are live.
            .try_for_each(|s| unsafe { result::stream::synchronize(*s) })
            .map_err(|e| device_error("waiting for the card", e))
    }

    /// Gives the arenas back.
    pub(crate) fn release(&mut self) {
        let _ = self.enter();
        // SAFETY: each was taken by `allocate` and is given back once; nothing runs, as every replay waits. What fails
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

impl Drop for Card {
    fn drop(&mut self) {
        self.release();
        self.products = None;
        // SAFETY: each was made by this card and is freed once; streams are idle, as every replay waits. What fails while
        // ending is freed with the process.
        unsafe {
            for stream in self.copies.values().chain([&self.main]).filter(|s| !s.is_null()) {
                let _ = result::stream::destroy(*stream);
            }
            let _ = result::primary_ctx::release(self.device);
        }
    }
}
