//! Arguments of `ambitus transcribe`.

use super::inference::InferenceArgs;
use clap::Args;
use std::path::PathBuf;

#[derive(Args)]
#[command(
    after_help = "Examples:\n  ambitus transcribe talk.mp3 --model whisper-small\n  ambitus transcribe wavs/*.wav --model whisper-small --language \
en --metadata wavs/metadata.csv\n  ambitus transcribe clip.wav --model whisper-small --text clip.txt --json"
)]
pub struct TranscribeArgs {
    /// Audio files (wav, flac, mp3, ogg; any rate, any length), which are only read
    #[arg(required = true, value_name = "FILE")]
    pub files: Vec<PathBuf>,
    /// Folder of a Whisper model as transformers writes it (config.json, model.safetensors, tokenizer.json)
    #[arg(long, value_name = "DIR")]
    pub model: PathBuf,
    /// Say how well given texts fit, and write none: the text of the only file, or a line for each file in their order. Files are no
    /// longer than 30 s
    #[arg(long, value_name = "FILE", conflicts_with_all = ["srt", "metadata", "translate"])]
    pub text: Option<PathBuf>,
    /// Language that is spoken: en, de, zh, … [default: what is heard in the first 30 s]
    #[arg(long, value_name = "CODE")]
    pub language: Option<String>,
    /// Write it in English
    #[arg(long)]
    pub translate: bool,
    /// Do not try again with draws where a text repeats itself or is unlikely
    #[arg(long)]
    pub no_fallback: bool,
    /// Hear each 30 s without what was written before: names may be spelled differently, but an invented text does not go on
    #[arg(long)]
    pub no_context: bool,
    /// Random seed of these draws
    #[arg(long, default_value_t = 0)]
    pub seed: u64,
    /// Write subtitles of each file, NAME.srt, to this folder
    #[arg(long, value_name = "DIR")]
    pub srt: Option<PathBuf>,
    /// Write file|text lines, as a data set has them; NAME/metadata.csv beside the sounds makes them one
    #[arg(long, value_name = "FILE")]
    pub metadata: Option<PathBuf>,
    #[command(flatten)]
    pub on: InferenceArgs,
    /// JSON on stdout, a line for each file: {"file", "text", "language", "segments": [{"start", "end", "text", "words": [{"word", "start",
    /// "end", "logprob"}], …}]}; with --text {"words": [{"word", "logprob"}], "logprob", "end_logprob", …}
    #[arg(long)]
    pub json: bool,
}
