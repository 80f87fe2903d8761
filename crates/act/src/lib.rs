//! Actions on the machine or another process, each with an outcome and a dry run.

#![forbid(unsafe_code)]

pub mod pool;
pub mod promote;
