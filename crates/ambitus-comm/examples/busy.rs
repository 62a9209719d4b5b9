//! What the watchdog of ranks over MPI takes for a rank that hangs, for `.ci/mpi.sh`: rank 0 stays away from an exchange for
//! three times as long as the watchdog waits, in the way that the first argument says.
//!
//! `mpirun -np 2 busy works`: it says that it works on its own, and does. Exit code 0.
//! `mpirun -np 2 busy idles`: it says so, and does not get on. Exit code 9.
//! `mpirun -np 2 busy silent`: it works, and does not say so. Exit code 9.

use ambitus_comm::mpi::{self, Options};
use ambitus_comm::{CommError, Communicator};
use std::io::Write;
use std::process::ExitCode;
use std::time::{Duration, Instant};

const WATCHDOG: Duration = Duration::from_secs(2);

fn main() -> ExitCode {
    let way = std::env::args().nth(1).unwrap_or_default();
    match run(&way) {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            say(&why.to_string());
            mpi::abort(9);
            ExitCode::FAILURE
        }
    }
}

/// In one write: mpirun mixes what ranks write between writes.
fn say(text: &str) {
    let _ = std::io::stderr().write_all(format!("{text}\n").as_bytes());
}

fn run(way: &str) -> Result<(), CommError> {
    let world = mpi::open(Options { watchdog: WATCHDOG, notice: say, asked: || false, code: 9 })?;
    let all: Vec<usize> = (0..world.ranks()).collect();
    if world.rank() == 0 {
        let _busy = (way != "silent").then(|| world.busy());
        let start = Instant::now();
        while start.elapsed() < 3 * WATCHDOG {
            if way == "idles" {
                std::thread::sleep(WATCHDOG);
            }
        }
    }
    world.all_gather("the exchange", &all, &[], &mut [])?;
    mpi::finish()
}
