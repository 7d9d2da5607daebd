//! The manual pages, made of the same data as --help: `nenrin help --man DIR` writes them.
//!
//! What --help has no room for is told in [`MORE`].

use crate::command::Command;
use crate::error::{At, Fail};
use crate::{cmd, personality};
use roff::{Roff, bold, roman};
use std::path::Path;

/// Sections of the page of a command beyond its help: the command, the heading, paragraphs. A paragraph whose first
/// line ends in a colon is an item: that line is its name.
const MORE: &[(&str, &str, &[&str])] = &[
    (
        "mount",
        "WHAT A SYNC PROMISES",
        &[
            "A sync is fsync(2), fdatasync(2), msync(2) with MS_SYNC, or a write to a file that is open with O_SYNC or O_DSYNC; nenrin umount and \
         nenrin checkpoint create promise the same for the whole volume. sync(2), syncfs(2) and umount(2) return without waiting for the daemon, as for any \
         ordinary FUSE file system: what they were called for is committed within the time of commit=, and the next mount waits for it.",
            "One exception: what is written anew to a file that is open for it and was emptied (O_TRUNC, ftruncate(2)) is held back until that file is closed or synced, for 30 seconds at most. Until then commits \
         by time, syncs of other files under order=relaxed, checkpoints and snapshots leave it out: they have the old content, and so has the file after a crash. nenrin umount waits for nobody and leaves nothing out.",
            "Whatever the options, but for barrier=none on a device that loses its cache, after a crash the volume mounts by itself. Names are a prefix of the changes that were made to them, in their order. Each file has \
         exactly the content of one of its commits, never a mix, and a request to write is there whole or not at all; cutting off more than a thousand extents, or punching a hole through them, may be there in part, from the end. A rename over a name, or a file emptied \
         to be written anew, shows the old content or the new, never an empty or torn file, unless its permissions were widened while it was written: then never the old. \
         Who is given more of a file by its own mode, owner, access list, capabilities or a name in another directory is never shown what it held before that; what is below a directory that is opened or moved may be of an earlier moment. The end of the daemon alone (killed, out of memory) loses nothing that was acknowledged, under any barrier=.",
            "order=relaxed (default):\nA sync carries its file, and all changes of names, types, modes, owners and attributes before it, on the whole volume; not what other files contain. \
         After a crash other files may be of another moment, by commit= at most; under cache=writeback also by what the kernel kept.",
            "order=strict:\nA sync carries all that was received before it, of every file. After a crash names and all files are of one moment, but for a file that was emptied and is being written anew: where no sync came since, that may be older, by 30 seconds at most. Excludes cache=writeback.",
            "barrier=sync (default):\nA sync returns when what it wrote and all that it needs cannot be lost with the cache of the device: after a flush, or, where it needs nothing else, by a write that is durable by itself. \
             What was acknowledged survives a power cut.",
            "barrier=checkpoint:\nThe device is flushed when the index is written out, not at each sync. After a power cut the volume is consistent, and has all that was acknowledged before the last \
         complete writing of the index began; what was acknowledged later may be gone, as far back as recovery reads the log. What nenrin forget acknowledges is flushed all the same.",
            "barrier=none:\nThe device is never flushed. For devices whose cache survives a power cut, where all that was acknowledged is there. On any other device nothing is promised \
         after a power cut, not even that the volume mounts.",
            "cache=writethrough (default):\nThe daemon has every byte when write(2) returns, and it is committed within the time of commit=. A full volume is told by write(2), \
         and every byte that write(2) accepted is readable. What is written to a shared mapping (mmap(2)) the kernel keeps for up to half a minute, as under writeback, until msync(2), munmap(2) or what is told next.",
            "cache=writeback:\nThe kernel keeps what is written, for up to half a minute, and sends it in whole pages in an order of its own. Until then it is lost with the machine, and with the daemon. \
         What finds no room when the kernel sends it is lost, and told by fsync(2) and close(2); and by the next write(2) to the file, with ENOSPC, on Linux 5.17 or newer. From then on, until there is room again (64M, or a sixteenth of the volume where that is less),          each write(2) waits until what was written to the file before has been sent, and is refused where that found no room: so whoever writes on loses one write at most of each two. What a shared mapping changed is told by msync(2) and by the next write(2).          nenrin info tells what was lost, and in which files. A sync promises what it does under writethrough. Excludes order=strict.",
            "Under either, what the kernel keeps of a file is brought in before the file gets the name of another, and of all files before nenrin checkpoint create, nenrin snapshot create and nenrin umount; checkpoints that are cut by themselves do not wait for it.",
        ],
    ),
    (
        "mount",
        "HOW THIS IS TESTED",
        &[
            "The simulator, nenrin-sim, cuts the power at every write and flush of random work, drops, keeps or tears what was not flushed, recovers, and compares with what was acknowledged. \
         It does so under both orders and all barriers, each as promised above: under sync it demands all that was acknowledged, under checkpoint what was acknowledged before the last complete \
         writing of the index began, and all where the device's cache survives; under none it keeps all that was written, as a protected cache does. \
         Under strict it demands one moment for all files. A quarter of its worlds that are not strict have a kernel's cache before the file system, as under cache=writeback. \
         What it takes for granted of a device is told in docs/CRASH-MODEL.md of the source.",
        ],
    ),
    (
        "mount",
        "TIMES OF FILES",
        &[
            "Times are kept to the nanosecond, from September 1677 to April 2262. What is set beyond that (touch(1), utimensat(2)) is kept as the nearest of these, without an error, \
         as ext4 and xfs do it beyond theirs (1901 to 2446, and to 2486).",
        ],
    ),
    (
        "mount",
        "FSTAB",
        &[
            "UUID=0f8fad5b-d9cb-469f-a165-70867728950e /data nenrin noatime,allow_other,nofail 0 0:\nmounts a volume at boot, for all users, and goes on without it where it is not there. A name as /dev/sdb1 may be \
             given to another device at the next boot. Of a volume of several devices each has this UUID, and is enough: the others are found. A list, as /dev/sdb1,/dev/sdc1, is no device to systemd, which waits \
             for it in vain.",
            "LABEL=my\\040disk /data nenrin nofail 0 0:\nthe same by the label, in which a space is written so.",
            "/srv/work.img /data nenrin nofail 0 0:\na volume in a file.",
            "UUID= and LABEL= need the rule for udev that make install has put beside its own (66-nenrin.rules). Without it write a name of /dev/disk/by-id, and by hand nenrin mount LABEL=..., which looks itself.",
            "mount(8) waits for devices of the volume that are not there yet, 10 seconds at most; x-systemd.requires=/dev/disk/by-id/... has systemd wait for one that takes longer. degraded does not belong into fstab: a device that comes later than that would be left out, and \
             what is written until it is up to date again would have one copy less. Where one is lost mount it by hand, with -o degraded, and see nenrin-device(8).",
        ],
    ),
];

/// Writes the page of the program, one for each command, and the names that mount(8), mkfs(8) and fsck(8) know.
///
/// # Errors
/// When a file cannot be written.
pub fn write(directory: &Path) -> Result<(), Fail> {
    let put = |name: &str, text: &str| {
        let path = directory.join(format!("{name}.8"));
        std::fs::write(&path, text).at(path.display())
    };
    put("nenrin", &overview())?;
    for command in cmd::ALL {
        put(&page_name(command.name), &page(command))?;
    }
    for helper in personality::HELPERS {
        put(helper.name, &format!(".so man8/{}.8\n", page_name(helper.command)))?;
    }
    Ok(())
}

fn page_name(command: &str) -> String {
    format!("nenrin-{command}")
}

fn begun(name: &str, about: &str) -> Roff {
    let mut page = Roff::new();
    let version = format!("nenrin {}", env!("CARGO_PKG_VERSION"));
    page.control("TH", [&name.to_uppercase(), "8", "", &version, "nenrin"]);
    page.control("SH", ["NAME"]).text([roman(format!("{name} - {about}"))]);
    page
}

/// Lines as they are.
fn verbatim(page: &mut Roff, text: &str) {
    page.control("nf", []);
    for line in text.lines() {
        page.text([roman(line)]);
    }
    page.control("fi", []);
}

fn page(command: &Command) -> String {
    let mut page = begun(&page_name(command.name), command.about);
    page.control("SH", ["SYNOPSIS"]);
    for usage in command.usage {
        page.text([bold("nenrin "), roman(*usage)]).control("br", []);
    }
    page.control("SH", ["DESCRIPTION"]).text([roman(format!("{}.", command.about))]);
    if !command.notes.is_empty() {
        page.control("PP", []);
        verbatim(&mut page, command.notes);
    }
    page.control("SH", ["OPTIONS"]);
    for (option, what) in command.options.iter().chain([&("-h, --help", "print the short form of this")]) {
        page.control("TP", []).text([bold(*option)]).text([roman(*what)]);
    }
    for (_, heading, paragraphs) in MORE.iter().filter(|more| more.0 == command.name) {
        page.control("SH", [*heading]);
        for paragraph in *paragraphs {
            match paragraph.split_once(":\n") {
                Some((name, text)) => page.control("TP", []).text([bold(name)]).text([roman(text)]),
                None => page.control("PP", []).text([roman(*paragraph)]),
            };
        }
    }
    page.control("SH", ["EXAMPLES"]);
    for (call, what) in command.examples {
        page.control("TP", []).text([bold(format!("nenrin {call}"))]).text([roman(*what)]);
    }
    page.control("SH", ["SEE ALSO"]).text([bold("nenrin"), roman("(8)")]);
    page.to_roff()
}

fn overview() -> String {
    let mut page = begun("nenrin", "a log-structured file system that keeps the past");
    page.control("SH", ["SYNOPSIS"]).text([bold("nenrin "), roman("COMMAND ...")]);
    page.control("SH", ["COMMANDS"]);
    for command in cmd::ALL {
        page.control("TP", []).text([bold(page_name(command.name)), roman("(8)")]).text([roman(command.about)]);
    }
    page.control("PP", []).text([roman(crate::BY_NAME)]);
    page.control("SH", ["GOING BACK"]);
    verbatim(&mut page, crate::GOING_BACK);
    page.control("SH", ["EXIT STATUS"]).text([roman(crate::EXIT_CODES)]);
    page.to_roff()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::OPTIONS;

    fn of(name: &str) -> String {
        page(cmd::ALL.iter().find(|c| c.name == name).unwrap())
    }

    /// Without the marks of roff for hyphens.
    fn read(page: &str) -> String {
        page.replace("\\-", "-")
    }

    #[test]
    fn every_command_has_a_page_and_the_names_lead_to_one() {
        let directory = tempfile::tempdir().unwrap();
        write(directory.path()).unwrap();
        let text = |name: &str| std::fs::read_to_string(directory.path().join(name)).unwrap();
        for command in cmd::ALL {
            assert!(read(&text("nenrin.8")).contains(&page_name(command.name)), "{}", command.name);
            let page = read(&text(&format!("nenrin-{}.8", command.name)));
            for (option, what) in command.options {
                assert!(page.contains(option) && page.contains(what), "{}: {option}", command.name);
            }
        }
        for name in personality::HELPERS.iter().map(|helper| helper.name) {
            let lead = text(&format!("{name}.8"));
            let page = lead.trim().strip_prefix(".so man8/").unwrap();
            assert!(directory.path().join(page).exists(), "{name}");
        }
        assert!(write(&directory.path().join("missing")).is_err());
    }

    /// Each value of the options that say what a sync promises has its paragraph.
    #[test]
    fn the_page_of_mount_says_what_each_mode_promises() {
        let page = read(&of("mount"));
        for info in OPTIONS {
            let promises = ["order", "barrier", "cache"].contains(&info.name);
            for value in info.value.split('|').filter(|_| promises) {
                let item = format!("\\fB{}={value}", info.name);
                assert!(page.contains(&item), "{item} is missing:\n{page}");
            }
        }
    }

    /// Lines that roff takes for requests, though no page means them so.
    fn requests_by_mistake(page: &str) -> Vec<&str> {
        let known = ["TH", "SH", "PP", "TP", "nf", "fi", "br"];
        let is_meant = |line: &str| line[1..].split(' ').next().is_some_and(|word| known.contains(&word));
        let control = |line: &&str| line.starts_with('.') && !is_meant(line) || line.starts_with('\'');
        // Before the first section the formatter defines what it needs.
        page.lines().skip_while(|line| !line.starts_with(".TH")).filter(control).collect()
    }

    #[test]
    fn no_line_begins_with_what_roff_takes_for_a_request() {
        for command in cmd::ALL {
            let page = page(command);
            assert_eq!(requests_by_mistake(&page), [""; 0], "{}", command.name);
            assert!(page.contains(".SH SYNOPSIS"));
        }
        // Were such lines not marked as text, they would be seen here.
        let mut page = begun("p", "about");
        verbatim(&mut page, ".so other\n'br\n.nfs is a type");
        page.control("PP", []).text([roman(".TPs begin a line")]);
        let page = page.to_roff();
        assert_eq!(requests_by_mistake(&page), [""; 0], "{page}");
        let unmarked = page.replace("\\&", "");
        assert_eq!(
            requests_by_mistake(&unmarked),
            [".so other", "'br", ".nfs is a type", ".TPs begin a line"],
            "{page}"
        );
    }
}
