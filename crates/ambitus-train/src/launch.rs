//! Which rank this process is, from the variables that a launcher sets: a pure function of the environment. What connects
//! the ranks is in [`world`].
//!
//! | launcher | rank | of | on its host |
//! |---|---|---|---|
//! | torchrun, accelerate launch, PyTorchJob | `RANK` | `WORLD_SIZE` | `LOCAL_RANK` |
//! | Open MPI's mpirun | `OMPI_COMM_WORLD_RANK` | `OMPI_COMM_WORLD_SIZE` | `OMPI_COMM_WORLD_LOCAL_RANK` |
//! | MPICH's and Intel's mpiexec (Hydra) | `PMI_RANK` | `PMI_SIZE` | `MPI_LOCALRANKID` |
//! | Slurm's srun | `SLURM_PROCID` | `SLURM_STEP_NUM_TASKS`, `SLURM_NTASKS` | `SLURM_LOCALID` |
//! | a Kubernetes indexed job | `JOB_COMPLETION_INDEX` | `WORLD_SIZE` of the pod's own | 0: one rank a pod |
//!
//! Launchers nest (torchrun or mpirun inside a Slurm job, both inside a pod): the innermost knows the process, and the table
//! is in that order. Of those that start single processes, two that disagree are an error.

mod world;

use ambitus_recipe::recipe::MAX_RANKS;
use thiserror::Error;

pub use world::{Processes, WATCHDOG, WorldOptions, abort, finish, this_rank, watchdog, world};

/// What started this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Launcher {
    /// torchrun, or what sets its variables.
    Torchrun,
    /// Open MPI.
    OpenMpi,
    /// A launcher that speaks PMI: MPICH's and Intel MPI's mpiexec.
    Pmi,
    /// srun.
    Slurm,
    /// A Kubernetes indexed job.
    Kubernetes,
}

impl Launcher {
    /// Returns the launcher's name for people.
    pub fn name(self) -> &'static str {
        match self {
            Launcher::Torchrun => "torchrun",
            Launcher::OpenMpi => "Open MPI",
            Launcher::Pmi => "MPI (PMI)",
            Launcher::Slurm => "Slurm",
            Launcher::Kubernetes => "Kubernetes",
        }
    }
}

/// One process of several.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Worker {
    /// Which of all, from 0.
    pub rank: u32,
    /// How many there are.
    pub world: u32,
    /// Which of those on this host, from 0.
    pub local_rank: u32,
    /// Who says so.
    pub launcher: Launcher,
    /// Host and port where the processes meet, if the launcher sets them (`MASTER_ADDR`, `MASTER_PORT`).
    pub meeting: Option<(String, u16)>,
}

/// Variables that contradict each other or make no sense.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{variable}: {why}")]
pub struct LaunchError {
    /// The variable.
    pub variable: &'static str,
    /// What is wrong and what to do.
    pub why: String,
}

type Env<'a> = &'a dyn Fn(&str) -> Option<String>;
type Result<T> = std::result::Result<T, LaunchError>;

fn bad<T>(variable: &'static str, why: impl Into<String>) -> Result<T> {
    Err(LaunchError { variable, why: why.into() })
}

/// Returns which worker this process is; `None` if no launcher started it. `env` reads a variable.
///
/// # Errors
/// Variables that are missing, malformed or contradict each other, with what to set.
pub fn worker(env: Env) -> Result<Option<Worker>> {
    let torch = torchrun(env)?;
    let mpi = [
        (Launcher::OpenMpi, ["OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"]),
        (Launcher::Pmi, ["PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID"]),
    ];
    let mut found: Vec<(Worker, &'static str)> = torch.map(|w| (w, "RANK")).into_iter().collect();
    for (launcher, names) in mpi {
        found.extend(of_names(env, launcher, names)?.map(|w| (w, names[0])));
    }
    // torchrun starts its own processes inside whatever started torchrun; others that only set its variables do not.
    let nested = present(env, "TORCHELASTIC_RUN_ID").is_some();
    if let [(first, _), others @ ..] = found.as_slice()
        && !nested
        && let Some((other, variable)) =
            others.iter().find(|(o, _)| (o.rank, o.world) != (first.rank, first.world))
    {
        return bad(
            variable,
            format!(
                "{} says rank {} of {}, and {} says rank {} of {}: unset the variables of the one that did not start \
                 this process",
                other.launcher.name(),
                other.rank,
                other.world,
                first.launcher.name(),
                first.rank,
                first.world
            ),
        );
    }
    if let Some((worker, _)) = found.into_iter().next() {
        return Ok(Some(worker));
    }
    match slurm(env)? {
        Some(worker) => Ok(Some(worker)),
        None => kubernetes(env),
    }
}

/// Returns a variable that is there and not empty.
fn present(env: Env, name: &str) -> Option<String> {
    env(name).map(|v| v.trim().to_owned()).filter(|v| !v.is_empty())
}

fn number(env: Env, name: &'static str) -> Result<Option<u32>> {
    let Some(text) = present(env, name) else { return Ok(None) };
    let digits = text.bytes().all(|b| b.is_ascii_digit());
    match text.parse().ok().filter(|n| digits && *n <= MAX_RANKS) {
        Some(n) => Ok(Some(n)),
        None => bad(
            name,
            format!("{:?} is not a whole number from 0 to {MAX_RANKS}", ambitus_recipe::recipe::short(&text)),
        ),
    }
}

/// Returns a worker of three numbers that have been read.
fn checked(launcher: Launcher, names: [&'static str; 3], [rank, world, local]: [u32; 3]) -> Result<Worker> {
    if world == 0 {
        return bad(names[1], "is 0: there is at least one rank");
    }
    if rank >= world {
        return bad(names[0], format!("is {rank}, and {} is {world}: ranks are counted from 0", names[1]));
    }
    if local >= world {
        return bad(
            names[2],
            format!("is {local}, and {} is {world}: a host has no more ranks than all", names[1]),
        );
    }
    Ok(Worker { rank, world, local_rank: local, launcher, meeting: None })
}

/// Returns all three variables, or none.
fn of_names(env: Env, launcher: Launcher, names: [&'static str; 3]) -> Result<Option<Worker>> {
    let numbers = [number(env, names[0])?, number(env, names[1])?, number(env, names[2])?];
    match numbers {
        [Some(rank), Some(world), Some(local)] => checked(launcher, names, [rank, world, local]).map(Some),
        // One process of one is 0 of its host.
        [Some(rank), Some(1), None] => checked(launcher, names, [rank, 1, 0]).map(Some),
        [None, None, _] => Ok(None),
        _ => {
            let missing =
                names.iter().zip(numbers).find(|(_, n)| n.is_none()).map_or(names[2], |(name, _)| name);
            bad(
                missing,
                format!(
                    "is not set, and others of {} are ({}): set all three, or none{}",
                    launcher.name(),
                    names.join(", "),
                    if missing == names[2] { " (0 where each host has one process)" } else { "" }
                ),
            )
        }
    }
}

fn torchrun(env: Env) -> Result<Option<Worker>> {
    let names = ["RANK", "WORLD_SIZE", "LOCAL_RANK"];
    // A pod's own WORLD_SIZE goes with its index.
    if present(env, "RANK").is_none()
        && (present(env, "JOB_COMPLETION_INDEX").is_some() || present(env, "WORLD_SIZE").is_none())
    {
        return Ok(None);
    }
    let Some(worker) = of_names(env, Launcher::Torchrun, names)? else { return Ok(None) };
    Ok(Some(Worker { meeting: meeting(env)?, ..worker }))
}

fn meeting(env: Env) -> Result<Option<(String, u16)>> {
    let (host, port) = (present(env, "MASTER_ADDR"), present(env, "MASTER_PORT"));
    match (host, port) {
        (Some(host), Some(port)) => match port.parse::<u16>() {
            Ok(port) if port > 0 => Ok(Some((host, port))),
            _ => bad(
                "MASTER_PORT",
                format!("{:?} is not a port from 1 to 65535", ambitus_recipe::recipe::short(&port)),
            ),
        },
        (None, None) => Ok(None),
        (Some(_), None) => bad("MASTER_PORT", "is not set, and MASTER_ADDR is: set both, or none"),
        (None, Some(_)) => bad("MASTER_ADDR", "is not set, and MASTER_PORT is: set both, or none"),
    }
}

fn slurm(env: Env) -> Result<Option<Worker>> {
    let Some(rank) = number(env, "SLURM_PROCID")? else { return Ok(None) };
    let (step, job) = (number(env, "SLURM_STEP_NUM_TASKS")?, number(env, "SLURM_NTASKS")?);
    // A batch script and an interactive shell have SLURM_PROCID=0 too; only srun's tasks are in a step.
    if present(env, "SLURM_STEP_ID").is_none() && step.is_none() {
        return match job {
            Some(tasks) if tasks > 1 => bad(
                "SLURM_NTASKS",
                format!(
                    "the job has {tasks} tasks, and srun did not start this one: start it as `srun ambitus …`"
                ),
            ),
            _ => Ok(None),
        };
    }
    let size = if step.is_some() { "SLURM_STEP_NUM_TASKS" } else { "SLURM_NTASKS" };
    let Some(world) = step.or(job) else {
        return bad(
            "SLURM_NTASKS",
            "is not set, and SLURM_PROCID is: start it as `srun --ntasks=N ambitus …`",
        );
    };
    let local = match number(env, "SLURM_LOCALID")? {
        Some(local) => local,
        None if world == 1 => 0,
        None => return bad("SLURM_LOCALID", "is not set, and SLURM_PROCID is: start it as `srun ambitus …`"),
    };
    checked(Launcher::Slurm, ["SLURM_PROCID", size, "SLURM_LOCALID"], [rank, world, local]).map(Some)
}

fn kubernetes(env: Env) -> Result<Option<Worker>> {
    let Some(rank) = number(env, "JOB_COMPLETION_INDEX")? else { return Ok(None) };
    let Some(world) = number(env, "WORLD_SIZE")? else {
        return bad(
            "WORLD_SIZE",
            "is not set, and JOB_COMPLETION_INDEX is: Kubernetes does not tell a pod how many there are; set it to the \
             job's `completions`",
        );
    };
    let worker = checked(
        Launcher::Kubernetes,
        ["JOB_COMPLETION_INDEX", "WORLD_SIZE", "LOCAL_RANK"],
        [rank, world, 0],
    )?;
    Ok(Some(Worker { meeting: meeting(env)?, ..worker }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(env: &str) -> Result<Option<Worker>> {
        let pairs: Vec<(&str, &str)> = env.split(' ').filter_map(|pair| pair.split_once('=')).collect();
        worker(&|name| pairs.iter().find(|(n, _)| *n == name).map(|(_, v)| (*v).to_owned()))
    }

    #[track_caller]
    fn is(env: &str, launcher: Launcher, [rank, world, local_rank]: [u32; 3]) {
        let expected = Worker { rank, world, local_rank, launcher, meeting: None };
        let found = of(env).map(|w| w.map(|w| Worker { meeting: None, ..w }));
        assert_eq!(found, Ok(Some(expected)), "{env}");
    }

    #[track_caller]
    fn refused(env: &str, message: &str) {
        let said = of(env).expect_err(env).to_string();
        assert!(said.starts_with(message), "{env}: {said}");
    }

    const MPIRUN: &str = "OMPI_COMM_WORLD_RANK=3 OMPI_COMM_WORLD_SIZE=4 OMPI_COMM_WORLD_LOCAL_RANK=1";
    const BATCH: &str = "SLURM_JOB_ID=7 SLURM_NTASKS=4 SLURM_PROCID=0 SLURM_LOCALID=0";

    #[test]
    fn each_launcher_is_known_by_its_variables() {
        assert_eq!(of(""), Ok(None));
        assert_eq!(of("RANK= WORLD_SIZE="), Ok(None));
        is("RANK=5 WORLD_SIZE=8 LOCAL_RANK=1", Launcher::Torchrun, [5, 8, 1]);
        is("RANK=0 WORLD_SIZE=1", Launcher::Torchrun, [0, 1, 0]);
        is(MPIRUN, Launcher::OpenMpi, [3, 4, 1]);
        is("PMI_RANK=2 PMI_SIZE=3 MPI_LOCALRANKID=0", Launcher::Pmi, [2, 3, 0]);
        is("SLURM_STEP_ID=0 SLURM_PROCID=6 SLURM_NTASKS=8 SLURM_LOCALID=2", Launcher::Slurm, [6, 8, 2]);
        // A step may have fewer tasks than its job.
        is(
            "SLURM_STEP_NUM_TASKS=2 SLURM_PROCID=1 SLURM_NTASKS=8 SLURM_LOCALID=1",
            Launcher::Slurm,
            [1, 2, 1],
        );
        is("JOB_COMPLETION_INDEX=2 WORLD_SIZE=4", Launcher::Kubernetes, [2, 4, 0]);
    }

    #[test]
    fn the_meeting_place_is_read() {
        let with = |more: &str| of(&format!("RANK=0 WORLD_SIZE=2 LOCAL_RANK=0 {more}"));
        let worker = with("MASTER_ADDR=node1 MASTER_PORT=29500").unwrap().unwrap();
        assert_eq!(worker.meeting, Some(("node1".to_owned(), 29500)));
        let pod = of("JOB_COMPLETION_INDEX=0 WORLD_SIZE=2 MASTER_ADDR=job-0 MASTER_PORT=1").unwrap().unwrap();
        assert_eq!(pod.meeting, Some(("job-0".to_owned(), 1)));
        for (more, message) in [
            ("MASTER_ADDR=node1", "MASTER_PORT: is not set"),
            ("MASTER_PORT=1", "MASTER_ADDR: is not set"),
            ("MASTER_ADDR=n MASTER_PORT=0", "MASTER_PORT: \"0\" is not a port"),
            ("MASTER_ADDR=n MASTER_PORT=65536", "MASTER_PORT: \"65536\" is not a port"),
            ("MASTER_ADDR=n MASTER_PORT=x", "MASTER_PORT: \"x\" is not a port"),
        ] {
            assert!(with(more).expect_err(more).to_string().starts_with(message), "{more}");
        }
    }

    #[test]
    fn the_innermost_of_nested_launchers_knows() {
        // mpirun inside a batch job, in a pod.
        is(&format!("{BATCH} JOB_COMPLETION_INDEX=9 {MPIRUN}"), Launcher::OpenMpi, [3, 4, 1]);
        // torchrun on each node, started by srun or mpirun with one task a node.
        let torch = "RANK=5 WORLD_SIZE=8 LOCAL_RANK=1 TORCHELASTIC_RUN_ID=x";
        is(
            &format!("{torch} SLURM_STEP_ID=0 SLURM_PROCID=1 SLURM_NTASKS=2 SLURM_LOCALID=0"),
            Launcher::Torchrun,
            [5, 8, 1],
        );
        is(&format!("{torch} {MPIRUN}"), Launcher::Torchrun, [5, 8, 1]);
        // srun with PMI: both say the same.
        is(
            "PMI_RANK=1 PMI_SIZE=2 MPI_LOCALRANKID=1 SLURM_STEP_ID=0 SLURM_PROCID=1 SLURM_NTASKS=2 SLURM_LOCALID=1",
            Launcher::Pmi,
            [1, 2, 1],
        );
        // A script that hands mpirun's numbers on.
        is(&format!("{MPIRUN} RANK=3 WORLD_SIZE=4 LOCAL_RANK=1"), Launcher::Torchrun, [3, 4, 1]);
    }

    #[test]
    fn contradictions_say_what_to_set() {
        refused(
            "RANK=4 WORLD_SIZE=4 LOCAL_RANK=0",
            "RANK: is 4, and WORLD_SIZE is 4: ranks are counted from 0",
        );
        refused("RANK=0 WORLD_SIZE=0 LOCAL_RANK=0", "WORLD_SIZE: is 0");
        refused(
            "RANK=1 WORLD_SIZE=4 LOCAL_RANK=4",
            "LOCAL_RANK: is 4, and WORLD_SIZE is 4: a host has no more",
        );
        refused("RANK=1", "WORLD_SIZE: is not set, and others of torchrun are");
        refused("WORLD_SIZE=2", "RANK: is not set, and others of torchrun are");
        refused("RANK=1 WORLD_SIZE=2", "LOCAL_RANK: is not set, and others of torchrun are");
        refused("OMPI_COMM_WORLD_SIZE=2", "OMPI_COMM_WORLD_RANK: is not set");
        refused(
            &format!("{MPIRUN} RANK=0 WORLD_SIZE=1 LOCAL_RANK=0"),
            "OMPI_COMM_WORLD_RANK: Open MPI says rank 3 of 4, and torchrun says rank 0 of 1: unset",
        );
        refused(BATCH, "SLURM_NTASKS: the job has 4 tasks, and srun did not start this one");
        assert_eq!(of("SLURM_JOB_ID=7 SLURM_NTASKS=1 SLURM_PROCID=0 SLURM_LOCALID=0"), Ok(None));
        refused("SLURM_STEP_ID=0 SLURM_PROCID=1", "SLURM_NTASKS: is not set");
        refused("SLURM_STEP_ID=0 SLURM_PROCID=1 SLURM_NTASKS=2", "SLURM_LOCALID: is not set");
        refused("JOB_COMPLETION_INDEX=1", "WORLD_SIZE: is not set, and JOB_COMPLETION_INDEX is");
        refused("JOB_COMPLETION_INDEX=4 WORLD_SIZE=4", "JOB_COMPLETION_INDEX: is 4, and WORLD_SIZE is 4");
    }

    #[test]
    fn malformed_values_are_refused_by_name() {
        for value in ["-1", "+1", "1.0", "one", "0x1", "65537", "99999999999999999999", "1 2"] {
            let message = format!("RANK: {value:?} is not a whole number from 0 to 65536");
            let env = |name: &str| match name {
                "RANK" => Some(value.to_owned()),
                "WORLD_SIZE" => Some("2".to_owned()),
                _ => None,
            };
            assert_eq!(worker(&env).expect_err(value).to_string(), message);
        }
        refused("PMI_RANK=0 PMI_SIZE=x MPI_LOCALRANKID=0", "PMI_SIZE: \"x\" is not a whole number");
        refused("SLURM_PROCID=a SLURM_NTASKS=2", "SLURM_PROCID: \"a\" is not");
    }

    #[test]
    fn nothing_in_the_environment_panics() {
        arbtest::arbtest(|u| {
            let names = [
                "RANK",
                "WORLD_SIZE",
                "LOCAL_RANK",
                "MASTER_ADDR",
                "MASTER_PORT",
                "PMI_RANK",
                "PMI_SIZE",
                "SLURM_PROCID",
                "SLURM_STEP_ID",
                "SLURM_NTASKS",
                "JOB_COMPLETION_INDEX",
            ];
            let mut values = Vec::new();
            for name in names {
                if u.arbitrary()? {
                    let n: u8 = u.int_in_range(0..=3)?;
                    let text = if u.arbitrary()? { n.to_string() } else { u.arbitrary::<String>()? };
                    values.push((name, text));
                }
            }
            let env = |name: &str| values.iter().find(|(n, _)| *n == name).map(|(_, v)| v.clone());
            if let Ok(Some(w)) = worker(&env) {
                assert!(w.rank < w.world && w.local_rank < w.world, "{values:?}: {w:?}");
            }
            Ok(())
        });
    }
}
