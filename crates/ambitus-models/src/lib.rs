//! Model families as programs.
