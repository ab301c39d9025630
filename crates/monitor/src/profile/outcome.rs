//! What a profile came to: where the time went, or why nobody could be asked.

use serde::{Deserialize, Serialize};

use super::tally::{Row, Share};

/// What a profile came to.
#[derive(Debug)]
pub enum Outcome {
    /// Samples.
    Sampled(Box<Profile>),
    /// This user may not sample; why, and the way out.
    Refused(String),
}

/// Where the time went.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Profile {
    /// Whose time the views are about.
    pub whose: String,
    /// From the beginning to the end, in seconds.
    pub seconds: f64,
    /// Of these, those in which was sampled: all, unless the budget demanded rests.
    pub sampled_seconds: f64,
    /// Samples a second of each processor.
    pub frequency: u32,
    /// Processors.
    pub processors: u32,
    /// Samples that came, of everybody.
    pub samples: u64,
    /// Samples that were to come.
    pub expected: u64,
    /// Samples that were lost as the ring was full.
    pub lost: u64,
    /// Who ran: the server, other programs, the kernel's threads, nobody; shares of all samples.
    pub who: Vec<Row>,
    /// Of the server's samples, what for: by the innermost context, and with all that ran inside.
    pub contexts: Vec<Row>,
    /// By what system calls were told apart.
    pub syscalls: Syscalls,
    /// Of the server's samples, in which of the program's functions: the innermost one, with what the kernel did for it, and with
    /// all that it called. `[user]`: in a program whose code cannot be read any more; `[kernel]`: for no program.
    pub functions: Vec<Row>,
    /// Of the server's samples, doing what.
    pub categories: Vec<Row>,
    /// Of the server's samples, those in functions of the kernel that the table does not know.
    pub unknown: Share,
    /// What the sampler used itself, as a share of one processor.
    pub own_cpu: f64,
    /// What it may use.
    pub budget: f64,
    /// What cannot be seen, a line each.
    pub missing: Vec<String>,
    /// Chains of the server's samples, the outermost function first, and how often each was met; the most frequent first.
    pub stacks: Vec<Stack>,
}

/// By what system calls were told apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Syscalls {
    /// The number of each, which a BPF program read.
    Number,
    /// The functions of the kernel that were under way.
    #[default]
    Chain,
}

/// A chain.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Stack {
    /// The program, its functions, then the kernel's, joined by semicolons. Code without names is its file in brackets, and
    /// `[user]` where the process has ended.
    pub frames: String,
    /// How often.
    pub samples: u64,
}
