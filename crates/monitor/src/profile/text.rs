//! Renders a profile as text: bars in a terminal, and folded stacks for flame graph programs.

use std::borrow::Cow;
use std::fmt::Write;

use super::outcome::Profile;
use super::tally::{Row, Share};

/// Bars in a terminal, each with its interval and, for contexts, the share including nested ones.
pub fn text(profile: &Profile) -> String {
    let mut text = format!(
        "{}: {} samples of {} in {:.1} s, {} processors at {} Hz ({} expected, {} lost)\n",
        profile.whose,
        chosen(profile),
        profile.samples,
        profile.seconds,
        profile.processors,
        profile.frequency,
        profile.expected,
        profile.lost
    );
    for (title, rows) in views(profile) {
        let is_nested = rows.iter().any(|row| row.around.is_some());
        let inside = if is_nested { "  inclusive" } else { "" };
        let _ = writeln!(text, "\n{title:<32}  share   95 % interval{inside}");
        for row in rows.iter() {
            let (share, percent) = (row.share, 100.0);
            let around = row.around.map_or_else(String::new, |around| format!("{:7.1} %  ", around.share * percent));
            let bar = "█".repeat((share.share * 40.0).round() as usize);
            let line = format!(
                "  {:<28} {:6.1} %  {:5.1} .. {:5.1}  {around:<11} {bar}",
                end_of(&row.name, 28),
                share.share * percent,
                share.low * percent,
                share.high * percent
            );
            let _ = writeln!(text, "{}", line.trim_end());
        }
    }
    let _ = writeln!(
        text,
        "\nin unknown kernel functions: {:.1} %; the sampler used {:.2} % of one processor; the limit is {} %",
        profile.unknown.share * 100.0,
        profile.own_cpu * 100.0,
        (profile.budget * 1e4).round() / 1e2
    );
    let rested = profile.seconds - profile.sampled_seconds;
    // Emptying the rings takes a moment as well.
    if rested > 0.1 * profile.seconds {
        let _ = writeln!(text, "it paused for {rested:.1} s to stay below it; lower --frequency, or raise --budget");
    }
    for line in &profile.missing {
        let _ = writeln!(text, "{line}");
    }
    text
}

/// Folded stacks: one stack per line, followed by a space and its count.
pub fn folded(profile: &Profile) -> String {
    profile.stacks.iter().fold(String::new(), |mut text, stack| {
        let _ = writeln!(text, "{} {}", stack.frames, stack.samples);
        text
    })
}

/// Number of samples that the profile is about.
pub fn chosen(profile: &Profile) -> u64 {
    profile.categories.iter().map(|row| row.share.samples).sum()
}

/// The views with their titles; of the functions those with the largest shares.
pub fn views(profile: &Profile) -> [(&'static str, Cow<'_, [Row]>); 4] {
    [
        ("share of all samples", Cow::Borrowed(&profile.who)),
        ("by function of the program", first_functions(profile)),
        ("by innermost context", Cow::Borrowed(&profile.contexts)),
        ("by category", Cow::Borrowed(&profile.categories)),
    ]
}

/// The functions with the largest shares, and the sum of all others.
fn first_functions(profile: &Profile) -> Cow<'_, [Row]> {
    const FUNCTIONS: usize = 12;
    let Some((first, others)) = profile.functions.split_at_checked(FUNCTIONS).filter(|(_, others)| others.len() > 1)
    else {
        return Cow::Borrowed(&profile.functions);
    };
    let samples = others.iter().map(|row| row.share.samples).sum();
    let others =
        Row { name: "all other functions".to_owned(), share: Share::of(samples, chosen(profile)), around: None };
    Cow::Owned([first, &[others]].concat())
}

/// The last `length` characters of a name, as a function's name begins with its modules.
pub fn end_of(name: &str, length: usize) -> Cow<'_, str> {
    match name.char_indices().rev().nth(length - 1) {
        Some((at, _)) if at > 0 => Cow::Owned(
            name[at..].chars().skip(1).fold("…".to_owned(), |end, letter| end + letter.encode_utf8(&mut [0; 4])),
        ),
        _ => Cow::Borrowed(name),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::Stack;

    fn profile() -> Profile {
        let row = |name: &str, samples, around: Option<u64>| Row {
            name: name.to_owned(),
            share: Share::of(samples, 100),
            around: around.map(|samples| Share::of(samples, 100)),
        };
        Profile {
            whose: "process 7".into(),
            seconds: 2.0,
            sampled_seconds: 1.5,
            frequency: 199,
            processors: 2,
            samples: 400,
            expected: 796,
            lost: 0,
            who: vec![row("idle", 100, None)],
            contexts: vec![row("user", 60, Some(60)), row("writev", 10, Some(40))],
            functions: (0..20).map(|number| row(&format!("{}::f{number}", "module".repeat(9)), 5, Some(5))).collect(),
            categories: vec![row("a & b <c>", 100, None)],
            unknown: Share::of(0, 100),
            own_cpu: 0.001,
            budget: 0.005,
            missing: vec!["something".into()],
            stacks: vec![Stack { frames: "nginx;[user]".into(), samples: 60 }],
        }
    }

    #[test]
    fn bars_show_intervals() {
        let text = text(&profile());
        let line = text.lines().find(|line| line.contains("writev")).unwrap();
        let words: Vec<&str> = line.split_whitespace().collect();
        assert_eq!(words[..8], ["writev", "10.0", "%", "5.5", "..", "17.4", "40.0", "%"]);
        assert_eq!(words[8].chars().count(), 4);
        assert!(text.contains("something") && text.contains("796 expected"), "{text}");
        assert!(
            text.contains("0.10 % of one processor; the limit is 0.5 %") && text.contains("paused for 0.5 s"),
            "{text}"
        );
        assert_eq!(folded(&profile()), "nginx;[user] 60\n");
        assert!(text.contains("  …odulemodulemodulemodule::f0    5.0 %"), "{text}");
        assert!(
            text.contains("::f11 ")
                && !text.contains("::f12 ")
                && text.contains("all other functions            40.0 %"),
            "{text}"
        );
    }
}
