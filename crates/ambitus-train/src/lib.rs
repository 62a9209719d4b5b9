//! Recipe, resolved run, training loop, checkpoints, metrics and reports.
