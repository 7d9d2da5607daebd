//! What must, may and must not be there after a power cut (DESIGN 3 and 4).
//!
//! | `barrier=` | what must be there |
//! |---|---|
//! | `sync` | all that was acknowledged |
//! | `checkpoint` | all that was acknowledged before the last complete index checkpoint began; all, when the device's cache survives |
//! | `none` | all, when the device's cache survives; else nothing is promised |
//!
//! What may be there, and that it is one moment, holds under each of them.
//!
//! The run has noted what was promised when; a recovered state is judged
//! against that, without knowing how the file system came to it:
//!
//! 1. The namespace is that of one prefix of the namespace operations, not
//!    older than promised, not newer than issued.
//! 2. Each file has exactly one of the contents it has had (size and bytes
//!    together), not older than promised, not held back, not newer than issued.
//! 3. A rename over a name, or a link of an open file, that is there has
//!    brought the content of that moment along.
//! 4. `order=strict`: namespace and all files are of one moment.
//! 5. Checkpoints that were acknowledged are listed and equal their moment;
//!    those that are listed without having been acknowledged do so too.

use crate::checkpoint_log::CheckpointLog;
use crate::content::{self, Content, PAGE_BYTES};
use crate::model::{FileLog, FileState, Model, promised_at};
use crate::subject::Subject;
use crate::tree::{Inode, Tree};
use crate::walk::{Found, FoundFile, read_file};
use nenrin_core::{At, CheckpointInfo, Error, Order};
use nenrin_format::items::Keep;
use nenrin_format::{Cno, Ino};

/// Under which rules a cut is judged.
#[derive(Clone, Copy, Debug)]
pub struct Rules {
    /// `order=`.
    pub order: Order,
    /// What of the acknowledgements.
    pub binds: Binds,
}

/// Which acknowledgements a cut has to respect: as the barrier, and the kind of cut, make them durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Binds {
    /// All.
    Acknowledged,
    /// Those that were given before the last index checkpoint began that is complete: the root names what they are about.
    Checkpointed,
    /// None.
    Nothing,
}

impl Rules {
    /// What was acknowledged up to this moment, in device operations, must be there after a cut at `k`.
    fn bound(self, model: &Model, k: usize) -> Option<usize> {
        match self.binds {
            Binds::Acknowledged => Some(k),
            Binds::Checkpointed => promised_at(&model.anchors, k, |a| a.0).map(|a| a.1),
            Binds::Nothing => None,
        }
    }
}

/// The last promise of the list that binds, when acknowledgements up to `bound` do.
fn binding<T: Copy>(list: &[T], bound: Option<usize>, moment: impl Fn(&T) -> usize) -> Option<T> {
    bound.and_then(|m| promised_at(list, m, moment))
}

/// What the oracle found out about an acceptable state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// The prefix that the namespace shows.
    pub prefix: u32,
}

/// Judges a live state found after a cut at `k`.
///
/// # Errors
/// What is wrong, in one line.
pub fn judge(model: &Model, rules: Rules, k: usize, found: &Found) -> Result<Verdict, String> {
    let prefix = judge_namespace(model, rules, k, found.sum)?;
    let bound = rules.bound(model, k);
    let mut moments = Moments::of_namespace(model, rules, k, found.sum);
    for file in &found.files {
        let log = model.files.get(&file.ino).ok_or_else(|| format!("inode {} was never made", file.ino))?;
        let states = judge_file(log, rules, (k, bound), prefix, file)?;
        judge_times(log, (k, bound), file)?;
        if rules.order == Order::Strict {
            let before = moments.0.clone();
            moments.restrict(log, &states);
            if moments.0.is_empty() {
                return Err(format!(
                    "order=strict: inode {} is in states {states:?}, the namespace (prefix {prefix}) and the files \
                     before it are as after calls {before:?}",
                    file.ino
                ));
            }
        }
    }
    Ok(Verdict { prefix })
}

/// The prefix of the namespace that a cut at `k` must show at least.
#[must_use]
pub fn promised_prefix(model: &Model, rules: Rules, k: usize) -> u32 {
    binding(&model.namespace_promised, rules.bound(model, k), |p| p.0).map_or(0, |p| p.1)
}

fn judge_namespace(model: &Model, rules: Rules, k: usize, sum: u64) -> Result<u32, String> {
    let promised = promised_prefix(model, rules, k);
    // What was acknowledged without a device operation cannot be told from the state before.
    let issued = (model.namespace.partition_point(|s| s.start < k).max(1) as u32 - 1).max(promised);
    let is = |p: &u32| model.namespace.get(*p as usize).is_some_and(|s| s.sum == sum);
    if let Some(p) = (promised..=issued).find(is) {
        return Ok(p);
    }
    let what = match (0..model.namespace.len() as u32).find(is) {
        Some(p) if p < promised => format!("is prefix {p}: operations that were acknowledged are lost"),
        Some(p) => format!("is prefix {p}: of operations not yet made"),
        None => "is no prefix of the operations made".to_owned(),
    };
    Err(format!("the namespace {what} (at least {promised}, at most {issued})"))
}

/// The states of the file that match, newest first.
fn judge_file(
    log: &FileLog,
    rules: Rules,
    (k, bound): (usize, Option<usize>),
    prefix: u32,
    file: &FoundFile,
) -> Result<Vec<u32>, String> {
    let promised = binding(&log.promised, bound, |p| p.0).map_or(0, |p| p.1);
    let carried = promised_at(&log.carried, prefix as usize, |c| c.0 as usize).map_or(0, |c| c.1);
    let least = promised.max(carried);
    let granted = promised_at(&log.granted, prefix as usize, |c| c.0 as usize).map_or(0, |c| c.1);
    let mut matching = Vec::new();
    for (j, s) in log.states.iter().enumerate().skip(least as usize) {
        if (j as u32) < granted && !log.states.get(granted as usize).is_some_and(|g| shows_as_much(&g.content, s)) {
            continue;
        }
        // The one that is asked for may have been acknowledged without a device operation.
        if s.fingerprint == file.fingerprint && s.visible.is_some_and(|v| v < k || j == least as usize) {
            matching.push(j as u32);
            if rules.order == Order::Relaxed {
                break;
            }
        }
    }
    if !matching.is_empty() {
        return Ok(matching);
    }
    let older = log.states.iter().position(|s| s.fingerprint == file.fingerprint);
    let what = match older {
        Some(j) if (least..granted).contains(&(j as u32)) => {
            format!("is state {j}, and state {granted} is the oldest that whom it was opened to may see")
        }
        Some(j) if (j as u32) < least => format!("is state {j}, but state {least} was promised"),
        Some(j) if log.states.get(j).is_some_and(|s| s.visible.is_none()) => {
            format!("is state {j}, which was held back")
        }
        Some(j) => format!("is state {j}, which was not yet made"),
        None => "is none it has had".to_owned(),
    };
    let why = if carried > promised { "by a rename or link that is there" } else { "by a sync" };
    Err(format!(
        "the content of inode {} {what} ({why}; namespace prefix {prefix}, {} states)",
        file.ino,
        log.states.len()
    ))
}

/// Whether content shows all that an earlier state of it does: nothing is no secret, nor is what was appended to.
fn shows_as_much(content: &Content, earlier: &FileState) -> bool {
    let size = earlier.content.size();
    let mut part = content.clone();
    part.resize(size.min(content.size()));
    size == 0 || content.size() >= size && part.fingerprint() == earlier.fingerprint
}

fn judge_times(log: &FileLog, (k, bound): (usize, Option<usize>), file: &FoundFile) -> Result<(), String> {
    let least = binding(&log.promised, bound, |p| p.0).map_or(0, |p| p.2 as usize);
    let seen = log.times.iter().skip(least).take_while(|t| t.start < k || t.start == 0);
    let (mut mtime, mut ctime) = (false, false);
    for t in seen {
        mtime |= t.mtime == file.mtime;
        ctime |= t.ctime == file.ctime;
    }
    let is_state = |j: &usize| log.states.get(*j).is_some_and(|s| s.fingerprint == file.fingerprint);
    if mtime && !log.mtimes((0..log.states.len()).filter(is_state)).contains(&file.mtime) {
        return Err(format!("the mtime of inode {} is not that of its content: {file:?}", file.ino));
    }
    if mtime && ctime {
        return Ok(());
    }
    let which = if mtime { "ctime" } else { "mtime" };
    let allowed = log.times.get(least..).unwrap_or_default();
    Err(format!("the {which} of inode {} is none it has had since its last fsync: {file:?}, {allowed:?}", file.ino))
}

/// Ranges of calls, each meaning "the state right after this call".
struct Moments(Vec<(u32, u32)>);

impl Moments {
    fn of_namespace(model: &Model, rules: Rules, k: usize, sum: u64) -> Self {
        let low = binding(&model.order_promised, rules.bound(model, k), |p| p.0).map_or(0, |p| p.1);
        let high = (model.op_starts.partition_point(|s| *s < k).max(1) as u32 - 1).max(low);
        let states = model.namespace.iter().enumerate().filter(|(_, s)| s.sum == sum);
        let ranges = states.map(|(p, s)| (s.op, model.namespace.get(p + 1).map_or(u32::MAX, |n| n.op - 1)));
        Self(intersect(&ranges.collect::<Vec<_>>(), &[(low, high)]))
    }
    /// A state lasts until the next one that is not held back: while a
    /// truncation is held back, commits may carry what was before.
    fn restrict(&mut self, log: &FileLog, states: &[u32]) {
        let range = |j: &u32| {
            let later = log.states.get(*j as usize + 1..).unwrap_or_default();
            let from = log.states.get(*j as usize).map_or(0, |s| if *j == 0 { 0 } else { s.op });
            let until = later.iter().find_map(|s| s.ends_before);
            (from, until.map_or(u32::MAX, |n| n - 1))
        };
        self.0 = intersect(&self.0, &states.iter().map(range).collect::<Vec<_>>());
    }
}

fn intersect(a: &[(u32, u32)], b: &[(u32, u32)]) -> Vec<(u32, u32)> {
    let mut out = Vec::new();
    for (a_low, a_high) in a {
        for (b_low, b_high) in b {
            let (low, high) = ((*a_low).max(*b_low), (*a_high).min(*b_high));
            if low <= high {
                out.push((low, high));
            }
        }
    }
    out
}

/// Judges the list of checkpoints found after a cut at `k`. Returns those whose
/// states can be compared.
///
/// # Errors
/// What is wrong, in one line.
pub fn judge_checkpoints<'m>(
    model: &'m Model,
    rules: Rules,
    k: usize,
    listed: &[CheckpointInfo],
) -> Result<Vec<(CheckpointInfo, &'m CheckpointLog)>, String> {
    let bound = rules.bound(model, k);
    let mut known = Vec::new();
    for info in listed {
        let cno = info.cno;
        let made = |c: &&CheckpointLog| c.start < k || c.start == 0;
        let passing = model.passing.iter().rfind(made);
        let Some(log) = model.checkpoints.get(&cno.0).filter(made).or(passing) else {
            return Err(format!("checkpoint {cno} is listed and was never made"));
        };
        if log.gone_promised.is_some_and(|g| Some(g) <= bound) {
            return Err(format!("checkpoint {cno} was dropped, acknowledged, and is back"));
        }
        let promised = log.names.iter().rposition(|n| n.promised.is_some_and(|p| Some(p) <= bound));
        let mut names = log.names.iter().skip(promised.unwrap_or(0)).filter(|n| n.start < k || n.start == 0);
        if !names.any(|n| n.name == info.name) {
            return Err(format!("checkpoint {cno} has a name it never had: {:?}", info.name.as_deref().map(text)));
        }
        if info.asked != log.asked && log.names.len() == 1 {
            return Err(format!("checkpoint {cno} says asked={}", info.asked));
        }
        known.push((info.clone(), log));
    }
    let must = |c: &CheckpointLog| Some(c.promised) <= bound && c.gone.is_none_or(|g| g >= k);
    for (cno, _) in model.checkpoints.iter().filter(|(_, c)| must(c)) {
        if !listed.iter().any(|i| i.cno.0 == *cno) {
            return Err(format!("checkpoint {cno} was acknowledged and is gone"));
        }
    }
    Ok(known)
}

/// Judges the rule for keeping checkpoints found after a cut at `k`.
///
/// # Errors
/// What is wrong, in one line.
pub fn judge_rule(model: &Model, rules: Rules, k: usize, found: Option<&str>) -> Result<(), String> {
    let Some(found) = found.filter(|_| !model.rules.is_empty()) else { return Ok(()) };
    let bound = rules.bound(model, k);
    let least = model.rules.iter().rposition(|r| Some(r.promised) <= bound).unwrap_or(0);
    let mut allowed = model.rules.iter().skip(least).filter(|r| r.start < k || r.start == 0);
    if allowed.any(|r| r.rule == found) {
        return Ok(());
    }
    Err(format!("the rule for keeping checkpoints is {found:?}, of {:?} from {least} on", model.rules))
}

fn text(name: &[u8]) -> String {
    String::from_utf8_lossy(name).into_owned()
}

/// Judges the state of a checkpoint against its moment.
///
/// # Errors
/// What is wrong, in one line.
pub fn judge_past(
    info: &CheckpointInfo,
    log: &CheckpointLog,
    found: &Found,
    shed: &[(Ino, Cno)],
) -> Result<(), String> {
    let cno = info.cno;
    if found.unknown.is_empty() && log.parts.values().all(|p| p.hash.is_some()) {
        if found.sum != log.sum {
            return Err(format!("checkpoint {cno}: the namespace is not that of its moment"));
        }
    } else {
        judge_parts(info, log, found, shed)?;
    }
    for file in &found.files {
        let Some((_, allowed)) = log.files.iter().find(|(ino, _)| *ino == file.ino) else {
            return Err(format!("checkpoint {cno}: inode {} was not there", file.ino));
        };
        let (contents, mtimes) = allowed;
        if !contents.contains(&file.fingerprint) {
            return Err(format!("checkpoint {cno}: the content of inode {} is not that of its moment", file.ino));
        }
        if !mtimes.contains(&file.mtime) {
            let mtime = file.mtime;
            return Err(format!("checkpoint {cno}: the mtime of inode {} was not {mtime:?}, but {mtimes:?}", file.ino));
        }
    }
    Ok(())
}

/// Judges a state of which not everything is known: what is known is right, and the rest may be unknown.
fn judge_parts(info: &CheckpointInfo, log: &CheckpointLog, found: &Found, shed: &[(Ino, Cno)]) -> Result<(), String> {
    let cno = info.cno;
    for ino in &found.unknown {
        // What it shows by grace of another snapshot goes with that.
        let by_its_name = info.name.is_some() && log.own.contains(ino);
        let keep = log.parts.get(ino).map(|p| p.keep);
        let was_shed = shed.iter().any(|(of, upto)| of.0 == *ino && cno < *upto);
        let may_go = match keep {
            None => false,
            _ if was_shed => !by_its_name,
            Some(Keep::Full) => false,
            Some(Keep::Daily) => !by_its_name && !info.daily,
            Some(Keep::Nothing) => !by_its_name,
        };
        // What a mount found unknown stays so, whatever was said about it then.
        if !may_go && log.parts.get(ino).is_none_or(|p| p.hash.is_some()) {
            return Err(format!("checkpoint {cno}: inode {ino} is not known, and keeps {keep:?}: {info:?}"));
        }
    }
    for (ino, part) in &found.parts {
        let Some(then) = log.parts.get(ino) else {
            return Err(format!("checkpoint {cno}: inode {ino} was not there, or not known"));
        };
        if then.hash != part.hash {
            return Err(format!("checkpoint {cno}: inode {ino} is not what it was at its moment"));
        }
    }
    Ok(())
}

/// Judges what landmarks keep against the moments of their checkpoints; how many there are.
///
/// # Errors
/// What is wrong, in one line.
pub fn judge_landmarks<S: Subject>(fs: &S, model: &Model) -> Result<u64, String> {
    let landmarks = fs.landmarks();
    for (cno, ino) in &landmarks {
        let of = format!("the landmark of inode {ino} of checkpoint {cno}");
        // One that came and went within a call has no number in the model.
        let Some(log) = model.checkpoints.get(&cno.0) else { continue };
        let Some((_, allowed)) = log.files.iter().find(|(file, _)| *file == ino.0) else {
            // In a directory that could not be listed when the checkpoint was found.
            if log.parts.values().any(|p| p.hash.is_none()) {
                continue;
            }
            return Err(format!("{of}: it had no name then"));
        };
        let at = At::Past(*cno);
        // What else there was then may be gone, so it is not said to be all there was.
        if !fs.checkpoints().iter().any(|c| c.cno == *cno) {
            match fs.readdir(at, Ino::ROOT, 0, &mut |_| true) {
                Err(Error::Stale) => {}
                other => return Err(format!("{of}: a listing of what is left of that state is {other:?}")),
            }
            match fs.lookup(at, Ino::ROOT, b"never") {
                Err(Error::Stale) => {}
                other => return Err(format!("{of}: a name that may have been there is {other:?}")),
            }
        }
        let attr = fs.getattr(at, *ino).map_err(|e| format!("{of}: {e}"))?;
        let fingerprint = read_file(fs, at, *ino, attr.size, None).map_err(|e| format!("{of}: {e}"))?;
        if !allowed.0.contains(&fingerprint) {
            return Err(format!("{of}: the content is not that of its moment"));
        }
    }
    Ok(landmarks.len() as u64)
}

/// Says where the bytes of a wrong content come from: for each page, which
/// states had the same, and which writes it holds.
#[must_use]
pub fn explain(log: &FileLog, bytes: &Content) -> String {
    let mut out = format!("found {} bytes; states have ", bytes.size());
    let sizes: Vec<String> = log.states.iter().map(|s| s.content.size().to_string()).collect();
    out += &sizes.join(" ");
    let mut pages: Vec<u64> = bytes.pages().collect();
    if let Some(last) = log.states.last() {
        pages.extend(last.content.pages());
    }
    pages.sort_unstable();
    pages.dedup();
    for page in pages.into_iter().take(40) {
        let same = log.states.iter().enumerate().filter(|(_, s)| s.content.page(page) == bytes.page(page));
        let same: Vec<String> = same.map(|(j, _)| j.to_string()).collect();
        let cells = bytes.read(page * PAGE_BYTES as u64, PAGE_BYTES);
        let mut writes: Vec<String> = Vec::new();
        for cell in cells.chunks_exact(8) {
            let id = match content::pattern_id(cell) {
                Some(id) => id.to_string(),
                None if cell == [0; 8] => "0".to_owned(),
                None => "?".to_owned(),
            };
            if writes.last() != Some(&id) {
                writes.push(id);
            }
        }
        writes.truncate(12);
        out += &format!("\n  page {page}: same as states [{}], writes [{}]", same.join(" "), writes.join(" "));
    }
    out
}

/// How a recovered tree differs from the model's last state, and for files, from all states.
#[must_use]
pub fn difference(model: &Model, tree: &Tree) -> String {
    let mut out = String::new();
    for (ino, found) in &tree.inodes {
        let path = tree.path(*ino);
        match model.tree.inodes.get(ino) {
            None => out += &format!("{path} (inode {ino}) is not in the last state\n"),
            Some(i) if i.hash() != found.hash() => {
                let text = |i: &Inode| format!("{:?} {:?} {:?}", i.attr, i.xattrs.keys(), i.entries);
                out += &format!("{path} (inode {ino})\n  found {}\n  last  {}\n", text(found), text(i));
            }
            Some(_) => {}
        }
        if let Some(log) = model.files.get(ino) {
            let same = |s: &&FileState| s.fingerprint == found.content.fingerprint();
            let ops: Vec<u32> = log.states.iter().filter(same).map(|s| s.op).collect();
            out += &format!("{path} (inode {ino}): content as after calls {ops:?}\n");
        }
        let known = |log: &&FileLog| log.states.iter().any(|s| s.fingerprint == found.content.fingerprint());
        if let Some(log) = model.files.get(ino).filter(|log| !known(log)) {
            out += &format!("{path} (inode {ino}): {}\n", explain(log, &found.content));
        }
    }
    for (ino, i) in model.tree.inodes.iter().filter(|(n, i)| i.attr.nlink > 0 && !tree.inodes.contains_key(n)) {
        out += &format!("{} (inode {ino}) of the last state was not found: {:?}\n", model.tree.path(*ino), i.attr);
    }
    out
}
