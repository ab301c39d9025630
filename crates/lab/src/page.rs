//! A page that needs nothing else: its tables are in it, its plots are drawn by what it carries along (uPlot, see
//! `assets/uplot`), and its policy forbids it to load anything. It opens from a disk, years later, without a network.
//!
//! `ammeter load --html`, `ammeter profile --html` and `ammeter report` write such pages; what differs are the body, the data that
//! stand in it, and the script that has `assets/plot.js` draw them.

#[cfg(test)]
pub(crate) mod chromium;

use maud::{DOCTYPE, Markup, PreEscaped, html};
use serde_json::Value;

use crate::figure::CSS as FIGURE_CSS;

const UPLOT: &str = include_str!("../assets/uplot/uPlot.iife.min.js");
const UPLOT_CSS: &str = include_str!("../assets/uplot/uPlot.min.css");
const UPLOT_LICENCE: &str = include_str!("../assets/uplot/LICENSE");
const CSS: &str = include_str!("../assets/page.css");
const PLOT: &str = include_str!("../assets/plot.js");

/// What the page may do: use what is in it, and nothing else.
const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'";

/// Writes one with plots. `data` is what `drawing.data` is to `script`, and `below` stands under the heading.
pub(crate) fn page(title: &str, heading: &str, below: &str, body: &Markup, data: &Value, script: &str) -> String {
    // Within a script nothing but its end has a meaning to the reader of HTML.
    let data = data.to_string().replace('<', "\\u003c");
    let licence = format!("\n/*\nuPlot 1.6.32\n\n{UPLOT_LICENCE}*/\n{UPLOT}");
    let body = html! {
        noscript { p.bad { "Plots over time are drawn by a script, which is switched off here; tables and figures are not." } }
        (body)
    };
    let end = html! {
        footer { (PROGRAM) "; plots by uPlot, under the MIT licence that is in this page" }
        script type="application/json" id="data" { (PreEscaped(data)) }
        script { (PreEscaped(licence)) }
        script { (PreEscaped(PLOT)) }
        script { (PreEscaped(script)) }
    };
    document(title, heading, below, &format!("{UPLOT_CSS}{CSS}{FIGURE_CSS}"), &html! { (body) (end) })
}

/// Writes one without plots over time; `style` and `script` are of what is in `body`.
pub(crate) fn plain(title: &str, below: &str, body: &Markup, style: &str, script: &str) -> String {
    let end = html! {
        footer { (PROGRAM) }
        script { (PreEscaped(script)) }
    };
    document(title, title, below, &format!("{CSS}{FIGURE_CSS}{style}"), &html! { (body) (end) })
}

const PROGRAM: &str = concat!("ammeter ", env!("CARGO_PKG_VERSION"));

fn document(title: &str, heading: &str, below: &str, style: &str, body: &Markup) -> String {
    html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta http-equiv="Content-Security-Policy" content=(POLICY);
                title { (title) }
                style { (PreEscaped(style)) }
            }
            body {
                h1 { (heading) }
                p.faint { (below) }
                (body)
            }
        }
    }
    .into_string()
}
