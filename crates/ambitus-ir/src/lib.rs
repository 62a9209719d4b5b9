//! What a training step is: values, states, operations, shapes, gradients, text form, verifier, and the plan's types.
