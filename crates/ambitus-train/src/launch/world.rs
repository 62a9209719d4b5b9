//! From a rank of a launcher to ranks that exchange bytes: which launcher starts which engine, and the run's end.
//!
//! | launcher | engine |
//! |---|---|
//! | Open MPI's mpirun, srun --mpi=pmix, whatever else speaks PMIx | MPI (feature `mpi`) |
//! | torchrun, a Kubernetes indexed job: variables and a meeting place | none yet (NCCL's); said, with what to use |
//!
//! Every process runs the same program; rank 0 prints and writes. One that fails ends all ([`abort`]).

use super::{Env, Launcher, Worker, present, worker};
use crate::error::RunError;
use ambitus_comm::Communicator;
use std::sync::Arc;
use std::time::Duration;

/// How long a rank waits for another in one collective, if nothing else is said.
pub const WATCHDOG: Duration = Duration::from_secs(120);

/// The processes that were started as one run, as one of them sees them.
#[derive(Clone, Debug)]
pub struct Processes {
    /// Its end.
    pub comm: Arc<dyn Communicator>,
    /// Ranks on its host, itself among them: they share its cores and memory.
    pub here: usize,
    /// What exchanging takes of this process's memory.
    pub bytes: u64,
}

/// How a world behaves.
#[derive(Clone, Copy, Debug)]
pub struct WorldOptions {
    /// How long to wait for another rank in one collective.
    pub watchdog: Duration,
    /// Tells people.
    pub notice: fn(&str),
}

/// The world that a launcher made of this process and others; `None` where it runs alone. `ranks`: what was asked for.
///
/// # Errors
/// Variables that contradict each other or `ranks`, a launcher whose engine is not there, a build without it, ranks that do
/// not come.
pub fn world(ranks: Option<usize>, options: WorldOptions) -> Result<Option<Processes>, RunError> {
    let env = |name: &str| std::env::var(name).ok();
    let Some(worker) = started(&env, ranks)? else { return Ok(None) };
    open(&worker, options).map(Some)
}

/// The worker that MPI is to connect, if there are several.
fn started(env: Env, ranks: Option<usize>) -> Result<Option<Worker>, RunError> {
    let found = worker(env).map_err(|e| RunError::Usage(e.to_string()))?;
    let Some(worker) = found.filter(|w| w.world > 1) else { return Ok(None) };
    connects(&worker, env).map_err(RunError::Usage)?;
    match ranks {
        Some(n) if n != worker.world as usize => Err(RunError::Usage(format!(
            "--ranks {n}: {} started {} processes, and each is a rank: leave --ranks out, or start {n}",
            worker.launcher.name(),
            worker.world
        ))),
        _ => Ok(Some(worker)),
    }
}

/// Refuses launchers that do not connect their processes by MPI.
fn connects(worker: &Worker, env: Env) -> Result<(), String> {
    let Worker { launcher, world, .. } = worker;
    let nested = present(env, "TORCHELASTIC_RUN_ID").is_some();
    let mpi = ["OMPI_COMM_WORLD_RANK", "PMIX_RANK"].iter().any(|name| present(env, name).is_some());
    match launcher {
        _ if mpi && !nested => Ok(()),
        Launcher::Torchrun => Err(format!(
            "torchrun (RANK, WORLD_SIZE) started {world} processes, and what connects them (NCCL) is not there yet: \
             start them as `mpirun -np {world} ambitus …`"
        )),
        Launcher::Kubernetes => Err(format!(
            "an indexed job (JOB_COMPLETION_INDEX) started {world} pods, and nothing connects them: run an MPIJob of \
             kubeflow's mpi-operator instead, which starts mpirun (examples/launch/kubernetes.yaml)"
        )),
        _ if present(env, "SLURM_STEP_ID").is_some() => Err(format!(
            "srun started {world} processes without PMIx, by which MPI finds them: start them as \
             `srun --mpi=pmix ambitus …`, or as `mpirun ambitus …` in the job"
        )),
        _ => Err(format!(
            "an MPI launcher that is not Open MPI's (PMI_RANK, PMI_SIZE) started {world} processes: start them with Open \
             MPI's mpirun"
        )),
    }
}

#[cfg(feature = "mpi")]
fn open(worker: &Worker, options: WorldOptions) -> Result<Processes, RunError> {
    use ambitus_comm::mpi::{self, Options};
    let WorldOptions { watchdog, notice } = options;
    let code = RunError::Ranks(String::new()).exit_code();
    let end = mpi::open(Options { watchdog, notice, asked: crate::stop::requested, code })?;
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
    Ok(Processes { here: end.here(), bytes: mpi::world_bytes(end.ranks()), comm: end })
}

#[cfg(not(feature = "mpi"))]
fn open(worker: &Worker, _: WorldOptions) -> Result<Processes, RunError> {
    let Worker { launcher, world, .. } = worker;
    Err(RunError::Usage(format!(
        "{} started {world} processes, and this build connects none: build it with `cargo build --release --features mpi`, \
         or start one process with --ranks {world}",
        launcher.name()
    )))
}

/// Which rank of several this process is, for messages; `None` where it runs alone or before [`world`].
pub fn this_rank() -> Option<(usize, String)> {
    #[cfg(feature = "mpi")]
    return ambitus_comm::mpi::this_rank();
    #[cfg(not(feature = "mpi"))]
    None
}

/// The orderly end of the run: waits for all ranks.
///
/// # Errors
/// One that does not come.
pub fn finish() -> Result<(), RunError> {
    #[cfg(feature = "mpi")]
    ambitus_comm::mpi::finish()?;
    Ok(())
}

/// Ends all ranks with this exit code; returns where this process runs alone.
pub fn abort(code: u8) {
    #[cfg(feature = "mpi")]
    ambitus_comm::mpi::abort(code);
    #[cfg(not(feature = "mpi"))]
    let _ = code;
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(env: &str, ranks: Option<usize>) -> Result<Option<u32>, String> {
        let pairs: Vec<(&str, &str)> = env.split(' ').filter_map(|pair| pair.split_once('=')).collect();
        let env = |name: &str| pairs.iter().find(|(n, _)| *n == name).map(|(_, v)| (*v).to_owned());
        started(&env, ranks).map(|w| w.map(|w| w.rank)).map_err(|e| e.to_string())
    }

    const MPIRUN: &str = "OMPI_COMM_WORLD_RANK=3 OMPI_COMM_WORLD_SIZE=4 OMPI_COMM_WORLD_LOCAL_RANK=1";
    const STEP: &str = "SLURM_STEP_ID=0 SLURM_PROCID=1 SLURM_NTASKS=2 SLURM_LOCALID=1";
    const TORCH: &str = "RANK=1 WORLD_SIZE=4 LOCAL_RANK=1";

    #[test]
    fn launchers_that_connect_their_processes_are_taken() {
        assert_eq!(of("", Some(4)), Ok(None));
        // One process is no world, whoever started it.
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
}
