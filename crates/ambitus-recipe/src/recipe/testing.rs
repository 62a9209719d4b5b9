//! A family's settings, for tests.

use super::{Average, Defaults};

pub fn defaults() -> Defaults {
    Defaults {
        learning_rate: 1e-5,
        weight_decay: 0.01,
        no_decay: vec!["*.bias".to_owned()],
        betas: [0.9, 0.999],
        eps: 1e-8,
        clip: 1.0,
        players: Vec::new(),
        ema: Average::Warming,
        clips: 8,
        warmup: None,
        schedule: "cosine".parse().unwrap(),
        adapted: vec!["*.to_q".to_owned()],
        rows_per_second: 93.75,
        samples: false,
    }
}
