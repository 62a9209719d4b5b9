//! The `ambitus` command line: arguments in, messages on stderr, results on stdout, documented exit codes.

mod args;
mod codec;
mod commands;
mod import;
mod plan;
mod terminal;

use ambitus_train::error::RunError;
use ambitus_train::{launch, stop};
use args::{Cli, Command};
use clap::Parser;
use std::process::ExitCode;
use std::time::Duration;

/// What rank 0 has to say an error that all ranks have before the others do.
const FIRST: Duration = Duration::from_secs(1);

fn main() -> ExitCode {
    ambitus_train::silence_caught_panics();
    let cli = Cli::parse();
    // Without a handler the first signal would end the process in the middle of a step; that is safe as well.
    // A codec has nothing to finish first.
    if !matches!(cli.command, Command::Codec { .. }) {
        let _ = ctrlc::set_handler(stop::request);
    }
    let result = match cli.command {
        Command::Prepare(a) => commands::prepare(&a),
        Command::Plan(a) => plan::run(&a),
        Command::Import(a) => import::run(&a),
        Command::Train(a) => commands::train(&a),
        Command::Resume(a) => commands::resume(&a),
        Command::Gradients(a) => commands::gradients(&a),
        Command::Export(a) => commands::export(&a),
        Command::Runs(a) => commands::runs(&a),
        Command::Codec { command } => codec::run(&command),
        Command::Doctor(a) => commands::doctor(&a),
    };
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

/// Says why, and ends all ranks.
fn failed(e: &RunError) -> ExitCode {
    let code = e.exit_code();
    match launch::this_rank() {
        None => terminal::message(&format!("error: {e}")),
        Some((rank, _)) if rank > 0 && matches!(e, RunError::Stopped { .. }) => {}
        Some((rank, host)) => {
            // What all ranks would say alike, the first says for them: it ends the others before they come to it.
            if rank > 0 && !matches!(e, RunError::Ranks(_)) {
                std::thread::sleep(FIRST);
                if stop::requested() {
                    return ExitCode::from(code);
                }
            }
            terminal::message(&format!("error: rank {rank} (host {host}): {e}"));
        }
    }
    if !matches!(e, RunError::Stopped { .. }) {
        launch::abort(code);
    }
    ExitCode::from(code)
}
