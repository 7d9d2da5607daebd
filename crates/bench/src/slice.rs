//! Measures a group of rows: contenders take turns slice by slice.
//!
//! Invariants
//! 1. Every contender of a row takes one slice in each round; the order rotates, and is reversed in every other round, so
//!    that nobody always follows the same neighbour. Groups whose contenders work alone are the exception.
//! 2. Before a slice the machine was idle or the sample says that it was not; after a slice the contender wrote out what
//!    it owed.
//! 3. A contender that fails is left out from then on, with its error in the result; the others go on.

use std::collections::{BTreeMap, BTreeSet};
use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::command::for_the_record;
use crate::contender::{Contender, Kind, Tools};
use crate::disk::{Counters, Disk};
use crate::error::{Error, Result};
use crate::gate::Gate;
use crate::limit::{Limit, Limited};
use crate::machine::{self, Processors};
use crate::schema::{Entry, PerOperation, Row, Sample};
use crate::site::{CLEANERD_SETTINGS, Site};
use crate::stats::{Summary, latency, round_ratios, summarize};
use crate::watchdog::Watchdog;
use crate::workload::{Group, Plan, RowSpec, Turn, Workload, targets_of};
use crate::{place, sys};

const SLICE_LIMIT: Duration = Duration::from_secs(120);
const PREPARE_LIMIT: Duration = Duration::from_secs(1800);
/// Cores used by foreign programs above which a slice does not count as quiet.
const QUIET_CORES: f64 = 0.25;
const QUIET_ROUNDS: usize = 3;

/// What all groups share.
pub struct Bench {
    /// Sizes.
    pub plan: Plan,
    /// Length of a slice.
    pub budget: Duration,
    /// Programs.
    pub tools: Tools,
    /// Directory of images and mount points.
    pub work: PathBuf,
    /// The idle gate.
    pub gate: Gate<Processors>,
    /// Against hanging daemons.
    pub watchdog: Watchdog,
    /// Devices to use instead of images, in the order of the contenders.
    pub devices: Vec<PathBuf>,
    /// What every device is limited to.
    pub limit: Limit,
}

/// A contender in a group. The workload comes first: its open files are closed before the site is unmounted.
struct Lane {
    workload: Option<Box<dyn Workload>>,
    /// Limits in force, lifted before the site is unmounted.
    limited: Vec<Limited>,
    site: Site,
    error: Option<String>,
    entry: Entry,
    samples: Vec<Sample>,
    latencies: Vec<u64>,
}

/// Order of `count` contenders in a round, as their numbers.
fn order(round: u32, count: usize) -> Vec<usize> {
    let first = (round as usize / 2) % count.max(1);
    let mut order: Vec<usize> = (0..count).map(|n| (n + first) % count).collect();
    if round % 2 == 1 {
        order.reverse();
    }
    order
}

impl Bench {
    /// Measures the wanted rows of a group with these contenders.
    pub fn run(&mut self, group: &Group, contenders: &[Contender], wanted: impl Fn(&str) -> bool) -> Result<Vec<Row>> {
        if !group.alone {
            return self.together(group, contenders, &wanted);
        }
        let mut rows: Vec<Row> = Vec::new();
        for contender in contenders {
            let own = self.together(group, std::slice::from_ref(contender), &wanted)?;
            if rows.is_empty() {
                rows = own;
            } else {
                rows.iter_mut().zip(own).for_each(|(row, own)| row.contenders.extend(own.contenders));
            }
        }
        Ok(rows)
    }

    fn together(&mut self, group: &Group, contenders: &[Contender], wanted: &dyn Fn(&str) -> bool) -> Result<Vec<Row>> {
        let mut lanes = Vec::new();
        let mut slot = 0;
        for contender in contenders {
            eprintln!("  preparing {}", contender.name);
            lanes.push(self.prepare(group, slot, contender)?);
            slot += contender.devices;
        }
        let last = group.rows.iter().rposition(|row| wanted(&row.name)).unwrap_or(0);
        let mut rows = Vec::new();
        for (number, spec) in group.rows.iter().enumerate().take(last + 1) {
            if wanted(&spec.name) || spec.needed {
                self.measure(group, number, spec, &mut lanes)?;
                rows.push(finish(spec, &mut lanes));
            }
        }
        Ok(rows)
    }

    fn prepare(&mut self, group: &Group, slot: usize, contender: &Contender) -> Result<Lane> {
        let disk = self.disk(slot)?;
        let more = (1..contender.devices).map(|n| self.disk(slot + n)).collect::<Result<Vec<_>>>()?;
        let devices: Vec<&Path> = std::iter::once(&disk).chain(&more).map(Disk::device).collect();
        let line = self.tools.mkfs_command(contender, &devices).unwrap_or_default();
        let mut options = self.tools.mount_options(contender);
        if contender.has_cleanerd() {
            options.push(format!("nilfs_cleanerd: {}", CLEANERD_SETTINGS.trim().replace('\n', ", ")));
        }
        let retention: Vec<&str> =
            options.iter().map(String::as_str).filter(|o| o.starts_with("checkpoint=")).collect();
        let kept = if retention.is_empty() { "default".to_owned() } else { retention.join(",") };
        let entry = Entry {
            name: contender.name.clone(),
            mkfs: line.iter().map(|word| for_the_record(word)).collect::<Vec<_>>().join(" "),
            cache: contender.cache_mode().to_owned(),
            retention: (contender.kind == Kind::Nenrin).then_some(kept),
            options,
            ..Entry::default()
        };
        let site = Site::new(contender.clone(), disk, more, self.tools.clone(), &self.work)?;
        let mut workload = (group.make)(contender, self.plan);
        let mut lane = Lane {
            workload: None,
            site,
            limited: Vec::new(),
            error: None,
            entry,
            samples: Vec::new(),
            latencies: Vec::new(),
        };
        let made = lane.site.make().and_then(|()| lane.site.mount().map(drop));
        let prepared = made.and_then(|()| {
            let daemon = lane.site.daemon();
            self.watchdog.during(daemon, PREPARE_LIMIT, || {
                workload.prepare(&mut lane.site)?;
                lane.site.settle()?;
                lane.site.lose_device()
            })
        });
        // Preparing need not wait for it.
        lane.limited = lane.site.devices().iter().map(|device| self.limit.set(device)).collect::<Result<_>>()?;
        lane.workload = Some(workload);
        lane.entry.mount = lane.site.mount_facts();
        lane.entry.fill_level = lane.site.fill_level();
        lane.accept(prepared)?;
        Ok(lane)
    }

    fn disk(&self, slot: usize) -> Result<Disk> {
        match self.devices.get(slot) {
            Some(device) => Disk::given(device),
            None => Disk::make(&place::image(&self.work, slot), self.plan.device_bytes),
        }
    }

    fn measure(&mut self, group: &Group, number: usize, spec: &RowSpec, lanes: &mut [Lane]) -> Result<()> {
        for lane in lanes.iter_mut().filter(|lane| lane.does(spec)) {
            if let (None, Some(workload)) = (&lane.error, &mut lane.workload) {
                let entered = workload.enter(number, &mut lane.site);
                lane.accept(entered)?;
            }
        }
        let rounds = self.plan.slices.min(group.slices_max);
        let first = u32::from(rounds <= 1);
        let terminal = std::io::stderr().is_terminal();
        if !terminal {
            eprintln!("  measuring {}", spec.name);
        }
        for round in first..=rounds {
            if terminal {
                eprint!("\r  {} {round}/{rounds} ", spec.name);
            }
            let budget = if round == 0 { self.budget / 4 } else { self.budget };
            let turn = Turn { row: number, round, last: round == rounds, budget };
            for (place, index) in order(round, lanes.len()).into_iter().enumerate() {
                let Some(lane) = lanes.get_mut(index).filter(|lane| lane.error.is_none() && lane.does(spec)) else {
                    continue;
                };
                let taken = self.turn(group.alone, spec, turn, place, lane);
                lane.accept(taken)?;
            }
        }
        if terminal {
            eprintln!();
        }
        Ok(())
    }

    fn turn(&mut self, alone: bool, spec: &RowSpec, turn: Turn, place: usize, lane: &mut Lane) -> Result<()> {
        if sys::interrupted() {
            return Err(Error::Interrupted);
        }
        let Lane { workload: Some(workload), site, samples, latencies, .. } = lane else { return Ok(()) };
        let daemon = site.daemon();
        let limit = longest(alone, workload.lasts());
        self.watchdog.during(daemon, limit, || workload.before(turn, site))?;
        // Who works alone makes the machine busy himself, and must not be given a pause to catch up.
        let gate = (!alone || turn.round == 0).then(|| self.gate.wait());
        let load = machine::load_average();
        let devices = site.each_counters();
        let daemon = site.daemon();
        let daemon_before = daemon.zip(site.daemon_time());
        let foreign_before = machine::foreign_ticks();
        let work = self.watchdog.during(daemon, limit, || workload.slice(turn, site))?;
        let foreign = machine::foreign_cores(&foreign_before, &machine::foreign_ticks(), work.elapsed);
        let daemon = site.daemon();
        let owes = !alone || turn.last;
        let settled = self.watchdog.during(daemon, limit, || if owes { site.settle() } else { Ok(false) })?;
        let each: Vec<Counters> =
            site.each_counters().into_iter().zip(devices).map(|(now, then)| now.since(then)).collect();
        let mut device = Counters::default();
        each.iter().for_each(|one| device.add(*one));
        let spent = spent(daemon_before, site.daemon().zip(site.daemon_time()));
        samples.push(Sample {
            round: turn.round,
            place: u32::try_from(place).unwrap_or(u32::MAX),
            value: spec.unit.value(&work),
            operations: work.operations,
            bytes: work.bytes,
            nanos: u64::try_from(work.elapsed.as_nanos()).unwrap_or(u64::MAX),
            latency: latency(&work.latencies),
            device,
            devices: if each.len() > 1 { each } else { Vec::new() },
            settled,
            daemon_us: spent.map(|time| u64::try_from(time.as_micros()).unwrap_or(u64::MAX)),
            foreign_cores: foreign,
            gate,
            load,
            extra: work.extra,
            series: work.series,
        });
        if turn.round > 0 {
            latencies.extend_from_slice(&work.latencies);
        }
        self.watchdog.during(daemon, limit, || workload.after(turn, site))
    }
}

impl Lane {
    /// Whether a row is for this contender.
    fn does(&self, spec: &RowSpec) -> bool {
        !spec.cached || !self.site.contender.kind.is_device()
    }

    /// Notes an error of this contender and takes it out; only an interruption goes further.
    fn accept(&mut self, result: Result<()>) -> Result<()> {
        match result {
            Ok(()) => Ok(()),
            Err(_) if sys::interrupted() => Err(Error::Interrupted),
            Err(error) => {
                eprintln!("\n  {}: {error}", self.site.contender.name);
                let ended = self.site.daemon_end();
                self.error = Some(match ended {
                    Some(end) => format!("{error} ({end})"),
                    None => error.to_string(),
                });
                self.workload = None;
                let unmounted = self.site.unmount();
                crate::command::best_effort("unmounting", unmounted);
                Ok(())
            }
        }
    }
}

/// Turns the samples of a row into its result and empties the lanes for the next row.
fn finish(spec: &RowSpec, lanes: &mut [Lane]) -> Row {
    let reference = |kind: Kind, lanes: &[Lane]| -> Vec<Sample> {
        let lane = lanes.iter().find(|lane| lane.site.contender.kind == kind);
        lane.map(|lane| lane.samples.clone()).unwrap_or_default()
    };
    let ext4 = reference(Kind::Ext4, lanes);
    let raw = reference(Kind::Raw, lanes);
    let named: BTreeMap<String, Vec<Sample>> = {
        let against: BTreeSet<&str> = spec.targets.iter().map(|(_, target)| target.against.as_str()).collect();
        let those = lanes.iter().filter(|lane| against.contains(lane.site.contender.name.as_str()));
        those.map(|lane| (lane.site.contender.name.clone(), lane.samples.clone())).collect()
    };
    let contenders = lanes
        .iter_mut()
        .filter(|lane| lane.does(spec))
        .map(|lane| {
            let kind = lane.site.contender.kind;
            let name = lane.site.contender.name.clone();
            let samples = std::mem::take(&mut lane.samples);
            let latencies = std::mem::take(&mut lane.latencies);
            Entry {
                error: lane.error.clone(),
                hole_bytes: lane.site.hole_bytes(),
                summary: summarize(counted(&samples, |_| true).into_iter().map(|(_, value)| value)),
                to_ext4: (kind != Kind::Ext4).then(|| ratio(&samples, &ext4)).flatten(),
                to_ext4_quiet: (kind != Kind::Ext4).then(|| quiet_ratio(&samples, &ext4)).flatten(),
                to_ext4_by_p50: (kind != Kind::Ext4).then(|| p50_ratio(&samples, &ext4)).flatten(),
                to_raw: (kind != Kind::Raw).then(|| ratio(&samples, &raw)).flatten(),
                ratios: against(&name, &named, |reference| ratio(&samples, reference)),
                ratios_by_p50: against(&name, &named, |reference| p50_ratio(&samples, reference)),
                latency: latency(&latencies),
                per_operation: per_operation(&samples, kind),
                targets: targets_of(spec, &lane.site.contender),
                gate_gave_up: samples.iter().filter(|s| s.gate.as_ref().is_some_and(|g| g.gave_up)).count(),
                samples,
                ..lane.entry.clone()
            }
        })
        .collect();
    Row {
        name: spec.name.to_owned(),
        title: spec.title.to_owned(),
        unit: spec.unit.name().to_owned(),
        better: spec.unit.better(),
        jobs: spec.jobs,
        contenders,
    }
}

/// Ratios to the contenders that targets name, but for the own one.
fn against(
    own: &str,
    named: &BTreeMap<String, Vec<Sample>>,
    ratio: impl Fn(&[Sample]) -> Option<Summary>,
) -> BTreeMap<String, Summary> {
    let others = named.iter().filter(|(name, _)| *name != own);
    others.filter_map(|(name, samples)| Some((name.clone(), ratio(samples)?))).collect()
}

/// Round and value of the samples that count.
fn counted(samples: &[Sample], also: impl Fn(&Sample) -> bool) -> Vec<(u32, f64)> {
    samples.iter().filter(|s| s.round > 0 && also(s)).map(|s| (s.round, s.value)).collect()
}

fn ratio(own: &[Sample], reference: &[Sample]) -> Option<Summary> {
    summarize(round_ratios(&counted(own, |_| true), &counted(reference, |_| true)))
}

fn p50_ratio(own: &[Sample], reference: &[Sample]) -> Option<Summary> {
    let p50 = |samples: &[Sample]| -> Vec<(u32, f64)> {
        let slices = samples.iter().filter(|s| s.round > 0);
        slices.filter_map(|s| Some((s.round, s.latency.as_ref()?.p50_us))).collect()
    };
    // The slower one has the longer latency, so reference and own change places.
    summarize(round_ratios(&p50(reference), &p50(own)))
}

fn quiet_ratio(own: &[Sample], reference: &[Sample]) -> Option<Summary> {
    let quiet = |s: &Sample| s.foreign_cores <= QUIET_CORES;
    let ratios = round_ratios(&counted(own, quiet), &counted(reference, quiet));
    if ratios.len() < QUIET_ROUNDS { None } else { summarize(ratios) }
}

/// Processor time that a daemon used between two looks, each with its process: all of its time where there was none before,
/// and none where another one was, of whose end nothing is known.
fn spent(before: Option<(u32, Duration)>, after: Option<(u32, Duration)>) -> Option<Duration> {
    let (process, time) = after?;
    match before {
        None => Some(time),
        Some((same, earlier)) if same == process => Some(time.saturating_sub(earlier)),
        Some(_) => None,
    }
}

/// The daemon's time is that of the slices of which it is known, for each of their operations.
fn per_operation(samples: &[Sample], kind: Kind) -> Option<PerOperation> {
    let mut device = Counters::default();
    let (mut operations, mut daemon_us, mut daemon_operations) = (0, 0, 0);
    for sample in samples.iter().filter(|s| s.round > 0) {
        device.add(sample.device);
        operations += sample.operations;
        if let Some(us) = sample.daemon_us {
            daemon_us += us;
            daemon_operations += sample.operations;
        }
    }
    let each = |count: u64| count as f64 / operations as f64;
    (operations > 0).then(|| PerOperation {
        reads: each(device.reads),
        read_bytes: each(device.read_bytes),
        writes: each(device.writes),
        data_writes: (kind == Kind::Raw).then(|| each(device.writes.saturating_sub(device.flushes))),
        write_bytes: each(device.write_bytes),
        flushes: each(device.flushes),
        daemon_us: (daemon_operations > 0).then(|| daemon_us as f64 / daemon_operations as f64),
    })
}

/// After what time a daemon counts as hanging: the time that a slice is meant to take never does.
fn longest(alone: bool, lasts: Duration) -> Duration {
    if alone { PREPARE_LIMIT } else { SLICE_LIMIT + lasts }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slice_that_is_meant_to_be_long_does_not_hang() {
        let plan = Plan { long: Duration::from_secs(36_000), ..Plan::default() };
        for group in crate::workload::groups(crate::workload::Suite::Cost) {
            let work = (group.make)(&Contender::parse("nenrin").unwrap(), plan);
            assert!(longest(group.alone, work.lasts()) > plan.long);
        }
    }

    #[test]
    fn everybody_has_every_place_equally_often() {
        for count in 1..=7 {
            let mut places = BTreeMap::new();
            for round in 0..2 * count as u32 {
                for (place, who) in order(round, count).into_iter().enumerate() {
                    *places.entry((who, place)).or_insert(0) += 1;
                }
            }
            assert_eq!(places.len(), count * count);
            assert!(places.values().all(|times| *times == 2), "{count}: {places:?}");
        }
    }

    fn sample(round: u32, value: f64, foreign_cores: f64) -> Sample {
        Sample { round, value, foreign_cores, operations: 10, ..Sample::default() }
    }

    #[test]
    fn the_warm_up_does_not_count() {
        let samples = [sample(0, 1000.0, 0.0), sample(1, 10.0, 0.0)];
        assert_eq!(counted(&samples, |_| true), [(1, 10.0)]);
        assert_eq!(ratio(&samples, &samples).unwrap().n, 1);
    }

    #[test]
    fn quiet_rounds_are_quiet_for_both() {
        let own: Vec<_> = (1..=5).map(|r| sample(r, 20.0, if r == 1 { 1.0 } else { 0.0 })).collect();
        let reference: Vec<_> = (1..=5).map(|r| sample(r, 10.0, if r == 5 { 1.0 } else { 0.0 })).collect();
        assert_eq!(quiet_ratio(&own, &reference).unwrap().n, 3);
        assert!(quiet_ratio(&own[..4], &reference).is_some());
        assert!(quiet_ratio(&own[..3], &reference).is_none());
    }

    #[test]
    fn half_the_latency_is_twice_the_speed() {
        let with = |us: f64| {
            let latency = crate::stats::Latency { n: 1, p50_us: us, p99_us: us, p999_us: us, max_us: us };
            vec![Sample { latency: Some(latency), ..sample(1, 1.0, 0.0) }]
        };
        assert_eq!(p50_ratio(&with(50.0), &with(100.0)).unwrap().median, 2.0);
        assert!(p50_ratio(&[sample(1, 1.0, 0.0)], &with(1.0)).is_none());
    }

    /// A slice that mounts anew ends with another daemon than it began with, whose time says nothing of the first one's.
    #[test]
    fn the_time_of_another_daemon_is_not_told() {
        let at = |pid, ms| Some((pid, Duration::from_millis(ms)));
        assert_eq!(spent(at(7, 1000), at(7, 1500)), Some(Duration::from_millis(500)));
        assert_eq!(spent(at(7, 1000), at(8, 1500)), None);
        assert_eq!(spent(None, at(8, 500)), Some(Duration::from_millis(500)), "it was started in the slice");
        assert_eq!(spent(at(7, 1000), None), None);
    }

    #[test]
    fn cost_of_an_operation() {
        let mut one = sample(1, 1.0, 0.0);
        one.device.writes = 20;
        one.device.flushes = 10;
        one.daemon_us = Some(100);
        let samples = [sample(0, 9.0, 0.0), one, sample(2, 1.0, 0.0)];
        let cost = per_operation(&samples, Kind::Raw).unwrap();
        assert_eq!((cost.writes, cost.data_writes, cost.daemon_us), (1.0, Some(0.5), Some(10.0)));
        assert_eq!(per_operation(&samples, Kind::Nenrin).unwrap().data_writes, None);
        assert!(per_operation(&[], Kind::Ext4).is_none());
    }
}
