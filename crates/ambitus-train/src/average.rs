//! The decay of the moving average, as ema-pytorch has it (recorded in
//! `parity/schedules/fixtures/trainer.json`). A pure function of a counter.

/// `EMA(beta=0.9999)`: the largest decay.
const EMA_BETA: f32 = 0.9999;
/// `EMA(update_after_step=100)`: until here the average is a copy.
const EMA_AFTER: u64 = 100;
/// `EMA(update_every=10)`.
const EMA_EVERY: u64 = 10;
/// `EMA(power=2/3)`.
const EMA_POWER: f64 = 2.0 / 3.0;

/// Returns what ema-pytorch does after an update, `step` being the updates done before it: `None` = nothing; `Some(0.0)` = copy
/// the weights; `Some(d)` = `ema += (1 - d)(weights - ema)` with `d = min(beta, 1 - (step + 1 - 100)^(-2/3))`.
pub fn ema_decay(step: u64) -> Option<f32> {
    if !step.is_multiple_of(EMA_EVERY) {
        return None;
    }
    if step <= EMA_AFTER {
        return Some(0.0);
    }
    // The package counts in f32 after incrementing its step; the power is taken in f64 so that every machine rounds alike.
    let n = (step + 1 - EMA_AFTER) as f32;
    let fade = f64::from(n).powf(-EMA_POWER) as f32;
    Some((1.0 - fade).clamp(0.0, EMA_BETA))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;

    /// One unit in the last place of an f32 near 1.
    const DECAY_TOLERANCE: f32 = 6e-8;

    fn recorded() -> Value {
        let path = format!("{}/../../parity/schedules/fixtures/trainer.json", env!("CARGO_MANIFEST_DIR"));
        serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
    }

    #[test]
    fn decays_are_the_packages() {
        let recorded = recorded();
        let mut blends = 0;
        for list in ["ema_from_0", "ema_from_1200000"] {
            for row in recorded[list].as_array().unwrap() {
                let (step, kind, want) =
                    (row[0].as_u64().unwrap(), row[1].as_str().unwrap(), row[2].as_f64().unwrap());
                match (kind, ema_decay(step)) {
                    ("keep", None) | ("copy", Some(0.0)) => {}
                    ("blend", Some(d)) => {
                        blends += 1;
                        assert!((d - want as f32).abs() <= DECAY_TOLERANCE, "step {step}: {d} {want}");
                    }
                    (_, got) => panic!("step {step}: {kind}, got {got:?}"),
                }
            }
        }
        assert!(blends > 20);
        assert_eq!(ema_decay(u64::MAX / 10 * 10), Some(EMA_BETA));
    }
}
