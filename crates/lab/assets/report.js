// The plots over time of a page of `ammeter report`: those of a run are drawn when it is opened, as there may be hundreds.
"use strict";
(() => {
  const { data, plot, keep } = drawing;
  const place = number => document.getElementById(`run-${number}`);

  function draw({ range, charts }, number) {
    charts.forEach(({ title, logarithmic, x, series }, at) => plot(`run-${number}-${at}`, {
      x, yLabel: title, yLog: logarithmic, xRange: range, sync: `run-${number}`,
      xLabel: "seconds since the measured load began", legendX: "s",
      series: series.map(one => ({ ...one, points: x.length <= 40 })),
    }));
  }

  keep(() => data.runs.forEach((run, number) => {
    if (place(number).open) draw(run, number);
  }));
  data.runs.forEach((run, number) => place(number).addEventListener("toggle", () => {
    if (place(number).open && !place(number).querySelector("canvas")) draw(run, number);
  }));
})();
