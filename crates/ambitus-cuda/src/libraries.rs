//! Finding CUDA's libraries at run time.
//!
//! The driver comes with the card's driver package, NVRTC and cuBLASLt with the CUDA toolkit or as Python wheels (every
//! CUDA build of PyTorch brings them). [`find`] loads a library from wherever it is, so that cudarc, which asks the
//! system's loader by name, finds it loaded.

use libloading::Library;
use std::fmt;
use std::path::{Path, PathBuf};

/// Folders that hold libraries, separated like `PATH`: for what the system's loader does not find. (To be preferred to a
/// toolkit that it finds, a folder must stand in `LD_LIBRARY_PATH`.)
pub const FOLDERS_VARIABLE: &str = "AMBITUS_CUDA_LIBS";

/// A library that the executor needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Needed {
    /// The driver.
    Driver,
    /// The run-time compiler.
    Nvrtc,
    /// Matrix products.
    CublasLt,
    /// Exchanges between cards, where there are several ranks.
    Nccl,
}

/// Major versions of CUDA whose libraries are used, the newest first.
const MAJORS: [u32; 2] = [13, 12];

/// The newest major version of CUDA that the driver runs; any, where there is no driver that says.
fn newest() -> u32 {
    // SAFETY: as in `Needed::visible`.
    if !unsafe { cudarc::driver::sys::is_culib_present() } {
        return u32::MAX;
    }
    let mut version = 0;
    // SAFETY: the driver is loaded; the pointer is a live integer.
    let said = unsafe { cudarc::driver::sys::cuDriverGetVersion(&mut version) }.result();
    said.map_or(u32::MAX, |()| version as u32 / 1000)
}

/// A library that is not there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Missing(pub Needed);

impl Needed {
    /// Every library that one card needs.
    pub const ALL: [Needed; 3] = [Needed::Driver, Needed::Nvrtc, Needed::CublasLt];

    /// File names, the newest that a driver for CUDA `most` runs first: what a newer library compiles or starts, an older driver
    /// refuses.
    fn files(self, most: u32) -> Vec<String> {
        let versions = |name: &str| {
            let versioned =
                MAJORS.into_iter().filter(|major| *major <= most).map(|major| format!("{name}.{major}"));
            versioned.chain([name.to_owned()]).collect()
        };
        match self {
            Needed::Driver => ["libcuda.so.1", "libcuda.so", "nvcuda.dll"].map(str::to_owned).to_vec(),
            Needed::Nvrtc => versions("libnvrtc.so"),
            Needed::CublasLt => versions("libcublasLt.so"),
            Needed::Nccl => ["libnccl.so.2", "libnccl.so"].map(str::to_owned).to_vec(),
        }
    }

    /// What the library opens by name while it works. The wheels of NVRTC have no path to look in, so its builtins are found only where
    /// they are loaded already.
    fn companion(self) -> Option<&'static str> {
        (self == Needed::Nvrtc).then_some("libnvrtc-builtins.so")
    }

    /// Returns true when cudarc's own search succeeds.
    fn visible(self) -> bool {
        // SAFETY: loading a library of this name runs its start-up code: the vendor's, which is what is asked for.
        unsafe {
            match self {
                Needed::Driver => cudarc::driver::sys::is_culib_present(),
                Needed::Nvrtc => cudarc::nvrtc::sys::is_culib_present(),
                Needed::CublasLt => cudarc::cublaslt::sys::is_culib_present(),
                Needed::Nccl => self.files(newest()).iter().any(|file| Library::new(file).is_ok()),
            }
        }
    }
}

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (what, how) = match self.0 {
            Needed::Driver => (
                "the NVIDIA driver (libcuda.so.1)",
                "install the driver of your GPU (version 525 or newer), or train without --device cuda",
            ),
            Needed::Nvrtc => (
                "NVRTC (libnvrtc.so)",
                "install the CUDA toolkit 12 or 13, or `pip install nvidia-cuda-nvrtc-cu12`",
            ),
            Needed::CublasLt => (
                "cuBLASLt (libcublasLt.so)",
                "install the CUDA toolkit 12 or 13, or `pip install nvidia-cublas-cu12`",
            ),
            Needed::Nccl => (
                "NCCL (libnccl.so.2), which connects several GPUs,",
                "install the package libnccl2 of NVIDIA's repository, or `pip install nvidia-nccl-cu12`",
            ),
        };
        write!(f, "{what} was not found: {how}")?;
        if self.0 != Needed::Driver {
            write!(f, "; where it lies elsewhere, name its folder in {FOLDERS_VARIABLE}")?;
        }
        Ok(())
    }
}

/// Loads a library, for the rest of the process.
///
/// # Errors
/// When it is nowhere.
pub fn find(needed: Needed) -> Result<(), Missing> {
    let named = std::env::var_os(FOLDERS_VARIABLE).map(|v| std::env::split_paths(&v).collect());
    let named: Vec<PathBuf> = named.unwrap_or_default();
    if load(needed, &named) || needed.visible() || (load(needed, &folders()) && needed.visible()) {
        return Ok(());
    }
    Err(Missing(needed))
}

/// Returns a library whose functions are looked up by name, from where [`find`] looks.
///
/// # Errors
/// When it is nowhere.
pub(crate) fn open(needed: Needed) -> Result<Library, Missing> {
    let named = std::env::var_os(FOLDERS_VARIABLE).map(|v| std::env::split_paths(&v).collect());
    let named: Vec<PathBuf> = named.unwrap_or_default();
    let by_name = needed.files(newest()).into_iter().map(PathBuf::from);
    let mut files =
        in_folders(needed, &named).into_iter().chain(by_name).chain(in_folders(needed, &folders()));
    // SAFETY: as in `Needed::visible`.
    files.find_map(|path| unsafe { Library::new(path) }.ok()).ok_or(Missing(needed))
}

/// Returns the files of a library that are there.
fn in_folders(needed: Needed, folders: &[PathBuf]) -> Vec<PathBuf> {
    // The driver is not asked while it is looked for.
    let files = needed.files(if needed == Needed::Driver { u32::MAX } else { newest() });
    // The newest of all folders, not of the first.
    let places = files.iter().flat_map(|file| folders.iter().map(move |folder| folder.join(file)));
    places.filter(|path| path.exists()).collect()
}

/// Loads a library from the first folder that has its newest version, after what it opens by name.
pub fn load(needed: Needed, folders: &[PathBuf]) -> bool {
    // SAFETY: as in `Needed::visible`; the file is the vendor's library by its name and folder.
    let loaded = |path: &Path| unsafe { Library::new(path) }.map(std::mem::forget).is_ok();
    in_folders(needed, folders).iter().any(|path| {
        let beside = path.parent().zip(needed.companion()).map_or(Vec::new(), |(folder, name)| {
            let is_named =
                |path: &PathBuf| path.file_name().is_some_and(|f| f.to_string_lossy().starts_with(name));
            entries(folder).into_iter().filter(is_named).collect()
        });
        beside.iter().for_each(|path| _ = loaded(path));
        loaded(path)
    })
}

/// Returns where libraries lie besides the loader's own folders: the toolkit's, and those of Python wheels: of the active
/// environment, of every Python whose programs are found, and of the user.
fn folders() -> Vec<PathBuf> {
    let mut found = Vec::new();
    for variable in ["CUDA_HOME", "CUDA_PATH"] {
        let toolkit = std::env::var_os(variable).map(PathBuf::from);
        found.extend(toolkit.iter().flat_map(|t| [t.join("lib64"), t.join("lib")]));
    }
    for name in ["cuda", "cuda-13", "cuda-12"] {
        found.push(Path::new("/usr/local").join(name).join("lib64"));
    }
    let of_variable = |name: &str| std::env::var_os(name).map(PathBuf::from);
    let mut prefixes: Vec<PathBuf> =
        ["VIRTUAL_ENV", "CONDA_PREFIX"].iter().filter_map(|v| of_variable(v)).collect();
    let programs = std::env::var_os("PATH").map_or(Vec::new(), |path| std::env::split_paths(&path).collect());
    prefixes.extend(programs.iter().filter_map(|bin: &PathBuf| bin.parent()).map(Path::to_owned));
    let home = of_variable("HOME").unwrap_or_default();
    prefixes.push(home.join(".local"));
    let pyenv = of_variable("PYENV_ROOT").unwrap_or(home.join(".pyenv"));
    prefixes.extend(entries(&pyenv.join("versions")));
    found.extend(prefixes.iter().flat_map(|prefix| of_wheels(prefix)));
    found
}

/// Returns the folders of libraries of NVIDIA's wheels under an environment, and the environment's own.
fn of_wheels(prefix: &Path) -> Vec<PathBuf> {
    let mut found = vec![prefix.join("lib")];
    for python in entries(&prefix.join("lib")) {
        for packages in ["site-packages", "dist-packages"] {
            found.extend(entries(&python.join(packages).join("nvidia")).into_iter().map(|p| p.join("lib")));
        }
    }
    found
}

fn entries(folder: &Path) -> Vec<PathBuf> {
    let mut found: Vec<PathBuf> =
        std::fs::read_dir(folder).map(|d| d.flatten().map(|e| e.path()).collect()).unwrap_or_default();
    found.sort();
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_older_driver_gets_older_libraries() {
        assert_eq!(Needed::Nvrtc.files(13), ["libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"]);
        assert_eq!(Needed::CublasLt.files(12), ["libcublasLt.so.12", "libcublasLt.so"]);
    }

    /// As pip unpacks the wheels of CUDA 12 (a folder for each) and 13 (one for all).
    #[test]
    fn wheels_are_found_where_pip_puts_them() {
        let dir = tempfile::tempdir().unwrap();
        for packages in ["lib/python3.11/site-packages", "lib/python3/dist-packages"] {
            for package in ["cuda_nvrtc", "cu13"] {
                let lib = dir.path().join(packages).join("nvidia").join(package).join("lib");
                std::fs::create_dir_all(&lib).unwrap();
                assert!(of_wheels(dir.path()).contains(&lib), "{}", lib.display());
            }
        }
    }

    #[test]
    fn what_is_missing_says_what_to_install() {
        for needed in Needed::ALL.into_iter().chain([Needed::Nccl]) {
            let text = Missing(needed).to_string();
            assert!(text.contains("install") && text.contains("lib"), "{text}");
        }
    }
}
