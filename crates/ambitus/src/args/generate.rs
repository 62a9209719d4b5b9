//! Arguments of `ambitus generate`.

use super::positive;
use crate::own::folders;
use ambitus_recipe::recipe::{DeviceChoice, Precision};
use ambitus_recipe::size::ByteSize;
use clap::Args;
use std::path::PathBuf;

#[derive(Args)]
pub struct GenerateArgs {
    #[arg(long, help = folders())]
    pub model: PathBuf,
    /// What is given (safetensors): of tokens clips.i.input_ids, and clips.i.q (draws of an exponential distribution); of mel frames
    /// clips.i.ref_mel, .text, .frames, .x0
    #[arg(long)]
    pub batch: PathBuf,
    /// Where the results go (safetensors: clips.i.tokens, .logits; clips.i.mel)
    #[arg(long)]
    pub out: PathBuf,
    /// Always take the likeliest token
    #[arg(long)]
    pub greedy: bool,
    /// Divide logits by this: above 1 more varied, below 1 more certain [default: 1]
    #[arg(long, default_value_t = 1.0, hide_default_value = true, conflicts_with = "greedy")]
    pub temperature: f32,
    /// Choose among the likeliest K tokens [default: all]
    #[arg(long, value_name = "K", default_value_t = 0, hide_default_value = true, conflicts_with = "greedy")]
    pub top_k: usize,
    /// Choose among the likeliest tokens that have this probability together [default: 1]
    #[arg(
        long,
        value_name = "P",
        default_value_t = 1.0,
        hide_default_value = true,
        conflicts_with = "greedy"
    )]
    pub top_p: f32,
    /// Make tokens of the prompt and of what is written less likely, where above 1 [default: 1]
    #[arg(long, value_name = "P", default_value_t = 1.0, hide_default_value = true)]
    pub repetition_penalty: f32,
    /// Seed of draws that are not given
    #[arg(long, default_value_t = 0)]
    pub seed: u64,
    /// New tokens of a sequence at most [default: what the model folder says, or 1200]
    #[arg(long, value_name = "N")]
    pub max_new: Option<usize>,
    /// Write the logits of every new token too
    #[arg(long)]
    pub logits: bool,
    /// Sequences at a time: more are faster together and take more memory; same tokens
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = positive())]
    pub sequences: usize,
    /// Steps from noise to mel frames
    #[arg(long, default_value_t = 32, value_parser = positive())]
    pub steps: usize,
    /// Strength of classifier-free guidance; 0: none, in half the time
    #[arg(long, default_value_t = 2.0)]
    pub cfg: f32,
    /// Sway sampling: below 0 steps are denser near noise; 0: even steps
    #[arg(long, default_value_t = -1.0, allow_negative_numbers = true)]
    pub sway: f32,
    /// What to compute in: fp32, tf32-mixed, bf16-mixed, fp16-mixed or bf16-pure (weights, too, in half the bytes)
    #[arg(long, default_value = "fp32")]
    pub precision: Precision,
    /// Where to compute: cpu, cuda or cuda:N
    #[arg(long, default_value = "cpu")]
    pub device: DeviceChoice,
    /// Threads [default: all cores]
    #[arg(long)]
    pub threads: Option<usize>,
    /// Memory budget
    #[arg(long, value_name = "SIZE")]
    pub memory: Option<ByteSize>,
    /// Print what was planned and taken as JSON
    #[arg(long)]
    pub json: bool,
}
