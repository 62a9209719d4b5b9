//! `cargo xtask gpu`, `nvrtc`, `grade` and `keys`: see [`USAGE`].

use std::path::PathBuf;
use std::process::ExitCode;

const USAGE: &str = "\
cargo xtask gpu [--card N] [--out DIR] [--python PYTHON] [--small]
    Everything that needs an NVIDIA card, in one run: parity of every op and of F5's gradients, the plan against the
    driver's count, step times beside PyTorch's, shares of the measured roofline. Writes DIR/<date>-<card>.md
    [default: benches/results]. PYTHON [default: python3] needs torch; without it the peers' columns stay empty.
    --small: tiny shapes, to try the way.
cargo xtask nvrtc
    Fetches NVRTC as a wheel into target/cuda-libs, for compiling kernels without a card; needs python3 with pip.
cargo xtask grade [--count N] [--seed S] [--fixed] [--scaled] [--binary PATH] [--keep DIR]
    Runs N random cases [default: 40] over families, shapes, options, budgets and odd data: each is planned, trained within the
    smallest budget that its plan names, resumed, exported, and refused with less. Prints how far what was measured from
    outside is from the plans. --fixed: the small set of CI in their place. --scaled: also what is a thousand times the usual.
    PATH [default: the release build, made first]. DIR keeps the cases that broke a promise.
cargo xtask keys
    Writes docs/recipe.md, the keys of a recipe, from what the source says of them.";

fn main() -> ExitCode {
    let mut args = std::env::args().skip(1);
    let result = match args.next().as_deref() {
        Some("gpu") => options(args).and_then(|options| xtask::gpu::gpu(&options)),
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
    while let Some(arg) = args.next() {
        let mut value = || args.next().ok_or_else(|| format!("{arg} needs a value\n\n{USAGE}"));
        match arg.as_str() {
            "--card" => {
                options.card = value()?.parse().map_err(|_| format!("--card is a number\n\n{USAGE}"))?
            }
            "--out" => options.out = PathBuf::from(value()?),
            "--python" => options.python = value()?,
            "--small" => options.small = true,
            _ => return Err(format!("unknown option {arg}\n\n{USAGE}")),
        }
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
            "--seed" => options.seed = number(value()?)?,
            "--fixed" => options.fixed = true,
            "--scaled" => options.scaled = true,
            "--binary" => options.binary = Some(PathBuf::from(value()?)),
            "--keep" => options.keep = Some(PathBuf::from(value()?)),
            _ => return Err(format!("unknown option {arg}\n\n{USAGE}")),
        }
    }
    Ok(options)
}
