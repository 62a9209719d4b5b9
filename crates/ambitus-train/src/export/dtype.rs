//! The element type of an export's weights.
//!
//! A run keeps its weights, averages and adapters as it trains them, and adds them up in fp32; a value is rounded once, to
//! nearest and ties to even, where it is written. A model is exported in the type of the weights that the run began with. Two
//! things are in fp32 unless another type is asked for: what a stage hands to the next one, and adapters, which PEFT keeps in
//! fp32 over a base of 16 bits as well.

use crate::run_dir::RunDir;
use ambitus_families::error::RunError;
use ambitus_families::family::Family;
use ambitus_families::weights::{MAX_CONFIG_BYTES, read_text};
use ambitus_store::DType;
use serde_json::value::RawValue;
use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;
use std::path::Path;
use std::str::FromStr;

/// The keys under which Hugging Face's configurations name a model's type: before and after transformers 4.56.
const KEYS: [&str; 2] = ["torch_dtype", "dtype"];

/// An element type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dtype {
    /// 32 bits.
    Fp32,
    /// 16 bits with the range of fp32.
    Bf16,
    /// 16 bits up to 65504.
    Fp16,
}

impl Dtype {
    const ALL: [Dtype; 3] = [Dtype::Fp32, Dtype::Bf16, Dtype::Fp16];

    /// Returns the word on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Dtype::Fp32 => "fp32",
            Dtype::Bf16 => "bf16",
            Dtype::Fp16 => "fp16",
        }
    }

    /// Returns the type in a file.
    pub(crate) fn stored(self) -> DType {
        match self {
            Dtype::Fp32 => DType::F32,
            Dtype::Bf16 => DType::Bf16,
            Dtype::Fp16 => DType::F16,
        }
    }

    /// Returns PyTorch's word.
    fn torch(self) -> &'static str {
        match self {
            Dtype::Fp32 => "float32",
            Dtype::Bf16 => "bfloat16",
            Dtype::Fp16 => "float16",
        }
    }

    /// Returns the least magnitude that rounds to infinity: half a step above the largest number, a tie that goes to even.
    fn limit(self) -> f32 {
        match self {
            Dtype::Fp32 => f32::INFINITY,
            Dtype::Bf16 => f32::from_bits(0x7f7f_8000),
            Dtype::Fp16 => 65520.0,
        }
    }

    /// Refuses values of a tensor that are finite and would not be in this type.
    pub(crate) fn holds(self, path: &Path, tensor: &str, values: &[f32]) -> Result<(), RunError> {
        match values.iter().find(|x| x.is_finite() && x.abs() >= self.limit()) {
            None => Ok(()),
            Some(x) => Err(RunError::Model(format!(
                "{}: tensor {tensor} has the value {x}, which is infinite in {self}; in fp32 it is not (--dtype fp32)",
                path.display()
            ))),
        }
    }

    /// Returns the type of the weights that a run began with: as the run noted it, else as its configuration says.
    pub(crate) fn of_base(run: &RunDir, family: &dyn Family) -> Result<Dtype, RunError> {
        if let Some(base) = run.base_dtype()? {
            return Ok(Dtype::ALL.into_iter().find(|d| d.stored() == base).unwrap_or(Dtype::Fp32));
        }
        let config = family.export().config.map(|name| run.model().join(name));
        let Some(text) = config.filter(|path| path.is_file()).map(|path| read(&path)).transpose()? else {
            return Ok(Dtype::Fp32);
        };
        let named =
            text.named.iter().find_map(|(_, name)| Dtype::ALL.into_iter().find(|d| d.torch() == name));
        Ok(named.unwrap_or(Dtype::Fp32))
    }
}

impl fmt::Display for Dtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Dtype {
    type Err = String;

    fn from_str(word: &str) -> Result<Dtype, String> {
        let known = Dtype::ALL.into_iter().find(|d| d.name() == word);
        known.ok_or_else(|| format!("`{word}` is none of {}", Dtype::ALL.map(Dtype::name).join(", ")))
    }
}

/// A configuration, and where it names a type: the place of the value, quotes and all, and the name as PyTorch has it.
struct Config {
    text: String,
    named: Vec<(Range<usize>, String)>,
}

fn read(path: &Path) -> Result<Config, RunError> {
    let text = read_text(path, MAX_CONFIG_BYTES, "put back the one that the run began with")?;
    let named = named(&text).map_err(|e| RunError::Model(format!("{}: {e}", path.display())))?;
    Ok(Config { text, named })
}

fn named(text: &str) -> Result<Vec<(Range<usize>, String)>, serde_json::Error> {
    let values: BTreeMap<String, &RawValue> = serde_json::from_str(text)?;
    let place = |key: &&str| {
        let value = values.get(*key)?.get();
        let name: String = serde_json::from_str(value).ok()?;
        let start = value.as_ptr() as usize - text.as_ptr() as usize;
        Some((start..start + value.len(), name.trim_start_matches("torch.").to_owned()))
    };
    Ok(KEYS.iter().filter_map(place).collect())
}

/// Returns a configuration that names this type wherever it named another, and is the same but for that; `None` where it did not.
pub(crate) fn retyped(path: &Path, dtype: Dtype) -> Result<Option<String>, RunError> {
    let Config { mut text, named } = read(path)?;
    let mut others: Vec<Range<usize>> = named
        .into_iter()
        .filter(|(_, name)| *name != dtype.torch() && name != "auto")
        .map(|(at, _)| at)
        .collect();
    // From the end on, so that the places before stay.
    others.sort_by_key(|at| std::cmp::Reverse(at.start));
    for at in &others {
        text.replace_range(at.clone(), &format!("\"{}\"", dtype.torch()));
    }
    Ok((!others.is_empty()).then_some(text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_is_the_first_number_that_rounds_to_infinity() {
        for dtype in [Dtype::Bf16, Dtype::Fp16] {
            let rounded = |x: f32| {
                let dir = tempfile::tempdir().unwrap();
                let path = dir.path().join("x.safetensors");
                let specs = vec![ambitus_store::TensorSpec::new("x", dtype.stored(), &[2])];
                let mut file =
                    ambitus_store::SafetensorsWriter::create(&path, specs, &BTreeMap::new()).unwrap();
                file.write_f32("x", &[x, -x]).unwrap();
                file.finish().unwrap();
                let mut read = [0.0; 2];
                let file = ambitus_store::TensorFile::open(&path).unwrap();
                file.read_into("x", &mut read, &mut [0; 64]).unwrap();
                read
            };
            let (below, limit) = (dtype.limit().next_down(), dtype.limit());
            assert_eq!(rounded(limit), [f32::INFINITY, f32::NEG_INFINITY]);
            assert!(rounded(below).iter().all(|x| x.is_finite()));
            let held = |values: &[f32]| dtype.holds(Path::new("step-4"), "w", values);
            assert!(held(&[below, -below, f32::INFINITY, f32::NAN]).is_ok());
            let why = held(&[0.0, -limit]).unwrap_err().to_string();
            assert!(why.contains("step-4: tensor w has the value -") && why.contains(dtype.name()), "{why}");
        }
        assert!(Dtype::Fp32.holds(Path::new(""), "w", &[f32::MAX]).is_ok());
    }

    /// Order, spaces and everything that does not name the model's own type stay.
    #[test]
    fn a_configuration_changes_where_it_would_be_false() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("config.json");
        let changed = |text: &str, dtype| {
            std::fs::write(&path, text).unwrap();
            retyped(&path, dtype).unwrap()
        };
        for (text, dtype, want) in [
            (
                "{\"torch_dtype\" :\"float32\",\n \"a\": [1e0]}\n",
                Dtype::Bf16,
                "{\"torch_dtype\" :\"bfloat16\",\n \"a\": [1e0]}\n",
            ),
            (
                "{\"dtype\": \"x\", \"torch_dtype\": \"float32\"}",
                Dtype::Fp16,
                "{\"dtype\": \"float16\", \"torch_dtype\": \"float16\"}",
            ),
            (
                "{\"torch_dtype\": \"float32\", \"dtype\": \"torch.bfloat16\"}",
                Dtype::Bf16,
                "{\"torch_dtype\": \"bfloat16\", \"dtype\": \"torch.bfloat16\"}",
            ),
        ] {
            assert_eq!(changed(text, dtype).as_deref(), Some(want));
        }
        for text in [
            "{\"torch_dtype\": \"bfloat16\"}",
            "{\"dtype\": \"auto\", \"torch_dtype\": null}",
            "{\"inner\": {\"dtype\": \"float32\"}}",
            "{}",
        ] {
            assert_eq!(changed(text, Dtype::Bf16), None, "{text}");
        }
        std::fs::write(&path, "{").unwrap();
        assert!(retyped(&path, Dtype::Bf16).unwrap_err().to_string().contains("config.json"));
    }
}
