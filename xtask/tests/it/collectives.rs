//! Collectives and transfers between cards, on emulated ones with an emulated NCCL: the bits of the CPU executor's, through several
//! steps of scratch, for groups of ranks, and in 16 bits.

use crate::{Emulation, emulation};
use ambitus_comm::Communicator;
use ambitus_comm::local;
use ambitus_compile::plan::plan;
use ambitus_cuda::driver::Card;
use ambitus_cuda::nccl::Rank;
use ambitus_cuda::{CudaExecutor, CudaTarget, Ranks};
use ambitus_exec::cpu::{CpuExecutor, CpuOptions, CpuTarget};
use ambitus_exec::executor::{ExecError, Executor};
use ambitus_ir::ops::collective::{
    AllGatherStart, GATHER, Group, Mesh, Part, Parts, REDUCE, ReduceScatterStart,
};
use ambitus_ir::ops::elementwise::Cast;
use ambitus_ir::ops::transfer::{End, Route, TransferStart};
use ambitus_ir::plan::PlannedSession;
use ambitus_ir::target::Target;
use ambitus_ir::{Builder, DType, Session, Shape, TensorType};
use ambitus_testkit::emulated_cuda;
use std::sync::Arc;
use std::time::Duration;

/// The same on every rank, but for transfers: of which rank, on which target.
type Make<'a> = &'a (dyn Fn(usize, &mut Builder<'_>) + Sync);

fn session(rank: usize, make: Make<'_>, target: &dyn Target) -> Arc<PlannedSession> {
    let mut session = Session::default();
    let mut b = Builder::new(&mut session, "p");
    make(rank, &mut b);
    let program = b.finish();
    session.programs.push(program);
    Arc::new(plan(session, target, 1))
}

/// Bits of every output after inputs that differ by rank, input and element.
fn run(rank: usize, planned: &PlannedSession, exec: &mut dyn Executor) -> Result<Vec<Vec<u32>>, ExecError> {
    let p = planned.program("p").expect("the program");
    for (k, input) in p.program.inputs.iter().enumerate() {
        let n = p.program.ty(input.value).shape.elements();
        let value = |i: usize| ((i * 7919 + rank * 104_729 + k * 31) % 10_007) as f32 / 77.0 - 60.0;
        exec.write_f32("p", &input.name, 0, &(0..n).map(value).collect::<Vec<_>>())?;
    }
    // What the first run leaves must not show in the second.
    exec.run("p", 0)?;
    exec.run("p", 0)?;
    p.program
        .outputs
        .iter()
        .map(|o| {
            let mut out = vec![0.0; p.program.ty(o.value).shape.elements()];
            exec.read_f32("p", &o.name, 0, &mut out)?;
            Ok(out.into_iter().map(f32::to_bits).collect())
        })
        .collect()
}

/// Both executors give the same bits on every rank.
fn same(what: &str, ranks: usize, make: Make<'_>) {
    let on_cpu = local::run(ranks, |end| -> Result<_, ExecError> {
        let rank = end.rank();
        let planned = session(rank, make, &CpuTarget::new(1));
        let mut exec =
            CpuExecutor::open(planned.clone(), CpuOptions { comm: Some(end), ..CpuOptions::default() })?;
        run(rank, &planned, &mut exec)
    });
    let on_cards = local::run(ranks, |end| -> Result<_, ExecError> {
        let folder = emulated_cuda::libraries().expect("the emulation is loaded");
        let card = Card::open_with(0, Some(&folder)).map_err(ExecError::Device)?;
        let target = CudaTarget::new(card.info().capability, card.info().rates);
        let rank = end.rank();
        let planned = session(rank, make, &target);
        let nccl = Arc::new(Rank::connect(&*end, Duration::from_secs(120))?);
        let mut exec = CudaExecutor::open(planned.clone(), card, Some(Ranks { nccl, host: &*end }))?;
        exec.poison()?;
        let bits = run(rank, &planned, &mut exec)?;
        // All are done before one ends.
        end.all_gather("the end", &(0..end.ranks()).collect::<Vec<_>>(), &[0], &mut vec![0; end.ranks()])?;
        Ok(bits)
    });
    let (on_cpu, on_cards) = (on_cpu.expect("processors"), on_cards.expect("cards"));
    assert!(on_cpu.iter().flatten().all(|out| !out.is_empty()));
    for (rank, (cpu, card)) in on_cpu.iter().zip(&on_cards).enumerate() {
        assert!(cpu == card, "{what}: rank {rank} has other bits");
    }
}

fn part(at: usize, axes: &[usize]) -> Part {
    Part { at, shape: Shape::new(axes) }
}

/// Tensors of a flat of `n` elements: rows with pads, a gap, a vector across the middle.
fn parts(n: usize) -> Parts {
    let rows = n / 3 / 50;
    Parts(vec![part(3, &[rows, 50]), part(n / 3 + 64, &[n / 2])])
}

fn gather(b: &mut Builder<'_>, mesh: Mesh, group: Group, each: usize, dtype: DType) {
    let name = format!("x-{}-{}", group as usize, dtype.name());
    let x = b.input(&name, TensorType::f32(&[each]));
    let x = if dtype == DType::F32 { x } else { b.push1(Cast { to: dtype }, &[x]) };
    let parts = parts(each * mesh.size(group));
    let made = b.all_gather(x, AllGatherStart { queue: GATHER, mesh, group, parts });
    for (k, v) in made.into_iter().enumerate() {
        let v = b.push1(Cast { to: DType::F32 }, &[v]);
        b.output(&format!("{name}-{k}"), v);
    }
}

fn sum(b: &mut Builder<'_>, mesh: Mesh, piece: usize) {
    let parts = parts(piece * mesh.ranks);
    let input = |(k, p): (usize, &Part)| b.input(&format!("g{k}"), TensorType::f32(&p.shape));
    let xs: Vec<_> = parts.0.iter().enumerate().map(input).collect();
    let op = ReduceScatterStart { queue: REDUCE, mesh, parts, piece: Shape::new(&[piece]) };
    let y = b.reduce_scatter(&xs, op);
    let y = b.push1(Cast { to: DType::F32 }, &[y]);
    b.output("sum", y);
}

#[test]
fn cards_exchange_what_processors_do() {
    let Some(_one) = emulation(Emulation::default()) else { return };
    for (ranks, shard) in [(1, 1), (2, 2), (3, 3), (4, 2), (4, 1)] {
        let mesh = Mesh::new(ranks, shard).expect("whole groups");
        same(&format!("{ranks} ranks in groups of {shard}"), ranks, &|_, b| {
            gather(b, mesh, Group::Shard, 768, DType::F32);
            gather(b, mesh, Group::Replica, 768, DType::F32);
            gather(b, mesh, Group::Shard, 512, DType::BF16);
            sum(b, mesh, 1024);
        });
    }
}

#[test]
fn flats_larger_than_a_step_come_whole() {
    let Some(_one) = emulation(Emulation::default()) else { return };
    // 18 MiB of two ranks: steps of 16 MiB and the rest.
    let mesh = Mesh::new(2, 2).expect("a group");
    let each = (9 << 20) / 4;
    same("several steps", 2, &|_, b| {
        gather(b, mesh, Group::Shard, each, DType::F32);
        sum(b, mesh, each);
    });
}

#[test]
fn values_go_from_rank_to_rank() {
    let Some(_one) = emulation(Emulation::default()) else { return };
    let ty = TensorType::f32(&[7, 50]);
    same("a transfer there and back", 2, &|rank, b| {
        let x = b.input("x", ty);
        let x = b.push1(Cast { to: DType::F32 }, &[x]);
        let (there, back) = (Route { from: 0, to: 1, ranks: 2 }, Route { from: 1, to: 0, ranks: 2 });
        let end = |sends| if sends { End::Send } else { End::Receive };
        let mut exchange = |route: Route, sends: bool| {
            b.transfer(TransferStart::new(route, end(sends), ty), sends.then_some(x))
        };
        let got = [exchange(there, rank == 0), exchange(back, rank == 1)];
        for v in got.into_iter().flatten() {
            let v = b.push1(Cast { to: DType::F32 }, &[v]);
            b.output("got", v);
        }
    });
}
