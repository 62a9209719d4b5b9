//! Attributes of ops in the text form: `name=value`.

use crate::tensor::{DType, Shape};

/// A type that can be an op's attribute.
pub trait Attr: Sized {
    /// Prints the value; never contains a space, comma outside brackets, or brace.
    fn show(&self) -> String;
    /// Reads what [`Attr::show`] printed.
    fn read(s: &str) -> Option<Self>;
}

macro_rules! plain {
    ($($t:ty),+) => {$(
        impl Attr for $t {
            fn show(&self) -> String { self.to_string() }
            fn read(s: &str) -> Option<Self> { s.parse().ok() }
        }
    )+};
}
plain!(bool, u32, u64, f32, f64, Shape);

/// Axes, lengths and counts: bounded, so that no shape rule overflows.
impl Attr for usize {
    fn show(&self) -> String {
        self.to_string()
    }
    fn read(s: &str) -> Option<Self> {
        s.parse().ok().filter(|n| *n <= Shape::MAX_AXIS)
    }
}

impl Attr for DType {
    fn show(&self) -> String {
        self.name().to_owned()
    }
    fn read(s: &str) -> Option<Self> {
        s.parse().ok()
    }
}

/// Declares an enum whose variants print as words.
macro_rules! words {
    ($(#[$meta:meta])* $name:ident { $($(#[$vmeta:meta])* $variant:ident = $word:literal),+ $(,)? }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum $name { $($(#[$vmeta])* $variant),+ }

        impl $name {
            /// Every variant, in order.
            pub const ALL: &'static [$name] = &[$($name::$variant),+];
        }

        impl $crate::ops::Attr for $name {
            fn show(&self) -> String {
                match self { $($name::$variant => $word),+ }.to_owned()
            }
            fn read(s: &str) -> Option<Self> {
                match s { $($word => Some($name::$variant),)+ _ => None }
            }
        }
    };
}
pub(crate) use words;

/// Attributes being read; each is taken once.
pub struct AttrReader {
    left: Vec<(String, String)>,
}

impl AttrReader {
    /// Starts on the attributes of one op.
    pub fn new(attrs: Vec<(String, String)>) -> AttrReader {
        AttrReader { left: attrs }
    }

    /// Takes one attribute by name.
    ///
    /// # Errors
    /// When it is missing or does not read.
    pub fn take<T: Attr>(&mut self, name: &str) -> Result<T, String> {
        let at = self.left.iter().position(|(n, _)| n == name);
        let at = at.ok_or_else(|| format!("attribute `{name}` is missing"))?;
        let (_, value) = self.left.swap_remove(at);
        T::read(&value).ok_or_else(|| format!("attribute `{name}` cannot be `{value}`"))
    }

    /// Ends the reading.
    ///
    /// # Errors
    /// When an attribute was not taken.
    pub fn finish(self) -> Result<(), String> {
        match self.left.first() {
            None => Ok(()),
            Some((name, _)) => Err(format!("unknown attribute `{name}`")),
        }
    }
}
