//! `nenrin compare`: what several file systems write for the same work.

mod measure;
mod plan;
mod result;
mod site;

use crate::cmd::trace::child;
use crate::command::{Command, arguments, text_value};
use crate::error::{At, Fail, Outcome};
use crate::output::{self, notice};
use crate::size::parse_bytes;
use crate::{mounts, sys, written};
use measure::Measured;
use plan::{Contender, Pattern};
use std::fs;
use std::io::IsTerminal;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// The command.
pub const COMMAND: Command = Command {
    name: "compare",
    usage: &["compare --fs LIST [--pattern LIST] [--size SIZE] [--runs N] [--device DEV|--image FILE] [OPTION...]"],
    about: "Compares what file systems write to their device for the same work: metadata, requests, when and where",
    options: &[
        (
            "--fs LIST",
            "of ext4, ext4-full, xfs, btrfs, nilfs2, f2fs, exfat, jfs, nenrin; with mount options after a colon",
        ),
        ("--pattern LIST", "of seq, rand, small, db, log, or files with jobs of fio, called otherwise (seq,rand)"),
        ("--size SIZE", "of the data that seq and rand write; the others write a part of it (256M)"),
        ("--runs N", "how often each is run (1); medians are shown"),
        ("--device DEV", "a block device to write to: what is on it is LOST"),
        ("--image FILE", "a file to write to, through a loop device; made and removed if it is not there"),
        ("--image-size SIZE", "size of a file that is made (four times --size, at least 2G)"),
        ("--destroy", "overwrite a device or file that holds something"),
        ("--keep DIR", "keep the traces there; nenrin trace report reads them"),
        ("--html PAGE", "write a page with plots, which needs nothing else"),
        ("--markdown FILE", "write tables as Markdown, and plots beside it as SVG"),
        ("--json", "as JSON"),
    ],
    notes: "Each is made and mounted with its defaults, loaded by fio (fsync_on_close, fallocate=native, seed fixed), and unmounted. What\n\
            reaches the device from before the mount to after the unmount is recorded; metadata is what goes beyond the data. What a\n\
            mount of five seconds writes by itself is shown apart and taken off. It needs root, fio, losetup and the mkfs programs.\n\
            Ctrl-C is safe: everything is unmounted and detached. File systems that this kernel lacks: scripts/guest/compare.sh runs\n\
            this command in a virtual machine.",
    examples: &[
        ("compare --fs ext4,xfs,btrfs,nenrin --html writes.html", "on a file of 2 GiB that is removed afterwards"),
        ("compare --fs ext4,f2fs --pattern small,db --device /dev/sdc --destroy", "on a card whose content may go"),
        ("compare --fs nenrin,nenrin:cache=writeback --pattern log --runs 3", "with other mount options"),
    ],
    run,
};

struct Wishes {
    contenders: Vec<Contender>,
    patterns: Vec<Pattern>,
    bytes: u64,
    runs: u32,
    device: Option<PathBuf>,
    image: Option<PathBuf>,
    image_bytes: Option<u64>,
    keep: Option<PathBuf>,
    html: Option<PathBuf>,
    markdown: Option<PathBuf>,
    destroy: bool,
    json: bool,
}

/// The smallest amount that patterns are made for.
const BYTES_MIN: u64 = 8 << 20;

/// This program, for the daemon's sake by its real path.
pub fn own_program() -> PathBuf {
    std::env::current_exe().unwrap_or_else(|_| "nenrin".into())
}

fn run(parser: &mut lexopt::Parser) -> Outcome {
    let wishes = wishes(parser)?;
    check(&wishes)?;
    child::watch()?;
    let bytes = wishes.image_bytes.unwrap_or((wishes.bytes * 4).max(2 << 30));
    let site = site::Site::open(
        wishes.device.as_deref(),
        wishes.image.as_deref(),
        bytes,
        wishes.keep.as_deref(),
        wishes.destroy,
    )?;
    let all = measure_all(&wishes, &site)?;
    let result = result::Result::new(&wishes.contenders, &wishes.patterns, &all, wishes.bytes, wishes.runs, &site)?;
    if wishes.json {
        output::json(&result.json())?;
    } else {
        output::print(&result.text());
    }
    if let Some(page) = &wishes.html {
        written::write(page, result.page()?).at(page.display())?;
    }
    if let Some(file) = &wishes.markdown {
        result.markdown(file)?;
    }
    Ok(0)
}

fn wishes(parser: &mut lexopt::Parser) -> Result<Wishes, Fail> {
    let mut w = Wishes {
        contenders: Vec::new(),
        patterns: Vec::new(),
        bytes: 256 << 20,
        runs: 1,
        device: None,
        image: None,
        image_bytes: None,
        keep: None,
        html: None,
        markdown: None,
        destroy: false,
        json: false,
    };
    let size = |parser: &mut lexopt::Parser, what: &str| -> Result<u64, Fail> {
        let text = text_value(parser)?;
        parse_bytes(&text).ok_or_else(|| Fail::usage(format!("{what} {text:?}: a size like 512M is needed")))
    };
    arguments(&COMMAND, parser, 0, |flag, parser| {
        match flag.shown().as_str() {
            "--fs" => w.contenders = list(&text_value(parser)?).map(Contender::parse).collect::<Result<_, _>>()?,
            "--pattern" => w.patterns = list(&text_value(parser)?).map(Pattern::parse).collect::<Result<_, _>>()?,
            "--size" => w.bytes = size(parser, "--size")?,
            "--image-size" => w.image_bytes = Some(size(parser, "--image-size")?),
            "--runs" => {
                let text = text_value(parser)?;
                w.runs = text
                    .parse()
                    .ok()
                    .filter(|n| (1..=100).contains(n))
                    .ok_or_else(|| Fail::usage(format!("--runs {text:?}: a number from 1 to 100 is needed")))?;
            }
            "--device" => w.device = Some(parser.value()?.into()),
            "--image" => w.image = Some(parser.value()?.into()),
            "--keep" => w.keep = Some(parser.value()?.into()),
            "--html" => w.html = Some(parser.value()?.into()),
            "--markdown" => w.markdown = Some(parser.value()?.into()),
            "--destroy" => w.destroy = true,
            "--json" => w.json = true,
            _ => return Ok(false),
        }
        Ok(true)
    })?;
    if w.contenders.is_empty() {
        return Err(COMMAND.misuse("--fs is needed"));
    }
    if w.device.is_some() && w.image.is_some() {
        return Err(COMMAND.misuse("--device and --image exclude each other"));
    }
    if w.bytes < BYTES_MIN {
        return Err(Fail::usage("--size: at least 8M are needed for the patterns to mean anything"));
    }
    if w.patterns.is_empty() {
        w.patterns = vec![Pattern::Sequential, Pattern::Random];
    }
    plan::are_distinct(&w.contenders, &w.patterns)?;
    Ok(w)
}

fn list(text: &str) -> impl Iterator<Item = &str> {
    text.split(',').filter(|t| !t.is_empty())
}

/// Everything that can be wrong is said before anything is touched.
fn check(w: &Wishes) -> Result<(), Fail> {
    if sys::euid() != 0 {
        return Err(Fail::new("comparing makes and mounts file systems, which only root may; run it as root"));
    }
    if !has("fio") {
        return Err(Fail::new("fio is missing, which makes the load; apt-get install fio"));
    }
    for c in &w.contenders {
        let (program, package) = c.kind.mkfs;
        if c.is_ours() {
            if !PathBuf::from("/dev/fuse").exists() {
                return Err(Fail::new("nenrin: there is no /dev/fuse here; modprobe fuse"));
            }
            continue;
        }
        if !kernel_has(c.kind.fstype) {
            return Err(Fail::at(
                c.kind.name,
                "this kernel has no such file system; scripts/guest/compare.sh runs it in a virtual machine, or leave it out of --fs",
            ));
        }
        if !has(program) {
            return Err(Fail::at(c.kind.name, format!("{program} is missing; apt-get install {package}")));
        }
    }
    Ok(())
}

fn has(program: &str) -> bool {
    let path = std::env::var("PATH").unwrap_or_default();
    path.split(':').chain(["/usr/sbin", "/sbin"]).any(|d| std::path::Path::new(d).join(program).is_file())
}

/// Whether the kernel has it, or a module that can be loaded.
fn kernel_has(fstype: &str) -> bool {
    let listed = || {
        let text = fs::read_to_string("/proc/filesystems").unwrap_or_default();
        text.lines().any(|l| l.split_ascii_whitespace().next_back() == Some(fstype))
    };
    listed() || {
        let _ = std::process::Command::new("modprobe").args(["-q", fstype]).output();
        listed()
    }
}

/// Every contender takes its turn in every pattern of every run, in an order that rotates.
fn measure_all(w: &Wishes, site: &site::Site) -> Result<Vec<Measured>, Fail> {
    let patterns: Vec<Pattern> = std::iter::once(Pattern::Idle).chain(w.patterns.iter().cloned()).collect();
    let total = w.runs as usize * patterns.len() * w.contenders.len();
    let mut out = Vec::with_capacity(total);
    let begin = Instant::now();
    for run in 0..w.runs {
        for (p, pattern) in patterns.iter().enumerate() {
            for n in 0..w.contenders.len() {
                let which = (n + p + run as usize) % w.contenders.len();
                let contender = &w.contenders[which];
                progress(out.len(), total, begin, &format!("{} {}", contender.label, pattern.name()));
                let place = format!("{} ({})", contender.label, pattern.name());
                let one = measure::measure(site, contender, which, pattern, run, w.bytes);
                let one =
                    one.map_err(|e| if e.code > 128 { e } else { Fail { message: format!("{place}: {e}"), ..e } })?;
                out.push(one);
            }
        }
    }
    debug_assert!(mounts::of_point(&site.mount).is_none());
    Ok(out)
}

/// What is under way, and how long it may take; on a terminal only.
fn progress(done: usize, total: usize, begin: Instant, what: &str) {
    if !std::io::stderr().is_terminal() {
        return;
    }
    let left = match done {
        0 => String::new(),
        n => {
            let left = begin.elapsed() * (total - n) as u32 / n as u32;
            format!(", about {} s left", Duration::as_secs(&left) + 1)
        }
    };
    notice(format!("{} of {total}: {what}{left}", done + 1));
}
