//! All integration tests of this crate, in one binary: each more would be linked anew.

mod collectives;
mod emulated;

use ambitus_cuda::libraries::{self, Needed};
use ambitus_testkit::emulated_cuda;
use std::sync::{Mutex, MutexGuard, Once, PoisonError};

/// The emulated libraries, loaded, with how threads of a block take turns (0 upwards, 1 downwards, 2 shuffled) and whether
/// copies run late; `None` without a C++ compiler. Tests that hold it run one by one: the settings and the card's memory are the
/// process's.
fn emulation(turns: i32, late: bool) -> Option<MutexGuard<'static, ()>> {
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
    // SAFETY: the emulated driver has this function.
    unsafe {
        let driver = libloading::Library::new("libcuda.so").expect("the emulated driver is loaded");
        let settings =
            driver.get::<unsafe extern "C" fn(i32, i32)>("emulated_settings").expect("its settings");
        settings(turns, i32::from(late));
        std::mem::forget(driver);
    }
    Some(one)
}
