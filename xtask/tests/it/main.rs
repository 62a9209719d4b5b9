//! All integration tests of this crate, in one binary: each more would be linked anew.

mod collectives;
mod emulated;
mod mutations;
mod rehearsal;
mod together;
mod warp;
mod warpgroup;

use ambitus_cuda::libraries::{self, Needed};
use ambitus_testkit::emulated_cuda;
use std::process::Command;
use std::sync::{Mutex, MutexGuard, Once, PoisonError};

/// How the emulated card runs kernels.
#[derive(Clone, Copy, Default)]
struct Emulation {
    /// How threads of a block take turns: 0 upwards, 1 downwards, 2 shuffled, 3 and 4 warp by warp upwards and downwards.
    turns: i32,
    /// Whether copies run late.
    late: bool,
    /// Whether loads and stores that no barrier divides are faults.
    races: bool,
    /// Whether it is a card of compute capability 9.0, not 8.0.
    hopper: bool,
}

/// The emulated libraries, loaded; `None` without a C++ compiler. Tests that hold it run one by one: the settings and the card's
/// memory are the process's.
fn emulation(how: Emulation) -> Option<MutexGuard<'static, ()>> {
    static ONE: Mutex<()> = Mutex::new(());
    static LOADED: Once = Once::new();
    let one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    let folder = emulated_cuda::libraries().map_err(|why| println!("SKIPPED: {why}")).ok()?;
    LOADED.call_once(|| {
        for needed in Needed::ALL.into_iter().chain([Needed::Nccl]) {
            assert!(
                libraries::load(needed, std::slice::from_ref(&folder)),
                "{needed:?} of the emulation loads"
            );
        }
        // SAFETY: the emulated library, just compiled.
        let management = unsafe { libloading::Library::new(folder.join("libnvidia-ml.so")) };
        std::mem::forget(management.expect("the emulated management library loads"));
    });
    type Settings = unsafe extern "C" fn(i32, i32, i32);
    // SAFETY: the emulated driver has both functions.
    unsafe {
        of_driver::<Settings>("emulated_settings")(how.turns, i32::from(how.late), i32::from(how.races));
        of_driver::<unsafe extern "C" fn(i32)>("emulated_hopper")(how.hopper.into());
    };
    Some(one)
}

/// Runs a long test, by its name, in a process of its own, where it waits for no other that holds [`emulation`].
fn apart(name: &str, test: impl FnOnce()) {
    const APART: &str = "AMBITUS_APART";
    if std::env::var_os(APART).is_some() {
        return test();
    }
    let me = std::env::current_exe().expect("a running program has a path");
    let done = Command::new(me).args([name, "--exact", "--nocapture"]).env(APART, "1").output();
    let done = done.expect("the test runs");
    let (said, why) = (String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr));
    println!("{said}");
    assert!(done.status.success() && said.contains("1 passed"), "{name}: {why}");
}

/// Returns a function of the emulated driver, which is loaded.
fn of_driver<F: Copy>(name: &str) -> F {
    // SAFETY: the library was compiled from this repository, and stays loaded; callers name the function's type.
    unsafe {
        let driver = libloading::Library::new("libcuda.so").expect("the emulated driver is loaded");
        let found = *driver.get::<F>(name).expect("a function of the emulated driver");
        std::mem::forget(driver);
        found
    }
}
