//! Work on a tensor part by part, where the whole is too large to be in one place: with the bits that it has at once.

use super::{Attr, Op};
use crate::builder::Builder;
use crate::program::ValueId;
use crate::tensor::Shape;

/// Which part of a whole the operands that are cut hold: rows or elements, as the op says. Shown as `first+count/of`, where an op
/// has all at once as `whole`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Span {
    /// Before it.
    pub first: usize,
    /// In it.
    pub count: usize,
    /// In the whole.
    pub of: usize,
}

impl Attr for Option<Span> {
    fn show(&self) -> String {
        self.map_or_else(|| "whole".to_owned(), |p| format!("{}+{}/{}", p.first, p.count, p.of))
    }
    fn read(s: &str) -> Option<Self> {
        if s == "whole" {
            return Some(None);
        }
        let (part, of) = s.split_once('/')?;
        let (first, count) = part.split_once('+')?;
        let part = Span { first: first.parse().ok()?, count: count.parse().ok()?, of: of.parse().ok()? };
        let inside = part.of <= Shape::MAX_ELEMENTS && part.first.checked_add(part.count)? <= part.of;
        inside.then_some(Some(part))
    }
}

/// What [`Span`]s are counted in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Elements, row-major without pads.
    Element,
    /// Rows of a matrix; parts begin at multiples of this number.
    Rows(usize),
}

/// How an op is done part by part.
#[derive(Clone, Debug, PartialEq)]
pub struct Cut {
    /// In what parts are counted.
    pub unit: Unit,
    /// Operands that are cut, each with how many elements of the whole one of its elements stands for.
    pub operands: Vec<(usize, usize)>,
    /// Results that come in parts, likewise. Others are whole.
    pub results: Vec<(usize, usize)>,
    /// So little work that it is done again wherever a part is used, in place of keeping all of them.
    pub again: bool,
}

impl Cut {
    /// Operands and results by element, one to one.
    pub(super) fn by_element(operands: &[usize], results: &[usize]) -> Cut {
        let ones = |all: &[usize]| all.iter().map(|k| (*k, 1)).collect();
        Cut { unit: Unit::Element, operands: ones(operands), results: ones(results), again: false }
    }

    /// By rows.
    pub(super) fn by_rows(operands: &[usize], results: &[usize], multiple: usize) -> Cut {
        Cut { unit: Unit::Rows(multiple), ..Cut::by_element(operands, results) }
    }
}

/// Gives the operands for a part, by its number: of what is cut that part, of all else the whole.
pub type Operands<'a> = dyn FnMut(&mut Builder<'_>, usize) -> Vec<ValueId> + 'a;

impl Op {
    /// Appends the op done part by part, for `parts` that are all of the whole, in order. Gives for each result its parts, or
    /// the whole alone.
    pub fn in_parts(&self, b: &mut Builder<'_>, parts: &[Span], x: &mut Operands<'_>) -> Vec<Vec<ValueId>> {
        if let Some(results) = self.def().in_parts(b, parts, x) {
            return results;
        }
        let mut results: Vec<Vec<ValueId>> = Vec::new();
        for (i, part) in parts.iter().enumerate() {
            let x = x(b, i);
            let y = b.push(self.def().of_part(*part).unwrap_or_else(|| self.clone()), &x);
            results.resize(y.len(), Vec::new());
            results.iter_mut().zip(y).for_each(|(all, one)| all.push(one));
        }
        results
    }
}
