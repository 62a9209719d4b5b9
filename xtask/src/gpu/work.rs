//! What runs as a process of its own: under a sanitizer or a profiler, or to be killed.

use super::Options;
use super::subject::Subject;
use crate::grade::cases::{Data, Family, Shape};
use crate::grade::folders::Folders;
use crate::{ops, programs};
use ambitus_cuda::driver::{self, Card};
use ambitus_families::ALL;
use ambitus_families::console::Silent;
use ambitus_families::family::sections;
use ambitus_ir::DType;
use ambitus_recipe::recipe::{DeviceChoice, Recipe};
use ambitus_train::run;
use ambitus_train::world::World;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// Does one of: `cases CARD [OP]`, `step CARD`, `train RECIPE FOLDER`, `resume FOLDER`.
///
/// # Errors
/// What went wrong.
pub fn work(args: &[String]) -> Result<(), String> {
    let number = |text: &str| text.parse::<usize>().map_err(|e| format!("{text}: {e}"));
    match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["cases", card, ref op @ ..] => {
            let mut cases = ambitus_testkit::cases();
            cases.retain(|case| op.iter().all(|op| case.op.name() == *op));
            let mut faults = Vec::new();
            for dtype in [DType::F32, DType::BF16, DType::F16] {
                let card = Card::open(number(card)?).map_err(|e| e.to_string())?;
                faults.extend(ops::check(card, dtype, &cases).1.faults);
            }
            if faults.is_empty() { Ok(()) } else { Err(faults.join("\n")) }
        }
        ["step", card] => {
            let options = Options { card: number(card)?, ..Options::default() };
            let info = driver::card(options.card)?;
            for subject in Subject::ALL {
                let (mut exec, _) = subject.open(&options, &info)?;
                programs::step(&mut exec)?;
            }
            Ok(())
        }
        ["train", recipe, root] => {
            let (recipe, origins) =
                Recipe::read(Path::new(recipe), &sections(ALL)).map_err(|e| e.to_string())?;
            run::train(ALL, recipe, &origins, PathBuf::from(root), &World::alone(), &mut Silent)
                .map(drop)
                .map_err(|e| e.to_string())
        }
        ["resume", root] => {
            let shared = Default::default();
            run::resume(ALL, Path::new(root), shared, &World::alone(), &mut Silent)
                .map(drop)
                .map_err(|e| e.to_string())
        }
        _ => Err(format!("no such work: {args:?}")),
    }
}

/// Starts this program on some work.
pub fn child(options: &Options, args: &[&OsStr]) -> Result<Child, String> {
    let program = std::env::current_exe().map_err(|e| e.to_string())?;
    let mut command = Command::new(&program);
    command.arg("work").args(args).stdout(Stdio::null()).stderr(Stdio::piped());
    command.spawn().map_err(|e| format!("{} (card {}): {e}", program.display(), options.card))
}

/// Makes the model and the data of small runs: the first lines of their recipes.
pub fn folders(dir: &Path) -> Result<String, String> {
    let folders = Folders::new(dir);
    let model = folders.model(&Shape::small(Family::F5, 2))?;
    let data = folders.data(&Data::Usual { clips: 8, seed: 0 })?;
    Ok(format!(
        "model: {{dir: {}, from_scratch: true}}\ndata: {{dir: {}, cache: {}}}\nbatch: {{clips: 2}}\nvalidate_every: 0\nthreads: 2\n",
        model.display(),
        data.display(),
        dir.join("cache").display()
    ))
}

/// Writes a recipe of a small run.
pub fn recipe(folders: &str, file: &Path, device: DeviceChoice, lines: &str) -> Result<(), String> {
    let text = format!("{folders}device: {device}\n{lines}");
    std::fs::write(file, text).map_err(|e| format!("{}: {e}", file.display()))
}
