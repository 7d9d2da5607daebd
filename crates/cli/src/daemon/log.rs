//! What the daemon has to say while it serves.
//!
//! Invariants
//! 1. Logging never fails. It waits for what the log lies on, which may be the volume it is about or a host that does not answer, for
//!    [`LINE_TIME`] at most, and then no more until that answers.
//! 2. Where that answers a line is written when [`Log::line`] returns.
//! 3. Lines are written in order; those that are left out since too many wait are counted.

use crate::output::{notice, printable};
use crate::{clock, sys, when};
use std::collections::VecDeque;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// How long whoever has something to say waits until it is written.
const LINE_TIME: Duration = Duration::from_secs(1);
/// So many lines wait at most.
const LINES_MAX: usize = 1000;

/// Where lines go.
pub struct Log(Arc<Shared>);

/// What it shares with the thread that writes.
struct Shared {
    /// Absolute: the daemon leaves the directory that it was started in.
    path: Option<PathBuf>,
    terminal: bool,
    state: Mutex<State>,
    changed: Condvar,
    /// Had by who writes.
    to: Mutex<To>,
}

/// Where lines are written to, but for the terminal, to which whoever has something to say writes by itself.
struct To {
    file: Option<Box<dyn Write + Send>>,
}

enum Task {
    /// A line, for the file.
    Line(String),
    /// Here so many were left out, the first of them then.
    LeftOut(u64, i64),
    /// To go on in a file of that name.
    Reopen,
}

#[derive(Default)]
struct State {
    tasks: VecDeque<Task>,
    /// Tasks that were given, and those of them that are done.
    given: u64,
    done: u64,
    /// Since when one is being done.
    since: Option<Instant>,
    has_thread: bool,
    ended: bool,
}

fn open(path: &Path) -> io::Result<File> {
    OpenOptions::new().create(true).append(true).mode(0o600).open(path)
}

impl Log {
    /// To a file, if one is given, and in the foreground to standard error.
    ///
    /// # Errors
    /// The file cannot be opened.
    pub fn open(path: Option<&Path>, terminal: bool) -> io::Result<Self> {
        let path = path.map(std::path::absolute).transpose()?;
        let file = path.as_deref().map(open).transpose()?.map(|file| Box::new(file) as _);
        Ok(Self::to(path, file, terminal))
    }
    fn to(path: Option<PathBuf>, file: Option<Box<dyn Write + Send>>, terminal: bool) -> Self {
        let (state, changed) = (Mutex::default(), Condvar::new());
        Self(Arc::new(Shared { path, terminal, state, changed, to: Mutex::new(To { file }) }))
    }
    /// Whether it is that of a daemon, which has no terminal whose end could be meant.
    pub fn is_of_background(&self) -> bool {
        !self.0.terminal
    }
    /// Goes on in a file of that name, which may be a new one since the old one was moved away. Where that cannot be opened it goes on where it is.
    pub fn reopen(&self) {
        if self.0.path.is_some() {
            self.0.give(Task::Reopen, LINE_TIME);
        }
    }
    /// Adds a line. Names in it are those of users, and who reads a log does so at a terminal.
    pub fn line(&self, text: &str) {
        self.say(text, LINE_TIME);
    }
    fn say(&self, text: &str, time: Duration) {
        let text = printable(&text.replace('\n', " "));
        if self.0.terminal {
            notice(&text);
        }
        if self.0.path.is_some() {
            self.0.give(line(&text), time);
        }
    }
    /// Waits until all lines are written, but not for ever: where they are not by then they never are.
    pub fn finish(&self, time: Duration) {
        let end = Instant::now() + time;
        let state = self.0.lock();
        drop(self.0.wait(state, |state| state.done == state.given || Instant::now() >= end));
    }
}

impl Drop for Log {
    fn drop(&mut self) {
        self.0.lock().ended = true;
        self.0.changed.notify_all();
    }
}

fn line(text: &str) -> Task {
    Task::Line(line_of(clock::now(), text))
}

fn line_of(nanos: i64, text: &str) -> String {
    format!("{} nenrin[{}]: {text}\n", when::show_rfc3339(nanos), std::process::id())
}

impl State {
    /// Notes, where it would have been, that a line is left out.
    fn leave_out(&mut self) {
        match self.tasks.back_mut() {
            Some(Task::LeftOut(lines, _)) => *lines += 1,
            _ => {
                self.tasks.push_back(Task::LeftOut(1, clock::now()));
                self.given += 1;
            }
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing is written with it.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until that is so, and looks often enough for what is only a matter of time.
    fn wait<'a>(&self, mut state: MutexGuard<'a, State>, until: impl Fn(&State) -> bool) -> MutexGuard<'a, State> {
        while !until(&state) {
            state = self.changed.wait_timeout(state, LINE_TIME / 20).unwrap_or_else(PoisonError::into_inner).0;
        }
        state
    }

    /// Has a task done, and waits for that, unless it takes longer than `time`, or one of those before does already.
    fn give(self: &Arc<Self>, task: Task, time: Duration) {
        let mut state = self.lock();
        if matches!(task, Task::Line(_)) && state.tasks.len() >= LINES_MAX {
            state.leave_out();
            return;
        }
        state.tasks.push_back(task);
        state.given += 1;
        let number = state.given;
        if !state.has_thread {
            let this = self.clone();
            let started = thread::Builder::new().name("nenrin-log".into()).spawn(move || this.serve());
            state.has_thread = started.is_ok();
        }
        if !state.has_thread {
            // By who says it.
            while let Some(task) = state.tasks.pop_front() {
                state = self.perform(state, task);
            }
            return;
        }
        self.changed.notify_all();
        let begun = Instant::now();
        let is_late = |state: &State| state.since.is_some_and(|since| since.min(begun).elapsed() >= time);
        drop(self.wait(state, |state| state.done >= number || is_late(state)));
    }

    /// Does what is given, until there is no log.
    fn serve(self: &Arc<Self>) {
        let mut state = self.lock();
        loop {
            if let Some(task) = state.tasks.pop_front() {
                state = self.perform(state, task);
            } else if state.ended {
                return;
            } else {
                state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
            }
        }
    }

    fn perform<'a>(&'a self, mut state: MutexGuard<'a, State>, task: Task) -> MutexGuard<'a, State> {
        state.since = Some(Instant::now());
        drop(state);
        let mut to = self.to.lock().unwrap_or_else(PoisonError::into_inner);
        match (task, &self.path) {
            (Task::Reopen, Some(path)) => to.reopen(path),
            (task, _) => to.write(&task),
        }
        drop(to);
        let mut state = self.lock();
        state.done += 1;
        state.since = None;
        self.changed.notify_all();
        state
    }
}

impl To {
    fn write(&mut self, task: &Task) {
        let Some(file) = &mut self.file else { return };
        let _ = match task {
            Task::Line(line) => file.write_all(line.as_bytes()),
            Task::LeftOut(lines, since) => {
                let text = format!("{lines} lines were left out: the log did not take them");
                file.write_all(line_of(*since, &text).as_bytes())
            }
            Task::Reopen => Ok(()),
        };
    }

    fn reopen(&mut self, path: &Path) {
        match open(path) {
            Ok(file) => {
                // What a panic prints goes there, too.
                let _ = sys::redirect(&file, 2);
                self.file = Some(Box::new(file));
                self.write(&line("the log was opened anew"));
            }
            Err(e) => self.write(&line(&format!("{}: the log cannot be opened anew: {e}", path.display()))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    #[test]
    fn no_name_steers_the_terminal_of_who_reads_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        let log = Log::open(Some(&path), false).unwrap();
        log.line("f\u{1b}[2J\ng\u{9b}31m cannot be read");
        let said = std::fs::read_to_string(&path).unwrap();
        assert!(said.ends_with(": f\u{fffd}[2J g\u{fffd}31m cannot be read\n"), "{said:?}");
        assert_eq!(said.lines().count(), 1);
    }

    /// A file on a host that answers when it is told to.
    struct Silent(mpsc::Receiver<()>, Arc<Mutex<String>>);

    impl Write for Silent {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let _ = self.0.recv();
            self.1.lock().unwrap().push_str(std::str::from_utf8(bytes).unwrap());
            Ok(bytes.len())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn who_has_something_to_say_waits_for_no_silent_host() {
        let (answer, answers) = mpsc::channel();
        let said = Arc::new(Mutex::new(String::new()));
        let log = Log::to(Some("/log".into()), Some(Box::new(Silent(answers, said.clone()))), false);
        let short = Duration::from_millis(50);
        let begun = Instant::now();
        (0..LINES_MAX + 5).for_each(|n| log.say(&format!("line {n}"), short));
        log.finish(short);
        assert!(begun.elapsed() < Duration::from_secs(20) && said.lock().unwrap().is_empty());
        drop(answer);
        log.finish(Duration::from_secs(60));
        // The first was being written, and one more than fit was given meanwhile.
        let said: Vec<String> = said.lock().unwrap().lines().map(|l| l.split(": ").nth(1).unwrap().into()).collect();
        assert_eq!(said[0], "line 0");
        let is_told = |line: &String| line == "4 lines were left out";
        assert_eq!(said.iter().position(is_told), Some(LINES_MAX + 1), "where they would be");
        assert!(said[1..=LINES_MAX].iter().enumerate().all(|(n, line)| *line == format!("line {}", n + 1)));
        assert_eq!(said.len(), LINES_MAX + 2);
        log.line("again");
        drop(log);
    }
}
