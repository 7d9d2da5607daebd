//! Where the fields of a tracepoint lie, from its `format` file: offsets differ
//! between kernels.

/// A field of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Field {
    /// Offset in bytes.
    pub offset: usize,
    /// Length in bytes.
    pub size: usize,
}

impl Field {
    /// Its bytes.
    pub fn bytes<'a>(&self, event: &'a [u8]) -> Option<&'a [u8]> {
        event.get(self.offset..self.offset.checked_add(self.size)?)
    }
    /// An unsigned number of the machine's byte order; zero when the event is too short.
    pub fn number(&self, event: &[u8]) -> u64 {
        match self.bytes(event) {
            Some(&[a]) => u64::from(a),
            Some(&[a, b]) => u64::from(u16::from_ne_bytes([a, b])),
            Some(&[a, b, c, d]) => u64::from(u32::from_ne_bytes([a, b, c, d])),
            Some(&[a, b, c, d, e, f, g, h]) => u64::from_ne_bytes([a, b, c, d, e, f, g, h]),
            _ => 0,
        }
    }
    /// Text up to the first zero.
    pub fn text<'a>(&self, event: &'a [u8]) -> &'a [u8] {
        let bytes = self.bytes(event).unwrap_or_default();
        bytes.split(|b| *b == 0).next().unwrap_or_default()
    }
}

/// Number and fields of a tracepoint.
#[derive(Clone, Debug)]
pub(super) struct Format {
    /// What `common_type` of its events is.
    pub id: u16,
    fields: Vec<(String, Field)>,
}

impl Format {
    /// From the text of a `format` file.
    pub fn parse(text: &str) -> Option<Self> {
        let mut id = None;
        let mut fields = Vec::new();
        for line in text.lines() {
            if let Some(n) = line.strip_prefix("ID:") {
                id = n.trim().parse().ok();
            }
            fields.extend(field(line));
        }
        Some(Self { id: id?, fields })
    }
    /// The field of that name.
    pub fn field(&self, name: &str) -> Option<Field> {
        self.fields.iter().find(|(n, _)| n == name).map(|(_, f)| *f)
    }
}

/// `field:sector_t sector; offset:16; size:8; signed:0;`
pub(super) fn field(line: &str) -> Option<(String, Field)> {
    let mut parts = line.trim().split(';').map(str::trim);
    let declaration = parts.next()?.strip_prefix("field:")?;
    let name = declaration.split(' ').next_back()?.split('[').next()?;
    let mut number = |key: &str| parts.next()?.strip_prefix(key)?.parse().ok();
    Some((name.to_owned(), Field { offset: number("offset:")?, size: number("size:")? }))
}

#[cfg(test)]
mod tests {
    use super::*;

    const ISSUE: &str = include_str!("../../tests/data/block_rq_issue-6.18.format");
    const ISSUE_OLD: &str = include_str!("../../tests/data/block_rq_issue-5.10.format");

    #[test]
    fn formats_of_two_kernels() {
        let new = Format::parse(ISSUE).unwrap();
        assert_eq!(new.id, 2104);
        assert_eq!(new.field("sector"), Some(Field { offset: 16, size: 8 }));
        assert_eq!(new.field("rwbs"), Some(Field { offset: 34, size: 10 }));
        assert_eq!(new.field("comm"), Some(Field { offset: 44, size: 16 }));
        let old = Format::parse(ISSUE_OLD).unwrap();
        assert_eq!(old.field("rwbs"), Some(Field { offset: 32, size: 8 }));
        assert_eq!(old.field("nothing"), None);
        assert!(Format::parse("name: x").is_none());
    }

    #[test]
    fn fields_of_an_event_that_is_too_short() {
        let f = Field { offset: 4, size: 4 };
        assert_eq!((f.number(&[0; 7]), f.text(&[0; 7])), (0, &b""[..]));
        assert_eq!(f.text(b"....ab\0c"), b"ab");
        assert_eq!(f.number(&[0, 0, 0, 0, 1, 0, 0, 0]), u64::from(u32::from_ne_bytes([1, 0, 0, 0])));
    }
}
