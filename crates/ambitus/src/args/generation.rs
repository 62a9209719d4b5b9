//! Arguments of `ambitus generate` and `ambitus say`: how to generate, and on what.

use super::inference::InferenceArgs;
use super::positive;
use ambitus_families::error::RunError;
use ambitus_families::generate::{Flow, Settings};
use ambitus_families::sampling::Sampling;
use clap::Args;

/// What options mean that are not given.
const FLOW: Flow = Settings::PLAIN.flow;

#[derive(Args)]
pub struct GenerationArgs {
    /// Always take the likeliest token
    #[arg(long)]
    pub greedy: bool,
    /// Divide logits by this: above 1 more varied, below 1 more certain [default: 1; with `say`, the original project's setting]
    #[arg(long, conflicts_with = "greedy")]
    pub temperature: Option<f32>,
    /// Choose among the likeliest K tokens; 0: all [default: all; with `say`, the original project's setting]
    #[arg(long, value_name = "K", conflicts_with = "greedy")]
    pub top_k: Option<usize>,
    /// Choose among the likeliest tokens that have this probability together [default: 1; with `say`, the original project's setting]
    #[arg(long, value_name = "P", conflicts_with = "greedy")]
    pub top_p: Option<f32>,
    /// Make tokens of the prompt and of what is written less likely, where above 1 [default: 1; with `say`, the original project's setting]
    #[arg(long, value_name = "P")]
    pub repetition_penalty: Option<f32>,
    /// Random seed: the same seed gives the same result
    #[arg(long, default_value_t = Settings::PLAIN.sampling.seed)]
    pub seed: u64,
    /// New tokens of a sequence at most [default: as many as have draws, else what the model folder says, else 1200; of `say` by the
    /// text]
    #[arg(long, value_name = "N", value_parser = tokens())]
    pub max_new: Option<usize>,
    /// Sequences at a time: more are faster together and take more memory; same tokens [default: 8; of `say` to standard output 1]
    #[arg(long, value_name = "N", value_parser = positive())]
    pub sequences: Option<usize>,
    /// Steps from noise to mel frames
    #[arg(long, default_value_t = FLOW.steps, value_parser = positive())]
    pub steps: usize,
    /// Strength of classifier-free guidance. Of models that make mel frames 0 is none, in half the time [default: 2]; of those that write
    /// codes of music 1 [default: 1]
    #[arg(long, value_name = "X", allow_negative_numbers = true)]
    pub cfg: Option<f32>,
    /// Sway sampling: below 0 steps are denser near noise; 0: even steps
    #[arg(long, default_value_t = FLOW.sway, allow_negative_numbers = true)]
    pub sway: f32,
    #[command(flatten)]
    pub on: InferenceArgs,
}

impl GenerationArgs {
    /// Returns the settings, `default` where nothing is said.
    ///
    /// # Errors
    /// [`RunError::Usage`] with the option.
    pub fn settings(&self, default: Settings) -> Result<Settings, RunError> {
        let sampling = Sampling {
            greedy: self.greedy,
            repetition_penalty: self.repetition_penalty.unwrap_or(default.sampling.repetition_penalty),
            temperature: self.temperature.unwrap_or(default.sampling.temperature),
            top_k: self.top_k.unwrap_or(default.sampling.top_k),
            top_p: self.top_p.unwrap_or(default.sampling.top_p),
            seed: self.seed,
        };
        let settings = Settings {
            sampling,
            max_new: self.max_new.or(default.max_new),
            logits: default.logits,
            states: default.states,
            sequences: self.sequences.unwrap_or(default.sequences),
            guidance: self.cfg.or(default.guidance),
            flow: Flow { steps: self.steps, cfg: self.cfg.unwrap_or(FLOW.cfg), sway: self.sway },
            noise: default.noise,
        };
        settings.check().map_err(RunError::Usage)?;
        Ok(settings)
    }
}

/// Parses a number of tokens: places of a sequence are i32.
fn tokens() -> impl clap::builder::TypedValueParser<Value = usize> {
    use clap::builder::TypedValueParser;
    clap::value_parser!(u32).range(..=i64::from(i32::MAX)).map(|n| n as usize)
}
