//! A session through the list: from what a model builds to programs that only lack offsets, of one rank or of several.

use super::run::Runner;
use super::{Decided, List, Options, Pipeline, SEVERAL, Section, Step, Trained};
use crate::CompileError;
use crate::optimizer;
use crate::passes::freeze::require_parameters;
use crate::passes::place::{self, Cut};
use crate::passes::policy::{Blocks, require_modules};
use crate::passes::precision::{LOSS_SCALE, Precision};
use crate::passes::rows::Rows;
use crate::passes::shard::Layout;
use ambitus_ir::target::Target;
use ambitus_ir::{Program, Session, StateDecl};

/// Kind of a player's program that applies gradients.
const UPDATE: &str = "update";
/// The program of the moving average.
const EMA: &str = "ema";

/// A session up to where it is decided what its micro-batch programs recompute and what all programs offload: plans that differ
/// in these alone share it.
#[derive(Clone)]
pub struct Stem {
    /// All states, and all programs but those of a micro-batch; with an update in backward only what the model itself declares.
    session: Session,
    /// By player.
    micros: Vec<Program>,
    /// Of a session with an update in backward, what is still to be prepared, with its name on averages.
    forwards: Vec<(Program, String)>,
    /// Where ranks keep the parameters.
    layout: Option<Layout>,
}

/// The sessions of ranks that have parts of a model.
pub struct Parts {
    /// By rank.
    pub sessions: Vec<Session>,
    /// Backward of one micro-batch goes before forward of later ones (1F1B).
    pub interleaved: bool,
}

impl Pipeline<'_> {
    /// Compiles a session of forward programs that a model built in it: the one that each player trains, and others, each with
    /// its name on averages. Its programs are those of a micro-batch, of the updates and the averages, and the others.
    ///
    /// # Errors
    /// See [`CompileError`].
    pub fn session(
        &self,
        session: Session,
        trained: Vec<Program>,
        others: Vec<(Program, String)>,
    ) -> Result<Session, CompileError> {
        self.end(self.begin(session, trained, others, None)?)
    }

    /// Returns the first part of [`Pipeline::session`]: the same for every [`Options::checkpoint`] and [`Options::offload`].
    /// What the size of a micro-batch does not change is taken from the stem of another size, where there is one.
    ///
    /// # Errors
    /// See [`CompileError`].
    pub fn begin(
        &self,
        mut s: Session,
        trained: Vec<Program>,
        others: Vec<(Program, String)>,
        other_size: Option<&Stem>,
    ) -> Result<Stem, CompileError> {
        let (trained, layout) = self.laid_out(&mut s, trained)?;
        let decided = Decided { layout: layout.as_ref(), ..Decided::default() };
        let mut forwards = Vec::with_capacity(others.len());
        for (p, on_averages) in others {
            self.runner().built(&s, &p);
            forwards.push((self.section(Section::Forward, decided, &mut s, p)?, on_averages));
        }
        let micros = self.of_micros(&mut s, trained, decided)?;
        if !self.options.updates_in_backward() {
            s.programs = self.beside(&mut s, std::mem::take(&mut forwards), decided, other_size)?;
        }
        Ok(Stem { session: s, micros, forwards, layout })
    }

    /// Returns the second part, with options that may differ from those of the first in what is recomputed and what waits on
    /// the host.
    ///
    /// # Errors
    /// See [`CompileError`].
    pub fn end(&self, stem: Stem) -> Result<Session, CompileError> {
        let Stem { session: mut s, micros, forwards, layout } = stem;
        let decided = Decided { layout: layout.as_ref(), ..Decided::default() };
        require_modules(&micros, &self.options.checkpoint)?;
        let mut programs = Vec::with_capacity(micros.len());
        for (player, p) in micros.into_iter().enumerate() {
            programs.push(self.section(Section::Memory, Decided { player, ..decided }, &mut s, p)?);
        }
        if self.options.updates_in_backward() {
            s.programs = self.beside(&mut s, forwards, decided, None)?;
        }
        s.programs.splice(0..0, programs);
        for step in self.list(decided).section(Section::Session) {
            let Step::Pass(pass) = step else { continue };
            self.runner().run_all(&mut s, &**pass)?;
        }
        Ok(s)
    }

    /// Cuts a `whole` session of [`Options::placed`] into the sessions of ranks, with `in_flight` micro-batches in them at a time.
    ///
    /// # Errors
    /// From the passes.
    pub fn parts(&self, whole: &Session, cut: &Cut, in_flight: usize) -> Result<Parts, CompileError> {
        let decided = Decided { cut: Some((cut, in_flight)), ..Decided::default() };
        let mut parts = Parts { sessions: vec![whole.clone()], interleaved: false };
        for step in self.list(decided).section(Section::Ranks) {
            let mut start = self.runner().start();
            match step {
                Step::Unroll(cut, count) => {
                    let [s] = &mut *parts.sessions else { continue };
                    let Some(micro) = s.programs.first() else { continue };
                    let several = Program { name: SEVERAL.to_owned(), ..micro.clone() };
                    s.programs.push(several);
                    let last = s.programs.len() - 1;
                    parts.interleaved = place::pipeline(s, last, *count, cut);
                    self.runner().done(s, &s.programs[last], step.name(), start);
                }
                Step::Place(cut) => {
                    parts.sessions = place::place(&parts.sessions[0], cut);
                    for (rank, s) in parts.sessions.iter().enumerate() {
                        for p in &s.programs {
                            self.of_rank(rank).done(s, p, step.name(), start);
                            start = self.runner().start();
                        }
                    }
                }
                Step::Pass(pass) => {
                    for (rank, s) in parts.sessions.iter_mut().enumerate() {
                        self.of_rank(rank).run_all(s, &**pass)?;
                    }
                }
            }
        }
        Ok(parts)
    }

    fn runner(&self) -> Runner<'_> {
        Runner { watch: self.watch, rank: None }
    }

    fn of_rank(&self, rank: usize) -> Runner<'_> {
        Runner { rank: Some(rank), ..self.runner() }
    }

    /// Takes a program through a section.
    fn section(
        &self,
        section: Section,
        decided: Decided<'_>,
        session: &mut Session,
        p: Program,
    ) -> Result<Program, CompileError> {
        through(&self.runner(), self.list(decided).section(section), session, p)
    }

    /// Returns the forward programs that are trained, one of each player, and where ranks keep their parameters.
    fn laid_out(
        &self,
        s: &mut Session,
        trained: Vec<Program>,
    ) -> Result<(Vec<Program>, Option<Layout>), CompileError> {
        let o = self.options;
        assert_eq!(trained.len(), o.players.len(), "each player has one program that it trains");
        if o.sharding.is_some() && (o.clip_per_tensor || o.updates_in_backward()) {
            return Err(CompileError::ShardedPerTensor);
        }
        if trained.len() > 1 && (o.sharding.is_some() || o.placed) {
            return Err(CompileError::PlayersOnRanks);
        }
        if trained.len() > 1 && matches!(o.trained, Trained::Adapters(_)) {
            return Err(CompileError::PlayersAdapted);
        }
        let mut chosen = Vec::with_capacity(trained.len());
        for p in trained {
            self.runner().built(s, &p);
            chosen.push(self.section(Section::Trained, Decided::default(), s, p)?);
        }
        // Adapters are parameters, too.
        if let Some(optimizer) = &o.optimizer {
            require_parameters(s, &optimizer.no_decay)?;
        }
        if chosen.len() > 1 && s.state(LOSS_SCALE).is_some() {
            return Err(CompileError::PlayersScaled);
        }
        let layout = chosen.first().and_then(|p| o.layout(s, p));
        Ok((chosen, layout))
    }

    /// Returns the programs of a micro-batch, by player, for every choice of what is recomputed. All go through a pass before
    /// the next: the parameters, which they share, may be declared in another type on the way.
    fn of_micros(
        &self,
        s: &mut Session,
        mut programs: Vec<Program>,
        decided: Decided<'_>,
    ) -> Result<Vec<Program>, CompileError> {
        if self.options.updates_in_backward() && s.state(LOSS_SCALE).is_some() {
            return Err(CompileError::ScaledInBackward);
        }
        let of_player = |player| self.list(Decided { player, ..decided });
        let lists: Vec<List<'_>> = (0..programs.len()).map(of_player).collect();
        let mut steps: Vec<_> = lists.iter().map(|list| list.section(Section::Micro)).collect();
        loop {
            for (p, steps) in programs.iter_mut().zip(&mut steps) {
                match steps.next() {
                    Some(Step::Pass(pass)) => *p = self.runner().run(s, std::mem::take(p), &**pass)?,
                    Some(_) => {}
                    None => return Ok(programs),
                }
            }
        }
    }

    /// Returns a program of the optimizer: it works on what a rank holds, wherever tensors lie.
    fn of_update(&self, s: &mut Session, p: Program) -> Result<Program, CompileError> {
        self.runner().built(s, &p);
        self.section(Section::Plain, Decided::default(), s, p)
    }

    /// Returns the programs besides that of a micro-batch; declares the states that they need.
    fn beside(
        &self,
        s: &mut Session,
        forwards: Vec<(Program, String)>,
        decided: Decided<'_>,
        other_size: Option<&Stem>,
    ) -> Result<Vec<Program>, CompileError> {
        let o = self.options;
        let averages = o.ema && o.optimizer.is_some();
        let mut programs = Vec::new();
        let known = other_size.map(|stem| &stem.session).filter(|known| begins(known, s));
        if let Some(known) = known {
            known.states[s.states.len()..].iter().for_each(|state| _ = s.declare(state.clone()));
            // Programs of the optimizer follow from the states alone.
            let mut names: Vec<String> = o.players.iter().map(|player| player.program(UPDATE)).collect();
            names.push(EMA.to_owned());
            programs.extend(known.programs.iter().filter(|p| names.contains(&p.name)).cloned());
        } else {
            for player in &o.players {
                let Some(optimizer) = o.optimizer.as_ref().filter(|_| !o.update_in_backward) else { break };
                let (name, step) = (player.program(UPDATE), player.counter());
                let own = |s: &StateDecl| player.has(s);
                let p = match decided.layout {
                    Some(layout) => optimizer::update_sharded(s, optimizer, layout),
                    None if o.clip_per_tensor => {
                        optimizer::update_per_tensor_for(s, &name, &step, optimizer, &own)
                    }
                    None => optimizer::update_for(s, &name, &step, optimizer, &own),
                };
                programs.push(self.of_update(s, p)?);
            }
            if averages {
                let p = optimizer::ema(s);
                programs.push(self.of_update(s, p)?);
            }
        }
        for (p, name) in forwards {
            let p = self.section(Section::Plain, decided, s, p)?;
            let start = self.runner().start();
            let averaged = averages.then(|| optimizer::on_averages(s, &p, &name));
            programs.push(p);
            if let Some(averaged) = averaged {
                self.runner().done(s, &averaged, "averages", start);
                programs.push(averaged);
            }
        }
        Ok(programs)
    }
}

/// Takes a program through steps.
fn through<'s, 'l: 's>(
    runner: &Runner<'_>,
    steps: impl Iterator<Item = &'s Step<'l>>,
    session: &mut Session,
    mut p: Program,
) -> Result<Program, CompileError> {
    for step in steps {
        let Step::Pass(pass) = step else { continue };
        p = runner.run(session, p, &**pass)?;
    }
    Ok(p)
}

/// Returns whether the first states of `whole` are those of `part`.
fn begins(whole: &Session, part: &Session) -> bool {
    whole.states.get(..part.states.len()) == Some(&*part.states)
}

/// Returns where the ranks of a session keep the parameters, if they share them, by its forward program that is trained.
///
/// # Errors
/// From the choice of what is trained.
pub fn layout(
    session: &mut Session,
    trained: Program,
    options: &Options,
) -> Result<Option<Layout>, CompileError> {
    let mut list = List::new(None);
    list.at(Section::Trained).choice(options, true);
    let chosen = through(&Runner::default(), list.steps(), session, trained)?;
    Ok(options.layout(session, &chosen))
}

/// Returns the program of a micro-batch alone, of a forward program with an output `loss`: forward, backward, accumulation, or
/// the whole update where that is in backward.
///
/// # Errors
/// See [`CompileError`].
pub fn micro(
    session: &mut Session,
    forward: Program,
    options: Options,
    target: &dyn Target,
) -> Result<Program, CompileError> {
    let pipeline = Pipeline::new(&options, target);
    let (forwards, layout) = pipeline.laid_out(session, vec![forward])?;
    let decided = Decided { layout: layout.as_ref(), ..Decided::default() };
    let mut micros = pipeline.of_micros(session, forwards, decided)?;
    require_modules(&micros, &options.checkpoint)?;
    let p = micros.swap_remove(0);
    pipeline.section(Section::Memory, decided, session, p)
}

/// Returns a program without backward alone, in fp32 and of one rank: a codec, an update.
pub fn plain(session: &mut Session, program: Program, target: &dyn Target) -> Program {
    let options = Options::new(Blocks::None);
    let pipeline = Pipeline::new(&options, target);
    let p = pipeline.section(Section::Plain, Decided::default(), session, program);
    p.expect("no pass of a program without backward refuses")
}

/// Takes programs that a model built in a session, all without backward, through the list: for generation, of one rank.
///
/// # Errors
/// See [`CompileError`].
pub fn inference(
    mut session: Session,
    programs: Vec<Program>,
    precision: Precision,
    target: &dyn Target,
) -> Result<Session, CompileError> {
    let options = Options { precision, ..Options::new(Blocks::None) };
    let (pipeline, decided) = (Pipeline::new(&options, target), Decided::default());
    let mut programs = programs;
    // Section by section: parameters, which all share, are declared in another type between them.
    for section in [Section::Forward, Section::Plain] {
        let through = |p| pipeline.section(section, decided, &mut session, p);
        programs = programs.into_iter().map(through).collect::<Result<_, _>>()?;
    }
    session.programs = programs;
    pipeline.runner().run_all(&mut session, &Rows)?;
    Ok(session)
}
