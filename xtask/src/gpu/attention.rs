//! Attention alone, forward and backward in bf16, beside PyTorch's.

use super::Run;
use super::fast::FEW_ROUNDS;
use super::subject::open;
use crate::peers::Peer;
use crate::report::quartiles;
use ambitus_compile::plan::plan;
use ambitus_cuda::{CudaExecutor, CudaTarget};
use ambitus_exec::executor::Executor;
use ambitus_ir::ops::attention::{Attention, AttentionGrad};
use ambitus_ir::plan::PlannedSession;
use ambitus_ir::{Builder, DType, Op, Session, TensorType};
use ambitus_testkit::Rng;
use serde_json::{Value, json};
use std::sync::Arc;

/// Rounds on each side, alternating.
const ROUNDS: usize = 7;

/// Clips of equal length that a model packs.
struct Shape {
    name: &'static str,
    clips: usize,
    tokens: usize,
    heads: usize,
    kv_heads: usize,
    head_dim: usize,
    causal: bool,
}

const fn shape(
    name: &'static str,
    [clips, tokens]: [usize; 2],
    [heads, kv_heads, head_dim]: [usize; 3],
    causal: bool,
) -> Shape {
    Shape { name, clips, tokens, heads, kv_heads, head_dim, causal }
}

const SHAPES: [Shape; 6] = [
    shape("F5", [4, 800], [16, 16, 64], false),
    shape("F5, one clip", [1, 3200], [16, 16, 64], false),
    shape("Orpheus", [8, 1024], [24, 8, 128], true),
    shape("Orpheus, one clip", [1, 8192], [24, 8, 128], true),
    shape("Parler, MusicGen", [8, 750], [16, 16, 64], true),
    shape("XTTS", [4, 600], [16, 16, 64], true),
];

/// Seconds of a forward and a backward pass.
type Passes = [f64; 2];

impl Shape {
    fn small(&self) -> Shape {
        Shape { tokens: 16, heads: self.heads / self.kv_heads, kv_heads: 1, ..*self }
    }

    /// Products of forward and backward, without what is masked.
    fn flops(&self) -> Passes {
        let pairs = (self.clips * self.tokens * self.tokens * self.heads) as f64
            * if self.causal { 0.5 } else { 1.0 };
        let product = 2.0 * pairs * self.head_dim as f64;
        [2.0 * product, 5.0 * product]
    }

    fn argument(&self) -> String {
        let numbers =
            [self.clips, self.tokens, self.heads, self.kv_heads, self.head_dim, usize::from(self.causal)];
        numbers.map(|n| n.to_string()).join(",")
    }

    fn plan(&self, target: &CudaTarget) -> PlannedSession {
        let Shape { heads, kv_heads, head_dim, causal, .. } = *self;
        let (rows, scale) = (self.clips * self.tokens, 1.0 / (head_dim as f32).sqrt());
        let mut s = Session::default();
        let mut b = Builder::new(&mut s, "attention");
        let mut tensor =
            |name: &str, heads: usize| b.input(name, TensorType::new(DType::BF16, &[rows, heads * head_dim]));
        let (q, k, v, d_o) =
            (tensor("q", heads), tensor("k", kv_heads), tensor("v", kv_heads), tensor("d_o", heads));
        let segments = b.input("segments", TensorType::i32(&[self.clips + 1]));
        let op = Attention { heads, kv_heads, head_dim, causal, scale };
        let forward = b.push(op, &[q, k, v, segments, segments]);
        let op = AttentionGrad { heads, kv_heads, head_dim, causal, scale };
        let backward = b.push(op, &[q, k, v, forward[0], forward[1], d_o, segments, segments]);
        for (i, v) in backward.into_iter().enumerate() {
            b.output(&format!("y{i}"), v);
        }
        s.programs = vec![b.finish()];
        plan(s, target, 1)
    }

    /// Fills the inputs and runs forward once, whose results backward reads.
    fn open(&self, run: &Run<'_>) -> Result<(CudaExecutor, Arc<PlannedSession>), String> {
        let planned = Arc::new(self.plan(&CudaTarget::new(run.info.capability, run.info.rates)));
        let mut exec = open(run.options, planned.clone())?;
        let p = planned.program("attention").ok_or("no program")?;
        let mut rng = Rng::new(7);
        for input in &p.program.inputs {
            let ty = p.program.ty(input.value);
            let bytes: Vec<u8> = match ty.dtype {
                DType::I32 => {
                    (0..=self.clips).flat_map(|i| ((i * self.tokens) as i32).to_ne_bytes()).collect()
                }
                _ => rng.tensor(ty, -2.0, 2.0).to_bytes(),
            };
            exec.write_bytes(p.place(input.value), &bytes).map_err(|e| e.to_string())?;
        }
        exec.run("attention", 0).map_err(|e| e.to_string())?;
        Ok((exec, planned))
    }
}

fn measure(exec: &mut CudaExecutor, planned: &PlannedSession) -> Result<Passes, String> {
    let p = planned.program("attention").ok_or("no program")?;
    let seconds = exec.time_instructions(planned, p).map_err(|e| e.to_string())?;
    let of = |is: fn(&Op) -> bool| {
        let found = p.program.instrs.iter().zip(&seconds).find(|(i, _)| is(&i.op));
        found.map(|(_, seconds)| *seconds).ok_or("no instruction")
    };
    Ok([of(|op| matches!(op, Op::Attention(_)))?, of(|op| matches!(op, Op::AttentionGrad(_)))?])
}

pub fn attention(run: &mut Run<'_>) -> Result<(), String> {
    let shapes = SHAPES.map(|s| if run.options.small { s.small() } else { s });
    let folder = tempfile::tempdir().map_err(|e| e.to_string())?;
    let arguments: Vec<String> = shapes.iter().map(Shape::argument).collect();
    let peer = Peer::start(&run.options.python, "attention_torch.py", &arguments, folder.path());
    let mut peer = peer.map_err(|why| run.page.line(&format!("PyTorch was not run: {why}\n"))).ok();
    let mut open: Vec<_> = shapes.iter().map(|shape| shape.open(run)).collect::<Result<_, _>>()?;
    let mut own = shapes.iter().map(|_| Vec::new()).collect::<Vec<Vec<Passes>>>();
    let mut answers: Vec<Value> = Vec::new();
    let rounds = if run.options.small { FEW_ROUNDS } else { ROUNDS };
    for _ in 0..rounds {
        for ((exec, planned), own) in open.iter_mut().zip(&mut own) {
            own.push(measure(exec, planned)?);
        }
        if let Some(peer) = &mut peer {
            answers.push(peer.round()?);
        }
    }
    let head = ["shape", "pass", "ms", "TFLOP/s", "flash", "cudnn", "ratio to flash", "to cudnn"];
    let mut rows = vec![head.map(str::to_owned).to_vec()];
    for (i, (shape, own)) in shapes.iter().zip(&own).enumerate() {
        let what = format!(
            "{}: {} x {}, {}/{} x {}",
            shape.name, shape.clips, shape.tokens, shape.heads, shape.kv_heads, shape.head_dim
        );
        for (pass, key) in ["forward", "backward"].iter().enumerate() {
            let ms: Vec<f64> = own.iter().map(|passes| 1e3 * passes[pass]).collect();
            let theirs = ["flash", "cudnn"].map(|backend| -> Vec<f64> {
                let of = |a: &Value| a["shapes"][i][backend][format!("{key}_ms")].as_f64();
                answers.iter().filter_map(of).collect()
            });
            let middle = |x: &[f64]| quartiles(x).0;
            let shown = |x: &[f64]| if x.is_empty() { "-".to_owned() } else { format!("{:.3}", middle(x)) };
            let ratio = |x: &[f64]| {
                let ratios: Vec<f64> = ms.iter().zip(x).map(|(a, b)| a / b).collect();
                if ratios.is_empty() { "-".to_owned() } else { format!("{:.2}", middle(&ratios)) }
            };
            rows.push(vec![
                what.clone(),
                (*key).to_owned(),
                shown(&ms),
                format!("{:.0}", shape.flops()[pass] / (1e9 * middle(&ms))),
                shown(&theirs[0]),
                shown(&theirs[1]),
                ratio(&theirs[0]),
                ratio(&theirs[1]),
            ]);
        }
    }
    run.page.line(&format!("Medians of {rounds} alternating rounds; PyTorch's columns in ms.\n"));
    run.page.table(&rows);
    run.page.fact("attention", json!({ "own_seconds": own, "torch": answers }));
    Ok(())
}
