//! A self-contained HTML page: it includes its tables, its data and the library that draws its
//! plots (uPlot, see `assets/uplot`), and its content security policy forbids loading anything. It
//! opens from disk, years later, without a network.
//!
//! `ammeter load --html`, `ammeter profile --html` and `ammeter report` write such pages. They
//! differ in the body, the embedded data, and the script that draws them with `assets/plot.js`.

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

/// Content security policy: inline styles and scripts only, nothing loaded.
const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'";

/// Writes a page with plots. `script` reads `data` as `drawing.data`; `below` is the line under the heading.
pub(crate) fn page(title: &str, heading: &str, below: &str, body: &Markup, data: &Value, script: &str) -> String {
    // Within a script element, HTML parsers interpret only `<`, as the start of the end tag.
    let data = data.to_string().replace('<', "\\u003c");
    let licence = format!("\n/*\nuPlot 1.6.32\n\n{UPLOT_LICENCE}*/\n{UPLOT}");
    let body = html! {
        noscript { p.bad { "Plots over time require scripts, which are disabled here; tables and figures do not." } }
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

/// Writes a page without time plots; `style` and `script` belong to `body`.
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
