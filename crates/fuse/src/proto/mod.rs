//! The protocol between the kernel and a FUSE daemon, versions 7.31 to 7.45:
//! structures, requests, replies. Pure: bytes in, bytes out.

pub mod abi;
pub mod flags;
pub mod reply;
pub mod request;
