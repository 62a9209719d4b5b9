//! Compiling kernels for a card, and keeping what was compiled.

use crate::kernels::{FAMILIES, Family, WARPGROUP_OPERATIONS, headers, source};
use crate::libraries::{self, Needed};
use cudarc::nvrtc::{result, sys};
use std::ffi::CString;
use std::path::{Path, PathBuf};

/// What a family was compiled to.
pub struct Compiled {
    /// Machine code, or PTX with a final zero.
    pub image: Vec<u8>,
    /// The assembler's report: registers, shared memory, spills; empty for PTX and for what was kept from before.
    pub log: String,
    /// From the cache.
    pub kept: bool,
}

/// NVRTC's version, e.g. (12, 9).
///
/// # Errors
/// When the library is nowhere.
pub fn version() -> Result<(i32, i32), String> {
    libraries::find(Needed::Nvrtc).map_err(|e| e.to_string())?;
    let (mut major, mut minor) = (0, 0);
    // SAFETY: the library is loaded; both pointers are live integers.
    unsafe { sys::nvrtcVersion(&mut major, &mut minor) }
        .result()
        .map_err(|e| format!("NVRTC has no version: {e:?}"))?;
    Ok((major, minor))
}

/// Returns what to compile for: `sm_80` for (8, 0) where NVRTC knows it, `sm_90a` with Hopper's own operations for (9, 0); for a card newer
/// than NVRTC the newest `compute_NN`, which is PTX that the driver translates.
///
/// # Errors
/// NVRTC is missing, or knows only newer cards.
pub fn architecture((major, minor): (u32, u32)) -> Result<String, String> {
    let (has, can) = version()?;
    let mut count = 0;
    // SAFETY: the library is loaded; the pointer is a live integer.
    unsafe { sys::nvrtcGetNumSupportedArchs(&mut count) }.result().map_err(|e| format!("NVRTC: {e:?}"))?;
    let mut known = vec![0; count.max(0) as usize];
    // SAFETY: the buffer has as many integers as NVRTC asked for.
    unsafe { sys::nvrtcGetSupportedArchs(known.as_mut_ptr()) }
        .result()
        .map_err(|e| format!("NVRTC: {e:?}"))?;
    let own = (10 * major + minor) as i32;
    if known.contains(&own) {
        let all = if (major, minor) == WARPGROUP_OPERATIONS { "a" } else { "" };
        return Ok(format!("sm_{own}{all}"));
    }
    let newest = known.iter().filter(|a| **a < own).max();
    let newest = newest.ok_or_else(|| {
        format!("NVRTC {has}.{can} no longer knows compute capability {major}.{minor}: install NVRTC 12")
    })?;
    Ok(format!("compute_{newest}"))
}

/// Compiles a family for an architecture such as `sm_80` (machine code) or `compute_90` (PTX).
///
/// # Errors
/// When NVRTC is missing, does not know the architecture or refuses the code.
pub(crate) fn compile(family: &Family, architecture: &str) -> Result<Compiled, String> {
    compile_text(&format!("{}.cu", family.name), source(family), architecture)
}

/// Compiles kernels that no program has, after the headers of those that it has: for tests of what the headers offer. See `compile`.
///
/// # Errors
/// As `compile`.
pub fn compile_alone(name: &str, code: &str, architecture: &str) -> Result<Compiled, String> {
    compile_text(name, headers() + &format!("#line 1 \"{name}\"\n") + code, architecture)
}

fn compile_text(name: &str, text: String, architecture: &str) -> Result<Compiled, String> {
    libraries::find(Needed::Nvrtc).map_err(|e| e.to_string())?;
    let text = CString::new(text).map_err(|e| format!("{name}: {e}"))?;
    let c_name = CString::new(name).map_err(|e| format!("{name}: {e}"))?;
    let program =
        Program(result::create_program(&text, Some(&c_name)).map_err(|e| format!("{name}: {e:?}"))?);
    let options = options(architecture);
    // SAFETY: the program was just created.
    let done = unsafe { result::compile_program(program.0, &options) };
    // SAFETY: as above.
    let log = unsafe { result::get_program_log(program.0) }.unwrap_or_default();
    let log: Vec<u8> = log.into_iter().map(|c| c as u8).filter(|c| *c != 0).collect();
    let log = String::from_utf8_lossy(&log).into_owned();
    if let Err(e) = done {
        let (major, minor) = version().unwrap_or_default();
        return Err(format!("NVRTC {major}.{minor} cannot compile {name} for {architecture} ({e:?}): {log}"));
    }
    if architecture.starts_with("compute_") {
        // SAFETY: the program is compiled.
        let ptx = unsafe { result::get_ptx(program.0) }.map_err(|e| format!("{name}: {e:?}"))?;
        let image = ptx.into_iter().map(|c| c as u8).chain([0]).collect();
        return Ok(Compiled { image, log: String::new(), kept: false });
    }
    let mut size = 0;
    // SAFETY: the program is compiled; the pointer is a live integer.
    unsafe { sys::nvrtcGetCUBINSize(program.0, &mut size) }.result().map_err(|e| format!("{name}: {e:?}"))?;
    let mut image = vec![0u8; size];
    // SAFETY: the buffer has the size that NVRTC asked for.
    unsafe { sys::nvrtcGetCUBIN(program.0, image.as_mut_ptr().cast()) }
        .result()
        .map_err(|e| format!("{name}: {e:?}"))?;
    Ok(Compiled { image, log, kept: false })
}

fn options(architecture: &str) -> [String; 3] {
    let architecture = format!("--gpu-architecture={architecture}");
    [architecture, "--std=c++17".to_owned(), "--ptxas-options=-v".to_owned()]
}

/// Takes compiled code from the folder `cache` if it was compiled before, else compiles it. See [`compile`].
pub(crate) fn compile_cached(
    family: &Family,
    architecture: &str,
    cache: Option<&Path>,
) -> Result<Compiled, String> {
    let kept = cache.map(|dir| kept(family, architecture, dir)).transpose()?;
    match kept.and_then(|file| std::fs::read(file).ok()).filter(|image| !image.is_empty()) {
        Some(image) => Ok(Compiled { image, log: String::new(), kept: true }),
        None => compile_anew(family, architecture, cache),
    }
}

/// Compiles and keeps the result in `cache`. A cache that cannot be written is not an error. See [`compile`].
pub(crate) fn compile_anew(
    family: &Family,
    architecture: &str,
    cache: Option<&Path>,
) -> Result<Compiled, String> {
    let compiled = compile(family, architecture)?;
    if let Some(dir) = cache {
        let file = kept(family, architecture, dir)?;
        let half = file.with_extension(format!("{}.tmp", std::process::id()));
        let written = std::fs::create_dir_all(dir).and_then(|()| std::fs::write(&half, &compiled.image));
        let _ = written.and_then(|()| std::fs::rename(&half, &file));
    }
    Ok(compiled)
}

/// Returns where a family's code for an architecture is kept: the name has everything that it depends on.
fn kept(family: &Family, architecture: &str, cache: &Path) -> Result<PathBuf, String> {
    let mut hash = blake3::Hasher::new();
    hash.update(source(family).as_bytes());
    hash.update(options(architecture).concat().as_bytes());
    hash.update(format!("{:?}", version()?).as_bytes());
    Ok(cache.join(format!("{}-{}.cubin", family.name, hash.finalize().to_hex())))
}

/// What the assembler says of a kernel, and what it was promised.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernelReport {
    /// The family's file and the kernel's name.
    pub kernel: String,
    /// Architecture, e.g. `sm_80`.
    pub architecture: String,
    /// Registers of a thread.
    pub registers: u32,
    /// The most that the kernel's declaration allows.
    pub registers_allowed: u32,
    /// Threads of a block.
    pub block: u32,
    /// Bytes of shared memory of a block that the kernel declares.
    pub shared: u32,
    /// Those that a launch adds.
    pub dynamic: u32,
    /// Bytes of local memory of a thread: arrays that are indexed at run time (the slow path of sines).
    pub stack: u32,
    /// Bytes that a thread spills for want of registers.
    pub spilled: u32,
    /// Whether products of four warps wait for each other, as the assembler found their registers in use.
    pub serialized: bool,
}

/// Compiles every family for an architecture and reports on every kernel.
///
/// # Errors
/// As `compile`; a kernel that the compiler does not report on.
pub fn report(architecture: &str) -> Result<Vec<KernelReport>, String> {
    let mut reports = Vec::new();
    for family in FAMILIES {
        let log = compile(family, architecture)?.log;
        for kernel in family.kernels {
            let start = log.find(&format!("'{}' for '", kernel.name));
            let start = start.ok_or_else(|| format!("{}.cu: no report on {}", family.name, kernel.name))?;
            let own = &log[start..];
            let own = own.find("Compiling entry").map_or(own, |end| &own[..end]);
            reports.push(KernelReport {
                kernel: format!("{}/{}", family.name, kernel.name),
                architecture: architecture.to_owned(),
                registers: before(own, " registers").unwrap_or(u32::MAX),
                registers_allowed: kernel.registers,
                block: kernel.block,
                shared: before(own, " bytes smem").unwrap_or(0),
                dynamic: kernel.shared,
                stack: before(own, " bytes stack frame").unwrap_or(0),
                spilled: before(own, " bytes spill stores").unwrap_or(0)
                    + before(own, " bytes spill loads").unwrap_or(0),
                serialized: log.lines().any(|line| {
                    line.contains("serialized") && line.contains(&format!("function '{}'", kernel.name))
                }),
            });
        }
    }
    Ok(reports)
}

/// Returns a family's machine code for an architecture.
///
/// # Errors
/// No such family; else as `compile`.
pub fn image(family: &str, architecture: &str) -> Result<Vec<u8>, String> {
    let family = FAMILIES.iter().find(|f| f.name == family).ok_or_else(|| format!("no family {family}"))?;
    Ok(compile(family, architecture)?.image)
}

/// Returns the number that stands before a word.
fn before(text: &str, word: &str) -> Option<u32> {
    let head = &text[..text.find(word)?];
    let start = head.rfind(|c: char| !c.is_ascii_digit()).map_or(0, |i| i + 1);
    head[start..].parse().ok()
}

/// Returns the user's cache folder for Ambitus, whose contents can be rebuilt.
pub(crate) fn cache() -> Option<PathBuf> {
    let base = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    let base = base.or_else(|| std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".cache")))?;
    Some(base.join("ambitus"))
}

/// A program that is destroyed at the end.
struct Program(sys::nvrtcProgram);

impl Drop for Program {
    fn drop(&mut self) {
        // SAFETY: created by `compile`, destroyed once.
        let _ = unsafe { result::destroy_program(self.0) };
    }
}
