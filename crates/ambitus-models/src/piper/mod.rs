//! Piper: VITS, a voice whose generator and discriminators are two players (`README.md` next to this file).

pub mod batch;
pub mod config;
pub mod draw;
pub mod model;
pub mod speak;
pub mod weights;

use crate::batch::{Capacity, Layout};
use crate::init::Init;
use crate::model::{Model, Player, Rows};
use ambitus_ir::{Program, Session};
use config::Config;
use std::sync::Arc;

/// Outputs of the generator's step besides the loss: its parts, as they count.
pub const REPORTED: [&str; 5] = ["loss.mel", "loss.kl", "loss.dur", "loss.fm", "loss.adv"];
/// Who is trained.
const PLAYERS: [Player; 2] =
    [Player { name: "g", trains: &["model_g.*"] }, Player { name: "d", trains: &["model_d.*"] }];

impl Model for Config {
    fn players(&self) -> &'static [Player] {
        &PLAYERS
    }

    fn loss(&self, s: &mut Session, player: usize, cap: Capacity, name: &str, train: bool) -> Program {
        match player {
            0 => model::generator(s, self, cap, name, train),
            _ => model::discriminators(s, self, cap, name),
        }
    }

    fn reported(&self) -> &'static [&'static str] {
        &REPORTED
    }

    fn traced(&self) -> &'static [&'static str] {
        &[model::PATH]
    }

    fn layout(&self, cap: Capacity) -> Layout {
        batch::layout(self, cap)
    }

    /// Returns a spectrogram and its samples, noise, and ids as if there were one a frame.
    fn clip_bytes(&self, rows: usize) -> u64 {
        4 * (rows * (self.spectra.bins() + self.spectra.hop + self.inter + 3)) as u64
    }

    fn rows(&self) -> Rows {
        Config::rows(self)
    }

    fn init(&self, name: &str, dims: &[usize]) -> Init {
        weights::init(name, dims)
    }

    fn made(&self, name: &str) -> Option<Vec<f32>> {
        weights::made(name, self)
    }

    /// Returns none: a model of several players has no adapters.
    fn adapted(&self) -> &'static [&'static str] {
        &[]
    }

    fn original_bytes(&self, parameters: u64, rows: usize, mixed: bool) -> u64 {
        weights::original_bytes(self, parameters, rows, mixed)
    }

    fn project(&self) -> &'static str {
        "Piper"
    }

    fn with_dropout(&self, p: f32) -> Option<Arc<dyn Model>> {
        Some(Arc::new(Config { dropout: p, ..self.clone() }))
    }

    fn with_context(&self, rows: usize) -> Option<Arc<dyn Model>> {
        Some(Arc::new(Config { context: rows.max(1), ..self.clone() }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use config::Quality;

    /// Returns the parameters of each player.
    fn parameters(cfg: &Config) -> [usize; 2] {
        let mut session = Session::default();
        let cap = Capacity { rows: 64, clips: 2 };
        for player in 0..2 {
            cfg.loss(&mut session, player, cap, "micro", true);
        }
        PLAYERS.map(|player| {
            let prefix = player.trains[0].trim_end_matches('*');
            let own = session.states.iter().filter(|s| s.name.starts_with(prefix));
            own.map(|s| s.ty.shape.elements()).sum()
        })
    }

    /// Numbers of parameters that piper1-gpl's modules have.
    #[test]
    fn published_voices_have_their_parameters() {
        let of = |quality| parameters(&Config::of(quality));
        assert_eq!(of(Quality::Medium), [23_663_792, 46_747_132]);
        assert_eq!(of(Quality::High)[0], 36_336_048);
        assert_eq!(of(Quality::XLow)[0], 7_073_360);
        let many = Config { speakers: 904, speaker: 512, ..Config::medium() };
        let millions = parameters(&many)[0] as f64 / 1e6;
        assert!((millions - 30.67).abs() < 0.01, "{millions}");
    }
}
