//! The seam of generation: a family reads what is given, says which programs it needs, and runs them.

use crate::error::RunError;
use crate::recorded::Spare;
use crate::sampling::Sampling;
use ambitus_exec::executor::Executor;
use ambitus_ir::{DType, Program, Session};
use std::path::Path;

/// Steps of a flow at most: their times are in memory.
const MOST_STEPS: usize = 10_000;

/// How to generate. Families read what is theirs.
#[derive(Clone, Debug)]
pub struct Settings {
    /// How tokens are chosen.
    pub sampling: Sampling,
    /// New tokens of a sequence at most; where nothing is said, the family's own.
    pub max_new: Option<usize>,
    /// The tokens' logits are wanted too.
    pub logits: bool,
    /// The encoder's states are wanted too, of models that have one.
    pub states: bool,
    /// Sequences at a time.
    pub sequences: usize,
    /// Strength of classifier-free guidance of models that write tokens; where nothing is said, the family's own.
    pub guidance: Option<f32>,
    /// How a flow is integrated.
    pub flow: Flow,
    /// Noise of models that have a scale for it, times that: 0 is none; where nothing is said, the voice's own.
    pub noise: Option<f32>,
}

impl Settings {
    /// Nothing but the model's own probabilities, and the F5-TTS package's flow.
    pub const PLAIN: Settings = Settings {
        sampling: Sampling::PLAIN,
        max_new: None,
        logits: false,
        states: false,
        sequences: 8,
        guidance: None,
        flow: Flow { steps: 32, cfg: 2.0, sway: -1.0 },
        noise: None,
    };

    /// How texts are spoken where nothing else is said: Orpheus's published settings, and the F5-TTS package's.
    pub const SPEECH: Settings = Settings {
        sampling: Sampling {
            greedy: false,
            repetition_penalty: 1.1,
            temperature: 0.6,
            top_k: 0,
            top_p: 0.9,
            seed: 0,
        },
        max_new: Some(8192),
        ..Settings::PLAIN
    };

    /// Checks the numbers.
    ///
    /// # Errors
    /// The option and what it may be.
    pub fn check(&self) -> Result<(), String> {
        self.sampling.check()?;
        let Flow { steps, cfg, sway } = self.flow;
        if steps > MOST_STEPS {
            return Err(format!("--steps: {steps} is above {MOST_STEPS}"));
        }
        if let Some(noise) = self.noise.filter(|x| !(0.0..=10.0).contains(x)) {
            return Err(format!("--noise: {noise} is not from 0 to 10"));
        }
        match [("cfg", cfg), ("sway", sway)].iter().find(|(_, x)| !x.is_finite()) {
            Some((option, x)) => Err(format!("--{option}: {x} is no number")),
            None => Ok(()),
        }
    }
}

/// How a flow from noise to speech is integrated.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Flow {
    /// Euler steps.
    pub steps: usize,
    /// Classifier-free guidance: v = conditional + cfg * (conditional - unconditional); at 0 only the first is computed.
    pub cfg: f32,
    /// Sway sampling's coefficient (arXiv 2410.06885, section 3.3); 0: even steps.
    pub sway: f32,
}

/// Generates for a family.
pub trait Generator {
    /// Reads and checks what a file gives (`ambitus generate`). Encoders that this takes run on the processor, within `spare`, and are gone
    /// afterwards.
    ///
    /// # Errors
    /// By file and tensor.
    fn job(&self, file: &Path, settings: &Settings, spare: Spare) -> Result<Box<dyn Job>, RunError>;
}

/// What is to be generated.
pub trait Job {
    /// Builds the programs. `cache`: the type of keys and values that are kept.
    fn programs(&self, session: &mut Session, cache: DType) -> Vec<Program>;

    /// Returns the bytes that reading it took, of encoders that are gone.
    fn read_bytes(&self) -> u64 {
        0
    }

    /// Returns the bytes that the job holds beside the programs' arena, its results among them.
    fn bytes(&self) -> u64;

    /// Returns what would take less, for people.
    fn less(&self) -> &'static str {
        "fewer --sequences at a time or --max-new take less"
    }

    /// Generates; weights are loaded.
    ///
    /// # Errors
    /// From the executor.
    fn run(&mut self, exec: &mut dyn Executor) -> Result<Vec<Generated>, RunError>;
}

/// A result.
#[derive(Clone, Debug, PartialEq)]
pub struct Generated {
    /// Name of the tensor.
    pub name: String,
    /// Its axes.
    pub shape: Vec<usize>,
    /// Its elements.
    pub values: Values,
}

/// Elements of a result.
#[derive(Clone, Debug, PartialEq)]
pub enum Values {
    /// Floats.
    F32(Vec<f32>),
    /// Integers.
    I64(Vec<i64>),
}
