//! Op cases, tolerances, gradient checks and the slow reference interpreter.
