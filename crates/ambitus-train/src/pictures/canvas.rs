//! Pixels, anti-aliased lines, text, PNG.

use super::font;
use super::{HEIGHT, PictureError, WIDTH};

/// Red, green, blue.
pub type Color = [u8; 3];

pub const WHITE: Color = [255, 255, 255];
pub const INK: Color = [40, 44, 52];
pub const GREY: Color = [130, 136, 148];
pub const PALE: Color = [228, 231, 236];
pub const ALARM: Color = [196, 40, 40];

/// Colours of series, told apart by colour-blind people too (Okabe and Ito's, a little muted).
pub const SERIES: [Color; 8] = [
    [0, 114, 178],
    [230, 159, 0],
    [0, 158, 115],
    [204, 121, 167],
    [86, 180, 233],
    [213, 94, 0],
    [170, 164, 60],
    [120, 125, 135],
];

/// An RGB picture of the fixed size. Everything outside it is not drawn.
pub struct Canvas {
    pixels: Vec<u8>,
}

impl Canvas {
    pub fn new() -> Canvas {
        Canvas { pixels: vec![255; WIDTH * HEIGHT * 3] }
    }

    /// Mixes `color` over a pixel, `alpha` from 0 to 1.
    pub fn mix(&mut self, x: i64, y: i64, color: Color, alpha: f64) {
        if (0..WIDTH as i64).contains(&x) && (0..HEIGHT as i64).contains(&y) {
            let at = (y as usize * WIDTH + x as usize) * 3;
            for (old, new) in self.pixels[at..at + 3].iter_mut().zip(color) {
                *old = (f64::from(*old) + (f64::from(new) - f64::from(*old)) * alpha.clamp(0.0, 1.0)).round()
                    as u8;
            }
        }
    }

    /// Fills the pixels `x0..x1`, `y0..y1`.
    pub fn rect(&mut self, [x0, y0, x1, y1]: [f64; 4], color: Color, alpha: f64) {
        let (x0, x1) = (x0.round().max(0.0) as i64, x1.round().min(WIDTH as f64) as i64);
        let (y0, y1) = (y0.round().max(0.0) as i64, y1.round().min(HEIGHT as f64) as i64);
        for y in y0..y1 {
            for x in x0..x1 {
                self.mix(x, y, color, alpha);
            }
        }
    }

    /// Draws a straight line with round ends, `width` pixels thick: each pixel by its distance from the line.
    pub fn line(&mut self, [x0, y0]: [f64; 2], [x1, y1]: [f64; 2], width: f64, color: Color, alpha: f64) {
        if ![x0, y0, x1, y1].iter().all(|v| v.is_finite()) {
            return;
        }
        let reach = width / 2.0 + 1.0;
        let low = |a: f64, b: f64| (a.min(b) - reach).floor().max(0.0) as i64;
        let high = |a: f64, b: f64, end: usize| (a.max(b) + reach).ceil().min(end as f64) as i64;
        let (dx, dy) = (x1 - x0, y1 - y0);
        let length2 = (dx * dx + dy * dy).max(1e-9);
        for y in low(y0, y1)..high(y0, y1, HEIGHT) {
            for x in low(x0, x1)..high(x0, x1, WIDTH) {
                let (px, py) = (x as f64 + 0.5 - x0, y as f64 + 0.5 - y0);
                let along = ((px * dx + py * dy) / length2).clamp(0.0, 1.0);
                let distance = (px - along * dx).hypot(py - along * dy);
                let cover = width / 2.0 + 0.5 - distance;
                if cover > 0.0 {
                    self.mix(x, y, color, cover.min(1.0) * alpha);
                }
            }
        }
    }

    /// Draws a line through all points.
    pub fn polyline(&mut self, points: &[[f64; 2]], width: f64, color: Color, alpha: f64) {
        for pair in points.windows(2) {
            self.line(pair[0], pair[1], width, color, alpha);
        }
    }

    /// Draws a straight line of dashes.
    pub fn dashed(&mut self, [x0, y0]: [f64; 2], [x1, y1]: [f64; 2], width: f64, color: Color) {
        const DASH: f64 = 9.0;
        let length = (x1 - x0).hypot(y1 - y0).min(4.0 * WIDTH as f64);
        let at = |d: f64| {
            let t = (d / length).min(1.0);
            [x0 + t * (x1 - x0), y0 + t * (y1 - y0)]
        };
        let mut d = 0.0;
        while d < length {
            self.line(at(d), at(d + DASH * 0.55), width, color, 1.0);
            d += DASH;
        }
    }

    /// Draws a filled circle with a white rim.
    pub fn dot(&mut self, at: [f64; 2], radius: f64, color: Color) {
        self.line(at, at, 2.0 * radius + 2.5, WHITE, 1.0);
        self.line(at, at, 2.0 * radius, color, 1.0);
    }

    /// Writes text with its left end at x and its capitals' top at y, each font pixel `scale` wide. Returns the right end.
    pub fn text(&mut self, x: f64, y: f64, scale: usize, color: Color, text: &str) -> f64 {
        let (mut x, y) = (x.round() as i64, y.round() as i64);
        let scale_i = scale as i64;
        for c in text.chars() {
            for (row, bits) in font::glyph(c).iter().enumerate() {
                for column in (0..font::WIDTH).filter(|c| bits >> (font::WIDTH - 1 - c) & 1 == 1) {
                    let (px, py) = (x + column as i64 * scale_i, y + row as i64 * scale_i);
                    (0..scale_i * scale_i)
                        .for_each(|i| self.mix(px + i % scale_i, py + i / scale_i, color, 1.0));
                }
            }
            x += (font::WIDTH as i64 + 1) * scale_i;
        }
        x as f64
    }

    /// Writes text with its right end at x. See [`Canvas::text`].
    pub fn text_right(&mut self, x: f64, y: f64, scale: usize, color: Color, text: &str) {
        self.text(x - text_width(text, scale), y, scale, color, text);
    }

    /// Writes text centred at x. See [`Canvas::text`].
    pub fn text_centre(&mut self, x: f64, y: f64, scale: usize, color: Color, text: &str) {
        self.text(x - text_width(text, scale) / 2.0, y, scale, color, text);
    }

    /// Returns the picture as a PNG file.
    pub fn png(&self) -> Result<Vec<u8>, PictureError> {
        let failed = |e: png::EncodingError| PictureError::Input(e.to_string());
        let mut file = Vec::new();
        let mut encoder = png::Encoder::new(&mut file, WIDTH as u32, HEIGHT as u32);
        encoder.set_color(png::ColorType::Rgb);
        encoder.set_depth(png::BitDepth::Eight);
        let mut writer = encoder.write_header().map_err(failed)?;
        writer.write_image_data(&self.pixels).map_err(failed)?;
        writer.finish().map_err(failed)?;
        Ok(file)
    }
}

/// Returns the width of a text in pixels.
pub fn text_width(text: &str, scale: usize) -> f64 {
    (text.chars().count() * (font::WIDTH + 1) * scale).saturating_sub(scale) as f64
}
