//! Arguments of `ambitus prepare`.

use super::TrainArgs;
use clap::Args;

#[derive(Args)]
pub struct PrepareArgs {
    #[command(flatten)]
    pub run: TrainArgs,
    /// Only say what is wrong with the clips, by sound and text, and what the set lacks; needs no model and writes nothing (docs/check.md)
    #[arg(long)]
    pub check: bool,
}
