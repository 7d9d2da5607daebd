//! The side that asks.

use super::silent::{self, Patience};
use super::{Hello, MountData, REPLY_BYTES_MAX, Reply, Request, sockets};
use crate::device;
use crate::error::{Fail, INTERRUPTED};
use crate::members;
use crate::mounts::{self, FSTYPE, Mount};
use crate::output::shell_quoted;
use crate::size::show_bytes;
use crate::sys;
use serde::de::DeserializeOwned;
use std::ffi::OsStr;
use std::fs;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::path::{Component, Path, PathBuf};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

/// A connection to the owner of a volume.
pub struct Client {
    stream: BufReader<UnixStream>,
    /// What the owner said of itself.
    pub hello: Hello,
    /// Where, and as whom, it answers.
    socket: PathBuf,
    uid: u32,
    patience: Patience,
    /// It did not answer any more, and may still answer what was asked then.
    is_silent: bool,
}

/// What came of asking at a socket.
enum Heard {
    Answer(Box<Client>),
    /// Somebody is there, and says nothing: this process.
    Silence(i32),
    /// Nobody is there, or somebody who is neither who was looked for nor root; or nothing that can be understood.
    Nothing,
}

impl Client {
    /// Connects, and asks who is there.
    fn connect(socket: &Path, uid: u32, patience: Patience) -> Heard {
        let Ok(stream) = sys::connect_now(socket) else { return Heard::Nothing };
        let Ok(peer) = sys::peer(&stream) else { return Heard::Nothing };
        let is_set = stream.set_read_timeout(Some(patience.hello)).is_ok();
        if peer.uid != uid && peer.uid != 0 || !is_set {
            return Heard::Nothing;
        }
        let (mut stream, mut is_silent) = (BufReader::new(stream), false);
        let waits = &mut || {
            is_silent = true;
            Err(silent::no_answer(peer.pid))
        };
        let hello = call(&mut stream, &Request::Hello, &mut |()| (), waits);
        let is_set = stream.get_ref().set_read_timeout(Some(patience.step)).is_ok();
        match hello {
            Ok(_) if !is_set => Heard::Nothing,
            Ok(hello) => Heard::Answer(Box::new(Self {
                stream,
                hello,
                socket: socket.to_owned(),
                uid,
                patience,
                is_silent: false,
            })),
            Err(_) if is_silent => Heard::Silence(peer.pid),
            Err(_) => Heard::Nothing,
        }
    }

    /// Whether it says that it has one of these devices.
    fn has_one_of(&self, identities: &[String]) -> bool {
        self.hello.identities.iter().any(|i| identities.contains(i))
    }

    /// Asks, and waits for the answer.
    ///
    /// # Errors
    /// What the owner answered; that it went away, or does not answer any more.
    pub fn call<T: DeserializeOwned>(&mut self, request: &Request) -> Result<T, Fail> {
        self.call_for_parts(request, &mut |()| ())
    }

    /// Asks for something long: `each` gets the parts as they come.
    ///
    /// # Errors
    /// As [`Client::call`].
    pub fn call_for_parts<T: DeserializeOwned, P: DeserializeOwned>(
        &mut self,
        request: &Request,
        each: &mut dyn FnMut(P),
    ) -> Result<T, Fail> {
        let (stream, mut waits) = self.waiting(request.is_quick());
        call(stream, request, each, &mut waits)
    }

    /// The connection, and what is to be done whenever nothing comes for a while: what takes its time goes on for as long as somebody is
    /// there, who answers others.
    fn waiting(&mut self, is_quick: bool) -> (&mut BufReader<UnixStream>, impl FnMut() -> Result<(), Fail>) {
        let (begun, peer) = (Instant::now(), self.pid());
        let Self { stream, hello, socket, uid, patience, is_silent } = self;
        let waits = move || {
            let hello_time = if silent::is_stopped(peer) { patience.hello } else { patience.alive };
            if let Heard::Silence(pid) = Self::connect(socket, *uid, Patience { hello: hello_time, ..*patience }) {
                *is_silent = true;
                return Err(silent::no_answer(pid));
            }
            *is_silent = is_quick && begun.elapsed() >= patience.quick;
            if *is_silent { Err(silent::no_news(hello.pid, patience.quick)) } else { Ok(()) }
        };
        (stream, waits)
    }

    /// The owner's process: as the kernel has it here, where it is seen from here.
    pub fn pid(&self) -> u32 {
        let seen = sys::peer(self.stream.get_ref()).ok().and_then(|peer| u32::try_from(peer.pid).ok());
        seen.filter(|pid| *pid > 0).unwrap_or(self.hello.pid)
    }

    /// Fails where the owner is known to be in another mount name space.
    pub fn is_in_our_space(&self) -> Result<(), Fail> {
        match mounts::is_same_space(self.hello.space.as_deref(), mounts::space().as_deref()) {
            true => Ok(()),
            false => Err(mounts::elsewhere(self.pid())),
        }
    }

    /// Fails where a path that we say is another's to the owner, who is in another mount name space, or under another root. What he is to be
    /// told of ours: nothing where he is known to find the same.
    pub fn shares(&self, path: &Path) -> Result<Option<String>, Fail> {
        let own = mounts::space();
        let seen =
            sys::peer(self.stream.get_ref()).ok().and_then(|peer| u32::try_from(peer.pid).ok()).filter(|pid| *pid > 0);
        match seen.and_then(|pid| mounts::finds_the_same(pid, path)) {
            Some(true) => Ok(None),
            None if mounts::is_same_space(self.hello.space.as_deref(), own.as_deref()) => Ok(own),
            _ => Err(mounts::elsewhere(self.pid())),
        }
    }

    /// Has the owner tell how closing the volume went, once that is done: to be asked before it can begin, since after that nobody may be
    /// there to be asked.
    ///
    /// # Errors
    /// Nobody will tell.
    pub fn await_closing(&self) -> Result<Awaited, Fail> {
        let mut client = match Self::connect(&self.socket, self.uid, self.patience) {
            Heard::Answer(client) if client.hello.pid == self.hello.pid => client,
            Heard::Silence(pid) => return Err(silent::no_answer(pid)),
            Heard::Answer(_) | Heard::Nothing => return Err(gone(&io::ErrorKind::NotFound.into())),
        };
        ask(&mut client.stream, &Request::Closing)?;
        let (stream, mut waits) = client.waiting(false);
        match reply::<(), ()>(stream, &mut waits)? {
            Reply::Part(()) => {}
            Reply::Ok(()) => return Err(Fail::new("the volume is closed already")),
            Reply::Error { code, message, .. } => return Err(Fail::new(message).with_code(code)),
        }
        drop(waits);
        Ok(Awaited(client))
    }

    /// The connection, to rest by.
    ///
    /// # Errors
    /// There can be no descriptor for it.
    pub fn line(&self) -> io::Result<Line> {
        self.stream.get_ref().try_clone().map(Line)
    }

    /// One at a socket, for tests.
    #[cfg(test)]
    pub fn at(socket: &Path) -> Self {
        match Self::connect(socket, sys::euid(), Patience::default()) {
            Heard::Answer(client) => *client,
            _ => unreachable!("somebody answers there"),
        }
    }

    /// Whether the owner's process has closed the connection by now.
    pub fn has_ended(&self) -> bool {
        let mut stream = self.stream.get_ref();
        let _ = stream.set_nonblocking(true);
        let ended = match stream.read(&mut [0]) {
            Ok(bytes) => bytes == 0,
            Err(e) => e.kind() != io::ErrorKind::WouldBlock,
        };
        let _ = stream.set_nonblocking(false);
        ended
    }

    /// Whether the owner lets go of the volume, or has done so and ended: why something that was asked of it failed. One that is silent,
    /// or was killed, has not.
    fn has_left(&mut self) -> bool {
        if self.is_silent {
            return false;
        }
        let is_closing = !self.has_ended() && self.call::<Hello>(&Request::Hello).is_ok_and(|hello| hello.closing);
        is_closing || self.has_ended() && !self.hello.mounts.iter().any(|m| mounts::is_dead(Path::new(&m.directory)))
    }

    /// A failure of something long, where the volume was unmounted meanwhile: `what` is told then.
    pub fn unless_left(&mut self, why: Fail, what: &str) -> Fail {
        if self.has_left() { Fail::new(format!("unmounted meanwhile: {what}")).with_code(INTERRUPTED) } else { why }
    }

    /// Waits until the owner's process has closed the connection.
    pub fn wait_for_end(mut self) {
        let _ = self.stream.get_ref().set_read_timeout(Some(Duration::from_secs(30)));
        let mut rest = [0; 64];
        while matches!(self.stream.read(&mut rest), Ok(n) if n > 0) {}
    }
}

/// How closing a volume goes, which its owner will tell.
pub struct Awaited(Box<Client>);

impl Awaited {
    /// Waits for that.
    ///
    /// # Errors
    /// It failed; the owner's process went away before it told.
    pub fn told(mut self) -> Result<(), Fail> {
        let (stream, mut waits) = self.0.waiting(false);
        hear(stream, &mut |()| (), &mut waits)
    }
}

/// A connection to an owner that nothing is asked by.
pub struct Line(UnixStream);

impl Line {
    /// Does nothing for that long, or until the owner's process has closed the connection: what is asked next tells that.
    pub fn rest(&self, time: Duration) {
        let begun = Instant::now();
        loop {
            let left = time.saturating_sub(begun.elapsed());
            if left.is_zero() || sys::hangs_up_within(&self.0, left) {
                return;
            }
        }
    }
}

fn call<T: DeserializeOwned, P: DeserializeOwned>(
    stream: &mut BufReader<UnixStream>,
    request: &Request,
    each: &mut dyn FnMut(P),
    waits: &mut dyn FnMut() -> Result<(), Fail>,
) -> Result<T, Fail> {
    ask(stream, request)?;
    hear(stream, each, waits)
}

fn ask(stream: &mut BufReader<UnixStream>, request: &Request) -> Result<(), Fail> {
    let mut line = serde_json::to_string(request).map_err(|e| strange(&e))?;
    line.push('\n');
    stream.get_mut().write_all(line.as_bytes()).map_err(|e| gone(&e))
}

/// An answer, and its parts.
fn hear<T: DeserializeOwned, P: DeserializeOwned>(
    stream: &mut BufReader<UnixStream>,
    each: &mut dyn FnMut(P),
    waits: &mut dyn FnMut() -> Result<(), Fail>,
) -> Result<T, Fail> {
    loop {
        match reply(stream, waits)? {
            Reply::Part(part) => each(part),
            Reply::Ok(value) => return Ok(value),
            Reply::Error { code, message, untouched } => {
                return Err(Fail { code, message, is_untouched: untouched });
            }
        }
    }
}

/// An answer, or a part of one.
fn reply<T: DeserializeOwned, P: DeserializeOwned>(
    stream: &mut BufReader<UnixStream>,
    waits: &mut dyn FnMut() -> Result<(), Fail>,
) -> Result<Reply<T, P>, Fail> {
    let line = line_of(stream, waits)?;
    serde_json::from_slice(&line).map_err(|e| match line.ends_with(b"\n") {
        _ if line.len() as u64 == REPLY_BYTES_MAX => {
            Fail::new(format!("the owner's answer has more than {}", show_bytes(REPLY_BYTES_MAX)))
        }
        // It ends with a line, or with who wrote it.
        false => gone(&io::ErrorKind::UnexpectedEof.into()),
        true => strange(&e),
    })
}

/// A line of an answer, or as much of it as there is; `waits` is called whenever nothing comes for a while.
fn line_of(stream: &mut BufReader<UnixStream>, waits: &mut dyn FnMut() -> Result<(), Fail>) -> Result<Vec<u8>, Fail> {
    let mut line = Vec::new();
    loop {
        match stream.by_ref().take(REPLY_BYTES_MAX - line.len() as u64).read_until(b'\n', &mut line) {
            Ok(_) => return Ok(line),
            Err(e) if matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => waits()?,
            Err(e) => return Err(gone(&e)),
        }
    }
}

fn gone(e: &io::Error) -> Fail {
    Fail::new(format!("the process that owns the volume went away: {e}"))
}

fn strange(e: &serde_json::Error) -> Fail {
    Fail::new(format!("the owner's answer makes no sense: {e}"))
}

/// Asks the daemons of these users for the one that fits: all at once, since one that is stopped, or waits for its device,
/// must not keep us from another. Where none fits, which processes do not answer.
fn find(uids: &[u32], fits: impl Fn(&Client) -> bool) -> (Option<Client>, Vec<i32>) {
    let (sender, found) = mpsc::channel();
    for (socket, uid) in uids.iter().flat_map(|uid| sockets(*uid).into_iter().map(move |s| (s, *uid))) {
        let sender = sender.clone();
        // Who asked may have found another.
        let ask = move || drop(sender.send(Client::connect(&socket, uid, Patience::default())));
        // Without a thread there is no more of this process than this command.
        let _ = sys::spawned_deaf(|| thread::Builder::new().name("nenrin-hello".into()).spawn(ask));
    }
    drop(sender);
    let mut silent = Vec::new();
    for heard in found {
        match heard {
            Heard::Answer(client) if fits(&client) => return (Some(*client), silent),
            Heard::Silence(pid) => silent.push(pid),
            Heard::Answer(_) | Heard::Nothing => {}
        }
    }
    (None, silent)
}

/// The owner of the volume on this device, or one of these, if it is this user's, or root's, and answers us.
pub fn owner_of_device(path: &Path) -> Option<Client> {
    let identities = identities_of(&members::split(path));
    find(&[sys::euid(), 0], |client| client.has_one_of(&identities)).0
}

fn identities_of(devices: &[PathBuf]) -> Vec<String> {
    devices.iter().flat_map(|p| device::identities(p)).collect()
}

/// The same; or else that it does not answer, where that is known. Also root asks no other user's process about a device: that may say
/// anything, and keep whoever asks for as long as it likes.
pub fn asked_of_device(path: &Path) -> (Option<Client>, Option<Fail>) {
    let devices = members::split(path);
    let identities = identities_of(&devices);
    if identities.is_empty() {
        return (None, None);
    }
    let (found, silent) = find(&[sys::euid(), 0], |client| client.has_one_of(&identities));
    let owner = silent.into_iter().find(|pid| devices.iter().any(|d| silent::has_open(*pid, d)));
    (found, owner.map(silent::no_answer))
}

/// All our mounts that are seen here.
fn ours() -> Vec<Mount> {
    mounts::all().unwrap_or_default().into_iter().filter(|m| m.fstype == FSTYPE).collect()
}

/// Adds to a failure of a device that is in use, or may not be opened, where another user has mounted it, as the list of mounts has it.
/// Whoever mounts chooses what that says he mounted: so it is only told, and no path of his is looked at.
pub fn with_place(path: &Path, fail: Fail) -> Fail {
    let names = names_of(path);
    let is_seen = |m: &Mount| m.user != sys::euid() && is_named(&m.source, &names);
    let all: Vec<Mount> = ours().into_iter().filter(is_seen).collect();
    let Some(user) = all.first().map(|m| m.user) else { return fail };
    let his: Vec<&Mount> = all.iter().filter(|m| m.user == user).collect();
    let places: Vec<String> = his.iter().map(|m| shell_quoted(&m.point)).collect();
    let who = if user == 0 { "root".to_owned() } else { format!("user {user}") };
    let what = match (sys::euid(), user) {
        (0, _) if his.iter().all(|m| silent::has_ended(m)) => {
            format!("the program behind it has ended; nenrin umount {} clears it", places[0])
        }
        (0, _) => format!("by that directory root reaches it: nenrin umount {}", places[0]),
        (_, 0) => "ask as root".to_owned(),
        _ => "ask as that user or as root".to_owned(),
    };
    let text = format!("{}; mounted at {} by {who}; {what}", fail.message, places.join(" and "));
    Fail { message: text, ..fail }
}

/// What the devices may be called where they are mounted, without looking at what others say.
fn names_of(path: &Path) -> Vec<PathBuf> {
    let each = |p: PathBuf| [fs::canonicalize(&p).ok(), Some(device::absolute(&p))];
    members::split(path).into_iter().flat_map(each).flatten().collect()
}

/// Whether a source is one of these names, or has one in its list.
fn is_named(source: &Path, names: &[PathBuf]) -> bool {
    // In these directories root alone makes links.
    let is_link_of_root = |p: &Path| ["/dev/disk", "/dev/mapper"].iter().any(|d| p.starts_with(d)) && is_plain(p);
    let is_it = |p: &Path| {
        let of = is_link_of_root(p).then(|| fs::canonicalize(p).ok()).flatten();
        names.iter().any(|name| name == p || Some(name) == of.as_ref())
    };
    let bytes = source.as_os_str().as_bytes();
    is_it(source) || bytes.split(|b| *b == b',').any(|part| is_it(Path::new(OsStr::from_bytes(part))))
}

fn is_plain(path: &Path) -> bool {
    path.components().all(|c| matches!(c, Component::RootDir | Component::Normal(_)))
}

/// Whether nobody is behind a mount any more, which root does not see from the mount of another user.
pub fn has_ended(mount: &Mount) -> bool {
    silent::has_ended(mount)
}

/// Fails where a path leads into a mount whose process does not answer: whoever asks for anything there waits for as long. Nothing there
/// is asked for, and where that cannot be known it is no failure.
pub fn is_answered(path: &Path) -> Result<(), Fail> {
    let Some(mount) = silent::mount_on_the_way(path) else { return Ok(()) };
    let (None, silent) = find(&[mount.user], |client| client.hello.mounts.iter().any(|m| is_of(m, &mount))) else {
        return Ok(());
    };
    match silent.into_iter().find(|pid| silent::serves(*pid, &mount)) {
        Some(pid) => Err(Fail::at(path.display(), silent::no_answer(pid))),
        None => Ok(()),
    }
}

/// An owner that could not tell the number of its mount still knows the place.
fn is_of(m: &MountData, mount: &Mount) -> bool {
    match m.device.as_str() {
        "" => Path::new(&m.directory) == mount.point,
        device => device == mount.device,
    }
}

/// The owner of the volume that `path` lies on, its mount, and the path without links.
///
/// # Errors
/// The path does not lie on a volume; the owner is gone, or somebody else's.
pub fn owner_of_directory(path: &Path) -> Result<(Client, Mount, PathBuf), Fail> {
    match mount_of_directory(path)? {
        (Some(client), mount, real) => Ok((client, mount, real)),
        (None, mount, _) => {
            let point = mount.point.display();
            let help = match mount.allow_other {
                true => format!(
                    "; nenrin history and restore answer you, and earlier states are in {point}/.nenrin/at/WHEN"
                ),
                false => String::new(),
            };
            let text = format!("the volume was mounted by another user; ask as that user or as root{help}");
            Err(Fail::at(path.display(), text))
        }
    }
}

/// As [`owner_of_directory`], without the owner where that is another user's, whom it does not answer.
///
/// # Errors
/// As there.
pub fn mount_of_directory(path: &Path) -> Result<(Option<Client>, Mount, PathBuf), Fail> {
    let (mount, real) = mounts::of(path)?;
    if mount.fstype != FSTYPE {
        return Err(Fail::at(path.display(), format!("lies on {}, not on a nenrin volume", mount.fstype)));
    }
    if mounts::is_dead(&mount.point) {
        let point = shell_quoted(&mount.point);
        let text = format!(
            "the program behind this mount had ended; nenrin mount {} {point} goes on from what was committed, \
             nenrin umount {point} clears it",
            shell_quoted(&mount.source)
        );
        return Err(Fail::at(path.display(), text));
    }
    let (found, silent) = find(&[mount.user], |client| client.hello.mounts.iter().any(|m| is_of(m, &mount)));
    if let Some(pid) = silent.into_iter().find(|pid| found.is_none() && silent::serves(*pid, &mount)) {
        return Err(Fail::at(path.display(), silent::no_answer(pid)));
    }
    match found {
        None if mount.user != sys::euid() && sys::euid() != 0 => Ok((None, mount, real)),
        Some(client) => Ok((Some(client), mount, real)),
        None => Err(Fail::at(path.display(), "the process that owns the volume does not answer")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a command makes of these bytes, after which nothing comes: the parts, and the answer.
    fn told(bytes: &[u8]) -> (Vec<u32>, Result<Vec<u32>, String>) {
        let (mut owner, command) = UnixStream::pair().unwrap();
        owner.write_all(bytes).unwrap();
        owner.shutdown(std::net::Shutdown::Write).unwrap();
        let mut parts = Vec::new();
        let each = &mut |some: Vec<u32>| parts.extend(some);
        let answer = call(&mut BufReader::new(command), &Request::Segments, each, &mut || Ok(()));
        (parts, answer.map_err(|fail| fail.message))
    }

    /// By what a mount says alone, also in a list, and nothing else.
    #[test]
    fn a_source_is_known_by_its_name() {
        let names = [PathBuf::from("/a/image"), PathBuf::from("/b/x,y")];
        let is = |source: &str| is_named(Path::new(source), &names);
        assert!(is("/a/image") && is("/c/other,/a/image") && is("/b/x,y"));
        assert!(!is("/a/images") && !is("/a/../a/image") && !is("/b/x") && !is(""));
    }

    #[test]
    fn parts_come_before_the_answer() {
        assert_eq!(told(b"{\"ok\":[7]}\n"), (vec![], Ok(vec![7])));
        assert_eq!(
            told(b"{\"part\":[1,2]}\n{\"part\":[]}\n{\"part\":[3]}\n{\"ok\":[4]}\n"),
            (vec![1, 2, 3], Ok(vec![4]))
        );
    }

    /// Half of an answer is never told as all of it.
    #[test]
    fn an_answer_that_ends_in_the_middle_is_an_error() {
        let (_, answer) = told(b"{\"part\":[1]}\n{\"error\":{\"code\":1,\"message\":\"damaged\"}}\n");
        assert_eq!(answer.unwrap_err(), "damaged");
        for cut in [
            &b""[..],
            b"{\"part\":[1]}\n",
            b"{\"part\":[1]}\n{\"part\":[2",
            b"{\"part\":[1]}\n{\"ok\":[2,",
            b"{\"part\":\"\xc3",
        ] {
            let why = told(cut).1.unwrap_err();
            assert!(why.starts_with("the process that owns the volume went away"), "{why}");
        }
        for nonsense in [&b"{\"part\":[1]}\n{\"later\":[2]}\n"[..], b"{\"ok\":[2,{\"error\":1}\n"] {
            let why = told(nonsense).1.unwrap_err();
            assert!(why.starts_with("the owner's answer makes no sense"), "{why}");
        }
    }

    const MILLI: Duration = Duration::from_millis(1);

    /// An owner who says who he is to the first `hellos` that ask, and answers what else is asked when `said` hellos were.
    fn owner(socket: &Path, hellos: usize, said: usize) {
        let listener = std::os::unix::net::UnixListener::bind(socket).unwrap();
        thread::spawn(move || {
            let hello = b"{\"ok\":{\"identities\":[],\"pid\":7,\"read_only\":false,\"closing\":false,\"mounts\":[]}}\n";
            let mut all = Vec::new();
            for n in 0.. {
                let mut stream = listener.accept().unwrap().0;
                if n < hellos {
                    stream.write_all(hello).unwrap();
                }
                all.push(stream);
                if n + 1 == said {
                    let _ = all[0].write_all(b"{\"ok\":[5]}\n");
                }
            }
        });
    }

    /// What takes long goes on as long as somebody is there; what is quick does not.
    #[test]
    fn who_does_not_answer_any_more_is_named() {
        let patience = Patience { hello: 2000 * MILLI, alive: 100 * MILLI, step: 5 * MILLI, quick: 50 * MILLI };
        let asked = |hellos, said, request| {
            let dir = tempfile::tempdir().unwrap();
            let socket = dir.path().join("s");
            owner(&socket, hellos, said);
            let Heard::Answer(mut client) = Client::connect(&socket, sys::euid(), patience) else { panic!("no hello") };
            client.call::<Vec<u32>>(&request).map_err(|e| e.message)
        };
        assert_eq!(asked(100, 20, Request::Segments), Ok(vec![5]));
        let silent = asked(3, 100, Request::Segments).unwrap_err();
        assert!(
            silent.contains(&format!("process {}", std::process::id())) && silent.contains("does not answer"),
            "{silent}"
        );
        let slow = asked(10_000, 10_000, Request::Info).unwrap_err();
        assert!(slow.contains("process 7 answers others"), "{slow}");
    }
}
