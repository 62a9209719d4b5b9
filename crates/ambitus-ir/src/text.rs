//! The text form of sessions and programs: for people, for golden tests, for reports of a broken invariant.
//!
//! ```text
//! state proj.weight = parameter `f32[100,64]` trainable
//! state proj.weight.grad = gradient `f32[100,64]`
//! state exp_avg.proj.weight = optimizer `f32[100,64]` host
//! program micro {
//!   block layers.0
//!   %0 = input mel `f32[128,100]`
//!   %1 = state proj.weight
//!   %2 = state proj.weight.grad
//!   %3 = matmul(%0, %1) {ta=false, tb=false, acc=false, wide=false} : `f32[128,64]` @ proj.matmul fwd
//!   state proj.weight.grad leaves %9
//!   output loss %8
//!   unused %4 `f32[3]`
//! }
//! ```
//!
//! One definition a line, of `_` where an op has no result; `#` starts a comment. A name that is not made of letters, digits and `_.~/:-` stands in quotes
//! with `\"`, `\\` and `\u{..}`. A type whose rows do not have the usual pitch carries it: `f32[3,40]/48`. `block` names a
//! repeated block by its provenance prefix. `leaves` says which value a state has at the end, where that is not the value
//! it entered with. `host`
//! marks a state that is not on the device between runs. `unused` keeps the type of a value that nothing defines (a pass removed it), so that numbers need not
//! change.
//!
//! [`parse`] is the inverse of [`print_session`]. It infers every result's type again and compares it with the text.
//! Whether the program means anything is [`crate::verify`]'s business: its invariants are not checked here.

mod cursor;
mod parse;
mod print;

pub use cursor::TextError;
pub use parse::{parse, parse_program};
pub use print::{print_program, print_session};

/// Returns true for names that need no quotes.
fn is_plain(name: &str) -> bool {
    !name.is_empty() && name.chars().all(is_plain_char)
}

fn is_plain_char(c: char) -> bool {
    c.is_ascii_alphanumeric() || "_.~/:-".contains(c)
}
