#[path = "../tests/common/mod.rs"]
mod common;
use ambitus_compile::passes::policy::Blocks;
use ambitus_compile::pipeline::Options;
use ambitus_compile::plan;
use ambitus_ir::Session;
use ambitus_models::f5;
use std::time::Instant;
fn main() {
    let f5 = |s: &mut Session| {
        let cap = f5::model::Capacity { frames: 3200, clips: 64 };
        f5::model::loss(s, &common::f5_base(), cap, "micro", true)
    };
    let bare = common::Paper { fused: false, shares: true };
    for t in [common::FULL, bare] {
        let a = Instant::now();
        let s = common::compiled(&f5, Options { checkpoint: Blocks::None }, &t);
        let b = Instant::now();
        let p = plan::plan(s, &t, 1);
        println!("{:?} {:?} {:?} instrs {} {:.4}", t, b - a, b.elapsed(), p.programs[0].program.instrs.len(), p.programs[0].transient_bytes as f64 / p.programs[0].live_bound_bytes as f64);
    }
}
