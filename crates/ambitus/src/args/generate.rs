//! Arguments of `ambitus generate`.

use super::GenerationArgs;
use crate::own::folders;
use clap::Args;
use std::path::PathBuf;

#[derive(Args)]
pub struct GenerateArgs {
    #[arg(long, help = folders())]
    pub model: PathBuf,
    /// What is given (safetensors): of tokens clips.i.input_ids, and clips.i.q (draws of an exponential distribution); of mel frames
    /// clips.i.ref_mel, .text, .frames, .x0; of models that hear clips.i.wave (16 kHz) and .prompt (ids)
    #[arg(long)]
    pub batch: PathBuf,
    /// Where the results go (safetensors: clips.i.tokens, .logits, .states; clips.i.mel)
    #[arg(long)]
    pub out: PathBuf,
    /// Write the logits of every new token too
    #[arg(long)]
    pub logits: bool,
    /// Write the encoder's states too, of models that hear
    #[arg(long)]
    pub states: bool,
    #[command(flatten)]
    pub how: GenerationArgs,
    /// Print what was planned and taken as JSON
    #[arg(long)]
    pub json: bool,
}
