//! Runs cases: random ones from a seed, or given ones; what is wrong, a panic
//! included, is told with the case that shows it.

use crate::choices::Choices;
use crate::{Target, alter, is_of_images, volume};
use nenrin_device::{CrashDisk, Image, Prng};
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::OnceLock;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

/// A case that takes longer hangs.
pub const SECONDS_MAX: u64 = 60;

/// A case that showed something.
#[derive(Clone, Debug)]
pub struct Failure {
    /// Name of the target.
    pub target: &'static str,
    /// The case.
    pub case: Vec<u8>,
    /// What it showed.
    pub what: String,
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        writeln!(f, "FAILED: {}: {}", self.target, self.what)?;
        write!(f, "cargo run --profile test -p nenrin-fuzz -- replay {} {}", self.target, hex(&self.case))
    }
}

/// Bytes as text.
#[must_use]
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

/// Text as bytes.
#[must_use]
pub fn unhex(text: &str) -> Option<Vec<u8>> {
    let digits: Vec<u8> = text.chars().map(|c| c.to_digit(16).map(|d| d as u8)).collect::<Option<_>>()?;
    (digits.len() % 2 == 0).then(|| digits.chunks(2).map(|d| d[0] << 4 | d[1]).collect())
}

/// Structures to begin with, by target.
fn samples() -> &'static [(&'static str, Vec<u8>)] {
    static SAMPLES: OnceLock<Vec<(&'static str, Vec<u8>)>> = OnceLock::new();
    SAMPLES.get_or_init(|| {
        let disk = |image: &Image| CrashDisk::from_image(image.clone()).without_history();
        volume::volumes().iter().flat_map(|image| alter::samples(&disk(image))).collect()
    })
}

/// Samples of a target: every structure of the volumes to begin with that it decodes.
#[must_use]
pub fn samples_of(target: &str) -> Vec<&'static [u8]> {
    samples().iter().filter(|(what, _)| *what == target).map(|(_, bytes)| bytes.as_slice()).collect()
}

/// Case `number` of `seed`: noise, or for decoders every other time a real
/// structure with a few numbers changed.
#[must_use]
pub fn case(target: &str, seed: u64, number: u64) -> Vec<u8> {
    let mut rng = Prng::new(seed ^ number.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    let real = samples_of(target);
    if number % 2 == 1 && !real.is_empty() {
        let mut out = real[rng.below(real.len() as u64) as usize].to_vec();
        let noise: [u64; 8] = std::array::from_fn(|_| rng.next_u64());
        let noise: Vec<u8> = noise.iter().flat_map(|n| n.to_le_bytes()).collect();
        let mut c = Choices::new(&noise);
        for _ in 0..=rng.below(3) {
            // Most of what matters lies at the start.
            let near = [64, 512, out.len()][c.below(3)].min(out.len());
            let at = c.below(near);
            let width = [1, 2, 4, 8][c.below(4)].min(out.len() - at);
            let mut old = [0; 8];
            old[..width].copy_from_slice(&out[at..at + width]);
            out[at..at + width].copy_from_slice(&c.number(u64::from_le_bytes(old)).to_le_bytes()[..width]);
        }
        return out;
    }
    let of_images = is_of_images(target);
    let longest = if of_images { 120 } else { 900 };
    let mut out = vec![0; 1 + rng.below(longest) as usize];
    // Long runs of zeros and of small numbers get further than noise.
    let dense = rng.below(4);
    for b in &mut out {
        if of_images || rng.below(4) <= dense {
            *b = rng.next_u64() as u8;
            if rng.below(3) == 0 {
                *b %= 24;
            }
        }
    }
    out
}

thread_local! {
    /// Where the last panic of this thread was.
    static PLACE: Cell<String> = const { Cell::new(String::new()) };
}

/// Panics say where they are in the failure's line, and nothing else.
pub fn quiet_panics() {
    std::panic::set_hook(Box::new(|info| PLACE.set(info.location().map(ToString::to_string).unwrap_or_default())));
}

/// Gives one case to a target.
///
/// # Errors
/// What it showed.
pub fn one(target: Target, case: &[u8]) -> Result<(), Box<Failure>> {
    let what = match catch_unwind(AssertUnwindSafe(|| target.1(case))) {
        Ok(Ok(())) => return Ok(()),
        Ok(Err(what)) => what,
        Err(panic) => {
            let text = panic.downcast_ref::<String>().cloned();
            let text = text.or_else(|| panic.downcast_ref::<&str>().map(|s| (*s).to_owned()));
            format!("panic at {}: {}", PLACE.take(), text.unwrap_or_default())
        }
    };
    Err(Box::new(Failure { target: target.0, case: case.to_vec(), what }))
}

/// Random cases `numbers` of `seed`, until `enough` says so; how many. `fails`
/// says whether to go on after a failure. A case that hangs
/// ends the process, after its line was printed: a thread cannot be stopped.
pub fn many(
    target: Target,
    seed: u64,
    numbers: std::ops::Range<u64>,
    enough: &dyn Fn() -> bool,
    fails: &mut dyn FnMut(Failure) -> bool,
) -> u64 {
    let (tell, told) = mpsc::channel::<Vec<u8>>();
    std::thread::scope(|threads| {
        threads.spawn(move || watch(target.0, &told));
        let mut done = 0;
        for number in numbers {
            if enough() {
                break;
            }
            let case = case(target.0, seed, number);
            drop(tell.send(case.clone()));
            done += 1;
            if let Err(failure) = one(target, &case) {
                if !fails(*failure) {
                    break;
                }
            }
        }
        drop(tell);
        done
    })
}

fn watch(target: &'static str, told: &mpsc::Receiver<Vec<u8>>) {
    let mut case = Vec::new();
    loop {
        match told.recv_timeout(Duration::from_secs(SECONDS_MAX)) {
            Ok(next) => case = next,
            Err(RecvTimeoutError::Disconnected) => return,
            Err(RecvTimeoutError::Timeout) => {
                let what = format!("it takes more than {SECONDS_MAX} seconds");
                eprintln!("{}", Failure { target, case, what });
                std::process::abort();
            }
        }
    }
}
