//! Runs of the real binary with narrow moments: planned and stored in fewer bytes, and resumed to the same bits.

use crate::common;
use std::path::Path;

fn shards(run: &Path) -> Vec<Vec<u8>> {
    let step = run.join("checkpoints/step-4");
    let read = |n| std::fs::read(step.join(format!("{n}.safetensors"))).expect("a shard");
    ["model", "optimizer", "ema"].map(read).to_vec()
}

#[test]
fn narrow_moments_take_fewer_bytes_and_resume_bit_by_bit() {
    let dir = tempfile::tempdir().expect("a folder");
    let dir = dir.path();
    common::voice(dir, 6);
    let lines = "updates: 4\nbatch: {clips: 2}\nsave_every: 2\nvalidate_every: 0\nthreads: 2";
    let mut sizes = Vec::new();
    // The third also with its update in backward, where no gradient is kept.
    for (name, more) in [
        ("adamw", ""),
        ("adamw-bf16", ""),
        ("adamw-8bit", ""),
        ("adamw-8bit", "\nupdate: backward\nclip_per_tensor: true"),
        ("lion", ""),
        ("lion-8bit", ""),
        ("lion-8bit", "\nupdate: backward\nclip_per_tensor: true"),
        ("lion", "\nprecision: bf16-pure"),
    ] {
        let run = format!("{name}{}", sizes.len());
        let recipe = common::recipe(dir, &run, &format!("{lines}\noptimizer: {name}{more}"));
        let recipe = recipe.display().to_string();
        common::ok(dir, &["train", &recipe, "--memory", "1GiB"]);
        let run = dir.join(run);
        let want = shards(&run);
        std::fs::remove_dir_all(run.join("checkpoints/step-4")).expect("a checkpoint");
        common::ok(dir, &["resume", &run.display().to_string()]);
        assert!(shards(&run) == want, "{name}: the resumed run differs");
        sizes.push(want[1].len() as f64);
    }
    assert!(sizes[1] < 0.6 * sizes[0], "bf16: {sizes:?}");
    // Half of this model is in tensors so small that they stay fp32.
    assert!(sizes[2] < 0.7 * sizes[0] && sizes[2] == sizes[3], "8-bit: {sizes:?}");
    // One moment in place of two.
    assert!(sizes[4] < 0.51 * sizes[0] && sizes[4] == sizes[7], "lion: {sizes:?}");
    assert!(sizes[5] < 0.51 * sizes[2] && sizes[5] == sizes[6], "lion in 8 bits: {sizes:?}");
}

#[test]
fn an_unknown_optimizer_is_refused_with_the_known_ones() {
    let dir = tempfile::tempdir().expect("a folder");
    let dir = dir.path();
    let recipe = common::recipe(dir, "run", "optimizer: adam8bit").display().to_string();
    let (code, text) = common::said(dir, &["plan", &recipe]);
    assert!(code == 2 && text.contains("optimizer") && text.contains("adamw-8bit"), "{code}: {text}");
    let (code, text) = common::said(dir, &["plan", &recipe, "--optimizer", "sgd"]);
    assert!(
        code == 2 && text.contains("`sgd` is none: the optimizers are adamw, adamw-bf16, adamw-8bit, lion"),
        "{code}: {text}"
    );
}
