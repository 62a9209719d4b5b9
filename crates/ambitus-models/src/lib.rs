//! Model families as programs: what is computed, in the reference's own tensor names. No passes, devices or files here.

pub mod f5;
pub mod init;
pub mod llama;
