//! Plans models at real sizes and prints how long each stage took, what is kept for backward and what lives at the peak.
//!
//! `cargo run --release -p ambitus-compile --example plan_report`

use ambitus_compile::passes::policy::Blocks;
use ambitus_compile::pipeline::{self, Options};
use ambitus_compile::plan::{self, report};
use ambitus_ir::plan::PlannedProgram;
use ambitus_ir::{Phase, Program, Session};
use ambitus_models::{Capacity, f5, orpheus};
use ambitus_testkit::paper::FULL;
use std::collections::BTreeMap;
use std::time::Instant;

fn main() {
    let f5 = |s: &mut Session| {
        let cap = Capacity { rows: 3200, clips: 64 };
        f5::model::loss(s, &f5::config::Config::v1_base(), cap, "micro", true)
    };
    let llama = |s: &mut Session| {
        let cfg = orpheus::config::Config { vocab: 156_939, ..orpheus::config::Config::orpheus_3b() };
        orpheus::model::loss(s, &cfg, Capacity { rows: 8192, clips: 64 }, "micro")
    };
    for checkpoint in [Blocks::None, Blocks::First(10), Blocks::All] {
        report("F5TTS_v1_Base, 3200 frames", &f5, 3200 * 1024 * 4, &checkpoint);
        report("Llama 3B, 8192 tokens", &llama, 8192 * 3072 * 4, &checkpoint);
    }
}

/// Plans a model; `unit` is the bytes of an activation `[rows, width]`.
fn report(name: &str, model: &dyn Fn(&mut Session) -> Program, unit: u64, checkpoint: &Blocks) {
    let start = Instant::now();
    let mut session = Session::default();
    let forward = model(&mut session);
    let micro = pipeline::micro(&mut session, forward, Options::new(checkpoint.clone()), &FULL);
    session.programs.push(micro.expect("the model is differentiable"));
    let built = start.elapsed();
    let planned = plan::plan(session, &FULL, 1);
    let p = &planned.programs[0];
    println!("\n{name}, checkpoint {checkpoint:?}");
    println!(
        "  build and passes {:.0} ms, plan {:.0} ms, {} instructions, {} stretches",
        built.as_secs_f64() * 1e3,
        (start.elapsed() - built).as_secs_f64() * 1e3,
        p.program.instrs.len(),
        p.lives.len(),
    );
    let ratio = p.transient_bytes as f64 / p.live_bound_bytes as f64;
    let at = report::peak_place(p);
    println!("  transient {:.1} MiB, {ratio:.4} of the bound, at {at}", mib(p.transient_bytes));
    kept(p, unit);
    peak(p);
}

fn mib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

/// What lives from forward into backward, outside blocks and in one of them, in units of an activation `[rows, width]`.
fn kept(p: &PlannedProgram, unit: u64) {
    let instrs = &p.program.instrs;
    let turn = instrs.iter().position(|i| i.origin.phase != Phase::Forward).unwrap_or(instrs.len());
    let mut by_block: BTreeMap<Option<usize>, Vec<(String, u64)>> = BTreeMap::new();
    for live in p.lives.iter().filter(|l| (l.first as usize) < turn && l.last as usize >= turn) {
        let maker = &instrs[live.first as usize];
        let entry = by_block.entry(p.program.block_of(maker)).or_default();
        entry.push((maker.origin.path.to_string(), live.place.bytes));
    }
    for (block, values) in by_block {
        if block.is_some_and(|b| b != 12) {
            continue;
        }
        let sum: u64 = values.iter().map(|v| v.1).sum();
        let name = block.map_or("outside blocks", |b| p.program.blocks[b].as_str());
        println!("  kept in {name}: {:.2} activations", sum as f64 / unit as f64);
        for (path, bytes) in values {
            println!("      {:7.3}  {path}", bytes as f64 / unit as f64);
        }
    }
}

/// The largest stretches at the peak, by their maker's path without its block.
fn peak(p: &PlannedProgram) {
    let at = p.peak_at as u32;
    println!("  at the peak, {}", p.program.instrs[p.peak_at].origin.path);
    let mut sums: BTreeMap<String, (u64, usize)> = BTreeMap::new();
    for live in p.lives.iter().filter(|l| l.first <= at && at <= l.last) {
        let maker = &p.program.instrs[live.first as usize];
        let path = match p.program.block_of(maker) {
            Some(b) => format!("*{}", &maker.origin.path[p.program.blocks[b].len()..]),
            None => maker.origin.path.to_string(),
        };
        let kind = if live.value.is_some() { maker.origin.phase.name() } else { "workspace" };
        let sum = sums.entry(format!("{path} {kind}")).or_default();
        sum.0 += live.place.bytes;
        sum.1 += 1;
    }
    let mut sums: Vec<_> = sums.into_iter().collect();
    sums.sort_by_key(|s| std::cmp::Reverse(s.1.0));
    for (path, (bytes, count)) in sums.into_iter().take(14) {
        println!("      {:9.1} MiB in {count:3}  {path}", mib(bytes));
    }
}
