//! Heaps of objects, from outside: each file is a scenario.

mod damage;
mod derived;
mod model;
mod room;
mod support;
mod threads;
mod types;
mod verification;
mod walks;
