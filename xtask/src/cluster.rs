//! `cargo xtask cluster`: the test of an object store as it is used. Ceph is too large, and the test too long, for every commit.

use crate::command::{Outcome, cargo, run as run_command};
use crate::setup::{Needed, require};

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Right responses after which the test ends
    #[arg(long, default_value_t = 1_000_000)]
    responses: usize,
}

const NEEDED: &[Needed] = &[
    Needed { program: "ceph", package: "ceph-common", why: "adds the disk to the cluster" },
    Needed { program: "ceph-mon", package: "ceph-mon", why: "the monitor of the cluster" },
    Needed { program: "ceph-osd", package: "ceph-osd", why: "its disk" },
    Needed { program: "radosgw", package: "radosgw", why: "its gateway, an object store" },
    Needed { program: "losetup", package: "mount", why: "makes a disk of a file" },
    Needed { program: "uuidgen", package: "uuid-runtime", why: "names the cluster" },
];

pub(crate) fn run(args: &Args) -> Outcome {
    require(NEEDED)?;
    let test = ["test", "--package", "amped", "--test", "peers", "ceph::", "--", "--ignored", "--nocapture"];
    run_command(cargo(&test).env("CLUSTER_RESPONSES", args.responses.to_string()))
}
