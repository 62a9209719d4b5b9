//! Every kernel compiles for every card, without a card: within its registers, without spills.
//!
//! Needs NVRTC: `cargo xtask nvrtc` fetches it and says how to set `AMBITUS_CUDA_LIBS`. Without it the test says that it was
//! skipped; where the variable is set, it fails.

use ambitus_cuda::libraries;
use ambitus_cuda::nvrtc::{self, KernelReport};

/// Turing, Ampere (A100 and GeForce), Ada, Hopper.
const ARCHITECTURES: [&str; 5] = ["sm_75", "sm_80", "sm_86", "sm_89", "sm_90a"];
/// Registers of a multiprocessor, on all of them.
const REGISTERS: u32 = 65_536;
/// Bytes of static shared memory that a block may have.
const SHARED: u32 = 48 << 10;
/// Local memory that sines and cosines of large angles take on their slow path (no spill).
const SINE_STACK: u32 = 32;

fn faults(r: &KernelReport) -> Vec<String> {
    let mut faults = Vec::new();
    if r.spilled > 0 {
        faults.push(format!("spills {} bytes", r.spilled));
    }
    if r.stack > SINE_STACK {
        faults.push(format!("keeps {} bytes in local memory", r.stack));
    }
    if r.registers > r.registers_allowed {
        faults.push(format!("takes {} registers, {} are allowed", r.registers, r.registers_allowed));
    }
    if r.registers * r.block * 2 > REGISTERS {
        faults.push(format!("{} registers x {} threads: one block a multiprocessor", r.registers, r.block));
    }
    if r.shared > SHARED {
        faults.push(format!("takes {} bytes of shared memory", r.shared));
    }
    faults
}

#[test]
fn every_kernel_compiles_for_every_card_within_its_budget() {
    if let Err(why) = nvrtc::version() {
        assert!(std::env::var_os(libraries::FOLDERS_VARIABLE).is_none(), "{why}");
        println!("SKIPPED: {why}");
        return;
    }
    let reports = std::thread::scope(|s| {
        let jobs = ARCHITECTURES.map(|a| s.spawn(move || nvrtc::report(a).expect("the kernels compile")));
        jobs.map(|job| job.join().expect("the kernels compile"))
    });
    let mut all = Vec::new();
    for r in reports.iter().flatten() {
        let what = |why| format!("{} for {}: {why}", r.kernel, r.architecture);
        all.extend(faults(r).into_iter().map(what));
    }
    assert!(all.is_empty(), "{}", all.join("\n"));
}
