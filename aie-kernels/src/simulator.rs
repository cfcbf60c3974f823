//! Runs a configuration and the instructions of jobs on the bytes of buffer objects.
//!
//! Every DMA channel, every core and the controller is an agent that takes small steps: descriptors wait
//! for locks and move words between memories and streams of 64 words, along the wires of the switches;
//! cores interpret their programs and call the kernels that were compiled for this machine; the
//! controller writes registers and waits for tokens. It knows no shapes. Where no agent can go on, what
//! each waits for is the error.

use std::collections::{BTreeMap, VecDeque};

use crate::array::{
    Channel, Configuration, DecodeError, Descriptor, Direction, Instruction, Kind, Operand, Port,
    Side, Tile,
};
use crate::host::{Core, KernelFault, MEMORY_BYTES};
use crate::txn::{self, Operation, TxnError};

/// Buffer arguments whose addresses the firmware translates.
pub const ARGUMENTS: u32 = 5;
/// Bytes of a memory tile.
pub const MEMORY_TILE_BYTES: usize = 524_288;
const STREAM_WORDS: usize = 64;
/// Tasks that a channel of a shim holds besides the one it runs.
const QUEUE: usize = 4;
/// Rounds without a step of the controller or a shim after which the rest is taken to go in circles.
const IDLE_ROUNDS: u32 = 100_000;

/// Which agent takes the next step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Schedule {
    /// All in turn.
    RoundRobin,
    /// Any, by this seed.
    Random(u64),
    /// Always the one nearest to the source of data: streams and rings are full at all times.
    SlowestConsumer,
}

/// Why a run ended without results.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SimulatorError {
    /// The configuration cannot be read.
    #[error(transparent)]
    Configuration(#[from] DecodeError),
    /// The instructions cannot be read.
    #[error(transparent)]
    Instructions(#[from] TxnError),
    /// A kernel refused its arguments.
    #[error("{tile}: {fault}")]
    Kernel {
        /// The core.
        tile: Tile,
        /// The fault.
        fault: KernelFault,
    },
    /// Something the hardware does not have or does not do.
    #[error("{at}: {problem}")]
    Refused {
        /// The tile or channel.
        at: String,
        /// What.
        problem: String,
    },
    /// No agent can go on.
    #[error("deadlock: {}", .0.join("; "))]
    Deadlock(
        /// Who waits for what.
        Vec<String>,
    ),
    /// The controller is done while tasks still run: the host would read stale results.
    #[error("the instructions end before their transfers: {}", .0.join("; "))]
    Unfinished(
        /// What still runs.
        Vec<String>,
    ),
}

fn refused<T>(at: &impl ToString, problem: impl Into<String>) -> Result<T, SimulatorError> {
    Err(SimulatorError::Refused { at: at.to_string(), problem: problem.into() })
}

/// What a job moved.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Traffic {
    /// Bytes read from each buffer object.
    pub read_bytes: Vec<u64>,
    /// Bytes written to each buffer object.
    pub written_bytes: Vec<u64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct ShimDescriptor {
    words: u32,
    address: u64,
    valid: bool,
    linear: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Task {
    descriptor: u8,
    repeats: u32,
    token: bool,
}

#[derive(Debug)]
struct Dma {
    channel: Channel,
    /// Streams it writes, or the one it reads.
    streams: Vec<usize>,
    /// Memory tiles and cores.
    next: Option<u8>,
    /// Shim.
    queue: VecDeque<Task>,
    controller: bool,
    tokens: u32,
    /// Words of the running descriptor that are done.
    running: Option<u32>,
}

#[derive(Debug)]
struct Processor {
    tile: Tile,
    code: Vec<Instruction>,
    at: usize,
    registers: [u32; 8],
}

/// What an agent waits for.
#[derive(Debug, Clone, Copy)]
enum Wait {
    /// Room or data in its streams.
    Stream,
    /// A lock of its tile.
    Lock(u8),
}

/// What came of an agent's step.
enum Step {
    Moved,
    Waits(Wait),
    Idle,
}

/// The array, with what earlier jobs left in it.
#[derive(Debug)]
pub struct Simulator {
    schedule: Schedule,
    dmas: Vec<Dma>,
    processors: Vec<Processor>,
    cores: BTreeMap<Tile, Core>,
    memory_tiles: BTreeMap<Tile, Vec<u8>>,
    locks: BTreeMap<(Tile, u8), u32>,
    descriptors: BTreeMap<(Tile, u8), Descriptor>,
    shim: BTreeMap<(Tile, u8), ShimDescriptor>,
    streams: Vec<VecDeque<u32>>,
    /// Sources first.
    order: Vec<usize>,
}

impl Simulator {
    /// The array as a configuration leaves it; memories hold poison.
    ///
    /// # Errors
    /// Bytes that are no configuration, or one that no array can take.
    pub fn new(configuration: &[u8], schedule: Schedule) -> Result<Self, SimulatorError> {
        let c = Configuration::decode(configuration)?;
        let mut out = Self {
            schedule,
            dmas: Vec::new(),
            processors: Vec::new(),
            cores: BTreeMap::new(),
            memory_tiles: BTreeMap::new(),
            locks: BTreeMap::new(),
            descriptors: BTreeMap::new(),
            shim: BTreeMap::new(),
            streams: Vec::new(),
            order: Vec::new(),
        };
        for col in 0..c.columns {
            out.memory_tiles.insert(Tile { col, row: 1 }, vec![0xCD; MEMORY_TILE_BYTES]);
            out.cores.extend((2..6).map(|row| (Tile { col, row }, Core::new())));
        }
        out.locks = c.locks.iter().map(|l| ((l.tile, l.id), l.init)).collect();
        out.descriptors = c.descriptors.iter().map(|d| ((d.tile, d.id), d.clone())).collect();
        let starts: BTreeMap<Channel, u8> =
            c.starts.iter().map(|s| (s.channel, s.descriptor)).collect();
        out.make_streams(&c, &starts)?;
        for program in c.programs {
            out.processors.push(Processor {
                tile: program.tile,
                code: program.code,
                at: 0,
                registers: [0xCDCD_CDCD; 8],
            });
        }
        out.sort();
        Ok(out)
    }

    fn make_streams(
        &mut self,
        c: &Configuration,
        starts: &BTreeMap<Channel, u8>,
    ) -> Result<(), SimulatorError> {
        let mut wires: BTreeMap<(Tile, Port), Vec<Port>> = BTreeMap::new();
        for w in &c.connections {
            wires.entry((w.tile, w.from)).or_default().push(w.to);
        }
        let mut sinks: BTreeMap<Channel, usize> = BTreeMap::new();
        let mut sources: BTreeMap<Channel, Vec<usize>> = BTreeMap::new();
        for &(tile, from) in wires.keys().filter(|(_, from)| from.side == Side::Dma) {
            let source = Channel { tile, direction: Direction::Mm2s, index: from.index };
            let streams = sources.entry(source).or_default();
            let mut open = vec![(tile, from)];
            let mut steps = 0;
            while let Some(at) = open.pop() {
                steps += 1;
                if steps > 1000 {
                    return refused(&source, "its route is a circle");
                }
                for to in wires.get(&at).into_iter().flatten() {
                    if to.side != Side::Dma {
                        open.extend(neighbour(at.0, *to, c.columns));
                        continue;
                    }
                    let tile = at.0;
                    let sink = Channel { tile, direction: Direction::S2mm, index: to.index };
                    if sinks.insert(sink, self.streams.len()).is_some() {
                        return refused(&sink, "two streams end here");
                    }
                    streams.push(self.streams.len());
                    self.streams.push(VecDeque::new());
                }
            }
        }
        let mut channels: BTreeMap<Channel, Vec<usize>> = sources;
        channels.extend(sinks.into_iter().map(|(sink, stream)| (sink, vec![stream])));
        for channel in starts.keys() {
            channels.entry(*channel).or_default();
        }
        for (channel, streams) in channels {
            let next = starts.get(&channel).copied();
            let (queue, controller) = (VecDeque::new(), false);
            let (tokens, running) = (0, None);
            self.dmas.push(Dma { channel, streams, next, queue, controller, tokens, running });
        }
        Ok(())
    }

    /// Agents in the order of the data: 0 shim out, memory in, memory out, core in, core, and back.
    fn sort(&mut self) {
        let n = self.dmas.len();
        let rank = |agent: &usize| {
            let Some(dma) = self.dmas.get(*agent) else { return 4 };
            match (dma.channel.tile.kind(), dma.channel.direction, dma.channel.index) {
                (Kind::Shim, Direction::Mm2s, _) => 0,
                (Kind::Memory, Direction::S2mm, 0) => 1,
                (Kind::Memory, Direction::Mm2s, 0..4) => 2,
                (Kind::Core, Direction::S2mm, _) => 3,
                (Kind::Core, Direction::Mm2s, _) => 5,
                (Kind::Memory, Direction::S2mm, _) => 6,
                (Kind::Memory, Direction::Mm2s, _) => 7,
                (Kind::Shim, Direction::S2mm, _) => 8,
            }
        };
        let mut order: Vec<usize> = (0..n + self.processors.len()).collect();
        order.sort_by_key(rank);
        self.order = order;
    }

    /// Runs the instructions of one job on `objects`, the buffer objects in the order of arguments.
    ///
    /// # Errors
    /// What the array would not do, or would never finish. It is in an undefined state then.
    pub fn run(
        &mut self,
        instructions: &[u32],
        objects: &mut [Vec<u8>],
    ) -> Result<Traffic, SimulatorError> {
        let (_, operations) = txn::decode(instructions)?;
        let mut host = Host {
            traffic: Traffic {
                read_bytes: vec![0; objects.len()],
                written_bytes: vec![0; objects.len()],
            },
            objects,
        };
        let (mut at, mut idle) = (0, 0);
        let mut random = match self.schedule {
            Schedule::Random(seed) => seed,
            _ => 0,
        };
        loop {
            let mut moved = false;
            idle += 1;
            if idle > IDLE_ROUNDS {
                return refused(&"array", "it runs without a transfer from or to the host");
            }
            if let Some(operation) = operations.get(at) {
                if self.control(operation)? {
                    (at, moved, idle) = (at + 1, true, 0);
                }
            } else if let Some(unfinished) = self.unfinished() {
                return Err(SimulatorError::Unfinished(unfinished));
            }
            for i in 0..self.order.len() {
                let agent = match self.schedule {
                    Schedule::Random(_) => {
                        random = random
                            .wrapping_mul(6364136223846793005)
                            .wrapping_add(1442695040888963407);
                        self.order[(random >> 33) as usize % self.order.len()]
                    }
                    _ => self.order[i],
                };
                if let Step::Moved = self.step(agent, &mut host)? {
                    moved = true;
                    let dma = self.dmas.get(agent);
                    if dma.is_some_and(|d| d.channel.tile.kind() == Kind::Shim) {
                        idle = 0;
                    }
                    if self.schedule == Schedule::SlowestConsumer {
                        break;
                    }
                }
            }
            if moved {
                continue;
            }
            // A random order may have missed somebody.
            let mut waits = Vec::new();
            for i in 0..self.order.len() {
                match self.step(self.order[i], &mut host)? {
                    Step::Moved => moved = true,
                    Step::Waits(wait) => waits.push(self.describe(self.order[i], wait)),
                    Step::Idle => {}
                }
            }
            match operations.get(at) {
                _ if moved => {}
                None => return Ok(host.traffic),
                Some(operation) => {
                    waits.insert(0, format!("the controller waits in {operation:?}"));
                    return Err(SimulatorError::Deadlock(waits));
                }
            }
        }
    }

    fn unfinished(&self) -> Option<Vec<String>> {
        let shim = self.dmas.iter().filter(|d| d.channel.tile.kind() == Kind::Shim);
        let busy: Vec<_> =
            shim.filter(|d| !d.queue.is_empty()).map(|d| d.channel.to_string()).collect();
        (!busy.is_empty()).then_some(busy)
    }

    fn dma_mut(&mut self, channel: Channel) -> Result<&mut Dma, SimulatorError> {
        let dma = self.dmas.iter_mut().find(|d| d.channel == channel);
        dma.ok_or_else(|| SimulatorError::Refused {
            at: channel.to_string(),
            problem: "no stream is connected to it".to_owned(),
        })
    }

    /// False if the controller has to wait.
    fn control(&mut self, operation: &Operation) -> Result<bool, SimulatorError> {
        match operation {
            Operation::Write { register, value } => {
                let Some((channel, true)) = shim_channel(*register) else {
                    return refused(&format!("register {register:#x}"), "not a queue of a shim");
                };
                let task = Task {
                    descriptor: (value & 15) as u8,
                    repeats: (value >> 16 & 255) + 1,
                    token: value >> 31 != 0,
                };
                let shim = self.shim.get(&(channel.tile, task.descriptor));
                if !shim.is_some_and(|d| d.valid && d.linear && d.words > 0) {
                    let problem = format!("descriptor {} is not usable", task.descriptor);
                    return refused(&channel, problem);
                }
                let dma = self.dma_mut(channel)?;
                if dma.queue.len() > QUEUE {
                    return refused(&channel, "its queue is full: the task would be dropped");
                }
                dma.queue.push_back(task);
            }
            Operation::Masked { register, value, mask } => {
                let Some((channel, false)) = shim_channel(*register) else {
                    return refused(&format!("register {register:#x}"), "not a control of a shim");
                };
                self.dma_mut(channel)?.controller = (*value, *mask) == (0xF00, 0x1F00);
            }
            Operation::Block { register, words } => {
                let (tile, id) = shim_descriptor(*register, 0)?;
                let &[len, low, high, d0, burst, cache, iteration, valid] = words.as_slice() else {
                    return refused(&tile, "a descriptor has 8 words");
                };
                let linear = d0 == 0 && burst == 0xC000_0000 && cache == 0x0200_0000;
                let address = u64::from(high & 0xffff) << 32 | u64::from(low);
                let valid = valid == 0x0200_0000;
                let linear = linear && iteration == 0;
                self.shim.insert((tile, id), ShimDescriptor { words: len, address, valid, linear });
            }
            Operation::Patch { register, argument, offset } => {
                let (tile, id) = shim_descriptor(*register, 4)?;
                if *argument >= ARGUMENTS {
                    return refused(&tile, format!("the firmware has no argument {argument}"));
                }
                let Some(d) = self.shim.get_mut(&(tile, id)) else {
                    let problem = format!("descriptor {id} is patched before it is written");
                    return refused(&tile, problem);
                };
                d.address = (u64::from(*argument) + 1) << 33 | u64::from(*offset);
            }
            Operation::Sync { tile, direction, channel } => {
                let direction = if *direction == 0 { Direction::S2mm } else { Direction::Mm2s };
                let dma = self.dma_mut(Channel { tile: *tile, direction, index: *channel })?;
                if dma.tokens == 0 {
                    return Ok(false);
                }
                dma.tokens -= 1;
            }
        }
        Ok(true)
    }

    fn step(&mut self, agent: usize, host: &mut Host<'_>) -> Result<Step, SimulatorError> {
        match agent.checked_sub(self.dmas.len()) {
            Some(processor) => self.compute(processor),
            None if self.dmas[agent].channel.tile.kind() == Kind::Shim => self.shim(agent, host),
            None => self.transfer(agent),
        }
    }

    /// Room of all streams, or words that are there.
    fn flow(&self, dma: &Dma) -> usize {
        let flows = dma.streams.iter().map(|s| match dma.channel.direction {
            Direction::Mm2s => STREAM_WORDS - self.streams[*s].len(),
            Direction::S2mm => self.streams[*s].len(),
        });
        flows.min().unwrap_or(0)
    }

    /// Who waits for whom.
    fn describe(&self, agent: usize, wait: Wait) -> String {
        let (tile, who) = match agent.checked_sub(self.dmas.len()) {
            Some(p) => (self.processors[p].tile, self.processors[p].tile.to_string()),
            None => (self.dmas[agent].channel.tile, self.dmas[agent].channel.to_string()),
        };
        match wait {
            Wait::Lock(id) => {
                format!("{who} waits for lock {id} from {}", self.releasers(tile, id))
            }
            Wait::Stream if self.dmas[agent].channel.direction == Direction::S2mm => {
                format!("{who} waits for data")
            }
            Wait::Stream => format!("{who} waits for room in its streams"),
        }
    }

    fn shim(&mut self, agent: usize, host: &mut Host<'_>) -> Result<Step, SimulatorError> {
        let dma = &self.dmas[agent];
        let Some(task) = dma.queue.front().copied() else { return Ok(Step::Idle) };
        let d = self.shim[&(dma.channel.tile, task.descriptor)];
        let done = dma.running.unwrap_or(0);
        let n = self.flow(dma).min((d.words - done) as usize);
        if n == 0 {
            return Ok(Step::Waits(Wait::Stream));
        }
        let channel = dma.channel;
        let (object, at) = host.locate(channel, d.address + 4 * u64::from(done), 4 * n)?;
        let bytes = &mut host.objects[object][at..at + 4 * n];
        match channel.direction {
            Direction::Mm2s => {
                let words: Vec<u32> =
                    bytes.as_chunks::<4>().0.iter().map(|w| u32::from_le_bytes(*w)).collect();
                for s in &dma.streams {
                    self.streams[*s].extend(&words);
                }
                host.traffic.read_bytes[object] += 4 * n as u64;
            }
            Direction::S2mm => {
                let stream = &mut self.streams[dma.streams[0]];
                for (out, word) in bytes.as_chunks_mut::<4>().0.iter_mut().zip(stream.drain(..n)) {
                    *out = word.to_le_bytes();
                }
                host.traffic.written_bytes[object] += 4 * n as u64;
            }
        }
        let dma = &mut self.dmas[agent];
        dma.running = Some(done + n as u32);
        if done + n as u32 == d.words {
            dma.running = None;
            if task.repeats > 1 {
                dma.queue[0].repeats -= 1;
            } else {
                dma.queue.pop_front();
                dma.tokens += u32::from(task.token && dma.controller);
            }
        }
        Ok(Step::Moved)
    }

    fn lock(&mut self, tile: Tile, id: u8) -> Result<&mut u32, SimulatorError> {
        let lock = self.locks.get_mut(&(tile, id));
        lock.ok_or_else(|| SimulatorError::Refused {
            at: tile.to_string(),
            problem: format!("there is no lock {id}"),
        })
    }

    fn acquire(&mut self, tile: Tile, id: u8, value: u32) -> Result<bool, SimulatorError> {
        let lock = self.lock(tile, id)?;
        let free = *lock >= value;
        *lock -= if free { value } else { 0 };
        Ok(free)
    }

    fn release(&mut self, tile: Tile, id: u8, value: u32) -> Result<(), SimulatorError> {
        let lock = self.lock(tile, id)?;
        *lock = lock.saturating_add(value);
        if *lock > 63 {
            return refused(&tile, format!("lock {id} goes above 63"));
        }
        Ok(())
    }

    /// Who releases a lock, for reports.
    fn releasers(&self, tile: Tile, id: u8) -> String {
        let mut names: Vec<String> = Vec::new();
        for dma in self.dmas.iter().filter(|d| d.channel.tile == tile) {
            let mut at = dma.next;
            for _ in 0..48 {
                let Some(d) = at.and_then(|id| self.descriptors.get(&(tile, id))) else { break };
                if d.release.0 == id && !names.contains(&dma.channel.to_string()) {
                    names.push(dma.channel.to_string());
                }
                at = Some(d.next);
            }
        }
        let releases = |i: &Instruction| matches!(i, Instruction::Release(lock, _) if *lock == id);
        let mut programs = self.processors.iter().filter(|p| p.tile == tile);
        if programs.any(|p| p.code.iter().any(releases)) {
            names.push(format!("the program of {tile}"));
        }
        if names.is_empty() { "nobody".to_owned() } else { names.join(", ") }
    }

    fn transfer(&mut self, agent: usize) -> Result<Step, SimulatorError> {
        let (channel, next) = (self.dmas[agent].channel, self.dmas[agent].next);
        let Some(id) = next else { return Ok(Step::Idle) };
        let tile = channel.tile;
        let Some(d) = self.descriptors.get(&(tile, id)).cloned() else {
            return refused(&channel, format!("there is no descriptor {id}"));
        };
        if d.words == 0 {
            return refused(&channel, format!("descriptor {id} has no words"));
        }
        let Some(done) = self.dmas[agent].running else {
            if !self.acquire(tile, d.acquire.0, d.acquire.1)? {
                return Ok(Step::Waits(Wait::Lock(d.acquire.0)));
            }
            self.dmas[agent].running = Some(0);
            return Ok(Step::Moved);
        };
        let n = self.flow(&self.dmas[agent]).min((d.words - done) as usize) as u32;
        if n == 0 {
            return Ok(Step::Waits(Wait::Stream));
        }
        for i in done..done + n {
            let at = word_of(&d, i).saturating_mul(4).saturating_add(d.address.into());
            let memory = match tile.kind() {
                Kind::Memory => self.memory_tiles.get_mut(&tile).map(Vec::as_mut_slice),
                _ => self.cores.get_mut(&tile).map(Core::memory_mut),
            };
            let at = usize::try_from(at).unwrap_or(usize::MAX);
            let word = memory.and_then(|m| m.get_mut(at..at.saturating_add(4)));
            let Some(word) = word else {
                return refused(&channel, format!("descriptor {id} leaves the memory"));
            };
            match channel.direction {
                Direction::Mm2s => {
                    let value = u32::from_le_bytes([word[0], word[1], word[2], word[3]]);
                    for s in &self.dmas[agent].streams {
                        self.streams[*s].push_back(value);
                    }
                }
                Direction::S2mm => {
                    let stream = &mut self.streams[self.dmas[agent].streams[0]];
                    word.copy_from_slice(&stream.pop_front().unwrap_or(0).to_le_bytes());
                }
            }
        }
        self.dmas[agent].running = Some(done + n);
        if done + n == d.words {
            self.release(tile, d.release.0, d.release.1)?;
            self.dmas[agent].running = None;
            self.dmas[agent].next = Some(d.next);
        }
        Ok(Step::Moved)
    }

    /// Runs a core until it waits or has called a kernel.
    fn compute(&mut self, processor: usize) -> Result<Step, SimulatorError> {
        let tile = self.processors[processor].tile;
        for steps in 0.. {
            let p = &mut self.processors[processor];
            let Some(instruction) = p.code.get(p.at).cloned() else {
                return refused(&tile, "its program ends");
            };
            if steps > 1000 {
                return refused(&tile, "its program runs in a circle without waiting");
            }
            p.at += 1;
            let r = &mut p.registers;
            match instruction {
                Instruction::Set(to, value) => r[usize::from(to)] = value,
                Instruction::Increment(to) => {
                    r[usize::from(to)] = r[usize::from(to)].wrapping_add(1);
                }
                Instruction::Flip(to) => r[usize::from(to)] ^= 1,
                Instruction::Load(to, address, index, stride) => {
                    let offset = u64::from(r[usize::from(index)]) * u64::from(stride);
                    let at = u64::from(address) + offset;
                    if at % 4 != 0 || at + 4 > MEMORY_BYTES as u64 {
                        return refused(&tile, "it loads from outside its memory");
                    }
                    let Some(core) = self.cores.get(&tile) else {
                        return refused(&tile, "there is no core");
                    };
                    let memory = core.memory();
                    let at = at as usize;
                    let word = [memory[at], memory[at + 1], memory[at + 2], memory[at + 3]];
                    r[usize::from(to)] = u32::from_le_bytes(word);
                }
                Instruction::IfLess(a, b, to) => {
                    if r[usize::from(a)] < r[usize::from(b)] {
                        p.at = to as usize;
                    }
                }
                Instruction::IfZero(a, to) => {
                    if r[usize::from(a)] == 0 {
                        p.at = to as usize;
                    }
                }
                Instruction::Jump(to) => p.at = to as usize,
                Instruction::Acquire(lock, value) => {
                    if !self.acquire(tile, lock, value)? {
                        self.processors[processor].at -= 1;
                        if steps > 0 {
                            return Ok(Step::Moved);
                        }
                        return Ok(Step::Waits(Wait::Lock(lock)));
                    }
                }
                Instruction::Release(lock, value) => self.release(tile, lock, value)?,
                Instruction::Call(kernel, operands) => {
                    let args: Vec<u32> = operands
                        .iter()
                        .map(|o| match o {
                            Operand::Value(value) => *value,
                            Operand::Register(i) => r[usize::from(*i)],
                        })
                        .collect();
                    let core = self.cores.get_mut(&tile);
                    let Some(core) = core else { return refused(&tile, "there is no core") };
                    core.call(kernel, &args)
                        .map_err(|fault| SimulatorError::Kernel { tile, fault })?;
                    return Ok(Step::Moved);
                }
            }
        }
        Ok(Step::Moved)
    }
}

/// Where the `i`-th word of a descriptor lies, in words from its address.
fn word_of(d: &Descriptor, i: u32) -> u64 {
    if d.dimensions.is_empty() {
        return i.into();
    }
    let (mut rest, mut at) = (i, 0);
    let last = d.dimensions.len() - 1;
    for (n, dimension) in d.dimensions.iter().enumerate() {
        let size = dimension.size.max(1);
        let index = if n == last { rest } else { rest % size };
        at = u64::saturating_add(at, u64::from(index) * u64::from(dimension.step));
        rest /= size;
    }
    at
}

/// The port at the other end of a wire between tiles; nothing at the border of the array.
pub(crate) fn neighbour(tile: Tile, out: Port, columns: u8) -> Option<(Tile, Port)> {
    let index = out.index;
    let (tile, side) = match out.side {
        Side::North if tile.row < 5 => (Tile { row: tile.row + 1, ..tile }, Side::South),
        Side::South if tile.row > 0 => (Tile { row: tile.row - 1, ..tile }, Side::North),
        Side::East if tile.col + 1 < columns => (Tile { col: tile.col + 1, ..tile }, Side::West),
        Side::West if tile.col > 0 => (Tile { col: tile.col - 1, ..tile }, Side::East),
        _ => return None,
    };
    Some((tile, Port { side, index }))
}

/// The channel of a shim's control register (false) or queue (true).
pub(crate) fn shim_channel(register: u32) -> Option<(Channel, bool)> {
    let tile = Tile { col: (register >> 25) as u8, row: (register >> 20 & 31) as u8 };
    let offset = (register & 0xf_ffff).checked_sub(0x1D200).filter(|o| *o < 0x20 && *o % 4 == 0)?;
    let direction = if offset < 0x10 { Direction::S2mm } else { Direction::Mm2s };
    let channel = Channel { tile, direction, index: (offset >> 3 & 1) as u8 };
    (tile.row == 0).then_some((channel, offset % 8 == 4))
}

/// The shim descriptor that has its word at byte `within` in this register.
fn shim_descriptor(register: u32, within: u32) -> Result<(Tile, u8), SimulatorError> {
    let tile = Tile { col: (register >> 25) as u8, row: (register >> 20 & 31) as u8 };
    let offset = (register & 0xf_ffff).wrapping_sub(0x1D000);
    if tile.row != 0 || offset >= 0x200 || offset % 0x20 != within {
        return refused(&format!("register {register:#x}"), "not this word of a shim's descriptor");
    }
    Ok((tile, (offset / 0x20) as u8))
}

struct Host<'a> {
    objects: &'a mut [Vec<u8>],
    traffic: Traffic,
}

impl Host<'_> {
    fn locate(
        &self,
        channel: Channel,
        address: u64,
        bytes: usize,
    ) -> Result<(usize, usize), SimulatorError> {
        let object = (address >> 33).checked_sub(1).map(|o| o as usize);
        let at = (address & ((1 << 33) - 1)) as usize;
        match object.and_then(|o| self.objects.get(o).map(|bytes| (o, bytes.len()))) {
            None => refused(&channel, "an address that no buffer object has"),
            Some((_, len)) if at + bytes > len => {
                refused(&channel, format!("beyond the end of a buffer object of {len} bytes"))
            }
            Some((object, _)) => Ok((object, at)),
        }
    }
}
