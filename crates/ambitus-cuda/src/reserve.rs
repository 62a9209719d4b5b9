//! What a card holds besides the arena: its context, the kernels, cuBLASLt, the recorded graphs. A constant for a card, a
//! driver and a build; measured at the first run,
//! [`STATED_RESERVE`](crate::STATED_RESERVE) before.

use crate::driver::CardInfo;
use crate::{nvml, nvrtc};
use std::path::PathBuf;

/// What a later run may take more than the measured one: a longer graph, another product's kernel.
const MARGIN: u64 = 64 << 20;

/// Returns the measured reserve of a card, if a run here measured it.
pub fn known(card: &CardInfo) -> Option<u64> {
    let text = std::fs::read_to_string(file(card)?).ok()?;
    // No card's context is larger than this; a damaged file is no measurement.
    text.trim().parse().ok().filter(|bytes| *bytes > 0 && *bytes < 16 << 30)
}

/// Returns the bytes that this process holds of the card at a PCI address, where the driver tells.
pub fn held(pci: &str) -> Option<u64> {
    let own = |h: &nvml::Holder| (h.pid == std::process::id()).then_some(h.bytes).flatten();
    nvml::card_at(pci).ok()?.holders.iter().find_map(own)
}

/// Remembers what this process holds besides its arena, for later plans. Where the driver does not tell, nothing is
/// remembered.
pub fn measure(card: &CardInfo, arena_bytes: u64) {
    let beside = held(&card.pci).and_then(|held| held.checked_sub(arena_bytes)).filter(|beside| *beside > 0);
    let (Some(beside), Some(file)) = (beside, file(card)) else { return };
    let bytes = (beside + MARGIN).max(known(card).unwrap_or(0));
    let half = file.with_extension(format!("{}.tmp", std::process::id()));
    let kept = file.parent().map_or(Ok(()), std::fs::create_dir_all);
    let kept = kept.and_then(|()| std::fs::write(&half, bytes.to_string()));
    // A reserve that cannot be kept is measured again by the next run.
    let _ = kept.and_then(|()| std::fs::rename(&half, &file));
}

fn file(card: &CardInfo) -> Option<PathBuf> {
    let what = format!("{} {:?} {}", card.name, card.driver, env!("CARGO_PKG_VERSION"));
    let name = format!("reserve-{}", &blake3::hash(what.as_bytes()).to_hex()[..16]);
    Some(nvrtc::cache()?.join(name))
}
