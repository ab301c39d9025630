//! The result of a profile: where the time went, or why sampling was refused.

use serde::{Deserialize, Serialize};

use super::tally::{Row, Share};

/// The result of a profile.
#[derive(Debug)]
pub enum Outcome {
    /// Samples.
    Sampled(Box<Profile>),
    /// Sampling is not permitted; the text has the reason and the remedy.
    Refused(String),
}

/// A profile.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Profile {
    /// Subject of the views.
    pub whose: String,
    /// Elapsed time, in seconds.
    pub seconds: f64,
    /// The part of it spent sampling, in seconds: all, unless the budget required pauses.
    pub sampled_seconds: f64,
    /// Samples per second and processor.
    pub frequency: u32,
    /// Number of processors.
    pub processors: u32,
    /// Samples received, of all processes.
    pub samples: u64,
    /// Samples expected.
    pub expected: u64,
    /// Samples lost because a ring was full.
    pub lost: u64,
    /// Shares of all samples: the server, other programs, kernel threads, idle.
    pub who: Vec<Row>,
    /// The server's samples by context: innermost, and including nested contexts.
    pub contexts: Vec<Row>,
    /// The server's samples by function of the program: the innermost one, including the kernel's
    /// work for it; and including all functions that it called. `[user]`: a program whose code
    /// cannot be read any more; `[kernel]`: no program.
    pub functions: Vec<Row>,
    /// The server's samples by category: of kernel functions, and `user` or `crypto` in user code.
    pub categories: Vec<Row>,
    /// The server's samples in kernel functions that the table does not know.
    pub unknown: Share,
    /// The sampler's own CPU use, as a share of one processor.
    pub own_cpu: f64,
    /// Its limit.
    pub budget: f64,
    /// The sources that cannot be read, one line each.
    pub missing: Vec<String>,
    /// Chains of the server's samples, outermost function first, with their counts; most frequent first.
    pub stacks: Vec<Stack>,
}

/// A call chain.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Stack {
    /// The program, its functions, then the kernel's, joined by semicolons. Code without names is its file in brackets,
    /// or `[user]` if the process has ended.
    pub frames: String,
    /// Number of samples.
    pub samples: u64,
}
