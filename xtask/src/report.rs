//! The results file: sections of text and tables, and what was wrong.

use serde_json::{Map, Value, json};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

/// A page of results.
#[derive(Clone, Debug, Default)]
pub struct Report {
    title: String,
    text: String,
    faults: Vec<String>,
    facts: Map<String, Value>,
}

impl Report {
    /// Returns a page with a title.
    pub fn new(title: &str) -> Report {
        Report { title: title.to_owned(), text: format!("# {title}\n"), ..Report::default() }
    }

    /// Starts a section.
    pub fn section(&mut self, title: &str) {
        let _ = write!(self.text, "\n## {title}\n\n");
        eprintln!("== {title}");
    }

    /// Adds a line of text.
    pub fn line(&mut self, text: &str) {
        let _ = writeln!(self.text, "{text}");
        eprintln!("{text}");
    }

    /// Adds a table; the first row is its head.
    pub fn table(&mut self, rows: &[Vec<String>]) {
        for (i, row) in rows.iter().enumerate() {
            self.line(&format!("| {} |", row.join(" | ")));
            if i == 0 {
                self.line(&format!("|{}", "---|".repeat(row.len())));
            }
        }
    }

    /// Adds something that must not be.
    pub fn fault(&mut self, what: String) {
        self.line(&format!("- FAULT: {what}"));
        self.faults.push(what);
    }

    /// Adds something for programs.
    pub fn fact(&mut self, name: &str, value: Value) {
        self.facts.insert(name.to_owned(), value);
    }

    /// Writes the page as `.md` and its facts as `.json`.
    ///
    /// # Errors
    /// From the disk.
    pub fn save(&self, file: &Path) -> Result<(), String> {
        let facts = json!({"title": self.title, "faults": self.faults, "facts": self.facts});
        for (kind, text) in [("md", self.markdown()), ("json", format!("{facts:#}\n"))] {
            // Not with_extension: what is named may have a dot in it.
            let path = PathBuf::from(format!("{}.{kind}", file.display()));
            std::fs::write(&path, text).map_err(|e| format!("{}: {e}", path.display()))?;
        }
        Ok(())
    }

    /// Returns what was wrong.
    pub fn faults(&self) -> &[String] {
        &self.faults
    }

    /// Returns the page as Markdown.
    pub fn markdown(&self) -> String {
        let verdict = match self.faults.len() {
            0 => "Everything held.".to_owned(),
            n => format!("{n} faults."),
        };
        format!("{}\n## Verdict\n\n{verdict}\n", self.text)
    }
}

/// Returns (median, first quartile, third quartile) of some numbers.
pub fn quartiles(numbers: &[f64]) -> (f64, f64, f64) {
    let mut sorted = numbers.to_vec();
    sorted.sort_by(f64::total_cmp);
    let at = |share: f64| {
        let place = share * (sorted.len().max(1) - 1) as f64;
        let (low, high) = (place.floor() as usize, place.ceil() as usize);
        let get = |i: usize| sorted.get(i).copied().unwrap_or(f64::NAN);
        get(low) + (get(high) - get(low)) * place.fract()
    };
    (at(0.5), at(0.25), at(0.75))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quartiles_interpolate() {
        assert_eq!(quartiles(&[4.0, 1.0, 3.0, 2.0]), (2.5, 1.75, 3.25));
        assert_eq!(quartiles(&[7.0]), (7.0, 7.0, 7.0));
    }

    #[test]
    fn a_page_with_a_fault_says_so() {
        let mut page = Report::new("Results");
        page.section("One");
        page.table(&[vec!["a".to_owned(), "b".to_owned()], vec!["1".to_owned(), "2".to_owned()]]);
        page.fault("wrong".to_owned());
        let text = page.markdown();
        assert!(text.contains("| a | b |\n|---|---|\n| 1 | 2 |\n- FAULT: wrong"), "{text}");
        assert!(text.ends_with("1 faults.\n"));
    }
}
