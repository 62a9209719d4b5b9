//! Several GPUs of a kind, in one host or in several equal ones: what `plan` can plan for besides a single GPU.
//!
//! ```toml
//! # --cluster FILE
//! card = "a800"
//! hosts = 4
//! cards_per_host = 8
//! network_gb_per_s = 50   # of a host to another, one way, all its adapters together
//! ```

use crate::cards::{Card, Cards};
use ambitus_families::error::RunError;
use ambitus_ir::target::Links;
use ambitus_recipe::recipe::read_text;
use serde::{Deserialize, Serialize};
use std::path::Path;

/// The most cards that are planned for.
const MOST: usize = 1 << 16;

/// Equal hosts with equal cards.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Cluster {
    /// The card.
    pub card: Card,
    /// Hosts.
    pub hosts: usize,
    /// Cards of each.
    pub cards_per_host: usize,
    /// 1e9 bytes per second that a host sends to another while it receives as many; of one host, nothing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub network_gb_per_s: Option<f64>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, expecting = "a cluster: card, hosts, cards_per_host, network_gb_per_s")]
struct Entry {
    card: String,
    hosts: usize,
    cards_per_host: usize,
    network_gb_per_s: Option<f64>,
}

impl Cluster {
    /// Returns the cluster of a text such as `4xa800`; `None` for a text without a number and an `x`.
    ///
    /// # Errors
    /// A card that is not known, or a number that is none.
    pub fn parse(text: &str, known: &Cards) -> Option<Result<Cluster, RunError>> {
        let (count, name) = text.split_once(['x', 'X', '*'])?;
        if count.is_empty() || !count.bytes().all(|b| b.is_ascii_digit()) {
            return None;
        }
        let count = count.parse().unwrap_or(usize::MAX);
        Some(known.find(name.trim()).and_then(|card| {
            let one = Cluster { card: card.clone(), hosts: 1, cards_per_host: count, network_gb_per_s: None };
            one.checked(|why| RunError::Usage(format!("--cards {text}: {why}")))
        }))
    }

    /// Reads a cluster file.
    ///
    /// # Errors
    /// [`RunError::Usage`] with file, line and key.
    pub fn read(path: &Path, known: &Cards) -> Result<Cluster, RunError> {
        let text = read_text(path, "a cluster is a TOML file").map_err(|e| RunError::Usage(e.to_string()))?;
        let fail = |why: String| RunError::Usage(format!("{}: {why}", path.display()));
        let entry: Entry = toml::from_str(&text).map_err(|e| {
            let line = e.span().map_or(1, |s| text[..s.start.min(text.len())].matches('\n').count() + 1);
            let shown: String = text.lines().nth(line - 1).unwrap_or("").trim().chars().take(60).collect();
            fail(format!("{line}: {} (`{shown}`)", e.message().trim_end().replace('\n', ", ")))
        })?;
        let Entry { card, hosts, cards_per_host, network_gb_per_s } = entry;
        let card = known.find(&card)?.clone();
        Cluster { card, hosts, cards_per_host, network_gb_per_s }.checked(fail)
    }

    fn checked(self, fail: impl Fn(String) -> RunError) -> Result<Cluster, RunError> {
        let ranks = self.hosts.saturating_mul(self.cards_per_host);
        if !(1..=MOST).contains(&ranks) {
            return Err(fail(format!(
                "{} hosts with {} GPUs: 1 to {MOST} GPUs can be planned for",
                self.hosts, self.cards_per_host
            )));
        }
        match self.network_gb_per_s {
            None if self.hosts > 1 => Err(fail(
                "network_gb_per_s is missing: what one host sends to another in a second".to_owned(),
            )),
            Some(rate) if !(0.001..=1e6).contains(&rate) => {
                Err(fail(format!("network_gb_per_s: {rate} is not a rate: 0.001 to 1000000")))
            }
            _ => Ok(self),
        }
    }

    /// Returns such cards as they usually come: eight per host, each with a network adapter of 400 Gbit/s, of which 0.8 is
    /// reached.
    pub fn usual(card: &Card) -> Cluster {
        const ADAPTERS: usize = 8;
        let network = ADAPTERS as f64 * 0.8 * 400.0 / 8.0;
        Cluster { card: card.clone(), hosts: 1, cards_per_host: ADAPTERS, network_gb_per_s: Some(network) }
    }

    /// Returns the number of cards, each a rank.
    pub fn ranks(&self) -> usize {
        self.hosts * self.cards_per_host
    }

    /// Returns what joins them.
    pub fn links(&self) -> Links {
        let one = Links::of_host(self.cards_per_host, self.card.peer_gb_per_s * 1e9);
        Links { network: self.network_gb_per_s.map_or(f64::INFINITY, |rate| rate * 1e9), ..one }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn known() -> Cards {
        Cards::load(None).expect("the program's own table")
    }

    #[test]
    fn cards_of_one_host_are_a_number_and_a_name() {
        let four = Cluster::parse("4xa800", &known()).expect("a cluster").expect("known");
        assert_eq!((four.ranks(), four.card.id.as_str(), four.links().per_host), (4, "a800", 4));
        for single in ["a800", "rtx3090", "x", "", "fourxa800"] {
            assert!(Cluster::parse(single, &known()).is_none(), "{single}");
        }
        for wrong in ["0xa800", "99999999999999999999xa800", "2xnothing", "2x"] {
            assert!(Cluster::parse(wrong, &known()).expect(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn files_are_read_and_faults_have_their_line() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("c.toml");
        let read = |text: &str| {
            std::fs::write(&path, text).unwrap();
            Cluster::read(&path, &known())
        };
        let whole = "card = \"H100\"\nhosts = 2\ncards_per_host = 8\nnetwork_gb_per_s = 50\n";
        let two = read(whole).unwrap();
        assert_eq!((two.ranks(), two.links().network), (16, 50e9));
        for (from, to, said) in [
            ("hosts = 2", "hosts = 0", "0 hosts with 8 GPUs"),
            ("network_gb_per_s = 50", "", "network_gb_per_s is missing"),
            ("network_gb_per_s = 50", "network_gb_per_s = -1", "-1 is not a rate"),
            ("hosts = 2", "hosts = two", "c.toml: 2: "),
            ("hosts", "host", "c.toml: 2: unknown field"),
            ("H100", "nothing", "no card `nothing`"),
        ] {
            let error = read(&whole.replace(from, to)).expect_err(said).to_string();
            assert!(error.contains(said), "{error}");
        }
    }
}
