//! One small run with each technique, on the card and on the processor.

use super::{Run, work};
use ambitus_recipe::recipe::DeviceChoice;
use serde_json::Value;
use std::path::Path;

/// Updates of a run.
const UPDATES: u32 = 6;
/// How far losses of the card and of the processor may lie apart, by what products are of: fp32, and less.
const APART: (f64, f64) = (1e-4, 2e-2);

/// A technique: what it is called, its lines of a recipe, and the one whose bits it keeps.
type Technique = (&'static str, &'static str, Option<&'static str>);

const PLAIN: &str = "plain";
const NARROW: &str = "bf16-mixed";
/// Those whose bits others keep come first.
const TECHNIQUES: &[Technique] = &[
    (PLAIN, "", None),
    ("clip per tensor", "clip_per_tensor: true\nmicro_batch: {frames: 4096, clips: 2}\n", None),
    (NARROW, "precision: bf16-mixed\n", None),
    ("recompute all blocks", "checkpoint: all\n", Some(PLAIN)),
    ("recompute values", "checkpoint: values:4\n", Some(PLAIN)),
    ("offload everything", "offload: all\n", Some(PLAIN)),
    ("offload activations", "offload: {activations: true}\n", Some(PLAIN)),
    ("offload activations between blocks", "offload: {activations: blocks}\ncheckpoint: all\n", Some(PLAIN)),
    (
        "bf16-mixed, everything recomputed and offloaded",
        "precision: bf16-mixed\ncheckpoint: all\noffload: all\n",
        Some(NARROW),
    ),
    // Its gradients are not added to anything: products that the library computes with algorithms of their own.
    (
        "update in backward",
        "clip_per_tensor: true\nmicro_batch: {frames: 4096, clips: 2}\nupdate: backward\n",
        None,
    ),
    ("micro-batches of one clip", "micro_batch: {frames: 4096, clips: 1}\n", None),
    ("bf16 moments", "optimizer: adamw-bf16\n", None),
    ("8-bit moments", "optimizer: adamw-8bit\n", None),
    ("Lion", "optimizer: lion\n", None),
    ("Lion, 8-bit moment", "optimizer: lion-8bit\n", None),
    ("LoRA", "lora: {rank: 4}\n", None),
    ("frozen text embedding", "freeze: ['*.text_embed']\n", None),
    ("no average", "ema: false\n", None),
    ("tf32-mixed", "precision: tf32-mixed\n", None),
    ("fp16-mixed", "precision: fp16-mixed\n", None),
    ("bf16-pure", "precision: bf16-pure\n", None),
];

/// What a run left.
struct Left {
    loss: f64,
    planned: u64,
    measured: u64,
    arena: u64,
    export: Vec<u8>,
}

/// On the card, those whose bits others keep run alone, as they time the algorithms of products that all others then take; the rest
/// side by side.
pub fn techniques(run: &mut Run<'_>) -> Result<(), String> {
    let dir = tempfile::tempdir().map_err(|e| e.to_string())?;
    let folders = work::folders(dir.path())?;
    let sides = [("card", DeviceChoice::Cuda(run.options.card)), ("processor", DeviceChoice::Cpu)];
    let root = |side: &str, i: usize| dir.path().join(format!("{side}-{i}"));
    let mut running = Vec::new();
    for (i, (name, lines, _)) in TECHNIQUES.iter().enumerate() {
        for (side, device) in sides {
            let card = device != DeviceChoice::Cpu;
            // The processor has no tf32.
            let lines = if card { (*lines).to_owned() } else { lines.replace("tf32-mixed", "fp32") };
            let precision = if lines.contains("precision") { "" } else { "precision: fp32\n" };
            let text = format!("{precision}{lines}updates: {UPDATES}\nlearning_rate: 1.0e-2\nwarmup: 0\n");
            let file = dir.path().join(format!("{side}-{i}.yaml"));
            work::recipe(&folders, &file, device, &text)?;
            let mut child =
                work::child(run.options, &["train".as_ref(), file.as_os_str(), root(side, i).as_os_str()])?;
            if card && TECHNIQUES.iter().any(|(_, _, as_of)| *as_of == Some(name)) {
                child.wait().map_err(|e| e.to_string())?;
            }
            running.push((format!("{name}, {side}"), child));
        }
    }
    for (what, child) in running {
        let said = child.wait_with_output().map_err(|e| e.to_string())?;
        if !said.status.success() {
            run.page.fault(format!("{what}: {}", String::from_utf8_lossy(&said.stderr).trim()));
        }
    }
    let head =
        ["technique", "arena MiB", "planned MiB", "measured MiB", "last loss", "the processor's", "bits"];
    let mut rows = vec![head.map(str::to_owned).to_vec()];
    let mut faults = Vec::new();
    for (i, (name, lines, as_of)) in TECHNIQUES.iter().enumerate() {
        let (card, processor) = match (left(&root("card", i)), left(&root("processor", i))) {
            (Ok(card), Ok(processor)) => (card, processor),
            (Err(why), _) | (_, Err(why)) => {
                faults.push(format!("{name}: {why}"));
                continue;
            }
        };
        let bits = match as_of.and_then(|of| TECHNIQUES.iter().position(|t| t.0 == of)) {
            Some(of) if left(&root("card", of)).is_ok_and(|other| other.export == card.export) => {
                format!("as {}", TECHNIQUES[of].0)
            }
            Some(of) => {
                faults.push(format!("{name}: other bits than {}", TECHNIQUES[of].0));
                "others".to_owned()
            }
            None => String::new(),
        };
        if card.measured > card.planned {
            faults.push(format!("{name}: {} bytes measured, {} planned", card.measured, card.planned));
        }
        let allowed = if lines.contains("precision") { APART.1 } else { APART.0 };
        let apart = (card.loss - processor.loss).abs() / processor.loss.abs();
        if apart > allowed || apart.is_nan() {
            faults.push(format!("{name}: loss {}, on the processor {}", card.loss, processor.loss));
        }
        let mib = |bytes: u64| format!("{:.1}", bytes as f64 / f64::from(1 << 20));
        rows.push(vec![
            (*name).to_owned(),
            mib(card.arena),
            mib(card.planned),
            mib(card.measured),
            format!("{:.6}", card.loss),
            format!("{:.6}", processor.loss),
            bits,
        ]);
    }
    run.page.table(&rows);
    faults.into_iter().for_each(|f| run.page.fault(f));
    Ok(())
}

fn left(root: &Path) -> Result<Left, String> {
    let text = std::fs::read_to_string(root.join("summary.json")).map_err(|e| e.to_string())?;
    let summary: Value = serde_json::from_str(&text).map_err(|e| e.to_string())?;
    let bytes = |key: &str| summary[key].as_u64().ok_or_else(|| format!("no {key}"));
    let loss = summary["loss_last"].as_f64().ok_or("no loss")?;
    let export = std::fs::read(root.join("export/model.safetensors")).map_err(|e| e.to_string())?;
    Ok(Left {
        loss,
        planned: bytes("peak_planned_bytes")?,
        measured: bytes("peak_rss_bytes")?,
        arena: bytes("arena_bytes_used")?,
        export,
    })
}
