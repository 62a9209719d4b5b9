//! The `ambitus` command line: arguments in, messages on stderr, results on stdout, documented exit codes.

mod args;
mod codec;
mod commands;
mod import;
mod terminal;

use args::{Cli, Command};
use clap::Parser;
use std::process::ExitCode;

fn main() -> ExitCode {
    let cli = Cli::parse();
    // Without a handler the first signal would end the process in the middle of a step; that is safe as well.
    // A codec has nothing to finish first.
    if !matches!(cli.command, Command::Codec { .. }) {
        let _ = ctrlc::set_handler(ambitus_train::stop::request);
    }
    let result = match cli.command {
        Command::Prepare(a) => commands::prepare(&a),
        Command::Plan(a) => commands::plan(&a),
        Command::Import(a) => import::run(&a),
        Command::Train(a) => commands::train(&a),
        Command::Resume(a) => commands::resume(&a),
        Command::Gradients(a) => commands::gradients(&a),
        Command::Export(a) => commands::export(&a),
        Command::Runs(a) => commands::runs(&a),
        Command::Codec { command } => codec::run(&command),
        Command::Doctor(a) => commands::doctor(&a),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            terminal::message(&format!("error: {e}"));
            ExitCode::from(e.exit_code())
        }
    }
}
