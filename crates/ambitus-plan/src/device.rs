//! Where a run computes, and whose memory its budget bounds: this process (`cpu`) or a GPU (`cuda`).
//!
//! The one place that chooses between builds with and without CUDA.

#[cfg_attr(feature = "cuda", path = "device/cuda.rs")]
#[cfg_attr(not(feature = "cuda"), path = "device/no_cuda.rs")]
mod cuda;
mod precision;

use crate::budget::{self, Beside, Shape, process_bytes, ranks_bytes};
use crate::cards;
use crate::memory;
use ambitus_comm::Communicator;
use ambitus_cuda::{CudaTarget, STATED_RESERVE};
use ambitus_exec::cpu::{CpuExecutor, CpuOptions, CpuTarget};
use ambitus_exec::executor::Executor;
use ambitus_families::error::RunError;
use ambitus_ir::plan::PlannedSession;
use ambitus_ir::target::{Links, Rates, Target};
use ambitus_recipe::recipe::{DeviceChoice, Recipe};
use ambitus_recipe::size::ByteSize;
use serde::Serialize;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

pub use cuda::report;

/// A device as planning sees it. No memory of it is allocated before [`Device::open`].
pub struct Device {
    /// The recipe's choice; `None` for a card of `cards.toml`, which can only be planned for.
    choice: Option<DeviceChoice>,
    /// Compute threads, of each rank.
    threads: usize,
    /// Ranks in this process.
    ranks: usize,
    /// Bytes of this process that connect it with other ranks.
    engine_bytes: u64,
    /// Ranks of this process each have a card, from the chosen one on.
    cards: bool,
    target: Box<dyn Target>,
    card: Option<Card>,
    /// Matrix products read fp32 operands as TF32.
    tf32: bool,
}

/// What planning must know of a card.
#[derive(Clone, Debug, PartialEq)]
struct Card {
    /// Its name.
    name: String,
    /// PCI address.
    pci: String,
    /// Bytes that are free now; `None` if the driver does not tell without a context.
    free_bytes: Option<u64>,
    /// Its whole memory.
    total_bytes: u64,
    /// What context, kernels and libraries take besides the arena.
    reserve_bytes: u64,
    /// NCCL is one of these libraries.
    connected: bool,
    /// The reserve was measured on this card with this driver.
    calibrated: bool,
    /// Who holds the rest, for messages.
    holders: String,
    /// It computes in bfloat16.
    bf16: bool,
    /// Compute capability: major, minor.
    capability: (u32, u32),
    /// What it does per second.
    rates: Rates,
}

/// The cards of this machine, for `doctor`.
#[derive(Clone, Debug, Default, Serialize)]
pub struct CardsReport {
    /// The driver's version.
    pub driver: Option<String>,
    /// Versions of the libraries, or what is missing and what to install.
    pub libraries: Vec<String>,
    /// Every card.
    pub cards: Vec<CardReport>,
    /// Why there are none.
    pub note: Option<String>,
}

/// One card and who uses it.
#[derive(Clone, Debug, Serialize)]
pub struct CardReport {
    /// Name.
    pub name: String,
    /// Compute capability, where CUDA starts.
    pub capability: Option<String>,
    /// Bytes of memory.
    pub total_bytes: u64,
    /// Bytes that are free.
    pub free_bytes: u64,
    /// Processes that hold memory, largest first.
    pub holders: Vec<String>,
}

impl Device {
    /// Looks for the device of a recipe.
    ///
    /// # Errors
    /// No such card, or a build without CUDA: what to do is in the text.
    pub fn find(choice: DeviceChoice, threads: usize) -> Result<Device, RunError> {
        let (target, card): (Box<dyn Target>, _) = match choice {
            DeviceChoice::Cpu => (Box::new(CpuTarget::new(threads)), None),
            DeviceChoice::Cuda(index) => {
                let (target, card) = cuda::find(index).map_err(RunError::Device)?;
                (target, Some(card))
            }
        };
        Ok(Device {
            choice: Some(choice),
            threads,
            ranks: 1,
            engine_bytes: 0,
            cards: false,
            target,
            card,
            tf32: false,
        })
    }

    /// Returns this machine's processor with rates that are measured now, in 0.2 seconds.
    ///
    /// # Errors
    /// When the system refuses the threads.
    pub fn calibrated_cpu(threads: usize) -> Result<Device, RunError> {
        let target = Box::new(CpuTarget::calibrate(threads)?);
        Ok(Device {
            choice: Some(DeviceChoice::Cpu),
            threads,
            ranks: 1,
            engine_bytes: 0,
            cards: false,
            target,
            card: None,
            tf32: false,
        })
    }

    /// Returns a card of `cards.toml`, on any machine: what `--device cuda` compiles there, by the table's figures.
    pub fn for_card(card: &cards::Card, threads: usize) -> Device {
        let links = Links::of_host(usize::MAX, card.peer_gb_per_s * 1e9);
        Self::for_cards(card, links, threads)
    }

    /// Returns a card of `cards.toml`, one of several that `links` joins. See [`Device::for_card`].
    pub fn for_cards(card: &cards::Card, links: Links, threads: usize) -> Device {
        let rates = Rates {
            gemm: card.fp32_tflops * 1e12,
            half: card.half_tflops * 1e12,
            bytes: card.memory_gb_per_s * 1e9,
            link: card.link_gb_per_s * 1e9,
            links,
        };
        let target = Box::new(CudaTarget::new(card.capability, rates));
        let card = Card {
            bf16: card.bf16,
            capability: card.capability,
            rates,
            name: card.name.clone(),
            pci: String::new(),
            free_bytes: None,
            total_bytes: card.usable.0,
            reserve_bytes: STATED_RESERVE,
            connected: false,
            calibrated: false,
            holders: String::new(),
        };
        Device {
            choice: None,
            threads,
            ranks: 1,
            engine_bytes: 0,
            cards: false,
            target,
            card: Some(card),
            tf32: false,
        }
    }

    /// Returns this device with `ranks` ranks that compute in this process. Their arenas share its memory; each GPU has its own.
    pub fn with_ranks(self, ranks: usize) -> Device {
        match self.is_card() {
            true => Device { cards: ranks > 1, ..self.connected(ranks) },
            false => Device { ranks, ..self },
        }
    }

    /// Reserves NCCL's buffers in a GPU's memory if there are other ranks.
    pub fn connected(mut self, ranks: usize) -> Device {
        if let Some(card) = self.card.as_mut().filter(|_| ranks > 1) {
            card.reserve_bytes += EXCHANGE_RESERVE;
            card.connected = true;
        }
        self
    }

    /// Returns the device of a process that is number `local` of those on its host, where the first has `choice`.
    ///
    /// # Errors
    /// Fewer cards than processes.
    pub fn of_rank(choice: DeviceChoice, local: usize) -> Result<DeviceChoice, RunError> {
        match choice {
            DeviceChoice::Cuda(first) if local > 0 => {
                let visible = cuda::visible().map_err(RunError::Device)?;
                card_of(first, local, visible).map(DeviceChoice::Cuda).map_err(RunError::Usage)
            }
            choice => Ok(choice),
        }
    }

    /// Refuses ranks that nothing would connect here.
    ///
    /// # Errors
    /// A card without NCCL: what to install.
    pub fn require_engine(&self) -> Result<(), RunError> {
        if self.is_card() && !self.is_listed() { cuda::exchanges().map_err(RunError::Device) } else { Ok(()) }
    }

    /// Returns this device with `engine_bytes` of the process taken by what connects it with other ranks.
    pub fn beside_engine(self, engine_bytes: u64) -> Device {
        Device { engine_bytes, ..self }
    }

    /// Returns whether it is a card of `cards.toml`.
    pub fn is_listed(&self) -> bool {
        self.choice.is_none()
    }

    /// Returns what compilation asks.
    pub fn target(&self) -> &dyn Target {
        &*self.target
    }

    /// Returns the device's name for people: `2 threads (cpu)`, or the card's name.
    pub fn name(&self) -> String {
        match &self.card {
            None => {
                let threads =
                    format!("{} thread{} (cpu)", self.threads, if self.threads == 1 { "" } else { "s" });
                if self.ranks > 1 { format!("{} ranks of {threads}", self.ranks) } else { threads }
            }
            Some(card) => card.name.clone(),
        }
    }

    /// Returns whether the budget bounds a card's memory.
    pub fn is_card(&self) -> bool {
        self.card.is_some()
    }

    /// Returns what the budget must hold besides the arena.
    pub fn beside(&self) -> Beside {
        match &self.card {
            None => Beside {
                fixed_bytes: process_bytes(self.ranks * self.threads)
                    + ranks_bytes(self.ranks)
                    + self.engine_bytes,
                with_host: true,
                ranks: self.ranks,
            },
            Some(card) => Beside { fixed_bytes: card.reserve_bytes, with_host: false, ranks: 1 },
        }
    }

    /// Returns the budget of a recipe, and, if the recipe does not set it, what it was made from.
    ///
    /// # Errors
    /// When this machine's memory cannot be read.
    pub fn budget(&self, recipe: &Recipe) -> Result<(u64, String), RunError> {
        match recipe.memory {
            Some(ByteSize(n)) => Ok((n, String::new())),
            None => self.default_budget(),
        }
    }

    /// Returns the budget of a run that names none, and what it was made from.
    ///
    /// # Errors
    /// When this machine's memory cannot be read.
    pub fn default_budget(&self) -> Result<(u64, String), RunError> {
        let Some(card) = &self.card else { return host_budget() };
        if self.is_listed() {
            return Ok((card.total_bytes, format!("usable on {}, by cards.toml", card.name)));
        }
        let (free, what) = match card.free_bytes {
            Some(free) => (free, "free"),
            None => (card.total_bytes, "there in all (the driver does not tell what is free)"),
        };
        let bytes = free / 100 * memory::DEFAULT_PERCENT;
        let from = format!(
            "{} % of the {} of {} that are {what}{}",
            memory::DEFAULT_PERCENT,
            ByteSize(free),
            card.name,
            card.holders
        );
        Ok((bytes, from))
    }

    /// Returns what a run that names no budget for it may use of the host's memory besides `taken` bytes of the budget, and what
    /// that was made from. `None` on a card that is not here.
    ///
    /// # Errors
    /// When this machine's memory cannot be read.
    pub fn default_host_budget(&self, taken: u64) -> Result<Option<(u64, String)>, RunError> {
        if self.is_listed() {
            return Ok(None);
        }
        let (free, from) = host_budget()?;
        Ok(Some(match self.card {
            None => (free.saturating_sub(taken), format!("{from}, less the plan's {}", ByteSize(taken))),
            Some(_) => (free, from),
        }))
    }

    /// Returns what may wait in the host's memory, at most: its budget, on a card less the process. Unbounded where the machine
    /// is not known, or cannot be read: a budget that is not given is checked again with the plan.
    pub fn host_room(&self, given: Option<ByteSize>, shape: &Shape) -> u64 {
        let free = || self.default_host_budget(0).ok().flatten().map(|(bytes, _)| bytes);
        let process = if self.is_card() { budget::host_bytes(shape, self.threads) } else { 0 };
        given.map(|b| b.0).or_else(free).map_or(u64::MAX, |bytes| bytes.saturating_sub(process))
    }

    /// Returns the number of compute threads on the host.
    pub fn threads(&self) -> usize {
        self.threads
    }

    /// Returns what preparing may use of the host's memory, where the budget is another memory's.
    ///
    /// # Errors
    /// When this machine's memory cannot be read.
    pub fn prepare_budget(&self, budget: u64) -> Result<u64, RunError> {
        if self.card.is_none() { Ok(budget) } else { host_budget().map(|(bytes, _)| bytes) }
    }

    /// Refuses a plan for which the card has too little free memory, whatever the budget says.
    ///
    /// # Errors
    /// [`RunError::DoesNotFit`] with who holds the rest.
    pub fn require_free(&self, peak: u64) -> Result<(), RunError> {
        match &self.card {
            Some(card) if card.free_bytes.is_some_and(|free| peak > free) => Err(RunError::does_not_fit(
                peak,
                format!(
                    "does not fit: needs {} of {}, {} of its {} are free{}\n  end what holds the rest, or leave out \
                     --memory to plan for what is free",
                    ByteSize(peak),
                    card.name,
                    ByteSize(card.free_bytes.unwrap_or(0)),
                    ByteSize(card.total_bytes),
                    card.holders
                ),
            )),
            _ => Ok(()),
        }
    }

    /// Returns how the fixed bytes are known, for plans.
    pub fn reserve_note(&self) -> Option<String> {
        let card = self.card.as_ref()?;
        let known = match (self.is_listed(), card.calibrated) {
            (true, _) => "a reserve; the first run there measures it",
            (false, true) => "measured here before",
            (false, false) => "a reserve until the first run measures it",
        };
        Some(format!(
            "context, kernels and libraries{} of {}: {} ({known})",
            if card.connected { ", NCCL among them," } else { "" },
            card.name,
            ByteSize(card.reserve_bytes)
        ))
    }

    /// Allocates the memory and makes everything ready to run. `disk` is the folder of the host arena's file, if it is not kept in
    /// memory; `kept` the [choices](Executor::choices) of the executor that a resumed run was begun with, empty for a new one.
    ///
    /// # Errors
    /// When the device refuses, or the disk is full.
    pub fn open(
        &self,
        planned: Arc<PlannedSession>,
        disk: Option<&Path>,
        kept: &str,
    ) -> Result<Box<dyn Executor>, RunError> {
        match self.choice {
            Some(DeviceChoice::Cpu) => {
                let options = CpuOptions { threads: self.threads, disk, ..CpuOptions::default() };
                Ok(Box::new(CpuExecutor::open(planned, options)?))
            }
            Some(DeviceChoice::Cuda(index)) => Ok(cuda::open((index, self.tf32), planned, kept)?),
            None => Err(RunError::Usage(format!(
                "{} was planned for, and is not here: --device cuda",
                self.name()
            ))),
        }
    }

    /// Opens the device of one of several ranks, which end when one of them waits for longer than `watchdog`. See
    /// [`Device::open`].
    ///
    /// # Errors
    /// As [`Device::open`]; on a card also no NCCL.
    pub fn open_rank(
        &self,
        planned: Arc<PlannedSession>,
        disk: Option<&Path>,
        (comm, watchdog): (Arc<dyn Communicator>, Duration),
        kept: &str,
    ) -> Result<Box<dyn Executor>, RunError> {
        let Some(DeviceChoice::Cuda(first)) = self.choice else {
            let options =
                CpuOptions { threads: self.threads, disk, comm: Some(comm), ..CpuOptions::default() };
            return Ok(Box::new(CpuExecutor::open(planned, options)?));
        };
        let index = if self.cards { first + comm.rank() } else { first };
        Ok(cuda::open_rank((index, self.tf32), planned, (&*comm, watchdog), kept)?)
    }

    /// Returns what this process holds on its card: all of it is taken when the executor is opened. `None` without a card.
    pub fn held_on_card(&self) -> Option<u64> {
        self.card.as_ref().and_then(|card| cuda::held(&card.pci))
    }
}

/// Bytes reserved on each of several cards for NCCL's own buffers: not measured, some hundred MiB are reported.
const EXCHANGE_RESERVE: u64 = 1 << 30;

/// Returns the card of a process that is number `local` on its host, of those it sees from `first` on. One that sees a single
/// card was given its own (srun --gpus-per-task=1, a pod with one card).
fn card_of(first: usize, local: usize, visible: usize) -> Result<usize, String> {
    match first + local {
        _ if visible == 1 && first == 0 => Ok(0),
        card if card < visible => Ok(card),
        card => Err(format!(
            "this process is number {local} of those on its host, and would use GPU cuda:{card}: there are {visible} (the \
             first process has cuda:{first}); start at most {} on this host",
            visible.saturating_sub(first)
        )),
    }
}

/// Connects this process, which drives card `card`, with others that meet at an address: ranks `(this, of)`.
///
/// # Errors
/// A build without CUDA, no card, no NCCL, or ranks that do not come.
pub fn connect(
    card: DeviceChoice,
    ranks: (usize, usize),
    meeting: String,
    watchdog: Duration,
) -> Result<Arc<dyn Communicator>, RunError> {
    let DeviceChoice::Cuda(card) = card else {
        return Err(RunError::Usage("NCCL connects GPUs: set device: cuda (--device cuda)".to_owned()));
    };
    cuda::connect(card, ranks, meeting, watchdog)
}

/// Ends what [`connect`] made, in an orderly way; nothing if it was not called.
///
/// # Errors
/// A rank that does not come.
pub fn disconnect() -> Result<(), RunError> {
    cuda::disconnect()
}

/// Returns what a run may use of this machine's memory.
fn host_budget() -> Result<(u64, String), RunError> {
    memory::default_budget()
        .map(|b| (b.bytes, b.to_string()))
        .map_err(|e| RunError::Usage(format!("{e}; say how much the run may use: --memory 8GiB")))
}

#[cfg(test)]
mod tests {
    use super::card_of;

    #[test]
    fn processes_of_a_host_have_a_card_each() {
        assert_eq!(card_of(0, 3, 4), Ok(3));
        assert_eq!(card_of(2, 1, 4), Ok(3));
        // Each was given its own, which it sees as the first.
        assert_eq!(card_of(0, 3, 1), Ok(0));
        let said = card_of(0, 4, 4).expect_err("too few");
        assert!(said.contains("cuda:4: there are 4") && said.contains("at most 4"), "{said}");
        assert!(card_of(1, 0, 1).expect_err("too few").contains("at most 0"));
    }
}
