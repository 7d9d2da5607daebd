//! Boxes, references and shared pointers to a device are devices.

use crate::{AlignedBuf, BlockDevice, DeviceError, Geometry, Op, Outcome, Ticket};
use std::sync::Arc;

macro_rules! forward {
    ($pointer:ty) => {
        impl<D: BlockDevice + ?Sized> BlockDevice for $pointer {
            fn geometry(&self) -> Geometry {
                (**self).geometry()
            }
            fn remeasure(&self) -> Result<(), DeviceError> {
                (**self).remeasure()
            }
            fn completed(&self) -> Option<u64> {
                (**self).completed()
            }
            fn submit(&self, op: Op) -> Ticket {
                (**self).submit(op)
            }
            fn read(&self, offset: u64, bytes: usize) -> Outcome {
                (**self).read(offset, bytes)
            }
            fn write(&self, offset: u64, data: Arc<AlignedBuf>) -> Result<(), DeviceError> {
                (**self).write(offset, data)
            }
            fn flush(&self) -> Result<(), DeviceError> {
                (**self).flush()
            }
            fn write_flush(&self, offset: u64, data: Arc<AlignedBuf>) -> Result<(), DeviceError> {
                (**self).write_flush(offset, data)
            }
            fn write_durable(&self, offset: u64, data: Arc<AlignedBuf>) -> Result<(), DeviceError> {
                (**self).write_durable(offset, data)
            }
            fn submit_durable(&self, offset: u64, data: Arc<AlignedBuf>) -> Ticket {
                (**self).submit_durable(offset, data)
            }
        }
    };
}

forward!(Box<D>);
forward!(Arc<D>);
forward!(&D);
