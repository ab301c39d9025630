// A page of `ammeter report`: its legend hides and shows curves. The time plots of a run are drawn when they are first
// shown, since there may be hundreds.
"use strict";
(() => {
  const { data, plot, keep } = drawing;
  const place = number => document.getElementById(`run-${number}`);

  for (const button of document.querySelectorAll("[data-toggles]")) {
    button.addEventListener("click", () => {
      const isShown = button.getAttribute("aria-pressed") !== "true";
      button.setAttribute("aria-pressed", isShown);
      for (const curve of document.querySelectorAll(`.overlay [data-curve="${button.dataset.toggles}"]`)) {
        curve.style.display = isShown ? "" : "none";
      }
    });
  }

  function draw({ range, charts }, number) {
    charts.forEach(({ title, logarithmic, x, series }, at) => plot(`run-${number}-${at}`, {
      x, yLabel: title, yLog: logarithmic, xRange: range, sync: `run-${number}`,
      xLabel: "seconds since the measured load began", legendX: "s",
      series: series.map(one => ({ ...one, points: x.length <= 40 })),
    }));
  }

  // A plot needs a width, which it has only if all elements around it are open.
  const drawSeen = () => data.runs.forEach((run, number) => {
    const details = place(number);
    if (details.open && details.clientWidth > 0 && !details.closest("details:not([open])") && !details.querySelector("canvas")) {
      draw(run, number);
    }
  });

  keep(drawSeen);
  for (const details of document.querySelectorAll("details")) details.addEventListener("toggle", drawSeen);
})();
