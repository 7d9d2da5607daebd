//! The command line.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use crate::command::for_the_record;
use crate::contender::{Contender, Tools};
use crate::disk::{LEAST_BYTES, smallest};
use crate::error::{Error, Result};
use crate::gate;
use crate::limit::Limit;
use crate::measured::{self, SUITES};
use crate::workload::{Group, Plan, Suite, groups};

/// What --help prints.
pub const HELP: &str = "\
nenrin-bench: nenrin beside ext4, xfs, btrfs and the raw device, interleaved slice by slice. Needs root.

  --suite NAME            main (default), sync: durable writes, databases: SQLite, PostgreSQL and RocksDB, cost: device bytes of durable
                          writes over a long time, limited: durable writes where the disk is the limit, guest: the same where that
                          limit lets flushes pass, clean: what the cleaner costs, stripe: several devices
  --only ROW,...          rows to measure, by name or by its beginning (see --list)
  --contenders NAME,...   raw, relay, bare, ext4, xfs, btrfs, nilfs2, f2fs, jfs, nenrin; mount options after `+`, as in nenrin+cache=writeback;
                          devices after `@`, as in nenrin@4, btrfs@2:mirror, nenrin@3:parity, nenrin@2:degraded
  --nenrin PATH           the nenrin program (default: the one beside this program)
  --bare PATH             the program of the control `bare` (default: examples/bare beside this program)
  --nenrin-mkfs WORD      one more word for `nenrin mkfs`; may be repeated
  --nenrin-mount OPTIONS  mount options for every nenrin contender; may be repeated
  --slices N              slices per contender and row (default 15)
  --slice-ms N            length of a slice that is bounded by time (default 400)
  --quick                 5 slices
  --full                  1,000,000 files in the row about memory instead of 100,000
  --walk-files N          files in the row about memory
  --size SIZE             size of each device, as 4G (default) or 2048M
  --loaded-s N            length of a slice in which others write all the time (default 5)
  --long-s N              length of the row osync-cost (default 600; suite cost)
  --age-percent N         rows of the suite clean: what is written before anything counts, in hundredths of the device (default 200)
  --age-free-percent N    and no more than this, in hundredths of what is free beside what is live (default without limit)
  --age-s N               at most for so long (default 60)
  --slice-percent N       what one of their slices writes, in hundredths of the device (default 12)
  --sustained-s N         at most for so long (default 20)
  --removed SIZE          apparent size of the file whose removal is measured (default 100G)
  --devices DEV,...       block devices instead of images, one for each contender; all they hold is lost; the smallest of
                          them gives the size, whatever --size says
  --limit-iops N          write (and read) requests per second of each device, by the blkio controller
  --limit-bps SIZE        bytes per second of each device, likewise
  --dir DIR               image files and mount points, on a real disk, in nenrin-bench below it (default ./bench-results/work)
  --out DIR               results.json and results.md (default ./bench-results)
  --keep-images           leaves the fully written image files for the next run
  --nice N                priority of the harness and of all daemons, -20 to 19 (default 0); on a machine that is never
                          idle, -20 takes the worst of the noise away, from all contenders alike
  --gate-cores X          busy cores up to which the machine counts as idle (default 0.2)
  --gate-wait MS          longest wait for an idle machine before one slice (default 2000)
  --gate-budget S         longest wait in the whole run (default 600)
  --render FILE           prints the tables of a results.json and ends
  --list                  lists the rows and ends
  --measured              lists how the crash simulator runs every nenrin contender of all suites (and of --contenders), as JSON,
                          and ends

For example: nenrin-bench --quick --only append-fsync --size 1G
";

/// What is to be done.
#[derive(Debug)]
pub enum Task {
    /// Print this.
    Print(String),
    /// Print the tables of an earlier run.
    Render(PathBuf),
    /// Measure.
    Measure(Box<Config>),
}

/// A run.
#[derive(Debug)]
pub struct Config {
    /// Which rows there are.
    pub suite: Suite,
    /// Names or beginnings of rows; empty for all.
    pub only: Vec<String>,
    /// Contenders; empty for those of each row.
    pub contenders: Vec<Contender>,
    /// Programs and their words.
    pub tools: Tools,
    /// Sizes.
    pub plan: Plan,
    /// Length of a slice.
    pub budget: Duration,
    /// Devices to use instead of images.
    pub devices: Vec<PathBuf>,
    /// What every device is limited to.
    pub limit: Limit,
    /// Images and mount points.
    pub work: PathBuf,
    /// Results.
    pub out: PathBuf,
    /// Leave the images.
    pub keep_images: bool,
    /// The idle gate.
    pub gate: gate::Settings,
    /// Priority of the harness and what it starts.
    pub nice: i32,
    /// The words, for the record.
    pub arguments: Vec<String>,
}

fn bad(text: impl Into<String>) -> Error {
    Error::Refused(text.into())
}

/// Bytes from `4G`, `512M` or a number of bytes.
fn size(text: &str) -> Result<u64> {
    let wrong = || bad(format!("`{text}` is not a size such as 4G or 512M"));
    let (digits, shift) = match text.char_indices().last() {
        Some((at, 'G' | 'g')) => (&text[..at], 30),
        Some((at, 'M' | 'm')) => (&text[..at], 20),
        _ => (text, 0),
    };
    let number: u64 = digits.parse().map_err(|_| wrong())?;
    number.checked_mul(1 << shift).ok_or_else(wrong)
}

fn names(text: &str) -> impl Iterator<Item = &str> {
    text.split(',').map(str::trim).filter(|name| !name.is_empty())
}

/// Reads the words after the program's name.
pub fn parse(words: impl IntoIterator<Item = impl Into<OsString>>) -> Result<Task> {
    let words: Vec<OsString> = words.into_iter().map(Into::into).collect();
    let arguments = words.iter().map(|word| for_the_record(&word.to_string_lossy())).collect();
    let mut config = Config {
        suite: Suite::Main,
        only: Vec::new(),
        contenders: Vec::new(),
        tools: Tools { nenrin: None, bare: None, nenrin_mkfs: Vec::new(), nenrin_mount: Vec::new() },
        plan: Plan::default(),
        budget: Duration::from_millis(400),
        devices: Vec::new(),
        limit: Limit::default(),
        work: PathBuf::from("bench-results/work"),
        out: PathBuf::from("bench-results"),
        keep_images: false,
        gate: gate::Settings { busy_cores: 0.2, window_ms: 100, max_wait_ms: 2_000, budget_ms: 600_000 },
        nice: 0,
        arguments,
    };
    let (mut listing, mut measured) = (false, false);
    let mut parser = lexopt::Parser::from_args(words);
    while let Some(argument) = parser.next().map_err(|e| bad(e.to_string()))? {
        let name = match argument {
            lexopt::Arg::Long(name) => name.to_owned(),
            lexopt::Arg::Short('h') => "help".to_owned(),
            _ => return Err(bad("only options that begin with -- are known; see --help")),
        };
        match name.as_str() {
            "help" => return Ok(Task::Print(HELP.to_owned())),
            "list" => listing = true,
            "measured" => measured = true,
            "quick" => config.plan.slices = 5,
            "full" => config.plan.walk_files = 1_000_000,
            "keep-images" => config.keep_images = true,
            _ => {
                let value = parser.value().map_err(|e| bad(e.to_string()))?.to_string_lossy().into_owned();
                if name == "render" {
                    return Ok(Task::Render(value.into()));
                }
                set(&mut config, &name, &value)?;
            }
        }
    }
    if measured {
        return Ok(Task::Print(measured::list(&config.contenders)?));
    }
    let groups = groups(config.suite);
    if listing {
        return Ok(Task::Print(list(&groups)));
    }
    for name in &config.only {
        if !groups.iter().flat_map(|group| &group.rows).any(|row| row.name.starts_with(name.as_str())) {
            return Err(bad(format!("no row is called `{name}`; see --list")));
        }
    }
    // Every contender can use what the smallest has, whatever --size says.
    config.plan.device_bytes = smallest(&config.devices)?.unwrap_or(config.plan.device_bytes);
    Ok(Task::Measure(Box::new(config)))
}

fn set(config: &mut Config, name: &str, value: &str) -> Result<()> {
    let number = || value.parse::<u64>().map_err(|_| bad(format!("--{name}: `{value}` is not a number")));
    match name {
        "suite" => {
            let known = SUITES.iter().find(|(suite, _)| *suite == value);
            config.suite = known.map(|(_, suite)| *suite).ok_or_else(|| {
                bad(format!(
                    "--suite takes main, sync, databases, cost, limited, guest, clean or stripe, not `{value}`"
                ))
            })?;
        }
        "loaded-s" => config.plan.loaded = Duration::from_secs(number()?.clamp(1, 600)),
        "long-s" => config.plan.long = Duration::from_secs(number()?.clamp(1, 36_000)),
        "age-free-percent" => config.plan.sustained.age_free_percent = number()?.min(10_000),
        "age-percent" => config.plan.sustained.age_percent = number()?.min(10_000),
        "age-s" => config.plan.sustained.age = Duration::from_secs(number()?.clamp(1, 36_000)),
        "slice-percent" => config.plan.sustained.slice_percent = number()?.clamp(1, 1000),
        "sustained-s" => config.plan.sustained.slice = Duration::from_secs(number()?.clamp(1, 100)),
        "removed" => config.plan.sustained.removed_bytes = size(value)? & !((1 << 20) - 1),
        "devices" => config.devices = names(value).map(PathBuf::from).collect(),
        "limit-iops" => config.limit.iops = Some(number()?.max(1)),
        "limit-bps" => config.limit.bps = Some(size(value)?.max(1)),
        "only" => config.only = names(value).map(str::to_owned).collect(),
        "contenders" => config.contenders = names(value).map(Contender::parse).collect::<Result<_>>()?,
        "nenrin" => config.tools.nenrin = Some(value.into()),
        "bare" => config.tools.bare = Some(value.into()),
        "nenrin-mkfs" => config.tools.nenrin_mkfs.push(value.to_owned()),
        "nenrin-mount" => config.tools.nenrin_mount.push(value.to_owned()),
        "slices" => {
            let slices = u32::try_from(number()?).ok().filter(|n| (1..=1000).contains(n));
            config.plan.slices = slices.ok_or_else(|| bad("--slices takes 1 to 1000"))?;
        }
        "slice-ms" => config.budget = Duration::from_millis(number()?.clamp(10, 10_000)),
        "nice" => {
            let nice = value.parse().ok().filter(|n| (-20..=19).contains(n));
            config.nice = nice.ok_or_else(|| bad("--nice takes -20 to 19"))?;
        }
        "walk-files" => config.plan.walk_files = number()?.max(1),
        "size" => {
            config.plan.device_bytes = size(value)? & !((1 << 20) - 1);
            if config.plan.device_bytes < LEAST_BYTES {
                return Err(bad("--size: at least 512M (xfs wants 300M, the rows about large files more)"));
            }
        }
        "dir" => config.work = value.into(),
        "out" => config.out = value.into(),
        "gate-cores" => {
            let cores = value.parse().map_err(|_| bad(format!("--gate-cores: `{value}` is not a number")))?;
            config.gate.busy_cores = cores;
        }
        "gate-wait" => config.gate.max_wait_ms = number()?,
        "gate-budget" => config.gate.budget_ms = number()?.saturating_mul(1000),
        _ => return Err(bad(format!("unknown option --{name}; see --help"))),
    }
    Ok(())
}

fn list(groups: &[Group]) -> String {
    let mut text = String::new();
    for group in groups {
        for row in &group.rows {
            text += &format!("{:<30} {} ({})\n", row.name, row.title, group.contenders.join(", "));
        }
    }
    text
}

impl Config {
    /// Whether a row was asked for.
    pub fn wants(&self, row: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|name| row.starts_with(name.as_str()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(words: &[&str]) -> Config {
        match parse(words.iter().copied()).unwrap() {
            Task::Measure(config) => *config,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn defaults_and_short_forms() {
        let c = config(&[]);
        assert_eq!((c.plan.slices, c.plan.device_bytes, c.plan.walk_files), (15, 4 << 30, 100_000));
        let c = config(&["--quick", "--full", "--size=2048M"]);
        assert_eq!((c.plan.slices, c.plan.device_bytes, c.plan.walk_files), (5, 2 << 30, 1_000_000));
    }

    #[test]
    fn the_smallest_device_gives_the_size() {
        let directory = tempfile::tempdir().unwrap();
        let device = |mib: u64| {
            let path = directory.path().join(mib.to_string());
            std::fs::File::create(&path).and_then(|file| file.set_len(mib << 20)).unwrap();
            path.display().to_string()
        };
        let devices = [device(2048), device(1024), device(4096)].join(",");
        for words in [&["--devices", &devices, "--size", "4G"][..], &["--size", "4G", "--devices", &devices]] {
            assert_eq!(config(words).plan.device_bytes, 1 << 30, "{words:?}");
        }
        assert_eq!(config(&["--size", "3G"]).plan.device_bytes, 3 << 30);
        assert!(parse(["--devices", &device(100)]).is_err());
    }

    #[test]
    fn rows_by_beginning() {
        let c = config(&["--only", "append,stat"]);
        assert!(c.wants("append-fsync-4") && c.wants("stat") && !c.wants("create"));
        assert!(parse(["--only", "no-such-row"]).is_err());
    }

    #[test]
    fn help_is_given() {
        for words in [&["--help"][..], &["-h"], &["--quick", "--help"]] {
            assert!(matches!(parse(words.iter().copied()), Ok(Task::Print(text)) if text == HELP), "{words:?}");
        }
    }

    #[test]
    fn what_is_wrong_is_said() {
        for words in [
            &["--slices", "0"][..],
            &["--suite", "all"],
            &["--size", "1M"],
            &["--frob", "1"],
            &["row"],
            &["--contenders", "zfs"],
        ] {
            assert!(matches!(parse(words.iter().copied()), Err(Error::Refused(_))), "{words:?}");
        }
    }
}
