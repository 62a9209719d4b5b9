//! Arguments of `ambitus say`.

use super::{WeightsArg, positive};
use ambitus_families::generate::Settings;
use ambitus_recipe::recipe::{DeviceChoice, Precision};
use ambitus_recipe::size::ByteSize;
use clap::Args;
use std::path::PathBuf;

/// What options mean that are not given.
const SPEECH: Settings = Settings::SPEECH;

#[derive(Args)]
pub struct SayArgs {
    /// Model folder, run, checkpoint of a run (runs/NAME/checkpoints/step-N), or export
    pub model: PathBuf,
    /// What is said; long texts are cut at punctuation, and joined again
    #[arg(required_unless_present = "text_file", conflicts_with = "text_file")]
    pub text: Option<String>,
    /// File of texts, one a line (-: standard input)
    #[arg(long = "text", value_name = "FILE")]
    pub text_file: Option<PathBuf>,
    /// Where the sound goes: .wav or .flac, for several lines NAME-1.wav, NAME-2.wav …; -: WAV on standard output, while it is
    /// made
    #[arg(short, long, value_name = "FILE")]
    pub out: PathBuf,
    /// Clip of the voice that speaks, 3 to 12 s, for models that clone voices
    #[arg(long = "ref", value_name = "AUDIO")]
    pub reference: Option<PathBuf>,
    /// The words that are spoken in the clip, for models that read them
    #[arg(long, value_name = "TEXT", requires = "reference")]
    pub ref_text: Option<String>,
    /// Name of the voice that speaks, for models that have named ones
    #[arg(long, value_name = "NAME")]
    pub voice: Option<String>,
    /// Language of the text, for models that read languages differently: en, zh-cn, …
    #[arg(long, value_name = "CODE")]
    pub language: Option<String>,
    /// Folder of the codec, for models that write codes [default: of a run, that of its recipe]
    #[arg(long, value_name = "DIR", conflicts_with = "vocoder")]
    pub codec: Option<PathBuf>,
    /// Folder of the vocoder, for models that write mel frames [default: of a run, that of its recipe; else Griffin-Lim, which buzzes]
    #[arg(long, value_name = "DIR")]
    pub vocoder: Option<PathBuf>,
    /// Adapter that is added to a model folder's weights
    #[arg(long, value_name = "DIR")]
    pub adapter: Option<PathBuf>,
    /// Which weights of a run [default: the better ones by its validations]
    #[arg(long)]
    pub weights: Option<WeightsArg>,
    /// 1.2: faster than the clip, 0.8: slower
    #[arg(long, default_value_t = 1.0)]
    pub speed: f64,
    /// Seed of noise and draws: the same speech again
    #[arg(long, default_value_t = SPEECH.sampling.seed)]
    pub seed: u64,
    /// Steps from noise to mel frames
    #[arg(long, default_value_t = SPEECH.flow.steps, value_parser = positive())]
    pub steps: usize,
    /// Strength of classifier-free guidance; 0: none, in half the time
    #[arg(long, default_value_t = SPEECH.flow.cfg)]
    pub cfg: f32,
    /// Sway sampling: below 0 steps are denser near noise; 0: even steps
    #[arg(long, default_value_t = SPEECH.flow.sway, allow_negative_numbers = true)]
    pub sway: f32,
    /// Always take the likeliest token
    #[arg(long)]
    pub greedy: bool,
    /// Divide logits by this: above 1 more varied, below 1 more certain [default: the model's project's]
    #[arg(long, conflicts_with = "greedy")]
    pub temperature: Option<f32>,
    /// Choose among the likeliest K tokens; 0: all [default: the model's project's]
    #[arg(long, value_name = "K", conflicts_with = "greedy")]
    pub top_k: Option<usize>,
    /// Choose among the likeliest tokens that have this probability together [default: the model's project's]
    #[arg(long, value_name = "P", conflicts_with = "greedy")]
    pub top_p: Option<f32>,
    /// Make tokens of the prompt and of what is written less likely, where above 1 [default: the model's project's]
    #[arg(long, value_name = "P")]
    pub repetition_penalty: Option<f32>,
    /// New tokens of a piece at most [default: by its text]
    #[arg(long, value_name = "N")]
    pub max_new: Option<usize>,
    /// Pieces at a time: more are faster together and take more memory [default: 1 to standard output, else 8]
    #[arg(long, value_name = "N", value_parser = positive())]
    pub sequences: Option<usize>,
    /// What to compute in: fp32, tf32-mixed, bf16-mixed, fp16-mixed or bf16-pure (weights, too, in half the bytes)
    #[arg(long, default_value = "fp32")]
    pub precision: Precision,
    /// Where to compute: cpu, cuda or cuda:N
    #[arg(long, default_value = "cpu")]
    pub device: DeviceChoice,
    /// Threads [default: all cores]
    #[arg(long)]
    pub threads: Option<usize>,
    /// Memory budget; a text that is too long for it is said in shorter pieces
    #[arg(long, value_name = "SIZE")]
    pub memory: Option<ByteSize>,
    /// Print what was said, planned and taken as JSON (not with -o -)
    #[arg(long)]
    pub json: bool,
}
