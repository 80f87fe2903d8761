//! Findings: what stands between a user or a program and huge pages, with the remedy.

#![forbid(unsafe_code)]
