//! Kernel files to immutable snapshots: who uses which memory, and how it is mapped.

#![forbid(unsafe_code)]

pub mod pools;
pub mod unmovable;
pub mod wire;
