//! Curves that were measured point by point, as tables, a plot and a file of all samples: for exhibits that are not about the
//! CPU time of one server's variants.

use std::fmt::Write;
use std::path::Path;

use amped_measure::host::load_average;
use amped_measure::stats::Summary;
use serde::Serialize;
use serde_json::json;

use super::host::Host;

use super::{plot, report, sample};
use crate::command::Outcome;

/// A figure of an exhibit: its title and that of its axis.
pub(super) struct Figure {
    pub(super) title: &'static str,
    pub(super) x_title: &'static str,
}

/// One measured value.
#[derive(Serialize)]
struct Sample {
    round: usize,
    figure: usize,
    /// The number of its curve.
    curve: usize,
    x: f64,
    value: f64,
}

/// An exhibit under way.
pub(super) struct Curves {
    pub(super) title: &'static str,
    /// What the paper did, and what is done here.
    pub(super) story: &'static str,
    /// How it is made again.
    pub(super) command: String,
    /// In rows of the plot.
    pub(super) figures: Vec<Vec<Figure>>,
    /// One name for each curve; they have the same in all figures.
    pub(super) names: Vec<&'static str>,
    host: Host,
    samples: Vec<Sample>,
}

impl Curves {
    /// Nothing is measured yet.
    pub(super) fn new(
        title: &'static str,
        story: &'static str,
        command: String,
        figures: Vec<Vec<Figure>>,
        names: Vec<&'static str>,
    ) -> Outcome<Curves> {
        Ok(Curves { title, story, command, figures, names, host: Host::now()?, samples: Vec::new() })
    }

    /// Takes a value; figures are counted through all rows.
    pub(super) fn take(&mut self, round: usize, figure: usize, curve: usize, x: f64, value: f64) {
        self.samples.push(Sample { round, figure, curve, x, value });
    }

    fn curve(&self, figure: usize, curve: usize) -> Vec<(f64, Summary)> {
        let of_this = || self.samples.iter().filter(move |sample| (sample.figure, sample.curve) == (figure, curve));
        let mut xs: Vec<f64> = of_this().map(|sample| sample.x).collect();
        xs.sort_by(f64::total_cmp);
        xs.dedup();
        let at = |x: f64| {
            let values = of_this().filter(|sample| sample.x.total_cmp(&x).is_eq()).map(|sample| sample.value);
            Some((x, Summary::of(values)?))
        };
        xs.into_iter().filter_map(at).collect()
    }

    /// A table for each figure, with a row for each of its places.
    fn tables(&self) -> String {
        let mut text = String::new();
        for (number, figure) in self.figures.iter().flatten().enumerate() {
            let curves: Vec<Vec<(f64, Summary)>> =
                (0..self.names.len()).map(|curve| self.curve(number, curve)).collect();
            let used: Vec<usize> = (0..curves.len()).filter(|curve| !curves[*curve].is_empty()).collect();
            let names: Vec<&str> = used.iter().map(|curve| self.names[*curve]).collect();
            let dashes = "---|".repeat(used.len() + 1);
            let _ = writeln!(text, "**{}**\n\n| {} | {} |\n|{dashes}", figure.title, figure.x_title, names.join(" | "));
            let mut xs: Vec<f64> = curves.iter().flatten().map(|(x, _)| *x).collect();
            xs.sort_by(f64::total_cmp);
            xs.dedup();
            for x in xs {
                let cell = |curve: &usize| match curves[*curve].iter().find(|(at, _)| at.total_cmp(&x).is_eq()) {
                    Some((_, summary)) => report::interval(*summary, sample::figure),
                    None => String::new(),
                };
                let _ = writeln!(text, "| {x} | {} |", used.iter().map(cell).collect::<Vec<_>>().join(" | "));
            }
            text.push('\n');
        }
        text
    }

    /// Writes the three files of the exhibit, and prints its tables.
    pub(super) fn write(mut self, folder: &Path) -> Outcome {
        self.host.load_after = load_average()?;
        let mut number = 0..;
        let rows: Vec<Vec<plot::Panel>> = self
            .figures
            .iter()
            .map(|row| {
                let panel = |(figure, number): (&Figure, usize)| plot::Panel {
                    title: figure.title.to_owned(),
                    x_title: figure.x_title.to_owned(),
                    is_wide: false,
                    logarithmic: false,
                    lines: (0..self.names.len()).map(|curve| self.curve(number, curve)).collect(),
                };
                row.iter().zip(&mut number).map(panel).collect()
            })
            .collect();
        let rounds = self.samples.iter().map(|sample| sample.round + 1).max().unwrap_or_default();
        let tables = self.tables();
        let notes = format!(
            "Medians of {rounds} rounds, and the interval of the median (order statistics).\n\n`{}`, {}.\n",
            self.command,
            self.host.sentence("", "", "")
        );
        println!("\n{tables}{notes}");
        let measured = format!("{}\n\n![plot](plot.svg)\n\n{tables}{notes}", self.story);
        let failed = |error: serde_json::Error| format!("the result cannot be written as JSON: {error}");
        let lines = self.samples.iter().map(|sample| serde_json::to_string(sample).map_err(failed));
        let samples = lines.collect::<Outcome<Vec<String>>>()?.join(",\n    ");
        let host = serde_json::to_string(&json!(self.host)).map_err(failed)?;
        let names = serde_json::to_string(&self.names).map_err(failed)?;
        let result =
            format!("{{\n  \"host\": {host},\n  \"curves\": {names},\n  \"samples\": [\n    {samples}\n  ]\n}}\n");
        report::write_files(folder, self.title, &measured, &plot::panels(self.title, &self.names, &rows), &result)?;
        println!("written: {}", folder.display());
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_figure_has_a_table_of_its_curves() {
        let figure = |title| Figure { title, x_title: "ms" };
        let mut curves = Curves {
            title: "",
            story: "",
            command: String::new(),
            figures: vec![vec![figure("rate"), figure("connections")]],
            names: vec!["one", "two"],
            host: Host::default(),
            samples: Vec::new(),
        };
        for (round, value) in [4.0, 6.0, 5.0].into_iter().enumerate() {
            curves.take(round, 0, 0, 50.0, value);
            curves.take(round, 0, 1, 0.0, 10.0 * value);
            curves.take(round, 1, 1, 0.0, 1.0);
        }
        assert_eq!(
            curves.tables(),
            "**rate**\n\n| ms | one | two |\n|---|---|---|\n| 0 |  | 50.0 (40.0-60.0) |\n| 50 | 5.00 (4.00-6.00) |  |\n\n\
             **connections**\n\n| ms | two |\n|---|---|\n| 0 | 1.00 (1.00-1.00) |\n\n"
        );
    }
}
