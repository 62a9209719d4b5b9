//! Where messages of long work go.

/// The library never prints: it hands lines to this.
pub trait Console: Send {
    /// A line that stays.
    fn line(&mut self, text: &str);
    /// A line that the next one replaces, where the terminal can.
    fn progress(&mut self, text: &str);
}
