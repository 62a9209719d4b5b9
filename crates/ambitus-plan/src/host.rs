//! The host's side of a plan: what is offloaded, whose memory or disk holds it, and whether it fits there.

use crate::budget::Phase;
use crate::memory::{Meter, PhaseBytes};
use crate::resolved::Resolved;
use ambitus_ir::StateKind;
use ambitus_ir::ops::copy::Space;
use ambitus_recipe::size::ByteSize;
use std::path::Path;

impl Resolved {
    /// Returns the folder of the file that holds what is offloaded, if one does.
    pub fn disk(&self) -> Option<&Path> {
        self.recipe.offload.as_ref()?.disk.as_deref()
    }

    /// Returns the bytes of this process's memory that the host's budget bounds: the host arena, and on a card the process.
    pub fn host_bytes(&self) -> u64 {
        let arena = self.host_arena_in_memory();
        if self.device.is_card() { arena + self.plan.host_process_bytes(self.threads) } else { arena }
    }

    /// Returns the bytes of the host arena, unless it is a file.
    pub fn host_arena_in_memory(&self) -> u64 {
        if self.disk().is_some() { 0 } else { self.plan.host_bytes() }
    }

    /// Returns the bytes that are measured in addition to the plan's: without a card the host arena is in this process too.
    pub fn host_beside(&self) -> u64 {
        if self.device.is_card() { 0 } else { self.host_arena_in_memory() }
    }

    /// Returns what is measured in a phase, as planned: the host arena lives as long as the device's.
    fn measurable(&self, p: &Phase) -> u64 {
        p.peak_bytes + if p.has_arena() { self.host_beside() } else { 0 }
    }

    /// Returns the high-water mark of the memory that is measured, as planned.
    pub fn measurable_peak(&self) -> u64 {
        self.plan.phases.iter().map(|p| self.measurable(p)).max().unwrap_or(0)
    }

    /// Returns the phases that took place, as planned and as measured.
    pub fn phases(&self, meter: &Meter) -> Vec<PhaseBytes> {
        let measured = |name: &str| Some((name.to_owned(), meter.of(name)?));
        let each = self.plan.phases.iter().filter_map(|p| Some((p, measured(p.name)?)));
        each.map(|(p, (name, measured))| PhaseBytes {
            planned_bytes: self.measurable(p),
            measured_bytes: (!self.device.is_card()).then_some(measured),
            name,
        })
        .collect()
    }

    /// Returns the plan as JSON, with the host's side.
    pub fn json(&self) -> serde_json::Value {
        let mut json = self.plan.json(self.budget);
        let host = self.host_bytes();
        let fits = json["fits"].as_bool().unwrap_or(false) && self.host_budget.is_none_or(|b| host <= b);
        json["fits"] = fits.into();
        json["host_bytes"] = self.plan.host_bytes().into();
        let states: u64 = self.plan.here().iter().map(|p| p.host_state_bytes).sum();
        json["host_state_bytes"] = states.into();
        json["host_needed_bytes"] = host.into();
        json["host_budget_bytes"] = serde_json::json!(self.host_budget);
        json["host_on_disk"] = serde_json::json!(self.disk());
        if let Some(ranks) = self.plan.ranks() {
            json["ranks"] = serde_json::json!(ranks);
        }
        if let Some(parts) = &self.plan.parts {
            json["placement"] = parts.json();
        }
        json
    }

    /// Returns what the host arena holds, by kind.
    fn host_line(&self) -> String {
        let here = self.plan.here();
        let of = |kind| -> u64 {
            let states = here.iter().flat_map(|p| &p.session.states);
            states.filter(|s| s.kind == kind && s.home == Space::Host).map(|s| s.ty.bytes()).sum()
        };
        let rows = [
            ("parameters", of(StateKind::Parameter)),
            ("gradients", of(StateKind::Gradient)),
            ("optimizer", of(StateKind::Optimizer)),
            ("ema", of(StateKind::Ema)),
            ("activations", here.iter().map(|p| p.host_bytes - p.host_state_bytes).sum()),
            ("process", self.host_bytes() - self.host_arena_in_memory()),
        ];
        let shown = rows.iter().filter(|(_, bytes)| *bytes > 0);
        shown.map(|(name, bytes)| format!("{name} {}", ByteSize(*bytes))).collect::<Vec<_>>().join(" · ")
    }

    /// Returns the refusal of a host arena that exceeds its budget.
    pub fn host_refusal(&self) -> Option<String> {
        let needs = self.host_bytes();
        let budget = self.host_budget.filter(|b| needs > *b)?;
        let disk = if self.device.is_card() { "" } else { ", or put it on disk (disk=FOLDER)" };
        let [needed, has] = ByteSize(needs).apart(ByteSize(budget));
        Some(format!(
            "does not fit: needs {needed} of the host's memory, budget {has} ({} short)\n  {}\n  offload less (--offload), or \
             raise --host-memory{disk}",
            ByteSize(needs - budget),
            self.host_line(),
        ))
    }

    /// Returns the plan's lines on what is offloaded; none if nothing is.
    pub fn describe_host(&self) -> Vec<String> {
        if self.plan.shape.session.offload.is_none() {
            return Vec::new();
        }
        let place = match (self.disk(), self.host_budget) {
            (Some(folder), _) => {
                format!("{} in a file in {}", ByteSize(self.plan.host_bytes()), folder.display())
            }
            (None, Some(budget)) => {
                format!("{} of {} of the host's memory", ByteSize(self.host_bytes()), ByteSize(budget))
            }
            (None, None) => format!("{} of the host's memory", ByteSize(self.host_bytes())),
        };
        let mut lines = vec![format!("  offloaded, same numbers: {place}: {}", self.host_line())];
        if !self.device.is_card() && self.disk().is_none() {
            lines.push(
                "    in addition to the peak: --memory bounds the rest of this process, --host-memory this"
                    .to_owned(),
            );
        }
        lines
    }
}
