//! Arguments of `ambitus export`.

use super::WeightsArg;
use ambitus_train::export::dtype::Dtype;
use clap::Args;
use std::path::PathBuf;

#[derive(Args)]
pub struct ExportArgs {
    /// The run's folder
    pub run: PathBuf,
    /// The moving average or the weights themselves [default: the better by validation]
    #[arg(long)]
    pub weights: Option<WeightsArg>,
    /// Only the adapters of a LoRA run, as Hugging Face's PEFT stores them; without it they are merged into the model
    #[arg(long)]
    pub adapter: bool,
    /// Layout of the files, of models whose original project has several (their page of the guide names them) [default: the first]
    #[arg(long, value_name = "NAME", conflicts_with = "adapter")]
    pub layout: Option<String>,
    /// Type of the weights: fp32, bf16 or fp16 [default: that of the model that the run began with; of adapters, fp32]
    #[arg(long)]
    pub dtype: Option<Dtype>,
    /// Folder to write [default: RUN/export, RUN/adapter with --adapter]
    #[arg(long)]
    pub out: Option<PathBuf>,
    /// Result as JSON on stdout
    #[arg(long)]
    pub json: bool,
}
