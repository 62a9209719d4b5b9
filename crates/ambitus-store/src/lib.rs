//! Tensor files, read without executing or trusting them, and written atomically.
