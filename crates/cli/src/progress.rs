//! Progress for people: a bar on standard error, if that is a terminal, and remarks.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::{
    fmt::Display,
    io::{self, Write as _},
    time::Duration,
};

/// A bar, or nothing where there is no terminal. Shared by threads.
pub struct Progress {
    bar: ProgressBar,
}

impl Progress {
    /// A bar for work of unknown length, or of `total` steps.
    pub fn steps(quiet: bool, what: &'static str, total: Option<u64>) -> Self {
        let style = match total {
            Some(_) => "{msg} {wide_bar} {human_pos}/{human_len} ({eta} left)",
            None => "{spinner} {msg} ({elapsed})",
        };
        Self::new(quiet, what, total, style)
    }

    /// A bar for work on bytes.
    pub fn bytes(quiet: bool, what: &'static str, total: Option<u64>) -> Self {
        let style = match total {
            Some(_) => {
                "{msg} {wide_bar} {binary_bytes}/{binary_total_bytes} ({binary_bytes_per_sec}, {eta} left)"
            }
            None => "{spinner} {msg}: {binary_bytes} ({binary_bytes_per_sec})",
        };
        Self::new(quiet, what, total, style)
    }

    fn new(quiet: bool, what: &'static str, total: Option<u64>, template: &str) -> Self {
        let target = if quiet { ProgressDrawTarget::hidden() } else { ProgressDrawTarget::stderr() };
        let bar = ProgressBar::with_draw_target(total, target).with_message(what);
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style);
        }
        if !bar.is_hidden() {
            bar.enable_steady_tick(Duration::from_millis(200));
        }
        Self { bar }
    }

    /// Whether it is shown.
    pub fn is_visible(&self) -> bool {
        !self.bar.is_hidden()
    }

    /// Adds to the work done.
    pub fn advance(&self, by: u64) {
        self.bar.inc(by);
    }

    /// Sets the work done and the total.
    pub fn set(&self, done: u64, total: u64) {
        if self.bar.length() != Some(total) {
            self.bar.set_length(total);
        }
        self.bar.set_position(done);
    }

    /// Prints a remark above the bar, unless it is not wanted.
    pub fn remark(&self, unwanted: bool, line: impl Display) {
        self.bar.suspend(|| remark(unwanted, line));
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

/// Prints a remark on standard error, unless remarks are not wanted.
pub fn remark(quiet: bool, line: impl Display) {
    if !quiet {
        // If standard error is closed, the remark is lost.
        let _ = writeln!(io::stderr(), "{line}");
    }
}
