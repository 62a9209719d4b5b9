//! The driver's own count of memory, on the emulated management library.

use ambitus_cuda::nvml::{Nvml, card_at};
use ambitus_testkit::emulated_cuda;

#[test]
fn the_drivers_own_count_of_memory() {
    let Ok(folder) = emulated_cuda::libraries().inspect_err(|why| println!("SKIPPED: {why}")) else { return };
    // SAFETY: the emulated library, just compiled.
    let library = unsafe { libloading::Library::new(folder.join("libnvidia-ml.so")) };
    std::mem::forget(library.expect("the emulated library loads"));
    let nvml = Nvml::load().expect("it is loaded");
    assert_eq!(nvml.driver_version().expect("a version"), "0.0 emulated");
    let card = card_at("0000:01:00.0").expect("the card");
    assert_eq!((card.name.as_str(), card.total_bytes), ("emulated card", 4 << 30));
    assert_eq!((card.holders[0].pid, card.holders[0].bytes), (1, Some(256 << 20)));
    assert!(card.free_bytes <= card.total_bytes - (256 << 20));
    assert!(card_at("0000:02:00.0").is_err());
}
