//! CUDA without a card: a driver, a compiler, a product, an exchange and a management library that run kernels on
//! the processor.
//!
//! The libraries in `emulated_cuda/` stand in for NVIDIA's: a program that finds them takes the same way as on a
//! card, from compiling its kernels to replaying graphs. They are slow and check what a card would not: threads may run
//! upwards, downwards or shuffled (a missing barrier shows), copies as early or as late as is legal, memory starts as NaN and
//! ends at unmapped pages.

use std::path::PathBuf;
use std::process::Command;
use std::sync::OnceLock;

const BLOCK: &str = include_str!("../emulated_cuda/block.h");
const LIBRARIES: [(&str, &str); 5] = [
    ("libcuda.so", include_str!("../emulated_cuda/cuda.cc")),
    ("libnvrtc.so", include_str!("../emulated_cuda/nvrtc.cc")),
    ("libcublasLt.so", include_str!("../emulated_cuda/cublaslt.cc")),
    ("libnccl.so.2", include_str!("../emulated_cuda/nccl.cc")),
    ("libnvidia-ml.so", include_str!("../emulated_cuda/nvml.cc")),
];

/// Returns the folder with the libraries, compiled on first use.
///
/// # Errors
/// Without a C++ compiler (`c++`, or `CXX`): tests say that they were skipped.
///
/// # Panics
/// When they do not compile, or the target folder cannot be written.
pub fn libraries() -> Result<PathBuf, String> {
    static MADE: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    MADE.get_or_init(make).clone()
}

fn make() -> Result<PathBuf, String> {
    let compiler = std::env::var("CXX").unwrap_or_else(|_| "c++".to_owned());
    if Command::new(&compiler).arg("--version").output().is_err() {
        return Err("no C++ compiler (set CXX): kernels are not run on the processor".to_owned());
    }
    // Test binaries lie in <target>/<profile>/deps.
    let me = std::env::current_exe().expect("a running program has a path");
    let target = me.ancestors().nth(3).expect("a test lies in the target folder").to_owned();
    let text: String = LIBRARIES.iter().map(|(_, code)| *code).chain([BLOCK]).collect();
    let folder = target.join(format!("emulated-cuda-{:016x}", fnv(&text)));
    if folder.join("complete").exists() {
        return Ok(folder);
    }
    // Another process may be making it too: each makes its own, the first to be complete stays.
    let mine = target.join(format!("emulated-cuda-{}.tmp", std::process::id()));
    std::fs::create_dir_all(&mine).expect("the target folder can be written");
    let block = folder.join("block.h");
    std::fs::write(mine.join("block.h"), BLOCK).expect("the target folder can be written");
    for (name, code) in LIBRARIES {
        let path = mine.join(format!("{name}.cc"));
        std::fs::write(&path, code).expect("the target folder can be written");
        let out = Command::new(&compiler)
            .args(["-std=c++17", "-O2", "-shared", "-fPIC", "-fvisibility=hidden"])
            .arg(format!("-DBLOCK_H={:?}", block.display().to_string()))
            .arg(format!("-Wl,-soname,{name}"))
            .arg("-o")
            .args([&mine.join(name), &path])
            .args(["-ldl", "-lpthread"])
            .output()
            .expect("the C++ compiler runs");
        assert!(out.status.success(), "{name}:\n{}", String::from_utf8_lossy(&out.stderr));
    }
    std::fs::write(mine.join("complete"), "").expect("the target folder can be written");
    if std::fs::rename(&mine, &folder).is_err() {
        std::fs::remove_dir_all(&mine).expect("the target folder can be written");
    }
    Ok(folder)
}

/// Returns a short name for a text (FNV-1a).
fn fnv(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |h, b| (h ^ u64::from(b)).wrapping_mul(0x0000_0100_0000_01b3))
}
