//! Declares disk structs once: type, offsets, sizes, and the table that the
//! format document is checked against.

/// One field of a disk struct, as `docs/FORMAT.md` shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Field {
    /// Byte offset in the struct.
    pub offset: usize,
    /// Size in bytes.
    pub bytes: usize,
    /// Name, as in the code.
    pub name: &'static str,
}

/// The whole layout of one disk struct.
#[derive(Clone, Copy, Debug)]
pub struct Layout {
    /// Name of the struct.
    pub name: &'static str,
    /// Size in bytes.
    pub bytes: usize,
    /// Fields in order.
    pub fields: &'static [Field],
}

/// Declares a disk struct with its size and its [`Layout`].
#[macro_export]
macro_rules! disk_struct {
    ($(#[$doc:meta])* pub struct $name:ident [$size:expr] {
        $($(#[$fdoc:meta])* pub $field:ident : $ty:ty,)*
    }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq,
                 zerocopy::FromBytes, zerocopy::IntoBytes, zerocopy::KnownLayout,
                 zerocopy::Immutable, zerocopy::Unaligned)]
        #[repr(C)]
        pub struct $name {
            $($(#[$fdoc])* pub $field: $ty,)*
        }
        impl $name {
            /// Size on disk in bytes.
            pub const BYTES: usize = $size;
            /// The layout, for the check against the format document.
            pub const LAYOUT: $crate::layout::Layout = $crate::layout::Layout {
                name: stringify!($name),
                bytes: $size,
                fields: &[$($crate::layout::Field {
                    offset: core::mem::offset_of!($name, $field),
                    bytes: core::mem::size_of::<$ty>(),
                    name: stringify!($field),
                },)*],
            };
            /// All bytes zero.
            #[must_use]
            pub fn zeroed() -> Self {
                <Self as zerocopy::FromZeros>::new_zeroed()
            }
            /// The struct at the start of `bytes`, and the rest.
            ///
            /// # Errors
            /// [`Invalid::Short`](crate::Invalid::Short) when there are fewer bytes than the struct has.
            pub fn read_prefix(bytes: &[u8]) -> Result<(Self, &[u8]), $crate::Invalid> {
                <Self as zerocopy::FromBytes>::read_from_prefix(bytes).map_err(|_| $crate::Invalid::Short)
            }
            /// The bytes of the struct.
            #[must_use]
            pub fn bytes(&self) -> &[u8] {
                zerocopy::IntoBytes::as_bytes(self)
            }
        }
        const _: () = assert!(core::mem::size_of::<$name>() == $size);
    };
}

/// Little-endian field types, without alignment.
pub mod le {
    /// 16 bits.
    pub type U16 = zerocopy::little_endian::U16;
    /// 32 bits.
    pub type U32 = zerocopy::little_endian::U32;
    /// 64 bits.
    pub type U64 = zerocopy::little_endian::U64;
    /// 64 bits, signed.
    pub type I64 = zerocopy::little_endian::I64;
}
