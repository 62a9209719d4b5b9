//! Nothing inside a step allocates, beyond the thread pool's own queues.
//!
//! A binary of its own: it counts what the whole process allocates, beside which no other test may run.

use ambitus_compile::plan::plan;
use ambitus_exec::cpu::{CpuExecutor, CpuTarget};
use ambitus_exec::executor::Executor;
use ambitus_ir::target::Target;
use ambitus_ir::{DType, TensorType};
use ambitus_testkit::{Case, cases};
use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

/// The system's allocator, counting bytes.
struct Counting;

static BYTES: AtomicUsize = AtomicUsize::new(0);

// SAFETY: everything is handed to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        BYTES.fetch_add(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// What a whole step may allocate: the row that the plan reserves for the thread pool.
const MOST: usize = 1 << 20;

/// True when the executor has a kernel for a case, and the host can write its operands.
fn runs_here(case: &Case, target: &CpuTarget) -> bool {
    let types = case.types();
    let made = case.op.def().infer(&types).unwrap();
    let half = |t: &TensorType| matches!(t.dtype, DType::F16 | DType::BF16);
    target.has_kernel(&case.op, &types, &made) && !types.iter().chain(&made).any(half)
}

#[test]
fn steps_do_not_allocate() {
    let target = CpuTarget::new(2);
    let mut opened = Vec::new();
    for case in cases().iter().filter(|c| runs_here(c, &target)) {
        let (mut session, program) = case.program();
        session.programs.push(program);
        let mut exec = CpuExecutor::open(plan(session, &target, 1), 2).unwrap();
        let (inputs, states) = case.feeds();
        for (name, t) in &inputs {
            match t.ty.dtype {
                DType::I32 => {
                    let data: Vec<i32> = t.data.iter().map(|x| *x as i32).collect();
                    exec.write_i32("case", name, 0, &data).unwrap();
                }
                DType::U8 => {}
                _ => exec.write_f32("case", name, 0, &t.to_f32()).unwrap(),
            }
        }
        for (name, t) in &states {
            let id = exec.planned().session.state(name).unwrap();
            exec.write_state(id, &t.to_f32()).unwrap();
        }
        exec.run("case", 0).unwrap();
        exec.run("case", 0).unwrap();
        opened.push((case.name.clone(), exec));
    }
    // Every op once: as many instructions as a small step has.
    let mut total = 0;
    for (name, exec) in &mut opened {
        let before = BYTES.load(Ordering::Relaxed);
        exec.run("case", 0).unwrap();
        let bytes = BYTES.load(Ordering::Relaxed) - before;
        total += bytes;
        assert!(total <= MOST, "{name} allocated {bytes} bytes, all so far {total}");
    }
}
