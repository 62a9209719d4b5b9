//! Arguments of `ambitus prepare`.

use super::TrainArgs;
use clap::Args;
use std::path::PathBuf;

#[derive(Args)]
pub struct PrepareArgs {
    #[command(flatten)]
    pub run: TrainArgs,
    /// Only say what is wrong with the clips, by sound and text, and what the set lacks; needs no model and writes nothing (docs/check.md).
    /// With the folder of a Whisper model, also which texts are not what is heard
    #[arg(long, value_name = "WHISPER_DIR", num_args = 0..=1)]
    pub check: Option<Option<PathBuf>>,
    /// Check the clips, and write a page to listen to them and to correct them in a browser; what it saves as corrections.csv is read
    /// with the clips from then on [default: listen.html in the folder of the data]
    #[arg(long, value_name = "FILE", num_args = 0..=1)]
    pub page: Option<Option<PathBuf>>,
    /// Language that is spoken, for --check WHISPER_DIR: en, de, zh, … [default: what is heard in each clip]
    #[arg(long, value_name = "CODE", requires = "check")]
    pub check_language: Option<String>,
}
