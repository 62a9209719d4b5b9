//! A build with CUDA.

use super::{Card, CardReport, CardsReport};
use ambitus_comm::Communicator;
use ambitus_cuda::driver::{self, CardInfo};
use ambitus_cuda::libraries::{self, Needed};
use ambitus_cuda::nccl;
use ambitus_cuda::nvml::{self, Holder, Nvml};
use ambitus_cuda::{CudaExecutor, CudaTarget, Ranks, STATED_RESERVE, nvrtc, reserve};
use ambitus_exec::executor::{ExecError, Executor};
use ambitus_families::error::RunError;
use ambitus_ir::plan::PlannedSession;
use ambitus_ir::target::Target;
use ambitus_recipe::size::ByteSize;
use std::sync::Arc;
use std::time::Duration;

pub(super) fn find(index: usize) -> Result<(Box<dyn Target>, Card), String> {
    let info = driver::card(index)?;
    // What would stop the run later is reported now.
    for needed in Needed::ALL {
        libraries::find(needed).map_err(|e| e.to_string())?;
    }
    let used = nvml::card_at(&info.pci).ok();
    let holders = used.as_ref().map_or(String::new(), |u| holders(&u.holders));
    let reserve = reserve::known(&info);
    let card = Card {
        name: info.name.clone(),
        pci: info.pci.clone(),
        // A slice of a card has less than the whole card's free memory.
        free_bytes: used.map(|u| u.free_bytes.min(info.total_bytes)),
        total_bytes: info.total_bytes,
        reserve_bytes: reserve.unwrap_or(STATED_RESERVE),
        connected: false,
        calibrated: reserve.is_some(),
        bf16: info.capability >= crate::cards::OLDEST_BF16,
        capability: info.capability,
        rates: info.rates,
        holders,
    };
    Ok((Box::new(CudaTarget::new(info.capability, info.rates)), card))
}

/// Returns `; held by python (812) 3.2 GiB`, or nothing.
fn holders(list: &[Holder]) -> String {
    let shown: Vec<String> = list.iter().filter(|h| h.pid != std::process::id()).map(holder).collect();
    if shown.is_empty() { String::new() } else { format!("; held by {}", shown.join(", ")) }
}

fn holder(h: &Holder) -> String {
    let name = if h.name.is_empty() { "process" } else { &h.name };
    let bytes = h.bytes.map_or("an unknown part".to_owned(), |b| ByteSize(b).to_string());
    format!("{name} ({}) {bytes}", h.pid)
}

pub(super) fn open(
    (index, tf32): (usize, bool),
    planned: Arc<PlannedSession>,
    kept: &str,
) -> Result<Box<dyn Executor>, ExecError> {
    let arena = planned.arena_bytes();
    let exec = CudaExecutor::open(planned, card((index, tf32), kept)?, None)?;
    reserve::measure(exec.card().info(), arena);
    Ok(Box::new(exec))
}

fn card((index, tf32): (usize, bool), kept: &str) -> Result<driver::Card, ExecError> {
    let mut card = driver::Card::open(index)?;
    card.recall(kept);
    Ok(if tf32 { card.with_tf32() } else { card })
}

/// Returns the cards that this process sees.
pub(super) fn visible() -> Result<usize, String> {
    driver::cards().map(|cards| cards.len())
}

/// Says whether cards can be connected.
pub(super) fn exchanges() -> Result<(), String> {
    nccl::check()
}

pub(super) fn connect(
    card: usize,
    (rank, ranks): (usize, usize),
    meeting: String,
    watchdog: Duration,
) -> Result<Arc<dyn Communicator>, RunError> {
    Ok(nccl::world::open(&nccl::world::Options { card, rank, ranks, meeting, watchdog })?)
}

pub(super) fn disconnect() -> Result<(), RunError> {
    Ok(nccl::world::finish()?)
}

/// Opens the device of one of several ranks. If NCCL connects the processes, programs use it too; otherwise `comm` tells its ranks
/// where to meet. `kept` as in [`Device::open`](super::Device::open). What the card holds besides the arena is not measured: it would be more than one card alone takes.
pub(super) fn open_rank(
    card_and_tf32: (usize, bool),
    planned: Arc<PlannedSession>,
    (host, watchdog): (&dyn Communicator, Duration),
    kept: &str,
) -> Result<Box<dyn Executor>, ExecError> {
    let card = card(card_and_tf32, kept)?;
    let nccl = match nccl::world::opened() {
        Some(world) => world.communicator(),
        None => Arc::new(nccl::Rank::connect(host, watchdog)?),
    };
    Ok(Box::new(CudaExecutor::open(planned, card, Some(Ranks { nccl, host }))?))
}

pub(super) fn held(pci: &str) -> Option<u64> {
    reserve::held(pci)
}

/// Returns the cards where only CUDA answers: who holds them is not told.
fn without_management(why: String) -> CardsReport {
    let report = |c: CardInfo| CardReport {
        capability: Some(format!("{}.{}", c.capability.0, c.capability.1)),
        name: c.name,
        total_bytes: c.total_bytes,
        free_bytes: c.total_bytes,
        holders: Vec::new(),
    };
    let cards: Vec<CardReport> = driver::cards().unwrap_or_default().into_iter().map(report).collect();
    CardsReport { cards, note: Some(why), ..CardsReport::default() }
}

/// Returns what `doctor` says of cards. Makes no context.
pub fn report() -> CardsReport {
    let mut report = CardsReport::default();
    let nvml = match Nvml::load() {
        Ok(nvml) => nvml,
        Err(why) => return without_management(why),
    };
    report.driver = nvml.driver_version().ok();
    let infos = driver::cards();
    report.libraries = vec![
        match nvrtc::version() {
            Ok((major, minor)) => format!("NVRTC {major}.{minor}"),
            Err(why) => why,
        },
        match libraries::find(Needed::CublasLt) {
            Ok(()) => "cuBLASLt".to_owned(),
            Err(why) => why.to_string(),
        },
    ];
    let capability = |pci: &str| -> Option<String> {
        let own = |c: &&CardInfo| pci.ends_with(&c.pci.to_lowercase());
        infos.as_ref().ok()?.iter().find(own).map(|c| format!("{}.{}", c.capability.0, c.capability.1))
    };
    match nvml.cards() {
        Ok(cards) => {
            report.cards = cards
                .into_iter()
                .map(|c| CardReport {
                    capability: capability(&c.pci),
                    name: c.name,
                    total_bytes: c.total_bytes,
                    free_bytes: c.free_bytes,
                    holders: c.holders.iter().map(holder).collect(),
                })
                .collect();
            report.note = infos.err();
        }
        Err(why) => report.note = Some(why),
    }
    report
}
