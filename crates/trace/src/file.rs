//! The trace file: a header, records of 32 bytes in the order of time, an end.
//! The layout is in docs/decisions/0005. It is written and read as a stream.

use crate::device::{Counters, Level};
use crate::event::{Event, EventKind, Flags, Op};
use crate::{BlockDev, TraceError};
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::{self, BufReader, BufWriter, Read, Write};
use std::path::{Path, PathBuf};

/// First bytes of every trace.
pub const MAGIC: [u8; 8] = *b"NENTRACE";
/// The version that is written, and the newest that is read.
pub const VERSION: u32 = 1;
/// Longest header or text; a file that claims more is damaged.
const TEXT_BYTES_MAX: u32 = 1 << 20;
const RECORD_BYTES: usize = 32;
const NAME: u8 = 16;
const MARK: u8 = 17;
const END: u8 = 18;

/// What is known when a recording begins.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Header {
    /// Name of the machine.
    pub host: String,
    /// Its kernel.
    pub kernel: String,
    /// What was run, or empty.
    pub command: Vec<String>,
    /// When it began, in nanoseconds since 1970.
    pub started: u64,
    /// The devices that events refer to.
    pub devices: Vec<DeviceInfo>,
    /// Where the events come from: `kernel`, `blkparse`, `biosnoop`.
    pub source: String,
}

/// A device of a trace.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceInfo {
    /// Its name, like `sda1`.
    pub name: String,
    /// First sector on the whole device.
    pub start: u64,
    /// Length in sectors, or zero where it is not known.
    pub sectors: u64,
    /// It is a part of a larger device.
    pub partition: bool,
    /// Where its work was seen.
    pub level: Level,
}

impl From<&BlockDev> for DeviceInfo {
    fn from(d: &BlockDev) -> Self {
        Self { name: d.name.clone(), start: d.start, sectors: d.sectors, partition: d.partition, level: d.level }
    }
}

/// What is known when a recording ends.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct End {
    /// Nanoseconds it lasted.
    pub nanos: u64,
    /// Events that the kernel had to drop.
    pub lost: u64,
    /// The kernel's counters of each device over the recording; empty for imported text.
    pub counters: Vec<Counters>,
    /// Exit code of the command, if one was run.
    pub exit_code: Option<i32>,
}

/// What a trace is made of, after its header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Item {
    /// An event.
    Event(Event),
    /// From here on, something else goes on.
    Mark(u64, String),
    /// The end. A trace without it was cut short.
    End(End),
}

/// Writes a trace.
pub struct Writer<W: Write = BufWriter<File>> {
    out: W,
}

impl Writer {
    /// A new file at `path`, or what stands for one.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn create(path: &Path, header: &Header) -> Result<Self, TraceError> {
        let file = File::create(path).map_err(TraceError::io(path))?;
        Self::to(file, header).map_err(TraceError::io(path))
    }

    /// Into an empty file, or what stands for one.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn to(file: File, header: &Header) -> io::Result<Self> {
        Self::new(BufWriter::with_capacity(1 << 20, file), header)
    }
}

impl<W: Write> Writer<W> {
    /// Begins a trace.
    ///
    /// # Errors
    /// Those of the writer.
    pub fn new(mut out: W, header: &Header) -> io::Result<Self> {
        let text = serde_json::to_vec(header)?;
        out.write_all(&MAGIC)?;
        out.write_all(&VERSION.to_le_bytes())?;
        out.write_all(&(text.len() as u32).to_le_bytes())?;
        out.write_all(&text)?;
        Ok(Self { out })
    }
    /// Adds an event; times must not go back.
    ///
    /// # Errors
    /// Those of the writer.
    pub fn event(&mut self, e: &Event) -> io::Result<()> {
        let mut r = record(e.kind as u8, e.sectors, e.nanos);
        r[1] = e.device;
        r[2] = e.op as u8;
        r[3] = e.flags.0;
        r[8..16].copy_from_slice(&e.sector.to_le_bytes());
        r[24..28].copy_from_slice(&e.pid.to_le_bytes());
        r[28..30].copy_from_slice(&e.name.to_le_bytes());
        r[30..32].copy_from_slice(&e.error.to_le_bytes());
        self.out.write_all(&r)
    }
    /// Names the next process: the first call names number 0, and so on.
    ///
    /// # Errors
    /// Those of the writer.
    pub fn name(&mut self, name: &str) -> io::Result<()> {
        self.text(NAME, 0, name.as_bytes())
    }
    /// Says that something else goes on from here.
    ///
    /// # Errors
    /// Those of the writer.
    pub fn mark(&mut self, nanos: u64, text: &str) -> io::Result<()> {
        self.text(MARK, nanos, text.as_bytes())
    }
    /// Ends the trace, and gives back what was written to.
    ///
    /// # Errors
    /// Those of the writer.
    pub fn end(mut self, end: &End) -> io::Result<W> {
        self.text(END, end.nanos, &serde_json::to_vec(end)?)?;
        self.out.flush()?;
        Ok(self.out)
    }
    fn text(&mut self, kind: u8, nanos: u64, text: &[u8]) -> io::Result<()> {
        self.out.write_all(&record(kind, text.len() as u32, nanos))?;
        self.out.write_all(text)
    }
}

fn record(kind: u8, length: u32, nanos: u64) -> [u8; RECORD_BYTES] {
    let mut r = [0; RECORD_BYTES];
    r[0] = kind;
    r[4..8].copy_from_slice(&length.to_le_bytes());
    r[16..24].copy_from_slice(&nanos.to_le_bytes());
    r
}

/// Reads a trace.
pub struct Reader<R: Read = BufReader<File>> {
    input: R,
    place: PathBuf,
    header: Header,
    names: Vec<String>,
    ended: bool,
    cut: bool,
}

impl Reader {
    /// Opens the trace at `path`.
    ///
    /// # Errors
    /// It cannot be read, is no trace, or one of a newer version.
    pub fn open(path: &Path) -> Result<Self, TraceError> {
        let file = File::open(path).map_err(TraceError::io(path))?;
        Self::new(BufReader::with_capacity(1 << 20, file), path)
    }
}

impl<R: Read> Reader<R> {
    /// Reads the header; `place` is for messages.
    ///
    /// # Errors
    /// It is no trace, or one of a newer version.
    pub fn new(mut input: R, place: &Path) -> Result<Self, TraceError> {
        let mut head = [0; 16];
        match input.read_exact(&mut head) {
            Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => {
                return Err(TraceError::file(place, "too short for a trace; nenrin trace record makes one"));
            }
            other => other.map_err(TraceError::io(place))?,
        }
        if head[..8] != MAGIC {
            return Err(TraceError::file(
                place,
                "neither a trace of nenrin nor text of blkparse or biosnoop; nenrin trace record makes a trace",
            ));
        }
        let version = le32(&head, 8);
        if version == 0 || version > VERSION {
            return Err(TraceError::file(
                place,
                format!(
                    "a trace of version {version}; this program reads version {VERSION}: update nenrin, or record again"
                ),
            ));
        }
        let text = read_text(&mut input, le32(&head, 12)).map_err(|why| TraceError::file(place, why))?;
        let header: Header = serde_json::from_slice(&text)
            .map_err(|e| TraceError::file(place, format!("the header is damaged ({e}); record again")))?;
        Ok(Self { input, place: place.to_owned(), header, names: Vec::new(), ended: false, cut: false })
    }
    /// The header.
    #[must_use]
    pub const fn header(&self) -> &Header {
        &self.header
    }
    /// Names of processes, as far as they were read.
    #[must_use]
    pub fn names(&self) -> &[String] {
        &self.names
    }
    /// Whether the file stopped before its end; known when [`Reader::next`] has given `None`.
    #[must_use]
    pub const fn was_cut(&self) -> bool {
        self.cut
    }

    /// The next item; `None` after the end.
    ///
    /// # Errors
    /// The file cannot be read, or holds what no version 1 holds.
    pub fn item(&mut self) -> Result<Option<Item>, TraceError> {
        loop {
            if self.ended {
                return Ok(None);
            }
            let mut r = [0; RECORD_BYTES];
            match self.input.read_exact(&mut r) {
                Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => return Ok(self.cut_short()),
                other => other.map_err(TraceError::io(&self.place))?,
            }
            let nanos = le64(&r, 16);
            if let Some(kind) = EventKind::from_u8(r[0]) {
                return self.event(kind, nanos, &r).map(Some);
            }
            let text = match read_text(&mut self.input, le32(&r, 4)) {
                Ok(text) => text,
                Err(CUT) => return Ok(self.cut_short()),
                Err(why) => return Err(TraceError::file(&self.place, why)),
            };
            match r[0] {
                NAME => self.names.push(String::from_utf8_lossy(&text).into_owned()),
                MARK => return Ok(Some(Item::Mark(nanos, String::from_utf8_lossy(&text).into_owned()))),
                END => {
                    self.ended = true;
                    let end = serde_json::from_slice(&text).map_err(|e| {
                        TraceError::file(&self.place, format!("the end is damaged ({e}); record again"))
                    })?;
                    return Ok(Some(Item::End(end)));
                }
                kind => return Err(self.damaged(&format!("a record of kind {kind}"))),
            }
        }
    }

    fn event(&self, kind: EventKind, nanos: u64, r: &[u8; RECORD_BYTES]) -> Result<Item, TraceError> {
        if usize::from(r[1]) >= self.header.devices.len() {
            return Err(self.damaged(&format!("device {}, which the header does not list", r[1])));
        }
        let op = Op::from_u8(r[2]).ok_or_else(|| self.damaged(&format!("operation {}", r[2])))?;
        Ok(Item::Event(Event {
            kind,
            device: r[1],
            op,
            flags: Flags(r[3]),
            sectors: le32(r, 4),
            sector: le64(r, 8),
            nanos,
            pid: le32(r, 24),
            name: u16::from_le_bytes([r[28], r[29]]),
            error: i16::from_le_bytes([r[30], r[31]]),
        }))
    }
    fn damaged(&self, what: &str) -> TraceError {
        TraceError::file(&self.place, format!("damaged: it holds {what}; record again"))
    }
    fn cut_short(&mut self) -> Option<Item> {
        self.ended = true;
        self.cut = true;
        None
    }
}

const CUT: &str = "the trace ends within a record";

fn read_text(input: &mut impl Read, bytes: u32) -> Result<Vec<u8>, &'static str> {
    if bytes > TEXT_BYTES_MAX {
        return Err("damaged: a text that is too long; record again");
    }
    let mut text = vec![0; bytes as usize];
    input.read_exact(&mut text).map_err(|_| CUT)?;
    Ok(text)
}

fn le32(b: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([b[at], b[at + 1], b[at + 2], b[at + 3]])
}

fn le64(b: &[u8], at: usize) -> u64 {
    u64::from(le32(b, at)) | u64::from(le32(b, at + 4)) << 32
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header() -> Header {
        let devices =
            vec![DeviceInfo { name: "sda".into(), start: 0, sectors: 4096, partition: false, level: Level::Request }];
        Header {
            host: "h".into(),
            kernel: "6".into(),
            started: 5,
            devices,
            source: "kernel".into(),
            ..Header::default()
        }
    }
    fn event() -> Event {
        Event {
            kind: EventKind::Complete,
            device: 0,
            op: Op::Write,
            flags: Flags(Flags::FUA),
            sectors: 8,
            sector: u64::MAX - 3,
            nanos: 1 << 40,
            pid: 7,
            name: 1,
            error: -5,
        }
    }
    fn trace() -> Vec<u8> {
        let mut w = Writer::new(Vec::new(), &header()).unwrap();
        w.name("a").unwrap();
        w.name("b").unwrap();
        w.mark(3, "load").unwrap();
        w.event(&event()).unwrap();
        w.end(&End { nanos: 9, lost: 2, counters: vec![Counters::default()], exit_code: Some(3) }).unwrap()
    }
    fn read(bytes: &[u8]) -> Result<(Vec<Item>, bool), TraceError> {
        let mut r = Reader::new(bytes, Path::new("t"))?;
        let mut all = Vec::new();
        while let Some(item) = r.item()? {
            all.push(item);
        }
        Ok((all, r.was_cut()))
    }

    #[test]
    fn what_is_written_is_read() {
        let (all, cut) = read(&trace()).unwrap();
        assert_eq!(all[0], Item::Mark(3, "load".into()));
        assert_eq!(all[1], Item::Event(event()));
        assert!(matches!(&all[2], Item::End(e) if e.lost == 2 && e.exit_code == Some(3)));
        assert!(!cut && all.len() == 3);
        let bytes = trace();
        let mut r = Reader::new(&bytes[..], Path::new("t")).unwrap();
        while r.item().unwrap().is_some() {}
        assert_eq!(r.names(), ["a", "b"]);
    }

    #[test]
    fn cut_anywhere_or_damaged_anywhere() {
        let whole = trace();
        for n in 0..whole.len() {
            match read(&whole[..n]) {
                Ok((_, cut)) => assert!(cut, "{n} of {} bytes passed as a whole trace", whole.len()),
                Err(e) => assert!(e.to_string().starts_with("t: "), "{e}"),
            }
            for bit in 0..8 {
                let mut bytes = whole.clone();
                bytes[n] ^= 1 << bit;
                let _ = read(&bytes);
            }
        }
    }

    #[test]
    fn other_files_are_refused() {
        let mut newer = trace();
        newer[8] = 2;
        let said = read(&newer).unwrap_err().to_string();
        assert_eq!(said, "t: a trace of version 2; this program reads version 1: update nenrin, or record again");
        assert!(read(b"something that is no trace").unwrap_err().to_string().contains("neither a trace"));
        assert!(read(b"").unwrap_err().to_string().contains("too short"));
        let mut long = trace();
        long[12..16].fill(0xff);
        assert!(read(&long).unwrap_err().to_string().contains("too long"));
    }
}
