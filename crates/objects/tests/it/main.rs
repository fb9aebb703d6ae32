//! Heaps of objects, from outside: each file is a scenario.

mod damage;
mod model;
mod support;
mod threads;
mod types;
mod verification;
