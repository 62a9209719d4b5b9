//! The pipeline, in full view: every pass of a session, from what is trained to what waits on the host, in one list.
//!
//! [`Pipeline::list`] is that list, made from [`Options`] and a target. It is cut into [`Section`]s: a program goes through one
//! as a whole, and between two of them something is decided by the programs as they are there ([`Decided`]), or the next
//! programs are written. `session.rs` takes a session through all of it, `run.rs` one program through one pass: there, and
//! nowhere else, programs are verified, timed and shown.

mod run;
mod session;

pub use run::{After, BUILT, Watch, run, run_all};
pub use session::{Parts, Stem, inference, layout, micro, plain};

use crate::autodiff::Autodiff;
use crate::optimizer::Optimizer;
use crate::passes::accumulate::Accumulate;
use crate::passes::checkpoint::Recompute;
use crate::passes::dead::Dead;
use crate::passes::freeze::Freeze;
use crate::passes::fuse::Fuse;
use crate::passes::in_backward::InBackward;
use crate::passes::lora::{Adapt, Lora};
use crate::passes::lower::Lower;
use crate::passes::offload::Offload;
use crate::passes::pattern::Pattern;
use crate::passes::place::Cut;
use crate::passes::policy::Blocks;
use crate::passes::precision::{Mixed, Precision};
use crate::passes::pure::Pure;
use crate::passes::schedule::Schedule;
use crate::passes::shard::{Flats, Layout, Shard, Sharding};
use crate::passes::simplify::Simplify;
use crate::passes::{Numerics, Pass};
pub use crate::player::Player;
use ambitus_ir::target::Target;
use ambitus_ir::{Program, Session};

/// Name of the program of several micro-batches, where they go through the ranks as a pipeline.
pub const SEVERAL: &str = "pipeline";

/// What of a model is trained.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Trained {
    /// Every parameter that the model calls trainable.
    #[default]
    All,
    /// All but those that match.
    Except(Vec<Pattern>),
    /// Adapters next to chosen products.
    Adapters(Lora),
}

/// Everything that decides which passes there are.
#[derive(Clone, Debug, PartialEq)]
pub struct Options {
    /// What of the model is trained.
    pub trained: Trained,
    /// By whom: one player for each program that is trained.
    pub players: Vec<Player>,
    /// What the model computes in.
    pub precision: Precision,
    /// How ranks share what is kept; without, there is one.
    pub sharding: Option<Sharding>,
    /// What applies gradients; without, there is no update.
    pub optimizer: Option<Optimizer>,
    /// Clip each gradient by its own norm, not all by the global one.
    pub clip_per_tensor: bool,
    /// The micro-batch program is the whole update, and no gradient is kept. Needs `optimizer` and `clip_per_tensor`.
    pub update_in_backward: bool,
    /// Keep a moving average.
    pub ema: bool,
    /// What of the blocks is recomputed in backward.
    pub checkpoint: Blocks,
    /// What waits in the host's memory.
    pub offload: Offload,
    /// Ranks get parts of the session ([`Pipeline::parts`]), and what waits on the host is moved of each part.
    pub placed: bool,
}

impl Options {
    /// Returns options under which one rank trains everything in fp32, without an update.
    pub fn new(checkpoint: Blocks) -> Options {
        Options {
            trained: Trained::All,
            players: vec![Player::default()],
            precision: Precision::Fp32,
            sharding: None,
            optimizer: None,
            clip_per_tensor: false,
            update_in_backward: false,
            ema: false,
            checkpoint,
            offload: Offload::default(),
            placed: false,
        }
    }

    /// Returns the optimizer, where it is applied in backward.
    fn in_backward(&self, player: &Player) -> Option<InBackward<'_>> {
        let optimizer = self.optimizer.as_ref().filter(|_| self.update_in_backward)?;
        Some(InBackward { optimizer, step: player.counter() })
    }

    /// Returns whether the program of a micro-batch applies its gradients itself.
    fn updates_in_backward(&self) -> bool {
        self.update_in_backward && self.optimizer.is_some()
    }

    /// Returns where ranks keep the parameters of a chosen forward program, if they share them.
    fn layout(&self, session: &Session, chosen: &Program) -> Option<Layout> {
        self.sharding.map(|sharding| Layout::of(session, chosen, sharding, self.optimizer.as_ref()))
    }
}

/// A stretch of the list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Section {
    /// The forward program that is trained. Then it is known where ranks keep the parameters.
    Trained,
    /// Every other forward program, before the parameters, which all share, may be declared in another type.
    Forward,
    /// The forward program that is trained becomes that of a micro-batch. Plans that differ in what is recomputed and what waits
    /// on the host part after it.
    Micro,
    /// What has no backward: updates, averages, the other forward programs.
    Plain,
    /// The program of a micro-batch, told what is recomputed.
    Memory,
    /// Every program, when all are there. Then it is known where a model is cut that is placed on several ranks.
    Session,
    /// The whole session becomes those of the ranks.
    Ranks,
}

/// What the programs decide on their way.
#[derive(Clone, Copy, Debug, Default)]
pub struct Decided<'l> {
    /// Whose program it is, in [`Section::Micro`] and [`Section::Memory`]: the index of the player.
    pub player: usize,
    /// Where ranks keep the parameters, after [`Section::Trained`].
    pub layout: Option<&'l Layout>,
    /// Where the model is cut and how many micro-batches are in the ranks at a time, after [`Section::Session`].
    pub cut: Option<(&'l Cut, usize)>,
}

/// One line of the list.
pub enum Step<'l> {
    /// Rewrites one program.
    Pass(Box<dyn Pass + 'l>),
    /// Makes a program of several micro-batches of that of one ([`place::pipeline`](crate::passes::place::pipeline)).
    Unroll(&'l Cut, usize),
    /// Makes a session for each rank ([`place::place`](crate::passes::place::place)).
    Place(&'l Cut),
}

impl Step<'_> {
    /// Returns the name in dumps.
    pub fn name(&self) -> &'static str {
        match self {
            Step::Pass(pass) => pass.name(),
            Step::Unroll(..) => "unroll",
            Step::Place(_) => "place",
        }
    }

    /// Returns what it may do to numbers.
    pub fn numerics(&self) -> Numerics {
        match self {
            Step::Pass(pass) => pass.numerics(),
            Step::Unroll(..) | Step::Place(_) => Numerics::Exact,
        }
    }
}

/// A session's passes.
#[derive(Clone, Copy)]
pub struct Pipeline<'a> {
    options: &'a Options,
    target: &'a dyn Target,
    watch: Option<&'a Watch<'a>>,
    without: Option<&'a str>,
}

impl<'a> Pipeline<'a> {
    /// Returns the pipeline for these options and an executor.
    pub fn new(options: &'a Options, target: &'a dyn Target) -> Pipeline<'a> {
        Pipeline { options, target, watch: None, without: None }
    }

    /// Returns this pipeline with `watch`, which sees every program after every pass.
    pub fn watched(self, watch: &'a Watch<'a>) -> Pipeline<'a> {
        Pipeline { watch: Some(watch), ..self }
    }

    /// Returns this pipeline without `pass`, wherever it stands. What it declares to do to numbers is held to that.
    pub fn without(self, pass: &'a str) -> Pipeline<'a> {
        Pipeline { without: Some(pass), ..self }
    }

    /// Returns the list.
    pub fn list<'l>(&'l self, decided: Decided<'l>) -> List<'l> {
        let o = self.options;
        let (target, layout) = (self.target, decided.layout);
        let pure = || (o.precision == Precision::Bf16Pure).then_some(Pure);
        let shard = || layout.map(|layout| Shard { layout });
        let prefetch = || layout.map(|layout| layout.sharding.prefetch);
        let offload = |here: bool| (here && !o.offload.is_none()).then_some(o.offload);
        let player = &o.players[decided.player];
        let in_backward = o.in_backward(player);

        let mut list = List::new(self.without);
        list.at(Section::Trained).choice(o, true);
        list.at(Section::Forward).choice(o, false);
        list.at(Section::Micro)
            .then(Simplify { before_autodiff: true })
            .then(Autodiff { player })
            .then(Simplify { before_autodiff: false })
            .then(Lower { target })
            .when(shard())
            .then(Accumulate { several_only: in_backward.is_some() })
            .then(Fuse { target })
            .when(pure());
        list.at(Section::Plain)
            .when(pure())
            .then(Simplify { before_autodiff: false })
            .then(Lower { target })
            .when(shard())
            .then(Dead)
            .then(Schedule)
            .when(prefetch());
        list.at(Section::Memory)
            .then(Recompute { blocks: &o.checkpoint, sharding: o.sharding.as_ref(), target })
            .then(Dead)
            // When every instruction that reads a weight is there.
            .when(in_backward.clone())
            .when(in_backward.map(|_| Lower { target }))
            .then(Schedule)
            .when(prefetch());
        list.at(Section::Session).when(layout.map(|layout| Flats { layout })).when(offload(!o.placed));
        list.at(Section::Ranks).place(decided.cut).when(offload(o.placed));
        list
    }
}

/// Steps in order, each in its section.
pub struct List<'l> {
    steps: Vec<(Section, Step<'l>)>,
    /// The section that is being written.
    at: Section,
    without: Option<&'l str>,
}

impl<'l> List<'l> {
    fn new(without: Option<&'l str>) -> List<'l> {
        List { steps: Vec::new(), at: Section::Trained, without }
    }

    /// Returns all steps.
    pub fn steps(&self) -> impl Iterator<Item = &Step<'l>> {
        self.steps.iter().map(|(_, step)| step)
    }

    /// Returns the steps of a section.
    pub fn section(&self, section: Section) -> impl Iterator<Item = &Step<'l>> {
        self.steps.iter().filter(move |(s, _)| *s == section).map(|(_, step)| step)
    }

    /// Continues with a section.
    fn at(&mut self, section: Section) -> &mut List<'l> {
        self.at = section;
        self
    }

    /// Returns what is trained, in which numbers.
    fn choice(&mut self, o: &'l Options, training: bool) -> &mut List<'l> {
        match &o.trained {
            Trained::All => &mut *self,
            Trained::Except(patterns) => self.then(Freeze { patterns }),
            Trained::Adapters(lora) => self.then(Adapt { lora, training }),
        };
        self.when(o.precision.narrow().map(|dtype| Mixed { dtype }))
    }

    fn then(&mut self, pass: impl Pass + 'l) -> &mut List<'l> {
        self.push(Step::Pass(Box::new(pass)))
    }

    fn when(&mut self, pass: Option<impl Pass + 'l>) -> &mut List<'l> {
        match pass {
            Some(pass) => self.then(pass),
            None => self,
        }
    }

    /// Returns a pipeline where several micro-batches are in the ranks at a time, and their parts.
    fn place(&mut self, cut: Option<(&'l Cut, usize)>) -> &mut List<'l> {
        let Some((cut, in_flight)) = cut else { return self };
        if in_flight > 1 {
            self.push(Step::Unroll(cut, in_flight));
        }
        self.push(Step::Place(cut))
    }

    fn push(&mut self, step: Step<'l>) -> &mut List<'l> {
        if self.without != Some(step.name()) {
            self.steps.push((self.at, step));
        }
        self
    }
}
