//! What the host does when a voice speaks: durations in whole frames, rows repeated with noise, windows of frames, and what is drawn. As
//! `infer` of VITS, a sentence at a time.

use super::config::Config;
use super::draw::normals;
use crate::common::codec::rows::Table;
use std::ops::Range;

/// Name of the program that reads a text.
pub const READ: &str = "read";
/// Name of the program that makes sound of a window.
pub const SOUND: &str = "sound";

/// Frames of a window, where more are not needed: three seconds of a voice of medium quality.
const WINDOW: usize = 256;

/// Streams of a sentence's generator; training's have other numbers.
const PRIOR: u32 = 16;
const DURATIONS: u32 = 17;

/// How many frames each phoneme of a text has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lasting {
    /// Past the last frame of each.
    ends: Vec<usize>,
    /// It would have had more frames.
    pub cut: bool,
}

impl Lasting {
    /// Returns the frames of phonemes that last `frames` `[U]` at the length 1: ceil(frames * length) each, and no more than `most` in
    /// all.
    pub fn of(frames: &[f32], length: f32, most: usize) -> Lasting {
        let mut end = 0usize;
        let ends = frames.iter().map(|n| {
            end = end.saturating_add((n * length).ceil() as usize);
            end
        });
        let ends: Vec<usize> = ends.collect();
        let cut = end > most;
        Lasting { ends: ends.into_iter().map(|end| end.min(most)).collect(), cut }
    }

    /// Returns the frames of all: one at least.
    pub fn frames(&self) -> usize {
        self.ends.last().copied().unwrap_or(0).max(1)
    }

    /// Returns the frames of each phoneme.
    pub fn each(&self) -> impl Iterator<Item = usize> + '_ {
        let starts = std::iter::once(0).chain(self.ends.iter().copied());
        self.ends.iter().zip(starts).map(|(end, start)| end - start)
    }

    /// Returns the phoneme of a frame; `None` of a frame that no phoneme has.
    fn phoneme(&self, frame: usize) -> Option<usize> {
        let at = self.ends.partition_point(|end| *end <= frame);
        (at < self.ends.len()).then_some(at)
    }
}

/// What a text says of the frames of each of its phonemes, `[U, inter]`.
#[derive(Clone, Copy, Debug)]
pub struct Prior<'a> {
    /// Their mean.
    pub mean: &'a [f32],
    /// Their spread.
    pub spread: &'a [f32],
}

/// Where the noise of frames comes from.
#[derive(Clone, Copy, Debug)]
pub enum Noise<'a> {
    /// Drawn by a key.
    Drawn([u32; 2]),
    /// Given, `[F, inter]`.
    Given(&'a [f32]),
}

impl Prior<'_> {
    /// Writes mean + noise * spread * scale of the frames from `first` on, to rows `[n, inter]`.
    ///
    /// # Panics
    /// Where given noise has fewer rows.
    pub fn fill(
        &self,
        lasting: &Lasting,
        first: usize,
        (noise, scale): (Noise<'_>, f32),
        to: &mut [f32],
        inter: usize,
    ) {
        to.fill(0.0);
        if scale != 0.0 {
            match noise {
                Noise::Drawn(key) => normals(key, PRIOR, first * inter, to),
                Noise::Given(all) => to.copy_from_slice(&all[first * inter..][..to.len()]),
            }
        }
        for (i, row) in to.chunks_exact_mut(inter).enumerate() {
            // A frame of no phoneme is that of a sentence without any: the simplest distribution.
            let of = lasting.phoneme(first + i).map(|u| u * inter..(u + 1) * inter);
            let [mean, spread] = match of {
                Some(of) => [&self.mean[of.clone()], &self.spread[of]],
                None => [&[][..]; 2],
            };
            for (c, x) in row.iter_mut().enumerate() {
                let (mean, spread) = (mean.get(c).unwrap_or(&0.0), spread.get(c).unwrap_or(&1.0));
                *x = if scale == 0.0 { *mean } else { mean + *x * spread * scale };
            }
        }
    }
}

/// Draws the noise of durations, N(0, 1) times `scale`, `[U, 2]`.
pub fn duration_noise(key: [u32; 2], scale: f32, out: &mut [f32]) {
    normals(key, DURATIONS, 0, out);
    out.iter_mut().for_each(|x| *x *= scale);
}

/// A window of a sound that is made in several.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Window {
    /// Its frames.
    pub frames: Range<usize>,
    /// Those of them whose samples are the sound's.
    pub heard: Range<usize>,
}

/// Returns the windows of a sound of `frames` frames: each of up to `most`, and what is heard of it is `reach` frames from every end that is
/// not the sound's. `most` is more than twice the reach.
pub fn windows(frames: usize, most: usize, reach: usize) -> impl Iterator<Item = Window> {
    let mut done = 0;
    std::iter::from_fn(move || {
        if done == frames {
            return None;
        }
        let start = done.saturating_sub(reach);
        let end = frames.min(start + most);
        let until = if end == frames { frames } else { end - reach };
        let window = Window { frames: start..end, heard: done..until };
        done = until;
        Some(window)
    })
}

impl Config {
    /// Returns the frames on either side of a frame on which its samples depend.
    pub fn reach(&self) -> usize {
        let flow = super::config::COUPLINGS * self.coupling.layers * (self.coupling.taps / 2);
        flow + self.generator().reach()
    }

    /// Returns the frames of the windows in which sounds of up to `longest` frames, about, are made: of longer ones they overlap, and
    /// their number changes nothing that is heard.
    pub fn window(&self, longest: usize) -> usize {
        let reach = self.reach();
        let window = longest.clamp(3 * reach + 1, WINDOW.max(4 * reach + 1));
        match self.generator().phases() {
            // Sequences of each dilation are equally long without pads.
            phases if phases <= WINDOW / 4 => window.next_multiple_of(phases),
            _ => window,
        }
    }

    /// Returns the segment table of a window with room for `room` frames, of which the first `valid` hold sound.
    pub fn fill_table(&self, table: Table, room: usize, valid: usize) -> Vec<i32> {
        let [room, valid] = [room, valid].map(|frames| frames * self.spectra.hop / table.stride);
        table.fill(room.next_multiple_of(table.dilation), valid)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_whole_frames() {
        let lasting = Lasting::of(&[0.2, 1.0, 2.5], 1.0, 100);
        assert_eq!(lasting.each().collect::<Vec<_>>(), [1, 1, 3]);
        assert_eq!(
            (0..6).map(|t| lasting.phoneme(t)).collect::<Vec<_>>(),
            [Some(0), Some(1), Some(2), Some(2), Some(2), None]
        );
        // The length is applied before.
        assert_eq!(Lasting::of(&[0.2, 1.0, 2.5], 0.5, 100).each().collect::<Vec<_>>(), [1, 1, 2]);
        let cut = Lasting::of(&[3.0, f32::INFINITY, f32::NAN, 1e30], 1.0, 7);
        assert_eq!((cut.frames(), cut.cut, cut.each().collect::<Vec<_>>()), (7, true, vec![3, 4, 0, 0]));
        assert_eq!((Lasting::of(&[0.0], 1.0, 7).frames(), Lasting::of(&[], 1.0, 7).frames()), (1, 1));
    }

    #[test]
    fn windows_are_heard_once_and_reach_far_enough() {
        for (frames, most, reach) in
            [(1, 9, 4), (9, 9, 4), (10, 9, 4), (100, 9, 4), (1000, 256, 46), (30, 10, 0)]
        {
            let mut done = 0;
            for w in windows(frames, most, reach) {
                assert_eq!(w.heard.start, done);
                assert!(w.frames.len() <= most && !w.heard.is_empty(), "{w:?}");
                assert!(w.frames.start == 0 || w.frames.start + reach <= w.heard.start, "{w:?}");
                assert!(w.frames.end == frames || w.heard.end + reach <= w.frames.end, "{w:?}");
                done = w.heard.end;
            }
            assert_eq!(done, frames);
        }
    }

    #[test]
    fn priors_do_not_depend_on_windows() {
        let (mean, spread) = ([1.0, 2.0, 3.0, 4.0, 5.0, 6.0], [0.5, 0.25, 1.0, 2.0, 0.1, 0.2]);
        let (prior, lasting) = (Prior { mean: &mean, spread: &spread }, Lasting::of(&[1.5, 3.0], 1.0, 9));
        let of = |rows: Range<usize>, noise: (Noise<'_>, f32)| {
            let mut to = vec![f32::NAN; 3 * rows.len()];
            prior.fill(&lasting, rows.start, noise, &mut to, 3);
            to
        };
        let drawn = (Noise::Drawn([3, 4]), 0.667);
        let all = of(0..5, drawn);
        assert_eq!([of(0..2, drawn), of(2..3, drawn), of(3..5, drawn)].concat(), all);
        let mut noise = vec![0.0; 15];
        normals([3, 4], PRIOR, 0, &mut noise);
        assert_eq!(of(0..5, (Noise::Given(&noise), 0.667)), all);
        assert_eq!(of(1..3, (Noise::Given(&noise), 0.0)), [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
        assert!((all[14] - (6.0 + noise[14] * 0.2 * 0.667)).abs() < 1e-6);
    }

    #[test]
    fn draws_are_normal_and_of_their_key() {
        let mut x = vec![0.0; 20_000];
        normals([1, 2], PRIOR, 3, &mut x);
        let mean = x.iter().map(|x| f64::from(*x)).sum::<f64>() / 2e4;
        let variance = x.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>() / 2e4 - mean * mean;
        assert!(mean.abs() < 0.02 && (variance - 1.0).abs() < 0.03, "{mean} {variance}");
        let mut y = vec![0.0; 20_000];
        duration_noise([1, 2], 1.0, &mut y);
        assert_ne!(x[..9], y[..9]);
        duration_noise([1, 2], 0.0, &mut y);
        assert!(y.iter().all(|y| *y == 0.0));
    }

    /// Medium quality: 32 frames of the flow and those of the generator.
    #[test]
    fn windows_of_published_voices() {
        use crate::piper::config::Quality;
        for quality in [Quality::Medium, Quality::High, Quality::XLow] {
            let cfg = Config::of(quality);
            let reach = cfg.reach();
            assert!((40..64).contains(&reach), "{quality:?}: {reach}");
            assert!((200..300).contains(&cfg.window(usize::MAX)), "{quality:?}");
            assert!(cfg.window(0) > 3 * reach && cfg.window(0) < cfg.window(usize::MAX));
        }
    }
}
