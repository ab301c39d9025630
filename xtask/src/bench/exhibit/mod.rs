//! The experiments, a file each: which servers are compared (arms), under which loads (points), and what is looked at.
//!
//! They are plain data; `bench/mod.rs` carries them out. The first arm of each is what the others are compared with.

mod alignment;
mod content;
mod flash_breakdown;
mod flash_data_set;
mod flash_single_file;
mod hu_figure_12;
mod residency;
mod spec;

pub(super) use self::spec::{Arm, Exhibit, Point, Scale, Shape};

/// All exhibits, in the order in which they are carried out.
pub(super) fn all(scale: Scale, seed: u64) -> Vec<Exhibit> {
    vec![
        hu_figure_12::exhibit(scale, seed),
        flash_breakdown::exhibit(scale),
        flash_single_file::exhibit(scale),
        flash_data_set::exhibit(scale, seed),
        flash_data_set::on_sixteen_disks(scale, seed),
        alignment::exhibit(scale),
        residency::exhibit(scale),
        content::exhibit(scale),
    ]
}

#[cfg(test)]
mod tests {
    use super::super::load::Targets;
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn exhibits_are_sound() {
        for scale in [Scale::Full, Scale::Quick, Scale::Smoke] {
            let exhibits = all(scale, 1);
            assert_eq!(exhibits.iter().map(|e| e.name).collect::<BTreeSet<_>>().len(), exhibits.len());
            for Exhibit { name, files, arms, points, .. } in exhibits {
                assert!(arms.len() >= 2 && !points.is_empty(), "{name}");
                assert_eq!(arms.iter().map(|arm| &arm.name).collect::<BTreeSet<_>>().len(), arms.len(), "{name}");
                assert_eq!(points.iter().map(Point::key).collect::<BTreeSet<_>>().len(), points.len(), "{name}");
                let there: BTreeSet<String> = files.iter().map(|file| format!("/{}", file.name)).collect();
                for Point { load, warm, .. } in points {
                    let asked = match load.targets {
                        Targets::One(path, _) => vec![path],
                        Targets::List(_, paths) => paths,
                    };
                    let lost = asked.iter().chain(&warm).chain(&load.hot).find(|path| !there.contains(*path));
                    assert_eq!(lost, None, "{name}: it is asked for, and there is no such file");
                }
            }
        }
    }
}
