//! Renders a page in Chromium as readers see it: light and dark, wide and
//! narrow. For the tests of all modules that write pages.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::{Value, json};

/// Inserted at the start of the page: records errors, warnings and blocked requests.
const WATCH: &str = "<script>
const troubles = [];
addEventListener('error', event => troubles.push('error: ' + event.message));
addEventListener('securitypolicyviolation', event => troubles.push('policy: ' + event.blockedURI));
for (const kind of ['error', 'warn']) console[kind] = (...words) => troubles.push(kind + ': ' + words.join(' '));
</script>";

/// Inserted at the end of the page: opens every run and inspects every plot.
const LOOK: &str = "<script>
addEventListener('load', async () => {
  for (const run of document.querySelectorAll('details')) run.open = true;
  await new Promise(done => setTimeout(done, 200));
  const blank = canvas => {
    const pixels = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data;
    let drawn = 0;
    for (let at = 3; at < pixels.length; at += 4) drawn += pixels[at] > 0;
    return drawn < 500;
  };
  const canvases = [...document.querySelectorAll('canvas')];
  const places = [...document.querySelectorAll('figure > div')];
  const figures = [...document.querySelectorAll('svg')];
  // Texts that are not rotated, with a tolerance for fonts.
  const texts = figure => [...figure.querySelectorAll('text:not([transform])')].map(text => {
    const { left, right, top, bottom } = text.getBoundingClientRect();
    return { word: text.textContent, left: left + 1, right: right - 1, top: top + 3, bottom: bottom - 3 };
  }).filter(({ word }) => word.trim());
  const overlapping = figures.flatMap(figure => {
    const all = texts(figure);
    return all.flatMap((one, at) => all.slice(at + 1)
      .filter(other => one.left < other.right && other.left < one.right && one.top < other.bottom && other.top < one.bottom)
      .map(other => one.word + ' / ' + other.word));
  });
  const outside = figures.flatMap(figure => {
    const { left, right, top, bottom } = figure.getBoundingClientRect();
    return texts(figure)
      .filter(text => text.left < left || text.right > right || text.top < top || text.bottom > bottom)
      .map(({ word }) => word);
  });
  const seen = {
    troubles,
    canvases: canvases.length,
    places: places.length,
    empty: places.filter(place => !place.querySelector('canvas')).length,
    blank: canvases.filter(blank).length,
    unlabelled: canvases.filter(canvas => !canvas.getAttribute('aria-label')).length,
    figures: figures.length,
    flat: figures.filter(svg => svg.getBoundingClientRect().height < 50).length,
    overlapping,
    outside,
    requests: performance.getEntriesByType('resource').map(entry => entry.name),
    wide: document.documentElement.scrollWidth > document.documentElement.clientWidth,
  };
  const result = document.createElement('pre');
  result.id = 'seen';
  result.textContent = JSON.stringify(seen);
  document.body.append(result);
});
</script>";

/// Opens a page in Chromium, and returns the findings and Chromium's own log.
pub(crate) fn seen(page: &str, folder: &Path, flags: &[&str]) -> (Value, String) {
    const CHARSET: &str = "<meta charset=\"utf-8\">";
    assert!(page.contains(CHARSET) && page.trim_end().ends_with("</html>"));
    let watched = page.replacen(CHARSET, &format!("{CHARSET}{WATCH}"), 1).replace("</html>", &format!("{LOOK}</html>"));
    let path = folder.join("watched.html");
    fs::write(&path, watched).unwrap();
    let profile = format!("--user-data-dir={}", folder.join("chromium").display());
    let mut command = Command::new("chromium");
    command.args([
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--disable-background-networking",
    ]);
    command
        .args(["--virtual-time-budget=20000", "--enable-logging=stderr", "--v=0", "--dump-dom", &profile])
        .args(flags);
    let output = command
        .arg(format!("file://{}", path.display()))
        .stdin(Stdio::null())
        .output()
        .expect("chromium opens the page, as a reader does: apt-get install chromium, or cargo xtask setup");
    let (dom, log) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    let result = dom.split_once("<pre id=\"seen\">").and_then(|(_, rest)| Some(rest.split_once("</pre>")?.0));
    let result = result.unwrap_or_else(|| panic!("Chromium returned no result for the page: {log}"));
    let result = result.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&");
    (serde_json::from_str(&result).unwrap(), log.into_owned())
}

/// What the page contains.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Seen {
    /// Plots on canvases.
    pub(crate) plots: usize,
    /// SVG figures.
    pub(crate) figures: usize,
}

/// Asserts that the page draws everything, without overlaps, errors or requests.
pub(crate) fn sound(page: &str, folder: &Path) -> Seen {
    let mut all = Vec::new();
    for flags in
        [&["--window-size=1200,900"][..], &["--window-size=600,900", "--blink-settings=preferredColorScheme=0"]]
    {
        let (seen, log) = seen(page, folder, flags);
        assert!(!log.contains("CONSOLE"), "{log}");
        for list in ["troubles", "requests", "overlapping", "outside"] {
            assert_eq!(seen[list], json!([]), "{list}: {seen}");
        }
        for count in ["empty", "blank", "unlabelled", "flat"] {
            assert_eq!(seen[count], 0, "{count}: {seen}");
        }
        assert_eq!(seen["wide"], false, "the page is wider than its window: {seen}");
        let [plots, places, figures] =
            ["canvases", "places", "figures"].map(|name| seen[name].as_u64().unwrap() as usize);
        assert_eq!(plots, places, "{seen}");
        all.push(Seen { plots, figures });
    }
    assert_eq!(all[0], all[1]);
    all.remove(0)
}
