//! F5's gradients on a card against those recorded from the reference package (`parity/f5/record.py`): the fixtures are
//! part of this program, so that it can be carried alone.

use ambitus_compile::passes::policy::Blocks;
use ambitus_families::family::{ModelDir, OpenOptions};
use ambitus_recipe::recipe::DeviceChoice;
use ambitus_testkit::gradients::{GRADIENT, Named, errors, read};
use ambitus_train::gradients::{GradientOptions, gradients};
use std::path::Path;

/// A model folder, a batch, and what the reference gave.
struct Fixture {
    name: &'static str,
    files: [(&'static str, &'static [u8]); 4],
    expected: &'static [u8],
}

macro_rules! fixture {
    ($name:literal) => {
        Fixture {
            name: $name,
            files: [
                fixture!($name, "config.yaml"),
                fixture!($name, "vocab.txt"),
                fixture!($name, "model.safetensors"),
                fixture!($name, "batch.safetensors"),
            ],
            expected: fixture!($name, "expected.safetensors").1,
        }
    };
    ($name:literal, $file:literal) => {
        ($file, include_bytes!(concat!("../../parity/f5/fixtures/", $name, "/", $file)).as_slice())
    };
}

const FIXTURES: [Fixture; 3] = [fixture!("v1"), fixture!("v0"), fixture!("options")];

/// A fixture's worst error on a card.
#[derive(Clone, Debug, PartialEq)]
pub struct Parity {
    /// Fixture and plan options.
    pub what: String,
    /// The largest error as a share of what is allowed, and whose.
    pub worst: (f64, String),
}

/// Returns every fixture on a device, with and without block checkpointing.
///
/// # Errors
/// What stopped it.
pub fn check(device: DeviceChoice) -> Result<Vec<Parity>, String> {
    let dir = tempfile::tempdir().map_err(|e| format!("a folder for fixtures: {e}"))?;
    let mut found = Vec::new();
    for fixture in &FIXTURES {
        let folder = dir.path().join(fixture.name);
        std::fs::create_dir(&folder).map_err(|e| format!("{}: {e}", folder.display()))?;
        for (name, bytes) in fixture.files {
            let path = folder.join(name);
            std::fs::write(&path, bytes).map_err(|e| format!("{}: {e}", path.display()))?;
        }
        let want = read(fixture.expected)?;
        for (checkpoint, shown) in [(Blocks::None, "all kept"), (Blocks::All, "blocks recomputed")] {
            let options = GradientOptions {
                checkpoint,
                precision: Default::default(),
                micro_batch: None,
                sharding: None,
                placement: None,
                device,
                threads: 1,
                memory: None,
            };
            let got = run(&folder, options).map_err(|e| format!("{}: {e}", fixture.name))?;
            let worst = errors(&got, &want, GRADIENT)?.into_iter().max_by(|a, b| a.1.total_cmp(&b.1));
            let (name, share) = worst.ok_or("a fixture without gradients")?;
            found.push(Parity { what: format!("{}, {shown}", fixture.name), worst: (share, name) });
        }
    }
    Ok(found)
}

fn run(folder: &Path, options: GradientOptions) -> Result<Named, String> {
    let model =
        ModelDir::open(ambitus_families::ALL, folder, OpenOptions::default()).map_err(|e| e.to_string())?;
    let out = folder.join("out.safetensors");
    gradients(&model, &folder.join("batch.safetensors"), &out, options, None).map_err(|e| e.to_string())?;
    read(&std::fs::read(&out).map_err(|e| e.to_string())?)
}
