//! CUDA without a card: a driver, a compiler, a product, an exchange and a management library that run kernels on
//! the processor.
//!
//! The libraries in `emulated_cuda/` stand in for NVIDIA's: a program that finds them takes the same way as on a
//! card, from compiling its kernels to replaying graphs. They are slow and check what a card would not: threads may run
//! upwards, downwards, shuffled or warp by warp (a missing barrier shows), loads and stores are seen and those that no barrier
//! divides are faults, copies run as early or as late as is legal, memory starts as NaN and ends at
//! unmapped pages, and products lose what lies in their scratch.

use std::path::PathBuf;
use std::process::Command;
use std::sync::OnceLock;

/// What the libraries are made of. The first lies in all the others' way: they link to it.
const SOURCES: [(&str, &str); 12] = [
    ("block.h", include_str!("../emulated_cuda/block.h")),
    ("warp.h", include_str!("../emulated_cuda/warp.h")),
    ("warpgroup.h", include_str!("../emulated_cuda/warpgroup.h")),
    ("lines.h", include_str!("../emulated_cuda/lines.h")),
    ("races.h", include_str!("../emulated_cuda/races.h")),
    ("conflicts.h", include_str!("../emulated_cuda/conflicts.h")),
    ("block.cc", include_str!("../emulated_cuda/block.cc")),
    ("cuda.cc", include_str!("../emulated_cuda/cuda.cc")),
    ("nvrtc.cc", include_str!("../emulated_cuda/nvrtc.cc")),
    ("cublaslt.cc", include_str!("../emulated_cuda/cublaslt.cc")),
    ("nccl.cc", include_str!("../emulated_cuda/nccl.cc")),
    ("nvml.cc", include_str!("../emulated_cuda/nvml.cc")),
];
/// Each library, and its sources. The driver is the first: others link to it.
const LIBRARIES: [(&str, &[&str]); 5] = [
    ("libcuda.so", &["cuda.cc", "block.cc"]),
    ("libnvrtc.so", &["nvrtc.cc"]),
    ("libcublasLt.so", &["cublaslt.cc"]),
    ("libnccl.so.2", &["nccl.cc"]),
    ("libnvidia-ml.so", &["nvml.cc"]),
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
    let text: String = SOURCES.iter().map(|(_, code)| *code).collect();
    let folder = target.join(format!("emulated-cuda-{:016x}", fnv(&text)));
    if folder.join("complete").exists() {
        return Ok(folder);
    }
    // Another process may be making it too: each makes its own, the first to be complete stays.
    let mine = target.join(format!("emulated-cuda-{}.tmp", std::process::id()));
    std::fs::create_dir_all(&mine).expect("the target folder can be written");
    for (name, code) in SOURCES {
        std::fs::write(mine.join(name), code).expect("the target folder can be written");
    }
    for (name, sources) in LIBRARIES {
        let driver: &[&str] = if name == LIBRARIES[0].0 { &[] } else { &["-l:libcuda.so"] };
        let out = Command::new(&compiler)
            .current_dir(&mine)
            .args(["-std=c++17", "-O2", "-shared", "-fPIC", "-fvisibility=hidden"])
            .arg(format!("-DFOLDER={:?}", folder.display().to_string()))
            .args([&format!("-Wl,-soname,{name}"), "-Wl,-rpath,$ORIGIN", "-o", name])
            .args(sources)
            .args(["-L.", "-Wl,--no-as-needed"])
            .args(driver)
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
