//! Cursors for variable-length parts: a writer that appends, a reader that
//! checks bounds before every step.

use crate::Invalid;

/// Appends little-endian values to a buffer.
pub trait Put {
    /// One byte.
    fn put_u8(&mut self, v: u8);
    /// Two bytes.
    fn put_u16(&mut self, v: u16);
    /// Four bytes.
    fn put_u32(&mut self, v: u32);
    /// Eight bytes.
    fn put_u64(&mut self, v: u64);
    /// A length in two bytes, then the bytes. Longer input is a programmer error.
    fn put_short(&mut self, v: &[u8]);
    /// A length in four bytes, then the bytes.
    fn put_long(&mut self, v: &[u8]);
}

impl Put for Vec<u8> {
    fn put_u8(&mut self, v: u8) {
        self.push(v);
    }
    fn put_u16(&mut self, v: u16) {
        self.extend_from_slice(&v.to_le_bytes());
    }
    fn put_u32(&mut self, v: u32) {
        self.extend_from_slice(&v.to_le_bytes());
    }
    fn put_u64(&mut self, v: u64) {
        self.extend_from_slice(&v.to_le_bytes());
    }
    fn put_short(&mut self, v: &[u8]) {
        assert!(v.len() <= usize::from(u16::MAX), "short field of {} bytes", v.len());
        self.put_u16(v.len() as u16);
        self.extend_from_slice(v);
    }
    fn put_long(&mut self, v: &[u8]) {
        assert!(v.len() <= u32::MAX as usize, "long field of {} bytes", v.len());
        self.put_u32(v.len() as u32);
        self.extend_from_slice(v);
    }
}

/// Takes values from the front of untrusted bytes.
#[derive(Clone, Copy, Debug)]
pub struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    /// Reads from the start of `bytes`.
    #[must_use]
    pub const fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }
    /// What has not been taken yet.
    #[must_use]
    pub const fn rest(&self) -> &'a [u8] {
        self.rest
    }
    /// Whether everything was taken.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }
    /// The next `n` bytes.
    ///
    /// # Errors
    /// [`Invalid::Short`] when there are fewer; so for all methods below.
    pub fn take(&mut self, n: usize) -> Result<&'a [u8], Invalid> {
        let (head, rest) = self.rest.split_at_checked(n).ok_or(Invalid::Short)?;
        self.rest = rest;
        Ok(head)
    }
    fn array<const N: usize>(&mut self) -> Result<[u8; N], Invalid> {
        self.take(N)?.try_into().map_err(|_| Invalid::Short)
    }
    /// One byte.
    ///
    /// # Errors
    /// As for [`Reader::take`].
    pub fn u8(&mut self) -> Result<u8, Invalid> {
        Ok(self.array::<1>()?[0])
    }
    /// Two bytes.
    ///
    /// # Errors
    /// As for [`Reader::take`].
    pub fn u16(&mut self) -> Result<u16, Invalid> {
        Ok(u16::from_le_bytes(self.array()?))
    }
    /// Four bytes.
    ///
    /// # Errors
    /// As for [`Reader::take`].
    pub fn u32(&mut self) -> Result<u32, Invalid> {
        Ok(u32::from_le_bytes(self.array()?))
    }
    /// Eight bytes.
    ///
    /// # Errors
    /// As for [`Reader::take`].
    pub fn u64(&mut self) -> Result<u64, Invalid> {
        Ok(u64::from_le_bytes(self.array()?))
    }
    /// A two-byte length and that many bytes.
    ///
    /// # Errors
    /// As for [`Reader::take`].
    pub fn short(&mut self) -> Result<&'a [u8], Invalid> {
        let n = self.u16()?;
        self.take(usize::from(n))
    }
    /// A four-byte length and that many bytes.
    ///
    /// # Errors
    /// As for [`Reader::take`].
    pub fn long(&mut self) -> Result<&'a [u8], Invalid> {
        let n = self.u32()?;
        self.take(n as usize)
    }
}
