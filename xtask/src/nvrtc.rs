//! Fetching NVRTC without CUDA: one wheel, unpacked.

use std::path::{Path, PathBuf};
use std::process::Command;

/// The compiler that the kernels are checked with. It needs no headers: the kernels include none.
const WHEEL: &str = "nvidia-cuda-nvrtc-cu12==12.9.86";

/// Returns where the libraries come to lie, in the working folder.
pub fn folder() -> PathBuf {
    Path::new("target").join("cuda-libs").join("nvidia").join("cuda_nvrtc").join("lib")
}

/// Fetches and unpacks the wheel, unless it is there.
///
/// # Errors
/// No Python or pip, or no way to the wheel.
pub fn fetch() -> Result<(), String> {
    let libs = folder();
    if !libs.join("libnvrtc.so.12").exists() {
        let root = Path::new("target").join("cuda-libs");
        let wheels = root.join("wheels");
        std::fs::create_dir_all(&wheels).map_err(|e| format!("{}: {e}", wheels.display()))?;
        let pip = ["-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:", "--dest"];
        python(Command::new("python3").args(pip).arg(&wheels).arg(WHEEL))?;
        let listed = std::fs::read_dir(&wheels).map_err(|e| format!("{}: {e}", wheels.display()))?;
        for wheel in listed.flatten().map(|e| e.path()).filter(|p| p.extension().is_some_and(|x| x == "whl"))
        {
            python(Command::new("python3").args(["-m", "zipfile", "-e"]).arg(wheel).arg(&root))?;
        }
    }
    let full = std::path::absolute(&libs).map_err(|e| format!("{}: {e}", libs.display()))?;
    println!("NVRTC lies in {}; for tests: export AMBITUS_CUDA_LIBS={}", libs.display(), full.display());
    Ok(())
}

fn python(command: &mut Command) -> Result<(), String> {
    let shown = format!("{command:?}");
    let status = command.status().map_err(|e| format!("{shown}: {e}: install python3 with pip"))?;
    if status.success() { Ok(()) } else { Err(format!("{shown} failed: {status}")) }
}
