//! Gradients on a card against those recorded from the reference packages (`parity/f5/record.py`, `parity/orpheus/record.py`): the
//! fixtures are part of this program, so that it can be carried alone.

use ambitus_compile::passes::policy::Blocks;
use ambitus_families::family::{ModelDir, OpenOptions};
use ambitus_recipe::recipe::{DeviceChoice, Precision};
use ambitus_testkit::gradients::{GRADIENT, Named, errors, read, together};
use ambitus_train::gradients::{GradientOptions, gradients};
use std::path::Path;

/// What the error of all gradients together may be in bf16-mixed, in that of the reference's own autocast (`parity/autocast.py`).
const OF_AUTOCAST: f64 = 1.5;

/// A model folder, a batch, and what the reference gave.
struct Fixture {
    name: &'static str,
    files: &'static [(&'static str, &'static [u8])],
    expected: &'static [u8],
    autocast: &'static [u8],
}

macro_rules! fixture {
    ($name:literal, $($file:literal),*) => {
        Fixture {
            name: $name,
            files: &[$(($file, fixture!(@ $name, $file))),*, ("batch.safetensors", fixture!(@ $name, "batch.safetensors"))],
            expected: fixture!(@ $name, "expected.safetensors"),
            autocast: fixture!(@ $name, "autocast.json"),
        }
    };
    (@ $name:literal, $file:literal) => {
        include_bytes!(concat!("../../parity/", $name, "/", $file)).as_slice()
    };
}

const FIXTURES: [Fixture; 5] = [
    fixture!("f5/fixtures/v1", "config.yaml", "vocab.txt", "model.safetensors"),
    fixture!("f5/fixtures/v0", "config.yaml", "vocab.txt", "model.safetensors"),
    fixture!("f5/fixtures/options", "config.yaml", "vocab.txt", "model.safetensors"),
    fixture!("orpheus/fixtures/tied", "config.json", "model.safetensors"),
    fixture!("orpheus/fixtures/untied", "config.json", "model.safetensors"),
];

/// A fixture's worst error on a card.
#[derive(Clone, Debug, PartialEq)]
pub struct Parity {
    /// Fixture and plan options.
    pub what: String,
    /// The largest error as a share of what is allowed, and whose.
    pub worst: (f64, String),
}

/// Returns every fixture on a device: in fp32 with and without block checkpointing, and in bf16-mixed.
///
/// # Errors
/// What stopped it.
pub fn check(device: DeviceChoice) -> Result<Vec<Parity>, String> {
    let dir = tempfile::tempdir().map_err(|e| format!("a folder for fixtures: {e}"))?;
    let mut found = Vec::new();
    for fixture in &FIXTURES {
        let folder = dir.path().join(fixture.name);
        std::fs::create_dir_all(&folder).map_err(|e| format!("{}: {e}", folder.display()))?;
        for (name, bytes) in fixture.files {
            let path = folder.join(name);
            std::fs::write(&path, bytes).map_err(|e| format!("{}: {e}", path.display()))?;
        }
        let want = read(fixture.expected)?;
        for (checkpoint, precision, shown) in [
            (Blocks::None, Precision::Fp32, "fp32, all kept"),
            (Blocks::All, Precision::Fp32, "fp32, blocks recomputed"),
            (Blocks::None, Precision::Bf16Mixed, "bf16-mixed"),
        ] {
            let options = GradientOptions {
                checkpoint,
                precision,
                micro_batch: None,
                sharding: None,
                placement: None,
                device,
                threads: 1,
                memory: None,
            };
            let got = run(&folder, options).map_err(|e| format!("{}: {e}", fixture.name))?;
            let worst = match precision {
                Precision::Fp32 => {
                    let worst = errors(&got, &want, GRADIENT)?.into_iter().max_by(|a, b| a.1.total_cmp(&b.1));
                    worst.map(|(name, share)| (share, name)).ok_or("a fixture without gradients")?
                }
                _ => (
                    together(&got, &want) / (OF_AUTOCAST * of_autocast(fixture)?),
                    "all gradients".to_owned(),
                ),
            };
            found.push(Parity { what: format!("{}, {shown}", fixture.name), worst });
        }
    }
    Ok(found)
}

/// Returns the error of all gradients together of the reference in bf16.
fn of_autocast(fixture: &Fixture) -> Result<f64, String> {
    let json: serde_json::Value = serde_json::from_slice(fixture.autocast).map_err(|e| e.to_string())?;
    json["all"].as_f64().ok_or_else(|| format!("{}/autocast.json has no `all`", fixture.name))
}

fn run(folder: &Path, options: GradientOptions) -> Result<Named, String> {
    let model =
        ModelDir::open(ambitus_families::ALL, folder, OpenOptions::default()).map_err(|e| e.to_string())?;
    let out = folder.join("out.safetensors");
    gradients(&model, &folder.join("batch.safetensors"), &out, options, None).map_err(|e| e.to_string())?;
    read(&std::fs::read(&out).map_err(|e| e.to_string())?)
}
