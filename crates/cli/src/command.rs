//! What a command is: its help and its entry, as data.

use crate::error::{Fail, Outcome};
use std::fmt::Write as _;
use std::path::Path;

/// One command of the program.
pub struct Command {
    /// Its name.
    pub name: &'static str,
    /// Its arguments, one line for each form.
    pub usage: &'static [&'static str],
    /// What it does, in one line for the list of commands.
    pub about: &'static str,
    /// Its options, and what they do.
    pub options: &'static [(&'static str, &'static str)],
    /// What else a user has to know; may be empty.
    pub notes: &'static str,
    /// Calls to copy, and what they do.
    pub examples: &'static [(&'static str, &'static str)],
    /// Runs it on the rest of the command line.
    pub run: fn(&mut lexopt::Parser) -> Outcome,
}

impl Command {
    /// What --help prints.
    pub fn help(&self) -> String {
        let mut out = String::new();
        for (i, usage) in self.usage.iter().enumerate() {
            let _ = writeln!(out, "{} nenrin {usage}", if i == 0 { "usage:" } else { "      " });
        }
        let _ = writeln!(out, "\n{}.", self.about);
        if !self.notes.is_empty() {
            let _ = writeln!(out, "\n{}", self.notes);
        }
        out.push_str("\noptions:\n");
        let help = ("-h, --help", "print this");
        let width = self.options.iter().chain([&help]).map(|(o, _)| o.len()).max().unwrap_or(0);
        for (option, what) in self.options.iter().chain([&help]) {
            let _ = writeln!(out, "  {option:width$}  {what}");
        }
        out.push_str("\nexamples:\n");
        for (call, what) in self.examples {
            let _ = writeln!(out, "  nenrin {call}\n      {what}");
        }
        out
    }
    /// The failure of a call that does not fit [`Command::usage`].
    pub fn misuse(&self, why: impl std::fmt::Display) -> Fail {
        Fail::usage(format!("{why}; usage: nenrin {}", self.usage.join(" | nenrin ")))
    }
}

/// Takes the arguments of a command apart: `option` handles each option, and
/// says `false` for one it does not know; positional arguments are returned.
pub fn arguments(
    command: &Command,
    parser: &mut lexopt::Parser,
    at_most: usize,
    mut option: impl FnMut(&Flag<'_>, &mut lexopt::Parser) -> Result<bool, Fail>,
) -> Result<Vec<std::ffi::OsString>, Fail> {
    let mut positional = Vec::new();
    while let Some(arg) = parser.next()? {
        let flag = match arg {
            lexopt::Arg::Value(v) if positional.len() < at_most => {
                positional.push(v);
                continue;
            }
            lexopt::Arg::Value(v) => return Err(command.misuse(format!("unexpected argument {v:?}"))),
            lexopt::Arg::Short(c) => Flag::Short(c),
            lexopt::Arg::Long(l) => Flag::Long(l.to_owned().into()),
        };
        if matches!(&flag, Flag::Short('h')) || matches!(&flag, Flag::Long(l) if l == "help") {
            crate::output::print(&command.help());
            return Err(Fail::new("").with_code(0));
        }
        if !option(&flag, parser)? {
            return Err(command.misuse(format!("unknown option {}", flag.shown())));
        }
    }
    // Each of them may be a path; without any the directory that we are in is meant.
    let here = [".".into()];
    let places = if positional.is_empty() { &here[..] } else { &positional };
    places.iter().try_for_each(|place| crate::control::is_answered(Path::new(place)))?;
    Ok(positional)
}

/// An option, without its value.
pub enum Flag<'a> {
    /// `-x`.
    Short(char),
    /// `--word`.
    Long(std::borrow::Cow<'a, str>),
}

impl Flag<'_> {
    /// As typed.
    pub fn shown(&self) -> String {
        match self {
            Self::Short(c) => format!("-{c}"),
            Self::Long(l) => format!("--{l}"),
        }
    }
    /// Whether it is this one: `-x` or `--word`.
    pub fn is(&self, text: &str) -> bool {
        self.shown() == text
    }
}

/// The value of an option, as text.
pub fn text_value(parser: &mut lexopt::Parser) -> Result<String, Fail> {
    parser.value()?.into_string().map_err(|v| Fail::usage(format!("{v:?} is not valid text")))
}
