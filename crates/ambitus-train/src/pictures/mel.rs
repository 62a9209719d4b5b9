//! Mels of one clip, one above the other, the masked middle marked.

use std::ops::Range;

use super::axes::{Axes, ticks, title};
use super::canvas::{Canvas, Color, GREY, INK, WHITE};
use super::{HEIGHT, Picture, PictureError, WIDTH};

/// Mel channels.
const MELS: usize = 100;
/// Shares of the first panel's values at the ends of the colour scale.
const DARKEST: f64 = 0.02;
const BRIGHTEST: f64 = 0.998;
/// Most frames that the scale is taken from.
const SCALED: usize = 1024;

/// Log-mels of equal length, as `true`, `base` and `tuned`, on one colour scale (the first's).
#[derive(Clone, Debug)]
pub struct MelPicture<'a> {
    /// The picture's name.
    pub title: &'a str,
    /// Name and values, f32 `[N, 100]` row by row, of one to four panels.
    pub panels: &'a [(&'a str, &'a [f32])],
    /// Frames that were masked.
    pub masked: Range<usize>,
    /// Seconds of a frame.
    pub frame_seconds: f64,
}

impl Picture for MelPicture<'_> {
    fn png(&self) -> Result<Vec<u8>, PictureError> {
        let bad = |why: String| Err(PictureError::Input(format!("mel: {why}")));
        let Some((_, first)) = self.panels.first().filter(|_| self.panels.len() <= 4) else {
            return bad(format!("{} panels, not 1 to 4", self.panels.len()));
        };
        let frames = first.len() / MELS;
        if frames == 0 || self.panels.iter().any(|p| p.1.len() != frames * MELS) {
            return bad("panels are not all [N, 100] with one N above 0".to_owned());
        }
        let mut canvas = Canvas::new();
        title(&mut canvas, self.title);
        let scale = scale_of(first);
        let (left, right, bottom) = (110.0, WIDTH as f64 - 40.0, HEIGHT as f64 - 64.0);
        let (top, gap) = (92.0, 14.0);
        let height = (bottom - top - gap * (self.panels.len() - 1) as f64) / self.panels.len() as f64;
        let seconds = frames as f64 * self.frame_seconds;
        let mut axes = Axes { area: [left, top, right, bottom], x: [0.0, seconds], y: [0.0, 1.0] };
        let masked = self.masked.start.min(frames)..self.masked.end.min(frames);
        let edges = [masked.start, masked.end].map(|f| axes.px(f as f64 * self.frame_seconds));
        for (i, (name, mel)) in self.panels.iter().enumerate() {
            let y = top + i as f64 * (height + gap);
            axes.area = [left, y, right, y + height];
            panel(&mut canvas, axes.area, mel, frames, scale);
            canvas.text_right(left - 14.0, y + height / 2.0 - 7.0, 2, INK, name);
            if !masked.is_empty() {
                edges.iter().for_each(|x| canvas.dashed([*x, y], [*x, y + height], 2.0, WHITE));
            }
        }
        if !masked.is_empty() {
            let y = top - 10.0;
            canvas.line([edges[0], y], [edges[1], y], 3.0, GREY, 1.0);
            canvas.text_centre((edges[0] + edges[1]) / 2.0, y - 22.0, 2, GREY, "masked");
        }
        let labels: Vec<_> = ticks(axes.x, 8).into_iter().map(|(x, t)| (x, format!("{t} s"))).collect();
        axes.ticks_x(&mut canvas, &labels);
        canvas.png()
    }
}

/// Returns the values of the darkest and the brightest colour, by evenly spread frames.
fn scale_of(mel: &[f32]) -> [f32; 2] {
    let every = (mel.len() / MELS).div_ceil(SCALED);
    let frames = mel.chunks_exact(MELS).step_by(every.max(1));
    let mut sorted: Vec<f32> = frames.flatten().copied().filter(|v| v.is_finite()).collect();
    sorted.sort_unstable_by(f32::total_cmp);
    let at =
        |share: f64| sorted.get(((sorted.len().max(1) - 1) as f64 * share) as usize).copied().unwrap_or(0.0);
    let (low, high) = (at(DARKEST), at(BRIGHTEST));
    [low, high.max(low + 1e-3)]
}

/// Draws one mel: each pixel is the mean of the frames and channels under it; low channels at the bottom.
fn panel(
    canvas: &mut Canvas,
    [left, top, right, bottom]: [f64; 4],
    mel: &[f32],
    frames: usize,
    [low, high]: [f32; 2],
) {
    let (width, height) = ((right - left) as usize, (bottom - top) as usize);
    let span = |i: usize, of: usize, n: usize| (i * n / of)..((i + 1) * n).div_ceil(of).min(n);
    for x in 0..width {
        // Channel means of this pixel column's frames.
        let columns = span(x, width, frames);
        let mut mean = [0.0_f32; MELS];
        for f in columns.clone() {
            let row = &mel[f * MELS..(f + 1) * MELS];
            mean.iter_mut().zip(row).for_each(|(m, v)| *m += if v.is_finite() { *v } else { low });
        }
        mean.iter_mut().for_each(|m| *m /= columns.len().max(1) as f32);
        for y in 0..height {
            let channels = span(height - 1 - y, height, MELS);
            let value = mean[channels.clone()].iter().sum::<f32>() / channels.len().max(1) as f32;
            let color = heat(f64::from((value - low) / (high - low)));
            canvas.mix(left as i64 + x as i64, top as i64 + y as i64, color, 1.0);
        }
    }
}

/// Returns a colour from dark violet over red to pale yellow, evenly rising in brightness.
fn heat(t: f64) -> Color {
    const STOPS: [[f64; 3]; 6] = [
        [6.0, 4.0, 22.0],
        [62.0, 18.0, 104.0],
        [142.0, 42.0, 122.0],
        [222.0, 74.0, 96.0],
        [252.0, 158.0, 106.0],
        [252.0, 248.0, 196.0],
    ];
    let at = t.clamp(0.0, 1.0) * (STOPS.len() - 1) as f64;
    let i = (at as usize).min(STOPS.len() - 2);
    let part = at - i as f64;
    std::array::from_fn(|c| (STOPS[i][c] + (STOPS[i + 1][c] - STOPS[i][c]) * part) as u8)
}
