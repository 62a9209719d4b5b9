//! Where messages of long work go.

/// The library never prints: it hands lines to this.
pub trait Console: Send {
    /// Prints a line that stays.
    fn line(&mut self, text: &str);
    /// Prints a line that the next one replaces, if the terminal can.
    fn progress(&mut self, text: &str);
}

/// Prints nothing.
pub struct Silent;

impl Console for Silent {
    fn line(&mut self, _: &str) {}

    fn progress(&mut self, _: &str) {}
}
