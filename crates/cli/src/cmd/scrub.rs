//! `nenrin scrub`.

use crate::command::{Command, arguments, text_value};
use crate::control::{Line, Request, ScrubData};
use crate::ending::Ending;
use crate::error::{At as _, FAILURE, Fail, INTERRUPTED, Outcome};
use crate::output::{self, Progress, printable};
use crate::size::{parse_bytes, show_bytes};
use crate::target::Target;
use crate::{report, sys};
use nenrin_core::{Fs, Scrub};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

/// The command.
pub const COMMAND: Command = Command {
    name: "scrub",
    usage: &["scrub [--rate SIZE] [--json] [DIR|DEVICE]"],
    about: "Reads and verifies everything on a volume in use, and mends what has a second copy",
    options: &[
        ("--rate SIZE", "read at most so much in a second (default 200M; 0: as fast as it goes)"),
        ("--json", "what was found as JSON"),
    ],
    notes: "Index nodes, roots and superblock slots have two copies; a damaged one is written anew elsewhere. Where the log is\n\
            damaged that a mount would read, the index takes in what it says. Content has one copy, on a mirror two, with\n\
            parity what it can be made of: where none is right, the damage is listed by path and offset, and stays until the\n\
            file is written again or restored. A volume that is not mounted, or mounted read-only, is verified and not changed.\n\
            It can be interrupted at any time, and says how far it came; the next one begins anew.\n\
            exit codes: 0 nothing wrong, 1 all damage was mended, 4 damage is left, 8 it could not run, 130 interrupted, or unmounted\n\
            meanwhile.",
    examples: &[
        ("scrub ~/work", "the volume mounted there"),
        ("scrub --rate 20M --json /srv/photos", "quietly, for a nightly job"),
    ],
    run,
};

/// Default of `--rate`.
const RATE_BYTES: u64 = 200 << 20;
/// Most that is read between two answers.
const STEP_BYTES_MAX: u64 = 16 << 20;

fn run(parser: &mut lexopt::Parser) -> Outcome {
    let (mut json, mut rate) = (false, RATE_BYTES);
    let given = arguments(&COMMAND, parser, 1, |flag, parser| {
        match flag.shown().as_str() {
            "--json" => json = true,
            "--rate" => {
                let text = text_value(parser)?;
                rate = if text == "0" { 0 } else { parse_bytes(&text).ok_or_else(|| bad_rate(&text))? };
            }
            _ => return Ok(false),
        }
        Ok(true)
    });
    // What a path leads to may not answer.
    let given = given.map_err(|f| if f.code == FAILURE { f.with_code(super::check::COULD_NOT) } else { f })?;
    let path = given.first().map_or(Path::new("."), Path::new);
    let could_not = |f: Fail| if f.code == INTERRUPTED { f } else { f.with_code(super::check::COULD_NOT) };
    // Before anything starts threads, which would take the signal.
    let ending = Ending::told("nothing was verified yet").at("signals").map_err(could_not)?;
    let target = Target::find(path).map_err(could_not)?;
    let data = match target {
        Target::Owner(mut owner) => {
            let run = sys::random_number().at("/dev/urandom")?;
            let mut time = RealTime::beside(owner.line().ok());
            let step = |begin, bytes| {
                let step = owner.call(&Request::Scrub { begin, run, bytes });
                let data = step.map_err(|why| owner.unless_left(why, &ending.said()))?;
                ending.say(so_far(&data));
                Ok(data)
            };
            paced(rate, &mut time, step)
        }
        Target::Device(fs, _) => {
            let mut scrub = fs.scrub();
            paced(rate, &mut RealTime::beside(None), |_, bytes| {
                let data = step_here(&fs, &mut scrub, bytes)?;
                ending.say(so_far(&data));
                Ok(data)
            })
        }
    }
    .map_err(|f| {
        if f.code == INTERRUPTED { Fail::at(path.display(), f).with_code(INTERRUPTED) } else { could_not(f) }
    })?;
    if json {
        output::json(&data)?;
    } else {
        show(path, &data);
    }
    let code = match (data.has_losses, data.copies_damaged) {
        (true, _) => super::check::DAMAGED,
        (false, 0) => 0,
        (false, _) => 1,
    };
    // Nobody takes for mended what could not be told.
    output::failed().map_or(Ok(code), |why| Err(could_not(why)))
}

/// How far it came, for who ends it.
fn so_far(data: &ScrubData) -> String {
    let (copies, mended, lost) = (data.copies_damaged, data.copies_mended, data.extents_damaged + data.nodes_lost);
    let percent = data.bytes.saturating_mul(100).checked_div(data.bytes_expected).unwrap_or(0).min(99);
    let found = match (copies, lost) {
        (0, 0) => "and nothing of that is damaged".to_owned(),
        _ => format!(
            "with {copies} damaged copies, of which {mended} were mended, and {lost} pieces of content or index nodes \
             damaged without a right copy"
        ),
    };
    format!("about {percent} % were verified, {found}; it does not go on, and the next scrub begins anew")
}

fn bad_rate(text: &str) -> Fail {
    Fail::usage(format!("--rate: {text:?} is no size; sizes are like 20M or 1G"))
}

fn step_here(fs: &Fs, scrub: &mut Scrub, bytes: u64) -> Result<ScrubData, Fail> {
    fs.scrub_step(scrub, bytes).map_err(|e| Fail::new(e.to_string()))?;
    Ok(report::scrub(scrub))
}

/// The time by which reading is paced.
trait Time {
    /// Since the beginning.
    fn passed(&self) -> Duration;
    fn sleep(&mut self, time: Duration);
}

struct RealTime {
    begun: Instant,
    /// To who may end meanwhile, if there is somebody.
    line: Option<Line>,
}

impl RealTime {
    fn beside(line: Option<Line>) -> Self {
        Self { begun: Instant::now(), line }
    }
}

impl Time for RealTime {
    fn passed(&self) -> Duration {
        self.begun.elapsed()
    }
    fn sleep(&mut self, time: Duration) {
        match &self.line {
            Some(line) => line.rest(time),
            None => thread::sleep(time),
        }
    }
}

/// Takes steps until all is done, no faster than `rate` bytes in a second.
fn paced(
    rate: u64,
    time: &mut impl Time,
    mut step: impl FnMut(bool, u64) -> Result<ScrubData, Fail>,
) -> Result<ScrubData, Fail> {
    let mut progress = Progress::new();
    let bytes = if rate == 0 { STEP_BYTES_MAX } else { (rate / 8).clamp(1 << 20, STEP_BYTES_MAX) };
    let (mut begin, mut before, mut due) = (true, 0, Duration::ZERO);
    let time_of = |bytes: u64| Duration::from_secs_f64(bytes as f64 / rate as f64);
    loop {
        let data = step(begin, bytes)?;
        if data.done {
            return Ok(data);
        }
        begin = false;
        progress.at("scrubbing", data.bytes, data.bytes_expected);
        if rate > 0 {
            // Of what a device, or who had to be waited for, kept from being read, no more than one step is caught up.
            let now = time.passed();
            due = (due + time_of(data.bytes.saturating_sub(before))).max(now.saturating_sub(time_of(bytes)));
            before = data.bytes;
            time.sleep(due.saturating_sub(now));
        }
    }
}

fn show(path: &Path, data: &ScrubData) {
    for f in &data.findings {
        let place = match (&f.path, f.ino, f.offset) {
            (Some(path), _, Some(offset)) => format!("{path} at byte {offset}: "),
            (None, Some(ino), Some(offset)) => format!("inode {ino} at byte {offset}: "),
            _ => String::new(),
        };
        output::line(printable(&format!("error {place}{} ({})", f.text, f.addr)));
    }
    let told = data.findings.len() as u64;
    let all = data.nodes_lost + data.extents_damaged;
    if all > told {
        output::line(format!("and {} more", all - told));
    }
    let verdict = if data.has_losses && data.extents_damaged + data.nodes_lost == 0 {
        "there are damaged copies that could not be mended".to_owned()
    } else if data.has_losses {
        format!(
            "{} pieces of content and {} index nodes are damaged and have no second copy{}",
            data.extents_damaged,
            data.nodes_lost,
            crate::report::repair_soon(data.nodes_lost)
        )
    } else if data.copies_damaged > 0 {
        "all damage was mended".to_owned()
    } else {
        "nothing is damaged".to_owned()
    };
    output::line(format!(
        "{}: {verdict}; {} of content and {} index nodes verified, {} copies damaged, {} mended",
        path.display(),
        show_bytes(data.blocks * 4096),
        data.nodes,
        data.copies_damaged,
        data.copies_mended
    ));
}

#[cfg(test)]
mod tests {
    use super::*;
    use nenrin_core::format::Ino;
    use nenrin_core::{MkfsOptions, MountOptions, NewInode, mkfs};
    use nenrin_device::{BlockDevice, MemDevice, Observed};
    use std::cell::Cell;
    use std::sync::Arc;

    /// Time that passes only while somebody sleeps.
    struct Virtual<'a>(&'a Cell<Duration>);

    impl Time for Virtual<'_> {
        fn passed(&self) -> Duration {
            self.0.get()
        }
        fn sleep(&mut self, time: Duration) {
            self.0.set(self.0.get() + time);
        }
    }

    /// Bytes that the device had read after each step of a scrub, and the virtual time then.
    fn scrubbed(rate: u64) -> Vec<(u64, Duration)> {
        let device = Arc::new(Observed::new(MemDevice::new(96 << 20)));
        let shared: Arc<dyn BlockDevice> = device.clone();
        let clock = crate::clock::HostClock::shared();
        mkfs(&shared, &clock, &MkfsOptions::default()).unwrap();
        let fs = Fs::open(vec![shared], clock, MountOptions::default()).unwrap();
        let new = NewInode { mode: 0o100_644, uid: 0, gid: 0, rdev: 0, target: b"" };
        let ino = fs.create(Ino::ROOT, b"large", &new).unwrap().ino;
        for mib in 0..40 {
            fs.write(ino, mib << 20, &vec![mib as u8 + 1; 1 << 20], 0).unwrap();
        }
        fs.sync_all().unwrap();
        let before = device.counters().read_bytes;
        let mut scrub = fs.scrub();
        let (now, mut steps) = (Cell::new(Duration::ZERO), Vec::new());
        paced(rate, &mut Virtual(&now), |_, bytes| {
            let data = step_here(&fs, &mut scrub, bytes)?;
            steps.push((device.counters().read_bytes - before, now.get()));
            Ok(data)
        })
        .unwrap();
        steps
    }

    #[test]
    fn no_more_is_read_in_a_second_than_the_rate_says() {
        let rate = 8 << 20;
        let steps = scrubbed(rate);
        // What one step may read at once, its last piece included.
        let step = (1 << 20) + (1 << 20);
        for (i, (first, from)) in steps.iter().enumerate() {
            for (last, until) in &steps[i..] {
                let allowed = (rate as f64 * (*until - *from).as_secs_f64()) as u64 + step;
                assert!(last - first <= allowed, "{} bytes from {from:?} to {until:?}", last - first);
            }
        }
        let (all, took) = *steps.last().unwrap();
        assert!(all > 40 << 20, "{all} bytes");
        assert!(took >= Duration::from_secs(4) && took <= Duration::from_secs(6), "{all} bytes took {took:?}");
    }

    /// A device that did not answer for a while is not read all the faster then.
    #[test]
    fn what_a_stall_kept_from_reading_is_not_caught_up() {
        let (rate, stall) = (8 << 20, Duration::from_secs(60));
        let (now, mut steps) = (Cell::new(Duration::ZERO), Vec::new());
        let mut data = nothing_yet();
        paced(rate, &mut Virtual(&now), |_, bytes| {
            data.bytes += bytes;
            data.done = steps.len() == 200;
            now.set(now.get() + if steps.len() == 20 { stall } else { Duration::from_millis(1) });
            steps.push((data.bytes, now.get()));
            Ok(data.clone())
        })
        .unwrap();
        let step = steps[0].0;
        for (i, (first, from)) in steps.iter().enumerate() {
            for (last, until) in &steps[i..] {
                let allowed = (rate as f64 * (*until - *from).as_secs_f64()) as u64 + 2 * step;
                assert!(last - first <= allowed, "{} bytes from {from:?} to {until:?}", last - first);
            }
        }
        // Nor any slower.
        let took = steps[200].1 - stall;
        let expected = Duration::from_secs_f64(200.0 * step as f64 / rate as f64);
        assert!(took <= expected + Duration::from_secs(1), "{took:?} for {expected:?}");
    }

    fn nothing_yet() -> ScrubData {
        ScrubData {
            done: false,
            bytes: 0,
            bytes_expected: 100,
            has_losses: false,
            nodes: 0,
            blocks: 0,
            copies_damaged: 0,
            copies_mended: 0,
            nodes_lost: 0,
            extents_damaged: 0,
            findings: Vec::new(),
        }
    }

    #[test]
    fn how_far_it_came() {
        let data = ScrubData { bytes: 42, ..nothing_yet() };
        assert!(
            so_far(&data).starts_with("about 42 % were verified, and nothing of that is damaged; it does not go on")
        );
        let bad = ScrubData { copies_damaged: 3, copies_mended: 2, nodes_lost: 1, extents_damaged: 4, ..data };
        assert!(so_far(&bad).contains("3 damaged copies, of which 2 were mended, and 5 pieces"));
    }

    #[test]
    fn without_a_rate_nothing_waits() {
        assert!(scrubbed(0).iter().all(|(_, now)| now.is_zero()));
    }
}
