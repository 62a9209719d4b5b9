//! How a step gets better: autodiff, passes, and the memory planner.
