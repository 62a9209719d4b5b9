//! Arguments of `ambitus say`.

use super::{GenerationArgs, WeightsArg};
use clap::Args;
use std::path::PathBuf;

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
    /// Clip of the voice that speaks, 3 to 12 s, for models that clone voices; music that is continued, for models that make it
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
    /// The text is as the project's cleaners leave it, for models that clean texts: numbers in words, abbreviations written out
    #[arg(long)]
    pub cleaned: bool,
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
    /// Noise times X, for models that speak with noise: 0 has none and says a text alike each time, above 1 is livelier [default: 1, as
    /// the voice's config.json says]
    #[arg(long, value_name = "X", allow_negative_numbers = true)]
    pub noise: Option<f32>,
    /// Seconds of sound, with the music that it continues (--ref), of models that make music [default: 15]
    #[arg(long, value_name = "S", conflicts_with = "max_new")]
    pub seconds: Option<f64>,
    #[command(flatten)]
    pub how: GenerationArgs,
    /// Print what was said, planned and taken as JSON (not with -o -)
    #[arg(long)]
    pub json: bool,
}
