//! Cases of the search for a text's alignment with its frames.

use super::{Operand, Table, constant, ints, numbers};
use ambitus_ir::ops::alignment::MonotonicPath;

/// (what, channels, frames, text rows, frame segments, text segments)
type Alignment = (&'static str, usize, usize, usize, &'static [i32], &'static [i32]);

pub(super) fn alignment(t: &mut Table) {
    let table: [Alignment; 8] = [
        ("packed", 5, 34, 22, &[0, 9, 9, 21, 30], &[0, 4, 4, 9, 20]),
        ("full", 37, 12, 6, &[0, 1, 12], &[0, 1, 6]),
        ("one clip", 16, 40, 9, &[0, 40], &[0, 9]),
        // More rows than a word has bits, and more than a block of threads.
        ("long texts", 8, 195, 113, &[0, 100, 190], &[0, 40, 110]),
        ("a longer text", 3, 420, 290, &[0, 2, 400], &[0, 2, 285]),
        // Clips with fewer frames than text rows, without frames, and without text.
        ("more text than frames", 6, 14, 21, &[0, 5, 5, 12, 13], &[0, 9, 12, 12, 20]),
        ("as many rows as frames", 4, 8, 7, &[0, 7], &[0, 7]),
        ("all empty", 3, 4, 3, &[0, 0, 0], &[0, 0, 0]),
    ];
    for (what, cols, frames, rows, in_frames, in_texts) in table {
        let operands = operands(t, (frames, rows, cols), in_frames, in_texts);
        t.add(what, MonotonicPath {}, operands);
    }
    // What is not a number in one frame leaves a path.
    let mut spoiled = operands(t, (11, 4, 3), &[0, 10], &[0, 4]);
    spoiled[0].tensor.data[3 * 3..4 * 3].fill(f64::NAN);
    t.add("not numbers", MonotonicPath {}, spoiled);

    let alike = |base: &[f32], frames: usize| {
        let rows = base.len();
        let zeros = |rows: usize| numbers(&[rows, 1], &vec![0.0; rows]);
        let segments = [frames, rows].map(|n| ints(&[0, n as i32]));
        let [frames_of, texts_of] = segments;
        vec![zeros(frames), zeros(rows), zeros(rows), numbers(&[rows], base), frames_of, texts_of]
    };
    t.add("ties", MonotonicPath {}, alike(&[0.0; 5], 12));
    t.add("ties with fewer frames", MonotonicPath {}, alike(&[0.0, 0.0, -1.0, 0.0, 1.0], 4));
    t.add("below what stands for no path", MonotonicPath {}, alike(&[-2e9, -2e9, -4e9], 6));
}

fn operands(
    t: &mut Table,
    (frames, rows, cols): (usize, usize, usize),
    in_frames: &[i32],
    in_texts: &[i32],
) -> Vec<Operand> {
    let scale = constant(t.within(&[rows, cols], 0.25, 2.0).tensor);
    let (z, mean, base) = (t.fixed(&[frames, cols]), t.fixed(&[rows, cols]), t.fixed(&[rows]));
    vec![z, mean, scale, base, ints(in_frames), ints(in_texts)]
}
