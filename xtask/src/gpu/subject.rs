//! Whole updates that are measured: F5 Base, and blocks of Orpheus 3B on one long clip and on eight, in bf16-mixed.

use super::Options;
use crate::programs::{self, F5Shape};
use ambitus_compile::passes::precision::Precision;
use ambitus_compile::plan::report;
use ambitus_cuda::driver::{Card, CardInfo};
use ambitus_cuda::{CudaExecutor, CudaTarget};
use ambitus_ir::plan::PlannedSession;
use ambitus_ir::target::{Packed, Rates};
use ambitus_models::Capacity;
use std::sync::Arc;

/// A step that is timed.
#[derive(Clone, Copy, Debug)]
pub enum Subject {
    F5,
    Llama { layers: usize, clips: usize },
}

impl Subject {
    /// What every part of the stages runs.
    pub const ALL: [Subject; 3] =
        [Subject::F5, Subject::Llama { layers: 1, clips: 1 }, Subject::Llama { layers: 1, clips: 8 }];

    pub fn name(self) -> &'static str {
        match self {
            Subject::F5 => "F5 Base, bf16-mixed",
            Subject::Llama { layers: 1, clips: 1 } => "Llama block, one clip, bf16-mixed",
            Subject::Llama { layers: 1, .. } => "Llama block, several clips, bf16-mixed",
            Subject::Llama { clips: 1, .. } => "Half of Orpheus 3B, one clip, bf16-mixed",
            Subject::Llama { .. } => "Half of Orpheus 3B, several clips, bf16-mixed",
        }
    }

    /// Plans the update.
    pub fn plan(self, options: &Options, info: &CardInfo) -> Result<PlannedSession, String> {
        let target = CudaTarget::new(info.capability, info.rates);
        let precision = Precision::Bf16Mixed;
        match self {
            Subject::F5 => {
                let config = programs::f5_config(options.small);
                programs::plan_f5(&config, f5_shape(options), precision, &target)
            }
            Subject::Llama { layers, clips } => {
                let config = programs::llama_config(options.small, layers);
                programs::plan_llama(&config, llama_capacity(options, clips), precision, &target)
            }
        }
    }

    /// Plans, opens, and fills the first micro-batch.
    pub fn open(
        self,
        options: &Options,
        info: &CardInfo,
    ) -> Result<(CudaExecutor, Arc<PlannedSession>), String> {
        let planned = Arc::new(self.plan(options, info)?);
        let mut exec = open(options, planned.clone())?;
        programs::random_weights(&mut exec)?;
        match self {
            Subject::F5 => {
                programs::random_clips(&mut exec, &programs::f5_config(options.small), f5_shape(options))?;
            }
            Subject::Llama { layers, clips } => {
                let config = programs::llama_config(options.small, layers);
                programs::random_tokens(&mut exec, &config, llama_capacity(options, clips))?;
            }
        }
        Ok((exec, planned))
    }

    /// Returns the seconds of an update by the planner's model, with rates that were measured.
    pub fn predicted(
        self,
        options: &Options,
        info: &CardInfo,
        rates: Rates,
        planned: &PlannedSession,
    ) -> f64 {
        let target = CudaTarget::new(info.capability, rates);
        let rows = match self {
            Subject::F5 => f5_shape(options).frames / f5_shape(options).clips,
            Subject::Llama { clips, .. } => llama_capacity(options, clips).rows / clips,
        };
        let packed = Packed { target: &target, rows: rows as f64 };
        planned.programs.iter().map(|p| report::seconds(&p.program, &packed)).sum()
    }

    /// Returns script and arguments of the peer.
    pub fn peer(self, options: &Options) -> (&'static str, Vec<String>) {
        let numbers = |pairs: &[(&str, usize)]| -> Vec<String> {
            pairs.iter().flat_map(|(name, n)| [format!("--{name}"), n.to_string()]).collect()
        };
        let shape = match self {
            Subject::F5 => {
                let c = programs::f5_config(options.small);
                let s = f5_shape(options);
                let sizes = [
                    ("dim", c.dim),
                    ("depth", c.depth),
                    ("heads", c.heads),
                    ("head-dim", c.dim_head),
                    ("ff-mult", c.ff_dim / c.dim),
                    ("text-dim", c.text_dim),
                    ("conv-layers", c.conv_layers),
                    ("batch", s.clips),
                    ("frames", s.frames / s.clips),
                    // As ours: no dropout, the moving average in every update.
                    ("dropout", 0),
                    ("ema-every", 1),
                ];
                ("f5_plain_torch.py", numbers(&sizes))
            }
            Subject::Llama { layers, clips } => {
                let c = programs::llama_config(options.small, layers);
                let sizes = [
                    ("dim", c.dim),
                    ("heads", c.heads),
                    ("kv-heads", c.kv_heads),
                    ("head-dim", c.head_dim),
                    ("ffn", c.ffn),
                    ("vocab", c.vocab),
                    ("layers", c.layers),
                    ("batch", clips),
                    ("tokens", llama_capacity(options, clips).rows / clips),
                ];
                ("llama_plain_torch.py", numbers(&sizes))
            }
        };
        let mut args: Vec<String> = ["--device", "cuda", "--precision", "bf16", "--compile", "--steps", "3"]
            .map(str::to_owned)
            .to_vec();
        args.extend(shape.1);
        (shape.0, args)
    }
}

/// Opens a session on the card.
pub fn open(options: &Options, planned: Arc<PlannedSession>) -> Result<CudaExecutor, String> {
    let card = Card::open(options.card).map_err(|e| e.to_string())?;
    CudaExecutor::open(planned, card, None).map_err(|e| e.why.to_string())
}

fn f5_shape(options: &Options) -> F5Shape {
    if options.small { F5Shape { frames: 64, clips: 2 } } else { F5Shape { frames: 3200, clips: 4 } }
}

fn llama_capacity(options: &Options, clips: usize) -> Capacity {
    Capacity { rows: if options.small { 64 } else { 8192 }, clips }
}
