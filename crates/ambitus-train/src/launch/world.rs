//! From a rank of a launcher to ranks that exchange bytes: which launcher starts which engine, and the run's end.
//!
//! | launcher | engine |
//! |---|---|
//! | Open MPI's mpirun, srun --mpi=pmix, whatever else speaks PMIx | MPI (feature `mpi`) |
//! | torchrun, srun without PMIx, a Kubernetes indexed job: variables and a meeting place | on cards NCCL (feature `cuda`); on processors none: said, with what to use |
//!
//! Every process runs the same program; rank 0 prints and writes. One that fails ends all ([`abort`]).

use super::{Env, Launcher, Worker, meeting, present, worker};
use ambitus_comm::Communicator;
use ambitus_families::error::RunError;
use ambitus_plan::device::{self, Device};
use ambitus_recipe::recipe::DeviceChoice;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// How long a rank waits for another in one collective by default.
pub const WATCHDOG: Duration = Duration::from_secs(120);

/// The processes that were started as one run, as one of them sees them.
#[derive(Clone, Debug)]
pub struct Processes {
    /// Its end.
    pub comm: Arc<dyn Communicator>,
    /// Ranks on its host, itself among them: they share its cores and memory.
    pub here: usize,
    /// Which of them this is, from 0: of the host's cards it has that one.
    pub local: usize,
    /// What exchanging takes of this process's memory.
    pub bytes: u64,
}

/// How a world behaves.
#[derive(Clone, Copy, Debug)]
pub struct WorldOptions {
    /// How long to wait for another rank in one collective.
    pub watchdog: Duration,
    /// What the run computes on: cards can be connected by NCCL.
    pub device: DeviceChoice,
    /// Tells people.
    pub notice: fn(&str),
}

/// Returns the world that a launcher made of this process and others; `None` if it runs alone. `ranks`: what was asked for.
///
/// # Errors
/// Variables that contradict each other or `ranks`, a launcher whose engine is not there, a build without it, ranks that do
/// not come.
pub fn world(ranks: Option<usize>, options: WorldOptions) -> Result<Option<Processes>, RunError> {
    WAIT.get_or_init(|| options.watchdog);
    let env = |name: &str| std::env::var(name).ok();
    let on_cards = options.device != DeviceChoice::Cpu;
    match started(&env, ranks, on_cards)? {
        None => Ok(None),
        Some((worker, Engine::Mpi)) => open(&worker, options).map(Some),
        Some((worker, Engine::Nccl(meeting))) => connect(&worker, meeting, options).map(Some),
    }
}

/// How long ranks wait for each other in this process.
static WAIT: OnceLock<Duration> = OnceLock::new();

/// Returns how long a rank waits for another in one collective, as [`world`] was told.
pub fn watchdog() -> Duration {
    WAIT.get().copied().unwrap_or(WATCHDOG)
}

/// What connects processes.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Engine {
    /// MPI, which finds them itself.
    Mpi,
    /// NCCL, whose ranks meet at an address, `host:port`.
    Nccl(String),
}

/// Returns the worker that this process is, if there are several, and what connects it.
fn started(env: Env, ranks: Option<usize>, on_cards: bool) -> Result<Option<(Worker, Engine)>, RunError> {
    let found = worker(env).map_err(|e| RunError::Usage(e.to_string()))?;
    let Some(worker) = found.filter(|w| w.world > 1) else { return Ok(None) };
    let engine = engine(&worker, env, on_cards).map_err(RunError::Usage)?;
    match ranks {
        Some(n) if n != worker.world as usize => Err(RunError::Usage(format!(
            "--ranks {n}: {} started {} processes, and each is a rank: leave --ranks out, or start {n}",
            worker.launcher.name(),
            worker.world
        ))),
        _ => Ok(Some((worker, engine))),
    }
}

/// Returns what connects the processes of a launcher; refuses those that nothing does.
fn engine(worker: &Worker, env: Env, on_cards: bool) -> Result<Engine, String> {
    let Worker { launcher, world, .. } = worker;
    let nested = present(env, "TORCHELASTIC_RUN_ID").is_some();
    let mpi = ["OMPI_COMM_WORLD_RANK", "PMIX_RANK"].iter().any(|name| present(env, name).is_some());
    match launcher {
        _ if mpi && !nested => Ok(Engine::Mpi),
        Launcher::Torchrun | Launcher::Kubernetes | Launcher::Slurm if on_cards => {
            meets(*launcher, env).map(Engine::Nccl)
        }
        Launcher::Torchrun => Err(format!(
            "torchrun (RANK, WORLD_SIZE) started {world} processes, and only NCCL connects them, which needs GPUs: \
             set device: cuda (--device cuda), or start them as `mpirun -np {world} ambitus …`"
        )),
        Launcher::Kubernetes => Err(format!(
            "an indexed job (JOB_COMPLETION_INDEX) started {world} pods, and on CPUs nothing connects them: set \
             device: cuda (--device cuda), or run an MPIJob of kubeflow's mpi-operator instead, which starts mpirun \
             (examples/launch/kubernetes.yaml)"
        )),
        _ if present(env, "SLURM_STEP_ID").is_some() => Err(format!(
            "srun started {world} processes without PMIx, by which MPI finds them: start them as \
             `srun --mpi=pmix ambitus …`, or as `mpirun ambitus …` in the job; on GPUs (--device cuda) `srun --mpi=none` \
             with MASTER_ADDR and MASTER_PORT does"
        )),
        _ => Err(format!(
            "an MPI launcher that is not Open MPI's (PMI_RANK, PMI_SIZE) started {world} processes: start them with Open \
             MPI's mpirun"
        )),
    }
}

/// Returns where NCCL's ranks meet: its own variable, or a port above the launcher's, whose own store listens at that.
fn meets(launcher: Launcher, env: Env) -> Result<String, String> {
    if let Some(address) = present(env, "NCCL_COMM_ID") {
        return Ok(address);
    }
    let Some((host, port)) = meeting(env).map_err(|e| e.to_string())? else {
        return Err(format!(
            "MASTER_ADDR: {} does not say where the ranks meet: set MASTER_ADDR to rank 0's host and MASTER_PORT to a port \
             (NCCL listens at the next one)",
            launcher.name()
        ));
    };
    let Some(port) = port.checked_add(1) else {
        return Err(
            "MASTER_PORT: is 65535, and NCCL's ranks meet at the port after it: set a lower one".to_owned()
        );
    };
    let host = if host.contains(':') && !host.starts_with('[') { format!("[{host}]") } else { host };
    Ok(format!("{host}:{port}"))
}

/// This process among those that NCCL connects, once it does.
static CONNECTED: OnceLock<(usize, String)> = OnceLock::new();

fn connect(worker: &Worker, meeting: String, options: WorldOptions) -> Result<Processes, RunError> {
    let (rank, ranks, local) = (worker.rank as usize, worker.world as usize, worker.local_rank as usize);
    let card = Device::of_rank(options.device, local)?;
    let comm = device::connect(card, (rank, ranks), meeting, options.watchdog)?;
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let name = name.trim();
    let mut mine = [0; 64];
    let n = name.len().min(mine.len());
    mine[..n].copy_from_slice(&name.as_bytes()[..n]);
    let mut all = vec![0; ranks * mine.len()];
    comm.all_gather("the start of the run", &(0..ranks).collect::<Vec<_>>(), &mine, &mut all)?;
    let here = all.chunks_exact(mine.len()).filter(|host| **host == mine).count();
    CONNECTED.get_or_init(|| (rank, name.to_owned()));
    // NCCL's buffers on the host are pinned pages of some MiB; its threads share the process's memory.
    Ok(Processes { comm, here, local, bytes: NCCL_BYTES })
}

/// What NCCL takes of the host's memory, at most some tens of MiB: not measured. On cards the budget is the card's.
const NCCL_BYTES: u64 = 64 << 20;

#[cfg(feature = "mpi")]
fn open(worker: &Worker, options: WorldOptions) -> Result<Processes, RunError> {
    use ambitus_comm::mpi::{self, Options};
    let WorldOptions { watchdog, notice, .. } = options;
    let code = RunError::Ranks(String::new()).exit_code();
    let end = mpi::open(Options { watchdog, notice, asked: ambitus_families::stop::requested, code })?;
    if (end.rank(), end.ranks()) != (worker.rank as usize, worker.world as usize) {
        return Err(RunError::Usage(format!(
            "{} says that this is rank {} of {}, and MPI that it is rank {} of {}: is another Open MPI's mpirun first in \
             PATH than libmpi.so in the loader's?",
            worker.launcher.name(),
            worker.rank,
            worker.world,
            end.rank(),
            end.ranks()
        )));
    }
    let local = worker.local_rank as usize;
    Ok(Processes { here: end.here(), local, bytes: mpi::world_bytes(end.ranks()), comm: end })
}

#[cfg(not(feature = "mpi"))]
fn open(worker: &Worker, _: WorldOptions) -> Result<Processes, RunError> {
    let Worker { launcher, world, .. } = worker;
    Err(RunError::Usage(format!(
        "{} started {world} processes, and this build connects none: build it with `cargo build --release`, \
         or start one process with --ranks {world}",
        launcher.name()
    )))
}

/// Returns which rank of several this process is, for messages; `None` if it runs alone or before [`world`].
pub fn this_rank() -> Option<(usize, String)> {
    #[cfg(feature = "mpi")]
    if let Some(rank) = ambitus_comm::mpi::this_rank() {
        return Some(rank);
    }
    CONNECTED.get().cloned()
}

/// Ends the run in an orderly way: waits for all ranks.
///
/// # Errors
/// One that does not come.
pub fn finish() -> Result<(), RunError> {
    #[cfg(feature = "mpi")]
    ambitus_comm::mpi::finish()?;
    device::disconnect()
}

/// Ends all ranks with this exit code; returns where this process runs alone. Of processes that NCCL connects it ends this one:
/// its launcher ends the others, and they notice.
pub fn abort(code: u8) {
    #[cfg(feature = "mpi")]
    ambitus_comm::mpi::abort(code);
    if CONNECTED.get().is_some() {
        // Without the exit handlers of libraries, which may wait for what another rank does not send.
        // SAFETY: takes a number and does not return; nothing runs that could see half a state.
        unsafe { libc::_exit(code.into()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn on(env: &str, ranks: Option<usize>, cards: bool) -> Result<Option<(Worker, Engine)>, String> {
        let pairs: Vec<(&str, &str)> = env.split(' ').filter_map(|pair| pair.split_once('=')).collect();
        let env = |name: &str| pairs.iter().find(|(n, _)| *n == name).map(|(_, v)| (*v).to_owned());
        started(&env, ranks, cards).map_err(|e| e.to_string())
    }

    /// Returns the rank on CPUs, which only MPI connects.
    fn of(env: &str, ranks: Option<usize>) -> Result<Option<u32>, String> {
        let found = on(env, ranks, false)?;
        Ok(found.map(|(worker, engine)| {
            assert_eq!(engine, Engine::Mpi);
            worker.rank
        }))
    }

    const MPIRUN: &str = "OMPI_COMM_WORLD_RANK=3 OMPI_COMM_WORLD_SIZE=4 OMPI_COMM_WORLD_LOCAL_RANK=1";
    const STEP: &str = "SLURM_STEP_ID=0 SLURM_PROCID=1 SLURM_NTASKS=2 SLURM_LOCALID=1";
    const TORCH: &str = "RANK=1 WORLD_SIZE=4 LOCAL_RANK=1";

    #[test]
    fn launchers_that_connect_their_processes_are_taken() {
        assert_eq!(of("", Some(4)), Ok(None));
        // One process is not a world, whatever started it.
        assert_eq!(of("RANK=0 WORLD_SIZE=1", Some(4)), Ok(None));
        assert_eq!(of("OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=1", None), Ok(None));
        assert_eq!(of(MPIRUN, None), Ok(Some(3)));
        assert_eq!(of(MPIRUN, Some(4)), Ok(Some(3)));
        assert_eq!(of(&format!("{STEP} PMIX_RANK=1"), None), Ok(Some(1)));
        assert_eq!(of(&format!("{MPIRUN} RANK=3 WORLD_SIZE=4 LOCAL_RANK=1"), None), Ok(Some(3)));
    }

    #[test]
    fn others_are_told_what_does() {
        for (env, words) in [
            (TORCH.to_owned(), "mpirun -np 4 ambitus"),
            // mpirun that starts a torchrun on each host connects the torchruns.
            (format!("{MPIRUN} {TORCH} TORCHELASTIC_RUN_ID=x"), "NCCL"),
            ("JOB_COMPLETION_INDEX=1 WORLD_SIZE=2".to_owned(), "MPIJob"),
            (STEP.to_owned(), "srun --mpi=pmix"),
            (format!("{STEP} PMI_RANK=1 PMI_SIZE=2 MPI_LOCALRANKID=1"), "srun --mpi=pmix"),
            ("PMI_RANK=1 PMI_SIZE=2 MPI_LOCALRANKID=1".to_owned(), "Open MPI's mpirun"),
            ("RANK=1".to_owned(), "WORLD_SIZE: is not set"),
        ] {
            let said = of(&env, None).expect_err(&env);
            assert!(said.contains(words), "{env}: {said}");
        }
        let said = of(MPIRUN, Some(2)).expect_err("other ranks");
        assert!(said.starts_with("--ranks 2: Open MPI started 4 processes"), "{said}");
    }

    #[test]
    fn on_cards_nccl_connects_what_mpi_does_not() {
        let at = |env: &str| on(env, None, true).map(|found| found.map(|(w, e)| (w.rank, w.local_rank, e)));
        let nccl = |rank, local, address: &str| Ok(Some((rank, local, Engine::Nccl(address.to_owned()))));
        let meeting = "MASTER_ADDR=node1 MASTER_PORT=29500";
        assert_eq!(at(&format!("{TORCH} {meeting}")), nccl(1, 1, "node1:29501"));
        assert_eq!(at(&format!("{STEP} {meeting}")), nccl(1, 1, "node1:29501"));
        let pod = "JOB_COMPLETION_INDEX=1 WORLD_SIZE=2";
        assert_eq!(at(&format!("{pod} {meeting}")), nccl(1, 0, "node1:29501"));
        // mpirun that starts a torchrun on each host.
        let nested = format!("{MPIRUN} {TORCH} TORCHELASTIC_RUN_ID=x {meeting}");
        assert_eq!(at(&nested), nccl(1, 1, "node1:29501"));
        assert_eq!(at(&format!("{TORCH} MASTER_ADDR=fe80::1 MASTER_PORT=1")), nccl(1, 1, "[fe80::1]:2"));
        assert_eq!(at(&format!("{TORCH} {meeting} NCCL_COMM_ID=a:5")), nccl(1, 1, "a:5"));
        // MPI connects what it starts, on cards too.
        assert_eq!(at(&format!("{MPIRUN} {meeting}")), Ok(Some((3, 1, Engine::Mpi))));
        assert_eq!(at(&format!("{STEP} PMIX_RANK=1")), Ok(Some((1, 1, Engine::Mpi))));
        assert_eq!(at("RANK=0 WORLD_SIZE=1"), Ok(None));
        for (env, words) in [
            (TORCH.to_owned(), "MASTER_ADDR: torchrun does not say"),
            (format!("{STEP} MASTER_ADDR=a"), "MASTER_PORT: is not set"),
            (format!("{TORCH} MASTER_ADDR=a MASTER_PORT=65535"), "MASTER_PORT: is 65535"),
            ("PMI_RANK=1 PMI_SIZE=2 MPI_LOCALRANKID=1".to_owned(), "Open MPI's mpirun"),
        ] {
            let said = at(&env).expect_err(&env);
            assert!(said.contains(words), "{env}: {said}");
        }
        assert!(on(&format!("{TORCH} {meeting}"), Some(2), true).is_err());
    }
}
