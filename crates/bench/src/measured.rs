//! What the crash simulator has to pass for a figure to count: each nenrin contender that is measured, as the simulator runs it.
//!
//! Mount options of what the file system itself does go to the simulator as they are, devices and layout as its own. What the
//! front end does is above it: [`ABOVE`] says what tries that instead. An option that is in neither list is an error, so that
//! nothing is measured whose promises nothing has tried.

use std::collections::BTreeMap;

use crate::contender::{Contender, Kind, Layout};
use crate::error::{Error, Result};
use crate::workload::{Suite, groups};

/// Suites by the names that `--suite` takes.
pub const SUITES: [(&str, Suite); 8] = [
    ("main", Suite::Main),
    ("sync", Suite::Sync),
    ("databases", Suite::Databases),
    ("cost", Suite::Cost),
    ("limited", Suite::Limited),
    ("guest", Suite::Guest),
    ("clean", Suite::Clean),
    ("stripe", Suite::Stripe),
];

/// Mount options that `nenrin-sim --mounted` takes.
const SIMULATED: [&str; 4] = ["order=", "barrier=", "cache=", "checkpoint="];

/// What a mount has by itself.
const USUAL: [&str; 4] = ["order=relaxed", "barrier=sync", "cache=writethrough", "checkpoint=5"];

/// What the front end does, which is above the simulator, and what tries it on a real mount.
pub const ABOVE: [(&str, &str); 4] = [
    (
        "cache=writeback",
        "the kernel's side of it: fsx, pjdfstest, fio-verify, kill, git, tree (scripts/tests), each in both cache modes",
    ),
    ("transport=uring", "kill and fsx over it: scripts/tests/uring.sh; crates/fuse/tests/uring.rs"),
    ("allow_other", "scripts/tests/two-users.sh"),
    ("own_check", "crates/fuse/tests/mounted.rs, pjdfstest as two users"),
];

/// A contender and how it is simulated.
#[derive(Debug, PartialEq, Eq)]
pub struct Simulated {
    /// Arguments of `nenrin-sim run`.
    pub arguments: String,
    /// Options above it.
    pub above: Vec<&'static str>,
}

/// How the simulator runs a contender.
///
/// # Errors
/// When an option is in no list here.
pub fn simulated(contender: &Contender) -> Result<Simulated> {
    let (mut mounted, mut above) = (Vec::new(), Vec::new());
    for option in &contender.options {
        let front = ABOVE.iter().map(|(name, _)| *name).find(|name| name == option);
        let core = SIMULATED.iter().any(|prefix| option.starts_with(prefix));
        if front.is_none() && !core {
            return Err(Error::Refused(format!(
                "{}: the simulator does not take `{option}`, and crates/bench/src/measured.rs does not say what tries it instead",
                contender.name
            )));
        }
        above.extend(front);
        mounted.extend((core && !USUAL.contains(&option.as_str())).then_some(option.as_str()));
    }
    // One configuration is one run, whatever the order of its options.
    mounted.sort_unstable();
    let options = if mounted.is_empty() { "defaults".to_owned() } else { mounted.join(",") };
    let devices = match (contender.devices, contender.layout) {
        (0 | 1, _) => String::new(),
        (count, Layout::Stripe) => format!(" --devices {count} --layout stripe"),
        (count, Layout::Mirror) => format!(" --devices {count} --layout mirror"),
        (count, Layout::Parity) => format!(" --devices {count} --layout parity"),
        // One of them dies, and the world goes on without it.
        (count, Layout::Degraded) => format!(" --devices {count} --layout mirror --deaths"),
    };
    Ok(Simulated { arguments: format!("--mounted {options}{devices}"), above })
}

/// All nenrin contenders of the suites and `more`, with the suites that measure them.
fn contenders(more: &[Contender]) -> Result<BTreeMap<String, (Contender, Vec<&'static str>)>> {
    let mut all = BTreeMap::new();
    let mut add = |contender: Contender, suite: Option<&'static str>| {
        if contender.kind == Kind::Nenrin {
            let (_, suites) = all.entry(contender.name.clone()).or_insert((contender, Vec::new()));
            if let Some(name) = suite.filter(|name| !suites.contains(name)) {
                suites.push(name);
            }
        }
    };
    for (suite_name, suite) in SUITES {
        for contender in groups(suite).into_iter().flat_map(|group| group.contenders) {
            add(Contender::parse(contender)?, Some(suite_name));
        }
    }
    more.iter().for_each(|contender| add(contender.clone(), None));
    Ok(all)
}

/// A run of the simulator.
#[derive(Default, serde::Serialize)]
struct Run {
    arguments: String,
    contenders: Vec<String>,
    /// Where they are measured.
    suites: Vec<&'static str>,
    /// Options above it, and what tries them.
    above: BTreeMap<&'static str, &'static str>,
}

/// A line of JSON for each run of the simulator: its arguments, whom it stands for, where they are measured, what is above it.
///
/// # Errors
/// When a contender has an option that is in no list here.
pub fn list(more: &[Contender]) -> Result<String> {
    let mut runs: BTreeMap<String, Run> = BTreeMap::new();
    for (name, (contender, suites)) in contenders(more)? {
        let Simulated { arguments, above } = simulated(&contender)?;
        let run = runs.entry(arguments.clone()).or_insert_with(|| Run { arguments, ..Run::default() });
        run.contenders.push(name);
        let new: Vec<&str> = suites.into_iter().filter(|suite| !run.suites.contains(suite)).collect();
        run.suites.extend(new);
        run.above.extend(ABOVE.iter().filter(|(option, _)| above.contains(option)).copied());
    }
    let line = |run| serde_json::to_string(run).map(|line| line + "\n").map_err(|e| Error::Refused(e.to_string()));
    runs.values().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(name: &str) -> Result<Simulated> {
        simulated(&Contender::parse(name).unwrap())
    }

    /// Nothing is measured whose options the simulator lacks.
    #[test]
    fn every_contender_is_simulated() {
        for (name, (contender, suites)) in contenders(&[]).unwrap() {
            simulated(&contender).unwrap_or_else(|e| panic!("{suites:?} measure {name}: {e}"));
        }
        assert!(list(&[]).is_ok());
    }

    /// And the simulator has passed for it: `scripts/crash.sh --measured` writes what is read here.
    #[test]
    fn every_contender_has_passed() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/benchmarks/sync/simulated.jsonl");
        let kept = std::fs::read_to_string(path).unwrap();
        let lines: Vec<serde_json::Value> = kept.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        for (name, (contender, suites)) in contenders(&[]).unwrap() {
            let arguments = simulated(&contender).unwrap().arguments;
            let words = if suites.contains(&"clean") { " --profile clean --steps 300" } else { "" };
            for wanted in [arguments.clone(), format!("{arguments}{words}")] {
                let line = lines.iter().find(|line| line["arguments"] == wanted.as_str());
                let line = line.unwrap_or_else(|| panic!("{name}: no run `{wanted}`: scripts/crash.sh --measured"));
                assert!(line["contenders"].as_array().unwrap().iter().any(|c| c == name.as_str()), "{name}: {line}");
                assert!(line["failures"] == 0 && line["images"].as_u64() >= Some(1000), "{name}: {line}");
            }
        }
    }

    #[test]
    fn what_no_list_has_is_refused() {
        for name in ["nenrin+commit=60", "nenrin+noatime", "nenrin+cache=writeback+mmp"] {
            let error = of(name).unwrap_err().to_string();
            assert!(error.contains(name) && error.contains("measured.rs"), "{error}");
            assert!(list(&[Contender::parse(name).unwrap()]).is_err());
        }
    }

    #[test]
    fn options_devices_and_what_is_above() {
        let arguments = |name| of(name).unwrap().arguments;
        assert_eq!(arguments("nenrin"), "--mounted defaults");
        assert_eq!(arguments("nenrin+transport=uring"), "--mounted defaults");
        assert_eq!(arguments("nenrin+cache=writethrough+order=strict"), "--mounted order=strict");
        assert_eq!(arguments("nenrin+checkpoint=0+barrier=none"), "--mounted barrier=none,checkpoint=0");
        assert_eq!(arguments("nenrin@4:parity"), "--mounted defaults --devices 4 --layout parity");
        assert_eq!(arguments("nenrin@2:degraded"), "--mounted defaults --devices 2 --layout mirror --deaths");
        assert_eq!(of("nenrin+cache=writeback+own_check").unwrap().above, ["cache=writeback", "own_check"]);
    }

    #[test]
    fn contenders_of_one_run_are_together() {
        let listed = list(&[Contender::parse("nenrin+barrier=none+order=strict").unwrap()]).unwrap();
        let line = listed.lines().find(|line| line.contains("\"--mounted defaults\"")).unwrap();
        for wanted in ["\"nenrin\"", "nenrin+transport=uring", "nenrin+allow_other", "two-users.sh", "sync", "guest"] {
            assert!(line.contains(wanted), "{line}");
        }
        assert!(listed.contains("--mounted barrier=none,order=strict"));
    }
}
