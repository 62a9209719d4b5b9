//! A model family that only these tests know: two files, and no other touched.

pub mod family;
pub mod model;
