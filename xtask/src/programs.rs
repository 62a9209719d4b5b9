//! Whole steps to time on a card: F5 Base and a Llama block, on random weights and clips.

use ambitus_compile::optimizer::{Optimizer, Rule, States};
use ambitus_compile::passes::policy::Blocks;
use ambitus_compile::passes::precision::Precision;
use ambitus_compile::pipeline::{Options, Pipeline, Trained};
use ambitus_compile::plan;
use ambitus_cuda::CudaExecutor;
use ambitus_exec::executor::Executor;
use ambitus_families::batches::write_batch;
use ambitus_ir::ops::optim::AdamW;
use ambitus_ir::plan::PlannedSession;
use ambitus_ir::target::Target;
use ambitus_ir::{DType, Op, Session, StateId, StateKind};
use ambitus_models::f5::batch::{self, Clip};
use ambitus_models::f5::config::{Config, MELS};
use ambitus_models::f5::draw::Draw;
use ambitus_models::orpheus::{self, config::Config as Llama};
use ambitus_models::{Batch, Capacity};
use ambitus_plan::session::{self, SessionOptions, program};
use ambitus_testkit::Rng;

const ADAMW: Optimizer = Optimizer {
    rule: Rule::AdamW(AdamW { beta1: 0.9, beta2: 0.999, eps: 1e-8, weight_decay: 0.01 }),
    own_betas: Vec::new(),
    no_decay: Vec::new(),
    states: States::Fp32,
};
/// Spread of random weights: that of an initialised transformer.
const SPREAD: f64 = 0.02;

/// Frames of an F5 step and its clips, each of the same length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct F5Shape {
    /// Frames of all clips.
    pub frames: usize,
    /// Clips.
    pub clips: usize,
}

/// Returns the shape of `F5TTS_v1_Base` without dropout, or a tiny one.
pub fn f5_config(small: bool) -> Config {
    let base = Config { dropout: 0.0, ..Config::v1_base() };
    if !small {
        return base;
    }
    Config {
        dim: 64,
        depth: 2,
        heads: 2,
        dim_head: 32,
        ff_dim: 128,
        text_dim: 32,
        conv_layers: 1,
        text_rows: 40,
        rotated: 2,
        ..base
    }
}

/// Returns Orpheus' decoder with `layers` blocks (Llama-3.2-3B's widths, its 156,940 tokens), or a tiny one.
pub fn llama_config(small: bool, layers: usize) -> Llama {
    let block = Llama { layers, ..Llama::orpheus_3b() };
    if !small {
        return block;
    }
    Llama { layers: 1, dim: 96, heads: 4, kv_heads: 2, head_dim: 24, ffn: 128, vocab: 300, ..block }
}

/// Plans one F5 update with its moving average.
///
/// # Errors
/// A model that cannot be trained.
pub fn plan_f5(
    config: &Config,
    shape: F5Shape,
    precision: Precision,
    target: &dyn Target,
) -> Result<PlannedSession, String> {
    let options = SessionOptions {
        precision,
        capacity: Capacity { rows: shape.frames, clips: shape.clips },
        checkpoint: Blocks::None,
        trained: Trained::All,
        optimizer: Some(ADAMW),
        clip_per_tensor: false,
        update_in_backward: false,
        whole_updates: false,
        offload: Default::default(),
        sharding: None,
        placement: None,
        ema: true,
        evaluate: false,
        sample: None,
        speech: None,
    };
    session::compile(config, &options, target).map_err(|e| e.to_string())
}

/// Plans one Llama update.
///
/// # Errors
/// A model that cannot be trained.
pub fn plan_llama(
    config: &Llama,
    capacity: Capacity,
    precision: Precision,
    target: &dyn Target,
) -> Result<PlannedSession, String> {
    let mut s = Session::default();
    let forward = orpheus::model::loss(&mut s, config, capacity, program::MICRO);
    let passes = Options { optimizer: Some(ADAMW), precision, ..Options::new(Blocks::None) };
    let s =
        Pipeline::new(&passes, target).session(s, vec![forward], Vec::new()).map_err(|e| e.to_string())?;
    Ok(plan::plan(s, target, 1))
}

/// Writes random weights: spread as an initialised transformer's, ones for the factors of norms.
///
/// # Errors
/// From the executor.
pub fn random_weights(exec: &mut dyn Executor) -> Result<(), String> {
    let mut rng = Rng::new(7);
    // The same again and again: billions would take longer than what is measured with them.
    let drawn: Vec<f32> = (0..1 << 20).map(|_| rng.range(-SPREAD, SPREAD) as f32).collect();
    let states = exec.planned().session.states.clone();
    for (i, state) in states.iter().enumerate().filter(|(_, s)| s.kind == StateKind::Parameter) {
        let one = state.ty.shape.len() == 1 && state.name.contains("norm") && state.name.ends_with("weight");
        let n = state.ty.shape.elements();
        let data: Vec<f32> =
            if one { vec![1.0; n] } else { drawn.iter().copied().cycle().skip(i).take(n).collect() };
        exec.write_state(StateId(i as u32), &data).map_err(|e| e.to_string())?;
    }
    Ok(())
}

/// Writes random clips of equal length as the micro-batch of an F5 session.
///
/// # Errors
/// From the executor.
pub fn random_clips(exec: &mut dyn Executor, config: &Config, shape: F5Shape) -> Result<(), String> {
    let mut rng = Rng::new(11);
    let n = shape.frames / shape.clips;
    let text: Vec<i32> = (0..n / 8).map(|i| (i % (config.text_rows - 1)) as i32).collect();
    let mels: Vec<Vec<f32>> =
        (0..shape.clips).map(|_| (0..n * MELS).map(|_| rng.range(-2.0, 2.0) as f32).collect()).collect();
    let clips: Vec<Clip<'_>> = mels
        .iter()
        .enumerate()
        .map(|(i, mel)| {
            let span = (n / 10, n - n / 10);
            let draw = Draw { time: 0.5, span, drop_audio: false, drop_text: false, key: [1, i as u32] };
            Clip { mel, text: &text, draw, noise: None, span: None }
        })
        .collect();
    let mut host = Batch::new(&batch::layout(Capacity { rows: shape.frames, clips: shape.clips }));
    batch::fill(&mut host, &clips);
    let scored = clips.iter().map(Clip::span_frames).sum();
    write_batch(exec, program::MICRO, &host).map_err(|e| e.to_string())?;
    write(exec, program::MICRO, "norm", batch::norm(scored))
}

/// Writes random tokens as sequences of equal length of a Llama session.
///
/// # Errors
/// From the executor.
pub fn random_tokens(exec: &mut dyn Executor, config: &Llama, capacity: Capacity) -> Result<(), String> {
    let mut rng = Rng::new(13);
    let ids: Vec<i32> = (0..=capacity.rows).map(|_| rng.below(config.vocab) as i32).collect();
    let segments: Vec<i32> =
        (0..=capacity.clips).map(|i| (i * capacity.rows / capacity.clips) as i32).collect();
    let tables =
        [("input_ids", &ids[..capacity.rows]), ("labels", &ids[1..]), ("segments", segments.as_slice())];
    for (name, data) in tables {
        exec.write_i32(program::MICRO, name, 0, data).map_err(|e| e.to_string())?;
    }
    write(exec, program::MICRO, "norm", 1.0 / capacity.rows as f32)
}

fn write(exec: &mut dyn Executor, name: &str, input: &str, value: f32) -> Result<(), String> {
    exec.write_f32(name, input, 0, &[value]).map_err(|e| e.to_string())
}

/// Runs one update: micro-batch, clip and AdamW, and the moving average if there is one. Returns the loss.
///
/// # Errors
/// From the executor.
pub fn step(exec: &mut dyn Executor) -> Result<f32, String> {
    let has = |exec: &dyn Executor, name: &str| exec.planned().program(name).is_some();
    write(exec, program::MICRO, "beta", 0.0)?;
    exec.run(program::MICRO, 0).map_err(|e| e.to_string())?;
    write(exec, program::UPDATE, "lr", 1e-5)?;
    write(exec, program::UPDATE, "clip", 1.0)?;
    exec.run(program::UPDATE, 0).map_err(|e| e.to_string())?;
    if has(exec, program::EMA) {
        write(exec, program::EMA, "decay", 0.999)?;
        exec.run(program::EMA, 0).map_err(|e| e.to_string())?;
    }
    let mut loss = [0.0];
    exec.read_f32(program::MICRO, "loss", 0, &mut loss).map_err(|e| e.to_string())?;
    Ok(loss[0])
}

/// Returns the norm of the gradients that the last update applied.
///
/// # Errors
/// From the executor.
pub fn grad_norm(exec: &mut dyn Executor) -> Result<f32, String> {
    let mut norm = [0.0];
    exec.read_f32(program::UPDATE, "grad_norm", 0, &mut norm).map_err(|e| e.to_string())?;
    Ok(norm[0])
}

/// What a card really does per second: large products, and reading and writing a large tensor.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Measured {
    /// Floating-point operations of an fp32 product.
    pub gemm: f64,
    /// The same of a bf16 product.
    pub half: f64,
    /// Bytes moved.
    pub bytes: f64,
    /// Seconds from one tiny kernel of a graph to the next.
    pub gap: f64,
}

/// Returns a session with large products, a large copy and a tiny one, to measure a card's rates with [`rates`].
pub fn plan_rates(target: &dyn Target, small: bool) -> PlannedSession {
    let (n, rows) = if small { (64, 256) } else { (4096, 65_536) };
    let mut s = Session::default();
    let mut b = ambitus_ir::Builder::new(&mut s, "rates");
    let (p, q) = (b.input("p", matrix(n, n)), b.input("q", matrix(n, n)));
    let y = b.matmul(p, q, false, false);
    b.output("y", y);
    let narrow = ambitus_ir::TensorType::new(DType::BF16, &[n, n]);
    let (p, q) = (b.input("p16", narrow), b.input("q16", narrow));
    let y = b.matmul(p, q, false, false);
    b.output("y16", y);
    let (x, by) = (b.input("x", matrix(rows, 1024)), b.input("by", matrix(1, 1)));
    let by = b.reshape(by, &[1]);
    let z = b.scale(x, by);
    b.output("z", z);
    let one = b.input("one", matrix(1, 1));
    let tiny = b.scale(one, by);
    b.output("tiny", tiny);
    s.programs = vec![b.finish()];
    plan::plan(s, target, 1)
}

fn matrix(rows: usize, cols: usize) -> ambitus_ir::TensorType {
    ambitus_ir::TensorType::new(DType::F32, &[rows, cols])
}

/// Returns the rates of the card that [`plan_rates`], which `planned` is, was opened on.
///
/// # Errors
/// From the executor.
pub fn rates(exec: &mut CudaExecutor, planned: &PlannedSession) -> Result<Measured, String> {
    let p = planned.program("rates").ok_or("no program")?;
    let seconds = exec.time_instructions(planned, p).map_err(|e| e.to_string())?;
    let mut measured = Measured::default();
    for (instr, seconds) in p.program.instrs.iter().zip(seconds) {
        let (x, y) = p.program.signature(instr);
        let cost = instr.op.cost(&x, &y);
        match instr.op {
            Op::MatMul(_) if x[0].dtype == DType::F32 => measured.gemm = cost.flops / seconds,
            Op::MatMul(_) => measured.half = cost.flops / seconds,
            Op::Scale(_) if y[0].shape.elements() == 1 => measured.gap = seconds,
            Op::Scale(_) => measured.bytes = cost.bytes / seconds,
            _ => {}
        }
    }
    Ok(measured)
}

/// A distinct instruction of a program, as it was measured.
#[derive(Clone, Debug, PartialEq)]
pub struct Timed {
    /// The program.
    pub program: String,
    /// The op.
    pub op: &'static str,
    /// Types of its operands and results.
    pub types: String,
    /// How many of it there are.
    pub count: usize,
    /// Seconds of one.
    pub seconds: f64,
    /// Floating-point operations of one.
    pub flops: f64,
    /// Bytes that one reads and writes at least.
    pub bytes: f64,
    /// It takes 16-bit operands.
    pub narrow: bool,
}

/// Returns the distinct instructions of every program of the plan that was opened.
///
/// # Errors
/// From the executor.
pub fn timed(exec: &mut CudaExecutor, planned: &PlannedSession) -> Result<Vec<Timed>, String> {
    let mut all: Vec<Timed> = Vec::new();
    for p in &planned.programs {
        let seconds = exec.time_instructions(planned, p).map_err(|e| e.to_string())?;
        for (instr, seconds) in p.program.instrs.iter().zip(seconds) {
            let (x, y) = p.program.signature(instr);
            let (op, types) = (instr.op.name(), format!("{x:?} -> {y:?}"));
            let same = |t: &&mut Timed| t.program == p.program.name && t.op == op && t.types == types;
            if let Some(t) = all.iter_mut().find(same) {
                t.count += 1;
                continue;
            }
            let (cost, program) = (instr.op.cost(&x, &y), p.program.name.clone());
            let narrow = x.iter().any(|x| matches!(x.dtype, DType::BF16 | DType::F16));
            let (flops, bytes) = (cost.flops, cost.bytes);
            all.push(Timed { program, op, types, count: 1, seconds, flops, bytes, narrow });
        }
    }
    Ok(all)
}

/// Time of an op's instructions in a program, against the least that the measured rates allow.
#[derive(Clone, Debug, PartialEq)]
pub struct OpShare {
    /// The op.
    pub op: &'static str,
    /// Its instructions.
    pub count: usize,
    /// Seconds of all of them.
    pub seconds: f64,
    /// The least: the larger of arithmetic and bytes, at the measured rates.
    pub floor: f64,
}

/// Returns every op, the most expensive first.
pub fn shares(timed: &[Timed], measured: Measured) -> Vec<OpShare> {
    let mut ops: Vec<OpShare> = Vec::new();
    for t in timed {
        let rate = if t.narrow { measured.half } else { measured.gemm };
        let floor = t.count as f64 * (t.flops / rate).max(t.bytes / measured.bytes);
        let seconds = t.count as f64 * t.seconds;
        match ops.iter_mut().find(|o| o.op == t.op) {
            Some(o) => {
                (o.count, o.seconds, o.floor) = (o.count + t.count, o.seconds + seconds, o.floor + floor)
            }
            None => ops.push(OpShare { op: t.op, count: t.count, seconds, floor }),
        }
    }
    ops.sort_by(|a, b| b.seconds.total_cmp(&a.seconds));
    ops
}
