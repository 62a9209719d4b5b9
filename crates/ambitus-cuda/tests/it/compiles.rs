//! Every kernel compiles for every card, without a card: within its registers, without spills. In the gate for a third of them, which is
//! drawn anew each time; for all with `AMBITUS_LONG=1`.
//!
//! Needs NVRTC: `cargo xtask nvrtc` fetches it and says how to set `AMBITUS_CUDA_LIBS`. Without it the test says that it was
//! skipped; where the variable is set, it fails.

use ambitus_cuda::libraries;
use ambitus_cuda::nvrtc::{self, KernelReport};
use ambitus_testkit::drawn;
use std::collections::HashMap;
use std::process::Command;

/// Compute capabilities of Turing, Ampere (A100, GeForce, Orin), Ada, Hopper and Blackwell (B200, GeForce).
const CAPABILITIES: [(u32, u32); 8] = [(7, 5), (8, 0), (8, 6), (8, 7), (8, 9), (9, 0), (10, 0), (12, 0)];
/// Registers of a multiprocessor, on all of them.
const REGISTERS: u32 = 65_536;
/// Bytes of static shared memory that a block may have, and of all of it from 8.0 on, where GeForce cards have the least; on Hopper.
const SHARED: u32 = 48 << 10;
const ALL_SHARED: u32 = 99 << 10;
const HOPPERS_SHARED: u32 = 227 << 10;
/// Hopper's own kernels: a multiprocessor holds one block, of two groups of four warps, and they stand in turns.
const HOPPERS: &str = "attention_wgmma/";
/// Local memory that sines and cosines of large angles take on their slow path (no spill).
const SINE_STACK: u32 = 32;

fn faults(r: &KernelReport) -> Vec<String> {
    let mut faults = Vec::new();
    if r.spilled > 0 {
        faults.push(format!("spills {} bytes", r.spilled));
    }
    if r.serialized {
        faults.push("its products of four warps are serialized".to_owned());
    }
    if r.stack > SINE_STACK {
        faults.push(format!("keeps {} bytes in local memory", r.stack));
    }
    if r.registers > r.registers_allowed {
        faults.push(format!("takes {} registers, {} are allowed", r.registers, r.registers_allowed));
    }
    let hoppers = r.kernel.starts_with(HOPPERS);
    if r.registers * r.block * 2 > REGISTERS && !hoppers {
        faults.push(format!("{} registers x {} threads: one block a multiprocessor", r.registers, r.block));
    }
    let all_shared = if hoppers { HOPPERS_SHARED } else { ALL_SHARED };
    if r.shared > SHARED || r.shared + r.dynamic > all_shared {
        faults.push(format!("takes {} and {} bytes of shared memory", r.shared, r.dynamic));
    }
    faults
}

/// Whether there is NVRTC; where its folder is named there has to be.
fn has_nvrtc() -> bool {
    let Err(why) = nvrtc::version() else { return true };
    assert!(std::env::var_os(libraries::FOLDERS_VARIABLE).is_none(), "{why}");
    println!("SKIPPED: {why}");
    false
}

/// What a card loads, where this NVRTC makes machine code for it, and Hopper without its own operations.
fn architectures() -> Vec<String> {
    let loaded = CAPABILITIES.map(|capability| nvrtc::architecture(capability).expect("a version"));
    let mut architectures: Vec<String> = loaded.into_iter().filter(|a| a.starts_with("sm_")).collect();
    architectures.push("sm_90".to_owned());
    assert_eq!(architectures.len(), 9, "NVRTC 12.8 or later: {architectures:?}");
    assert!(architectures.contains(&"sm_90a".to_owned()), "{architectures:?}");
    let drawn = drawn(architectures, 3);
    println!("for {}", drawn.join(", "));
    drawn
}

/// Those that no kernel of a program has, too: see the tests of the emulated GPU.
#[test]
fn operations_of_warps_compile_for_every_card() {
    if !has_nvrtc() {
        return;
    }
    for architecture in architectures() {
        for (name, code) in
            [("warp.cu", include_str!("warp.cu")), ("warpgroup.cu", include_str!("warpgroup.cu"))]
        {
            let compiled = nvrtc::compile_alone(name, code, &architecture);
            assert!(!compiled.expect("the kernels compile").image.is_empty(), "{name}, {architecture}");
        }
    }
}

#[test]
fn every_kernel_compiles_for_every_card_within_its_budget() {
    if !has_nvrtc() {
        return;
    }
    let architectures = architectures();
    let reports = std::thread::scope(|s| {
        let report = |a| move || nvrtc::report(a).expect("the kernels compile");
        let jobs: Vec<_> = architectures.iter().map(|a| s.spawn(report(a))).collect();
        jobs.into_iter().map(|job| job.join().expect("the kernels compile")).collect::<Vec<_>>()
    });
    let mut all = Vec::new();
    for r in reports.iter().flatten() {
        let what = |why| format!("{} for {}: {why}", r.kernel, r.architecture);
        all.extend(faults(r).into_iter().map(what));
    }
    assert!(all.is_empty(), "{}", all.join("\n"));
}

/// Kernels of tensor cores: family, name, and how many products the loop has that walks over tiles: by arithmetic, of a warp.
const LOOPS: [(&str, &str, usize); 17] = [
    // Queries 16 x keys x channels, scores and values, in products of 16 x 8 x 16.
    ("attention_mma", "attention_mma_64", 64),
    ("attention_mma", "attention_mma_96", 48),
    ("attention_mma", "attention_mma_128", 64),
    ("attention_mma", "attention_mma_queries_grad_64", 96),
    ("attention_mma", "attention_mma_queries_grad_96", 72),
    ("attention_mma", "attention_mma_queries_grad_128", 96),
    ("attention_mma", "attention_mma_keys_grad_64", 64),
    ("attention_mma", "attention_mma_keys_grad_96", 96),
    ("attention_mma", "attention_mma_keys_grad_128", 128),
    // A tap of 32 rows, 64 inputs, 64 outputs; 64 rows of two taps.
    ("conv", "conv_mma", 64),
    ("conv", "conv_weight_mma", 64),
    // On Hopper a warp's share of products of 64 x 64 or 64 x 128 x 16.
    ("attention_wgmma", "attention_wgmma_64", 64),
    ("attention_wgmma", "attention_wgmma_128", 256),
    ("attention_wgmma", "attention_wgmma_queries_grad_64", 96),
    ("attention_wgmma", "attention_wgmma_queries_grad_128", 192),
    ("attention_wgmma", "attention_wgmma_keys_grad_64", 128),
    ("attention_wgmma", "attention_wgmma_keys_grad_128", 256),
];
/// The least share of products among a loop's instructions.
const LEAST_SHARE: f64 = 0.1;

/// Needs nvdisasm in `PATH`, of the CUDA toolkit or of Triton's package; without it the test says that it was skipped.
#[test]
fn loops_of_tensor_cores_have_their_products() {
    if !has_nvrtc() {
        return;
    }
    let dir = tempfile::tempdir().expect("a folder");
    for architecture in drawn(["sm_80", "sm_86", "sm_90", "sm_90a"], 2) {
        let hoppers = (architecture == "sm_90a").then_some("attention_wgmma");
        for family in ["attention_mma", "conv"].into_iter().chain(hoppers) {
            let file = dir.path().join(format!("{family}.cubin"));
            let image = nvrtc::image(family, architecture).expect("the kernels compile");
            std::fs::write(&file, image).expect("a file");
            let Ok(said) = Command::new("nvdisasm").arg("-c").arg(&file).output() else {
                return println!("SKIPPED: no nvdisasm in PATH");
            };
            let text = String::from_utf8_lossy(&said.stdout);
            for (_, kernel, products) in LOOPS.iter().filter(|l| l.0 == family) {
                let found = loops(&text, kernel);
                let what =
                    format!("{kernel} for {architecture}: loops of (instructions, products): {found:?}");
                let all = found.iter().map(|l| l.1).max().unwrap_or(0);
                assert!(all >= *products, "{what}, {products} products expected");
                for (instructions, own) in found.iter().filter(|l| l.1 == all) {
                    let share = *own as f64 / *instructions as f64;
                    println!("{kernel} for {architecture}: {own} products of {instructions} instructions");
                    assert!(share >= LEAST_SHARE, "{what}");
                }
            }
        }
    }
}

/// Returns how many products of 16 x 8 x 16 a warp has of an instruction: `HMMA.16816...`, `HGMMA.64xNx16...`.
fn products(instruction: &str) -> usize {
    let columns = instruction.split("HGMMA.64x").nth(1).and_then(|rest| rest.split('x').next()?.parse().ok());
    columns.map_or(usize::from(instruction.contains("HMMA")), |columns: usize| columns / 8)
}

/// Returns (instructions, products) of every loop of a kernel that has products: between a label and a jump back to it.
fn loops(text: &str, kernel: &str) -> Vec<(usize, usize)> {
    let body = text.split("\n.text.").find(|part| part.starts_with(&format!("{kernel}:"))).unwrap_or("");
    let (mut labels, mut instructions) = (HashMap::new(), Vec::new());
    for line in body.lines().map(str::trim) {
        if let Some(label) = line.strip_suffix(':').filter(|l| l.starts_with(".L_")) {
            labels.insert(label, instructions.len());
        } else if line.starts_with("/*") && line.contains(';') {
            instructions.push(line);
        }
    }
    let back = |(at, line): (usize, &&str)| {
        let label = line.split("`(").nth(1)?.split(')').next()?;
        let start = *labels.get(label).filter(|start| line.contains("BRA") && **start <= at)?;
        let products = instructions[start..=at].iter().map(|i| products(i)).sum();
        (products > 0).then_some((at + 1 - start, products))
    };
    instructions.iter().enumerate().filter_map(back).collect()
}
