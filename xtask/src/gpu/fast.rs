//! How fast is it: rates, whole updates beside PyTorch's, every distinct instruction, algorithms of products.

use super::attention::attention;
use super::subject::{Subject, open};
use super::{Item, Run};
use crate::programs::{self, Measured, OpShare};
use crate::report::quartiles;
use crate::{peers, programs::Timed};
use ambitus_cuda::{CudaExecutor, CudaTarget};
use ambitus_ir::target::Rates;
use serde_json::json;
use std::sync::Arc;
use std::time::Instant;

/// Rounds of steps on each side, alternating; two are enough to try the way.
const ROUNDS: usize = 9;
pub(super) const FEW_ROUNDS: usize = 2;
/// Layers of half of Orpheus 3B: a block alone has a head that takes most of its time. With all 28 both sides would take 155 GB, by what
/// they took with 1 and 14 (benches/results/2026-11-27-nvidia-h200-fast.md).
const HALF: usize = 14;
/// Bytes of both sides at most, as a multiple of our arena: on an H200 PyTorch reserved 1.4 times what we took, or less.
const PEER: f64 = 2.6;
/// Algorithms that are timed for each product.
const ALGORITHMS: usize = 8;

pub const ITEMS: &[Item] = &[
    ("Rates", rates),
    ("Attention", attention),
    ("Instructions", instructions),
    ("Products", products),
    ("Update: F5 Base", |run| update(run, Subject::F5)),
    ("Update: a Llama block on one clip", |run| update(run, Subject::Llama { layers: 1, clips: 1 })),
    ("Update: a Llama block on several clips", |run| update(run, Subject::Llama { layers: 1, clips: 8 })),
    ("Update: half of Orpheus 3B on one clip", |run| update(run, Subject::Llama { layers: HALF, clips: 1 })),
    ("Update: half of Orpheus 3B on several clips", |run| {
        update(run, Subject::Llama { layers: HALF, clips: 8 })
    }),
];

/// Returns the card's rates, which the first part that needs them measures.
fn measured(run: &mut Run<'_>) -> Result<Measured, String> {
    if let Some(known) = run.measured {
        return Ok(known);
    }
    let target = CudaTarget::new(run.info.capability, run.info.rates);
    let planned = Arc::new(programs::plan_rates(&target, run.options.small));
    Ok(*run.measured.insert(programs::rates(&mut open(run.options, planned.clone())?, &planned)?))
}

fn rates(run: &mut Run<'_>) -> Result<(), String> {
    let Measured { gemm, half, bytes, gap } = measured(run)?;
    let assumed = run.info.rates;
    let head = ["", "measured", "planner's"].map(str::to_owned).to_vec();
    let row = |what: &str, measured: f64, assumed: f64| {
        vec![what.to_owned(), format!("{measured:.1}"), format!("{assumed:.1}")]
    };
    run.page.table(&[
        head,
        row("fp32 product, TFLOP/s", gemm / 1e12, assumed.gemm / 1e12),
        row("bf16 product, TFLOP/s", half / 1e12, assumed.half / 1e12),
        row("reading and writing, GB/s", bytes / 1e9, assumed.bytes / 1e9),
        row("from one node of a graph to the next, us", gap * 1e6, 2.0),
    ]);
    // As cards.toml has them.
    let (gemm, half, bytes) = (gemm / 1e12, half / 1e12, bytes / 1e9);
    run.page.fact(
        "rates",
        json!({"fp32_tflops": gemm, "half_tflops": half, "memory_gb_per_s": bytes, "node_seconds": gap}),
    );
    Ok(())
}

/// A whole update beside PyTorch's, where the card holds both at once.
fn update(run: &mut Run<'_>, subject: Subject) -> Result<(), String> {
    let bytes = PEER * subject.plan(run.options, run.info)?.arena_bytes() as f64;
    if bytes > run.info.total_bytes as f64 {
        run.page.line(&format!("Not run: the two sides need about {:.0} GB.", bytes / 1e9));
        return Ok(());
    }
    let Measured { gemm, half, bytes, .. } = measured(run)?;
    let rates = Rates { gemm, half, bytes, ..run.info.rates };
    let (mut exec, planned) = subject.open(run.options, run.info)?;
    let predicted = subject.predicted(run.options, run.info, rates, &planned);
    run.page.line(&format!("By the planner's model of these rates: {:.2} ms", 1e3 * predicted));
    programs::step(&mut exec)?;
    let folder = tempfile::tempdir().map_err(|e| e.to_string())?;
    let (script, args) = subject.peer(run.options);
    let peer = peers::Peer::start(&run.options.python, script, &args, folder.path());
    times(&mut exec, peer, subject, run)
}

/// Every distinct instruction of every program of an update, on bytes of its own each time.
fn instructions(run: &mut Run<'_>) -> Result<(), String> {
    let measured = measured(run)?;
    for subject in Subject::ALL {
        run.page.line(&format!("\n### {}\n", subject.name()));
        let (mut exec, planned) = subject.open(run.options, run.info)?;
        let timed = programs::timed(&mut exec, &planned)?;
        let row = |t: &Timed| {
            json!({
                "program": t.program, "op": t.op, "types": t.types, "count": t.count,
                "seconds": t.seconds, "flops": t.flops, "bytes": t.bytes, "narrow": t.narrow,
            })
        };
        run.page.fact(subject.name(), timed.iter().map(row).collect());
        let head = ["op", "instructions", "ms", "% of roofline"];
        let mut rows = vec![head.map(str::to_owned).to_vec()];
        for OpShare { op, count, seconds, floor } in programs::shares(&timed, measured) {
            let share = format!("{:.0}", 100.0 * floor / seconds);
            rows.push(vec![op.to_owned(), count.to_string(), format!("{:.3}", 1e3 * seconds), share]);
        }
        run.page
            .line("Ops of an update against the roofline of the measured rates, each op's kernels alone:\n");
        run.page.table(&rows);
    }
    Ok(())
}

/// How much faster the best of the library's first choices is than its very first: what timing at open wins (docs/decisions/0023-algorithms.md).
fn products(run: &mut Run<'_>) -> Result<(), String> {
    for subject in Subject::ALL {
        let (mut exec, planned) = subject.open(run.options, run.info)?;
        let (mut first, mut best, mut shapes) = (0.0, 0.0, Vec::new());
        for p in &planned.programs {
            let found = exec.time_algorithms(&planned, p, ALGORITHMS).map_err(|e| e.to_string())?;
            for (i, seconds) in found {
                first += seconds[0];
                best += seconds.iter().copied().fold(f64::INFINITY, f64::min);
                let (x, y) = p.program.signature(&p.program.instrs[i]);
                shapes.push(json!({"types": format!("{x:?} -> {y:?}"), "seconds": seconds}));
            }
        }
        run.page.fact(&format!("{}: algorithms", subject.name()), shapes.into());
        run.page.line(&format!(
            "{}: distinct products take {:.3} ms by the library's first choices, {:.3} ms by the best of {ALGORITHMS}.",
            subject.name(),
            1e3 * first,
            1e3 * best
        ));
    }
    Ok(())
}

/// Rounds of steps, alternating with the peer's where there is one.
fn times(
    exec: &mut CudaExecutor,
    peer: Result<peers::Peer, String>,
    subject: Subject,
    run: &mut Run<'_>,
) -> Result<(), String> {
    let rounds = if run.options.small { FEW_ROUNDS } else { ROUNDS };
    let page = &mut run.page;
    let (mut own, mut theirs, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
    let (mut peer, missing) = match peer {
        Ok(peer) => (Some(peer), None),
        Err(why) => (None, Some(why)),
    };
    let mut last = None;
    for _ in 0..rounds {
        let start = Instant::now();
        for _ in 0..3 {
            programs::step(exec)?;
        }
        let ms = 1e3 * start.elapsed().as_secs_f64() / 3.0;
        own.push(ms);
        if let Some(p) = &mut peer {
            let answer = p.round()?;
            let step = answer["wall_ms"].as_f64().ok_or("the peer gave no time")?;
            theirs.push(step);
            ratios.push(ms / step);
            last = Some(answer);
        }
    }
    let shown = |x: &[f64]| {
        let (median, low, high) = quartiles(x);
        format!("{median:.2} ({low:.2} to {high:.2})")
    };
    page.line(&format!("\nA whole update, ms, median and quartiles of {rounds} rounds: {}", shown(&own)));
    page.fact(&format!("{}: updates", subject.name()), json!({"ms": own, "torch_ms": theirs}));
    match (last, missing) {
        (Some(answer), _) => {
            page.line(&format!(
                "PyTorch {} beside it: {}",
                answer["torch"].as_str().unwrap_or("?"),
                shown(&theirs)
            ));
            page.line(&format!("Ratio, round by round: {}", shown(&ratios)));
            page.line(&format!("PyTorch's own count: {answer}"));
        }
        (None, Some(why)) => page.line(&format!("PyTorch was not run: {why}")),
        (None, None) => {}
    }
    Ok(())
}
