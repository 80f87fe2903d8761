//! libmegapage_text.so: moves the segments of the program that it is loaded into onto huge pages,
//! before `main`.
//!
//! A separate library beside libmegapage.so, so that a program can have its text on huge pages and
//! keep its malloc.
//!
//! Architecture invariants: it exports nothing, allocates nothing and prints nothing. Its variables
//! are removed from the environment before `main` starts, so that the program's children know
//! nothing of it. In a setuid program, into which only /etc/ld.so.preload can load it, it does
//! nothing (AT_SECURE of getauxval(3)).

#![deny(unsafe_code)]

mod lifecycle;
