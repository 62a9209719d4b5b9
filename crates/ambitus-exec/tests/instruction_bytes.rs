//! What instructions take beside the arena, in a plan and bound by an executor: within what
//! [`program_bytes`] and [`CpuExecutor::program_bytes`] say, by which runs are planned.
//!
//! A binary of its own: it counts what the whole process holds, also what threads of an earlier test would free later.

use ambitus_compile::optimizer::{Optimizer, States};
use ambitus_compile::passes::policy::Blocks;
use ambitus_compile::passes::precision::Precision;
use ambitus_compile::pipeline::{Options, Pipeline};
use ambitus_compile::plan::plan;
use ambitus_exec::cpu::{CpuExecutor, CpuTarget};
use ambitus_exec::executor::Executor;
use ambitus_ir::Session;
use ambitus_ir::ops::optim::AdamW;
use ambitus_ir::plan::{PlannedSession, allocated, program_bytes};
use ambitus_models::{Capacity, f5};
use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The system's allocator, counting what is held as [`allocated`] does.
struct Counting;

static HELD: AtomicU64 = AtomicU64::new(0);

// SAFETY: everything is handed to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        HELD.fetch_add(allocated(layout.size()), Ordering::Relaxed);
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        HELD.fetch_sub(allocated(layout.size()), Ordering::Relaxed);
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

fn held() -> u64 {
    HELD.load(Ordering::Relaxed)
}

/// Plans a narrow F5 with `depth` blocks, with all programs of an update.
fn planned(depth: usize, states: States) -> Arc<PlannedSession> {
    let base = f5::config::Config::v1_base();
    let narrow = f5::config::Config { dim: 64, heads: 2, rotated: 2, dim_head: 32, ff_dim: 128, ..base };
    let cfg = f5::config::Config { depth, text_dim: 32, conv_layers: 1, text_rows: 40, ..narrow };
    let target = CpuTarget::new(2);
    let mut s = Session::default();
    let forward = f5::model::loss(&mut s, &cfg, Capacity { rows: 200, clips: 2 }, "micro", true);
    let adamw = AdamW { beta1: 0.9, beta2: 0.99, eps: 1e-8, weight_decay: 0.0 };
    let options = Options {
        precision: Precision::Bf16Mixed,
        optimizer: Some(Optimizer { states, ..adamw.into() }),
        ema: true,
        ..Options::new(Blocks::All)
    };
    let s = Pipeline::new(&options, &target).session(s, vec![forward], Vec::new());
    Arc::new(plan(s.expect("the model is differentiable"), &target, 1))
}

/// One test: it counts what the whole process holds.
#[test]
fn instructions_take_what_is_said() {
    // Threads and what libraries keep for themselves.
    let open = |planned: Arc<PlannedSession>| CpuExecutor::open(planned, 2).expect("a small arena");
    drop(open(planned(1, States::Fp32)));
    for (depth, states) in [(8, States::Fp32), (40, States::EightBit)] {
        let before = held();
        let plan = planned(depth, states);
        let programs = || plan.programs.iter().map(|p| &p.program);
        let instrs: usize = programs().map(|p| p.instrs.len()).sum();
        let said: u64 = programs().map(program_bytes).sum();
        let bound: u64 = programs().map(CpuExecutor::program_bytes).sum();
        let arena = allocated(plan.arena_bytes() as usize);
        let with_plan = held() - before;

        let exec = open(plan.clone());
        drop(plan);
        let left = held() - before - arena;
        // States have names and types whatever the number of instructions.
        let outside = exec.planned().clone();
        let states = held() - before - arena - left;
        drop(outside);

        let (plan, kernels) = (with_plan - states, left - states);
        let each = |bytes: u64| bytes / instrs as u64;
        assert!(plan <= said && said <= plan * 5 / 4, "{plan} bytes planned, {said} said");
        assert!(kernels <= bound && bound <= kernels * 2, "{kernels} bytes bound, {bound} said");
        assert!(each(plan + kernels) < 1000, "{} and {} bytes each", each(plan), each(kernels));
    }
}
