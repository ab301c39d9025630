//! The order of runs, and their expected duration.
//!
//! Randomised complete blocks: each block contains every point once. Within a block, the steps and the arms of
//! each step are shuffled by the seed. Changes of the machine over time therefore affect all arms alike, and
//! compared runs are at most about a minute apart. The baseline is in every block, twice if there is something to
//! compare. A retry (`left`) has the same arrivals, and runs at the end of its block so that it stays within it.
//!
//! Interleaved servers keep running through all blocks, so each load runs all its blocks before the
//! next load starts: compared measurements are seconds apart.
//!
//! Pure: does not read the clock.

use amped_measure::stats::Random;

use crate::archive::{Arm, Hosts, Plan, Planned, Resolved, Run, Step};

/// Overhead of a run besides its load, in seconds: starting and stopping the server and the monitor.
pub(crate) const AROUND_S: f64 = 1.5;

/// Returns the plan of an experiment.
pub(crate) fn plan(resolved: &Resolved) -> Plan {
    let mut random = Random(resolved.seed);
    let mut runs = Vec::new();
    let mut add = |random: &mut Random, block: u32, step: Step, arms: &[&Arm]| {
        let has_step = |arm: &&&Arm| resolved.steps_of(arm).contains(&step);
        let mut arms: Vec<&str> = arms.iter().filter(has_step).map(|arm| arm.id.as_str()).collect();
        random.shuffle(&mut arms);
        // The same arrivals for all arms of a step, different ones in each block.
        let seed = random.next() >> 32;
        runs.extend(arms.into_iter().map(|arm| {
            let (arm, id) = (arm.to_owned(), format!("{block}-{arm}-{}", step.value()));
            Planned { id, block, arm, step, seed }
        }));
    };
    let groups = groups(resolved);
    let mut looks = resolved.repetitions as usize;
    if resolved.is_interleaved {
        // The arms of a group have the same load, and so the same steps.
        let loads =
            || groups.iter().flat_map(|group| resolved.steps_of(group[0]).iter().map(move |step| (group, step)));
        looks = loads().count();
        for (group, step) in loads() {
            (1..=resolved.repetitions).for_each(|block| add(&mut random, block, *step, group));
        }
    } else {
        let arms: Vec<&Arm> = resolved.arms.iter().collect();
        for block in 1..=resolved.repetitions {
            let mut steps: Vec<Step> = resolved.steps.clone();
            random.shuffle(&mut steps);
            steps.into_iter().for_each(|step| add(&mut random, block, step, &arms));
        }
    }
    let expected_s = runs.len() as f64 * run_s(resolved) + clients_s(resolved) + looks as f64 * IDLE_S;
    Plan { runs, expected_s }
}

/// Groups the arms that have the same workload and load, and can be interleaved.
fn groups(resolved: &Resolved) -> Vec<Vec<&Arm>> {
    let load = |arm: &Arm| {
        let table = arm.settings.parse::<toml::Table>().unwrap_or_default();
        [table.get("workload").cloned(), table.get("load").cloned()]
    };
    let mut groups: Vec<([Option<toml::Value>; 2], Vec<&Arm>)> = Vec::new();
    for arm in &resolved.arms {
        let key = load(arm);
        match groups.iter_mut().find(|(known, _)| *known == key) {
            Some((_, group)) => group.push(arm),
            None => groups.push((key, vec![arm])),
        }
    }
    groups.into_iter().map(|(_, group)| group).collect()
}

/// Splits a plan into the parts before which the machine must be idle: its blocks or, with
/// interleaved servers, the runs whose servers are up at the same time.
pub(crate) fn parts<'a>(resolved: &Resolved, runs: &'a [Planned]) -> Vec<&'a [Planned]> {
    if !resolved.is_interleaved {
        return runs.chunk_by(|a, b| a.block == b.block).collect();
    }
    let groups = groups(resolved);
    let group = |run: &Planned| groups.iter().position(|group| group.iter().any(|arm| arm.id == run.arm));
    runs.chunk_by(|a, b| a.step == b.step && group(a) == group(b)).collect()
}

/// Returns the runs still to make: those not in `made`, and retries of those for which `again`
/// returns true, given the number of attempts and the last one.
pub(crate) fn left(planned: &[Planned], made: &[Run], again: impl Fn(usize, &Run) -> bool) -> Vec<Planned> {
    let next = |planned: &Planned| {
        let attempts: Vec<&Run> = made.iter().filter(|run| run.plan.is_same(planned)).collect();
        let is_left = attempts.last().is_none_or(|last| again(attempts.len(), last));
        is_left.then(|| planned.attempt(attempts.len() + 1))
    };
    planned.iter().filter_map(next).collect()
}

/// Mean of the expected durations of the runs, in seconds.
pub(crate) fn run_s(resolved: &Resolved) -> f64 {
    /// Time to start the load when the servers are already running.
    const TURN_S: f64 = 0.15;
    let [duration_s, warm_up_s] = resolved.mean_load_s.unwrap_or([resolved.duration_s, resolved.warm_up_s]);
    match resolved.is_interleaved {
        true => duration_s + TURN_S + (warm_up_s + AROUND_S) / f64::from(resolved.repetitions.max(1)),
        false => duration_s + warm_up_s + AROUND_S,
    }
}

/// Time for which the idle machine is observed before a block, in seconds.
pub(crate) const IDLE_S: f64 = 1.0;

/// Duration of the client measurement at each step, in seconds.
pub(crate) const CLIENTS_S: f64 = 1.0;

/// Returns the steps at which the clients are measured: those of the ladder, and 1.5 times the
/// highest (headroom). A closed loop has no schedule to miss.
pub(crate) fn client_steps(steps: &[Step]) -> Vec<Step> {
    let rates = steps.iter().filter(|step| matches!(step, Step::Rate(_))).copied();
    let highest = steps.last().filter(|step| matches!(step, Step::Rate(_))).map(|step| Step::Rate(step.value() * 1.5));
    rates.chain(highest).collect()
}

fn clients_s(resolved: &Resolved) -> f64 {
    client_steps(&resolved.steps).len() as f64 * (CLIENTS_S + 0.5)
}

/// Formats a duration in readable units: `42 s`, `7 min`, `3 h 20 min`.
pub(crate) fn duration(seconds: f64) -> String {
    let whole = seconds.round().max(0.0) as u64;
    match whole {
        0..=99 => format!("{whole} s"),
        100..=5999 => format!("{} min", (whole + 30) / 60),
        _ => format!("{} h {} min", whole / 3600, whole % 3600 / 60),
    }
}

/// Formats the run list that is printed before the first run.
pub(crate) fn list(resolved: &Resolved, plan: &Plan) -> String {
    let mut text = format!("{}  {}\n", resolved.name, resolved.title);
    for arm in &resolved.arms {
        text += &format!("  {:<4} {}\n", arm.id, arm.label);
    }
    let axis = resolved.steps.first().map_or("", |step| step.axis());
    let values: Vec<String> = resolved.steps.iter().map(|step| step.value().to_string()).collect();
    text += &format!(
        "  {axis}: {}; {} s each after {} s of warm-up\n",
        values.join(" "),
        resolved.duration_s,
        resolved.warm_up_s
    );
    for part in parts(resolved, &plan.runs) {
        text += &match resolved.is_interleaved {
            true => format!("  interleaved, {} blocks:", resolved.repetitions),
            false => format!("  block {}:", part[0].block),
        };
        let first = part.chunk_by(|a, b| a.block == b.block).next().unwrap_or(part);
        for step in first.chunk_by(|a, b| a.step == b.step) {
            let arms: Vec<&str> = step.iter().map(|run| run.arm.as_str()).collect();
            text += &format!(" {}@{}", arms.join(","), step[0].step.value());
        }
        text.push('\n');
    }
    if let Some(hosts) = &resolved.hosts {
        let Hosts { server, clients, address, .. } = hosts;
        let address = address.map_or("the address by which it is reached".to_owned(), |address| address.to_string());
        text += &format!("  reached by `{}`\n", hosts.via());
        text += &format!("  on {server}: the server, at {address}, and the monitor\n");
        for (at, client) in clients.iter().enumerate() {
            text += &format!("  on {client}: load, slice {}/{}\n", at + 1, clients.len());
        }
    }
    let count = plan.runs.len();
    text + &format!("  {count} runs, about {}, seed {}", duration(plan.expected_s), resolved.seed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::archive::{Arm, RunStatus};
    use crate::values::Checked;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    fn resolved(arms: usize, steps: usize, repetitions: u32, seed: u64) -> Resolved {
        Resolved {
            name: "a".to_owned(),
            seed,
            repetitions,
            duration_s: 5.0,
            warm_up_s: 0.5,
            arms: (0..arms)
                .map(|at| Arm { id: format!("a{at}"), label: format!("arm {at}"), ..Arm::default() })
                .collect(),
            steps: (1..=steps).map(|at| Step::Rate(at as f64 * 500.0)).collect(),
            ..Resolved::default()
        }
    }

    proptest! {
        #[test]
        fn each_block_has_each_point_once(arms in 1..5_usize, steps in 1..6_usize, blocks in 1..5_u32, seed: u64) {
            let resolved = resolved(arms, steps, blocks, seed);
            let plan = plan(&resolved);
            prop_assert_eq!(plan.runs.len(), arms * steps * blocks as usize);
            let ids: BTreeSet<&str> = plan.runs.iter().map(|run| run.id.as_str()).collect();
            prop_assert_eq!(ids.len(), plan.runs.len());
            for step in plan.runs.chunks(arms) {
                // All arms at a step run one after another, with the same arrivals.
                prop_assert!(step.iter().all(|run| run.step == step[0].step && run.block == step[0].block && run.seed == step[0].seed));
                prop_assert_eq!(step.iter().map(|run| run.arm.as_str()).collect::<BTreeSet<_>>().len(), arms);
            }
            prop_assert_eq!(super::plan(&resolved), plan);
        }
    }

    #[test]
    fn interleaved_load_has_all_its_blocks_at_once() {
        let mut resolved = Resolved { is_interleaved: true, ..resolved(4, 1, 3, 1) };
        for (at, arm) in resolved.arms.iter_mut().enumerate() {
            arm.settings = format!("[workload]\nfile = \"{}KiB\"\n", at % 2);
        }
        let plan = plan(&resolved);
        let parts = parts(&resolved, &plan.runs);
        let found: Vec<(BTreeSet<&str>, Vec<u32>)> = parts
            .iter()
            .map(|part| (part.iter().map(|run| &run.arm[..]).collect(), part.iter().map(|run| run.block).collect()))
            .collect();
        let blocks = vec![1, 1, 2, 2, 3, 3];
        assert_eq!(found, [(BTreeSet::from(["a0", "a2"]), blocks.clone()), (BTreeSet::from(["a1", "a3"]), blocks)]);
    }

    #[test]
    fn seed_determines_order() {
        let of = |seed| plan(&resolved(3, 5, 2, seed)).runs.into_iter().map(|run| run.id).collect::<Vec<_>>();
        assert_ne!(of(1), of(2));
    }

    #[test]
    fn list_has_runs_and_total_duration() {
        let resolved = resolved(2, 2, 2, 1);
        let text = list(&resolved, &plan(&resolved));
        assert!(text.contains("rate: 500 1000; 5 s each after 0.5 s of warm-up"), "{text}");
        assert!(text.contains("8 runs, about 63 s, seed 1") && text.contains("block 2: "), "{text}");
        let clients = ["a", "b"].map(Checked::new).to_vec();
        let hosts = Hosts { server: Checked::new("s"), clients, address: None, via: None };
        let text = list(&Resolved { hosts: Some(hosts), ..resolved.clone() }, &plan(&resolved));
        assert!(text.contains("on s: the server") && text.contains("on b: load, slice 2/2"), "{text}");
        for (seconds, expected) in [(0.4, "0 s"), (99.0, "99 s"), (600.0, "10 min"), (7260.0, "2 h 1 min")] {
            assert_eq!(duration(seconds), expected);
        }
    }

    #[test]
    fn completed_run_is_repeated_under_new_name() {
        let plan = plan(&resolved(2, 1, 1, 1)).runs;
        let made = |number: usize, status| Run { status, ..Run::begun(plan[0].attempt(number), 0.0) };
        let ids = |made: &[Run], again: &dyn Fn(usize, &Run) -> bool| {
            left(&plan, made, again).into_iter().map(|run| run.id).collect::<Vec<_>>()
        };
        let (one, other) = (&plan[0].id[..], &plan[1].id[..]);
        let is_invalid = |_: usize, last: &Run| last.status == RunStatus::Invalid;
        assert_eq!(ids(&[], &is_invalid), [one, other]);
        assert_eq!(ids(&[made(1, RunStatus::Valid)], &is_invalid), [other]);
        let mut all = vec![made(1, RunStatus::Invalid)];
        assert_eq!(ids(&all, &|_, _| false), [other]);
        assert_eq!(ids(&all, &is_invalid), [format!("{one}-2"), other.to_owned()]);
        all.push(made(2, RunStatus::Invalid));
        assert_eq!(ids(&all, &is_invalid), [format!("{one}-3"), other.to_owned()]);
        assert_eq!(ids(&all, &|attempts, last| attempts == 1 && is_invalid(attempts, last)), [other]);
        all.push(made(3, RunStatus::Valid));
        assert_eq!(ids(&all, &is_invalid), [other], "the last attempt decides");
        let again = left(&plan, &all[..1], is_invalid);
        assert!(again[0].seed == plan[0].seed && again[0].is_same(&plan[0]) && !again[0].is_same(&plan[1]));
    }

    #[test]
    fn client_calibration_exceeds_highest_rate() {
        assert_eq!(client_steps(&[Step::Rate(10.0), Step::Rate(20.0)]), [10.0, 20.0, 30.0].map(Step::Rate));
        assert!(client_steps(&[Step::Clients(3)]).is_empty());
    }
}
