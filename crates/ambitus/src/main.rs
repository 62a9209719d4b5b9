//! The `ambitus` command line: arguments in, messages on stderr, results on stdout, documented exit codes.

mod args;
mod check;
mod clips;
mod codec;
mod commands;
mod import;
mod own;
mod plan;
mod refused;
mod say;
mod signals;
mod terminal;
mod tokens;
mod transcribe;
mod watch;

use ambitus_families::error::RunError;
use ambitus_families::stop;
use ambitus_plan::memory;
use ambitus_train::launch;
use args::{Cli, Command};
use clap::Parser;
use std::any::Any;
use std::io::ErrorKind;
use std::process::ExitCode;
use std::thread::JoinHandle;
use std::time::Duration;

/// What rank 0 has to say an error that all ranks have before the others do.
const FIRST: Duration = Duration::from_secs(1);

/// Exit code of a bug.
const BUG: u8 = 1;
/// Stack of the thread that does the work, where the system gives the first one less.
const STACK_BYTES: usize = 8 << 20;

fn main() -> ExitCode {
    memory::keep_little_freed();
    ambitus_train::silence_caught_panics();
    refused::watch();
    let small = memory::stack().is_some_and(|bytes| bytes < STACK_BYTES as u64);
    let done = if small && memory::at_start().is_ok() {
        let thread = std::thread::Builder::new().stack_size(STACK_BYTES).spawn(run);
        thread.map_err(|e| Box::new(e.to_string()) as Box<dyn Any + Send>).and_then(JoinHandle::join)
    } else {
        std::panic::catch_unwind(run)
    };
    done.unwrap_or_else(|why| panicked(&*why))
}

/// Returns what a panic ends with: the code of a bug, unless the system refused a thread.
fn panicked(why: &(dyn Any + Send)) -> ExitCode {
    let words = why.downcast_ref::<String>().map_or("", String::as_str);
    if words.contains("failed to spawn thread") {
        let why = "raise the limits of processes and memory (ulimit -u, ulimit -v)";
        return failed(&RunError::does_not_fit(None, format!("{words}; {why}")));
    }
    terminal::message("error: this is a bug in Ambitus: please report it, with the lines above");
    launch::abort(BUG);
    ExitCode::from(BUG)
}

fn run() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(said) => return explained(&said),
    };
    let saves = matches!(
        cli.command,
        Command::Clips(_)
            | Command::Prepare(_)
            | Command::Train(_)
            | Command::Tune(_)
            | Command::Resume(_)
            | Command::Say(_)
    );
    signals::listen(saves || matches!(cli.command, Command::Watch(_)), saves);
    let result = memory::at_start().and_then(|()| command(cli.command)).and_then(|()| terminal::finish());
    // A run that was stopped on request ended as all ranks agreed.
    let result = match result {
        Ok(()) => launch::finish(),
        Err(e @ RunError::Stopped { .. }) => launch::finish().and(Err(e)),
        Err(e) => Err(e),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => failed(&e),
    }
}

/// Shows help, or what is wrong with the arguments.
fn explained(said: &clap::Error) -> ExitCode {
    match said.print() {
        _ if said.use_stderr() => ExitCode::from(RunError::Usage(String::new()).exit_code()),
        Err(why) if why.kind() != ErrorKind::BrokenPipe => failed(&terminal::lost(&why)),
        _ => ExitCode::SUCCESS,
    }
}

fn command(command: Command) -> Result<(), RunError> {
    match command {
        Command::Clips(a) => clips::run(&a),
        Command::Prepare(a) if a.check.is_some() || a.page.is_some() => check::run(&a),
        Command::Prepare(a) => commands::prepare(&a.run),
        Command::Plan(a) => plan::run(&a),
        Command::Import(a) => import::run(&a),
        Command::Train(a) => commands::train(&a),
        Command::Resume(a) => commands::resume(&a),
        Command::Tune(a) => commands::tune(&a),
        Command::Gradients(a) => commands::gradients(&a),
        Command::Generate(a) => commands::generate(&a),
        Command::Say(a) => say::run(&a),
        Command::Transcribe(a) => transcribe::run(&a),
        Command::Tokens(a) => tokens::run(&a),
        Command::Export(a) => commands::export(&a),
        Command::Runs(a) => commands::runs(&a),
        Command::Watch(a) => watch::run(&a),
        Command::Codec { command } => codec::run(&command),
        Command::Doctor(a) => commands::doctor(&a),
    }
}

/// Says why, and ends all ranks.
fn failed(e: &RunError) -> ExitCode {
    let code = e.exit_code();
    match launch::this_rank() {
        None => terminal::error(&e.to_string()),
        Some((rank, _)) if rank > 0 && matches!(e, RunError::Stopped { .. }) => {}
        Some((rank, host)) => {
            // What all ranks would say alike, the first says for them: it ends the others before they come to it.
            if rank > 0 && !matches!(e, RunError::Ranks(_)) {
                std::thread::sleep(FIRST);
                if stop::requested() {
                    return ExitCode::from(code);
                }
            }
            terminal::error(&format!("rank {rank} (host {host}): {e}"));
        }
    }
    if !matches!(e, RunError::Stopped { .. }) {
        launch::abort(code);
    }
    ExitCode::from(code)
}
