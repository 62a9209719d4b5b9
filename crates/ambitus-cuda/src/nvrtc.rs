//! Compiling kernels for a card, and keeping what was compiled.

use crate::kernels::{FAMILIES, Family, source};
use crate::libraries::{self, Needed};
use cudarc::nvrtc::{result, sys};
use std::ffi::CString;
use std::path::{Path, PathBuf};

/// What a family was compiled to.
pub struct Compiled {
    /// Machine code.
    pub cubin: Vec<u8>,
    /// The assembler's report: registers, shared memory, spills; empty when the code was kept from before.
    pub log: String,
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

/// `sm_90a` for (9, 0): Hopper's own instructions need the `a`.
pub fn architecture((major, minor): (u32, u32)) -> String {
    let own = if (major, minor) == (9, 0) { "a" } else { "" };
    format!("sm_{major}{minor}{own}")
}

/// Compiles a family for an architecture such as `sm_80`.
///
/// # Errors
/// When NVRTC is missing, does not know the architecture or refuses the code.
pub(crate) fn compile(family: &Family, architecture: &str) -> Result<Compiled, String> {
    libraries::find(Needed::Nvrtc).map_err(|e| e.to_string())?;
    let name = format!("{}.cu", family.name);
    let text = CString::new(source(family)).map_err(|e| format!("{name}: {e}"))?;
    let c_name = CString::new(name.clone()).map_err(|e| format!("{name}: {e}"))?;
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
    let mut size = 0;
    // SAFETY: the program is compiled; the pointer is a live integer.
    unsafe { sys::nvrtcGetCUBINSize(program.0, &mut size) }.result().map_err(|e| format!("{name}: {e:?}"))?;
    let mut cubin = vec![0u8; size];
    // SAFETY: the buffer has the size that NVRTC asked for.
    unsafe { sys::nvrtcGetCUBIN(program.0, cubin.as_mut_ptr().cast()) }
        .result()
        .map_err(|e| format!("{name}: {e:?}"))?;
    Ok(Compiled { cubin, log })
}

fn options(architecture: &str) -> [String; 3] {
    let architecture = format!("--gpu-architecture={architecture}");
    [architecture, "--std=c++17".to_owned(), "--ptxas-options=-v".to_owned()]
}

/// As [`compile`], from the folder `cache` where the same code was compiled before. A cache that cannot be written is no
/// error.
pub(crate) fn compile_cached(
    family: &Family,
    architecture: &str,
    cache: Option<&Path>,
) -> Result<Compiled, String> {
    let mut hash = blake3::Hasher::new();
    hash.update(source(family).as_bytes());
    hash.update(options(architecture).concat().as_bytes());
    hash.update(format!("{:?}", version()?).as_bytes());
    let file = cache.map(|dir| dir.join(format!("{}-{}.cubin", family.name, hash.finalize().to_hex())));
    if let Some(cubin) = file.as_ref().and_then(|f| std::fs::read(f).ok()).filter(|c| !c.is_empty()) {
        return Ok(Compiled { cubin, log: String::new() });
    }
    let compiled = compile(family, architecture)?;
    if let Some(file) = file {
        let half = file.with_extension(format!("{}.tmp", std::process::id()));
        let kept = file.parent().map_or(Ok(()), std::fs::create_dir_all);
        let kept = kept.and_then(|()| std::fs::write(&half, &compiled.cubin));
        drop(kept.and_then(|()| std::fs::rename(&half, &file)));
    }
    Ok(compiled)
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
    /// Bytes of shared memory of a block.
    pub shared: u32,
    /// Bytes of local memory of a thread: arrays that are indexed at run time (the slow path of sines).
    pub stack: u32,
    /// Bytes that a thread spills for want of registers.
    pub spilled: u32,
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
                stack: before(own, " bytes stack frame").unwrap_or(0),
                spilled: before(own, " bytes spill stores").unwrap_or(0)
                    + before(own, " bytes spill loads").unwrap_or(0),
            });
        }
    }
    Ok(reports)
}

/// The number that stands before a word.
fn before(text: &str, word: &str) -> Option<u32> {
    let head = &text[..text.find(word)?];
    let start = head.rfind(|c: char| !c.is_ascii_digit()).map_or(0, |i| i + 1);
    head[start..].parse().ok()
}

/// The user's folder for what can be made again.
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
