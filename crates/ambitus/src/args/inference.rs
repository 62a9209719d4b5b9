//! On what a model is computed that does not train.

use ambitus_recipe::recipe::{DeviceChoice, Precision};
use ambitus_recipe::size::ByteSize;
use ambitus_train::inference::InferenceOptions;
use clap::Args;

#[derive(Args)]
pub struct InferenceArgs {
    /// What to compute in: fp32, tf32-mixed, bf16-mixed, fp16-mixed or bf16-pure (weights, too, in half the bytes)
    #[arg(long, default_value = "fp32")]
    pub precision: Precision,
    /// Where to compute: cpu, cuda or cuda:N
    #[arg(long, default_value = "cpu")]
    pub device: DeviceChoice,
    /// Threads [default: all cores]
    #[arg(long)]
    pub threads: Option<usize>,
    /// Memory budget; `say` says a text that is too long for it in shorter pieces
    #[arg(long, value_name = "SIZE")]
    pub memory: Option<ByteSize>,
}

impl InferenceArgs {
    /// Returns on what to compute.
    pub fn options(&self) -> InferenceOptions {
        let (precision, device, memory) = (self.precision, self.device, self.memory.map(|m| m.0));
        InferenceOptions { precision, device, threads: super::threads(self.threads), memory }
    }
}
