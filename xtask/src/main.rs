//! `cargo xtask gpu`, `nvrtc`, `grade` and `keys`: see [`USAGE`].

use std::path::PathBuf;
use std::process::ExitCode;

const USAGE: &str = "\
cargo xtask gpu [right|fast|why]... [--card N] [--out DIR] [--python PYTHON] [--minutes M] [--only TITLES] [--small]
    The first half hour with an NVIDIA card, in three stages of M minutes each [default: all, 9]. right: parity of every op,
    gradients, memory against the driver's count, a run that is killed and resumed, compute-sanitizer. fast: rates, whole
    updates beside PyTorch's, every distinct instruction. why: the profiler's counters. Writes DIR/<date>-<card>-<stage>.md and
    .json [default: benches/results] after each part. PYTHON [default: python3] needs torch; without it the peers' columns
    stay empty. --only: the parts with one of these in their title, with commas between. --small: tiny shapes, to try the way.
    The program may be copied to the machine with the card alone.
cargo xtask nvrtc
    Fetches NVRTC as a wheel into target/cuda-libs, for compiling kernels without a card; needs python3 with pip.
cargo xtask grade [--count N] [--skip N] [--seed S] [--fixed] [--scaled] [--refusals N] [--binary PATH] [--keep DIR]
    Runs N random cases [default: 40] over families, shapes, options, budgets and odd data: each is planned, trained within the
    smallest budget that its plan names, resumed, exported, and refused with less. Prints how far what was measured from
    outside is from the plans. --skip: without the first of them, to repeat one. --fixed: of the small set of CI, every other in
    their place, with AMBITUS_LONG all.
    --scaled: also what is a thousand times the usual. --refusals: in their place N runs that are refused: each change that is named
    must fit, and no combination of options may need less than the least that is stated.
    PATH [default: the release build, made first]. DIR keeps the cases that broke a promise.
cargo xtask keys
    Writes docs/recipe.md, the keys of a recipe, from what the source says of them.";

fn main() -> ExitCode {
    let mut args = std::env::args().skip(1);
    let result = match args.next().as_deref() {
        Some("gpu") => options(args).and_then(|options| xtask::gpu::gpu(&options)),
        // Processes that `gpu` starts.
        Some("work") => xtask::gpu::work(&args.collect::<Vec<_>>()),
        Some("nvrtc") => xtask::nvrtc::fetch(),
        Some("grade") => graded(args).and_then(|options| xtask::grade::grade(&options)),
        Some("keys") => xtask::keys::write(),
        _ => Err(USAGE.to_owned()),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("{why}");
            ExitCode::FAILURE
        }
    }
}

fn options(mut args: impl Iterator<Item = String>) -> Result<xtask::gpu::Options, String> {
    let mut options = xtask::gpu::Options::default();
    let mut stages = Vec::new();
    while let Some(arg) = args.next() {
        let mut value = || args.next().ok_or_else(|| format!("{arg} needs a value\n\n{USAGE}"));
        match arg.as_str() {
            "--card" => {
                options.card = value()?.parse().map_err(|_| format!("--card is a number\n\n{USAGE}"))?
            }
            "--out" => options.out = PathBuf::from(value()?),
            "--python" => options.python = value()?,
            "--minutes" => {
                options.minutes = value()?.parse().map_err(|_| format!("--minutes is a number\n\n{USAGE}"))?
            }
            "--only" => options.only = Some(value()?),
            "--small" => options.small = true,
            _ => match xtask::gpu::Stage::ALL.iter().find(|(_, name)| *name == arg) {
                Some((stage, _)) => stages.push(*stage),
                None => return Err(format!("unknown option {arg}\n\n{USAGE}")),
            },
        }
    }
    if !stages.is_empty() {
        options.stages = stages;
    }
    Ok(options)
}

fn graded(mut args: impl Iterator<Item = String>) -> Result<xtask::grade::Options, String> {
    let mut options = xtask::grade::Options::default();
    while let Some(arg) = args.next() {
        let mut value = || args.next().ok_or_else(|| format!("{arg} needs a value\n\n{USAGE}"));
        let number = |text: String| text.parse().map_err(|_| format!("{text} is no number\n\n{USAGE}"));
        match arg.as_str() {
            "--count" => options.count = number(value()?)?,
            "--skip" => options.skip = number(value()?)?,
            "--seed" => options.seed = number(value()?)?,
            "--fixed" => options.fixed = true,
            "--scaled" => options.scaled = true,
            "--refusals" => options.refusals = Some(number(value()?)?),
            "--binary" => options.binary = Some(PathBuf::from(value()?)),
            "--keep" => options.keep = Some(PathBuf::from(value()?)),
            _ => return Err(format!("unknown option {arg}\n\n{USAGE}")),
        }
    }
    Ok(options)
}
