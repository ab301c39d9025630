// Shared by the plots of all pages: colours, axes, and redrawing when the colours or the width change, since a canvas
// does not adapt. A page's own script calls `drawing.plot` with the data embedded in the page.
"use strict";
const drawing = (() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const dark = matchMedia("(prefers-color-scheme: dark)");
  // Okabe and Ito: distinguishable with colour blindness, on light and dark backgrounds.
  const LIGHT = {
    ink: "#1a1a1a", grid: "#e4e4e4", paper: "#ffffff",
    blue: "#0072b2", green: "#007a5a", orange: "#c65f00", red: "#b2182b", grey: "#777777", violet: "#9e4a80",
  };
  const DARK = {
    ink: "#d0d0d0", grid: "#33363b", paper: "#16181c",
    blue: "#56b4e9", green: "#2fc79a", orange: "#e69f00", red: "#f4837d", grey: "#9aa0a6", violet: "#d890bc",
  };
  const PRINTED_WIDTH = 680;
  let printing = false;
  let plots = [];

  const number = value => {
    if (value == null) return "–";
    const size = Math.abs(value);
    if (size >= 1e6) return +(value / 1e6).toPrecision(3) + "M";
    if (size >= 1e4) return +(value / 1e3).toPrecision(3) + "k";
    return String(+value.toPrecision(size >= 100 ? 4 : 3));
  };
  // Values without a logarithm are not drawn.
  const above0 = values => values.map(value => (value > 0 ? value : null));
  const isDecade = value => Math.abs(Math.log10(value) - Math.round(Math.log10(value))) < 1e-9;

  // A logarithmic axis has labels at powers of ten, and between them if there are few.
  function logTicks(unit) {
    return (plot, splits) => {
      const decades = splits.filter(value => value != null && isDecade(value)).length;
      const first = value => Math.round(value / 10 ** Math.floor(Math.log10(value) + 1e-9));
      return splits.map(value => {
        if (value == null) return "";
        const named = isDecade(value) || decades <= 1 || (decades <= 3 && [2, 5].includes(first(value)));
        return named ? number(value) + unit : "";
      });
    };
  }

  function plot(id, { x, series, xLabel, yLabel, xLog, yLog, xRange, xValues, extent, sync, hooks, legendX }) {
    const place = document.getElementById(id);
    if (!place) return;
    const color = dark.matches && !printing ? DARK : LIGHT;
    const axis = { stroke: color.ink, grid: { stroke: color.grid, width: 1 }, ticks: { stroke: color.grid, width: 1 } };
    const few = x.length <= 40;
    const lines = series.map(({ label, values, hue, dash, width, unit, points }) => ({
      label, dash, stroke: color[hue], width: width ?? 1.8, spanGaps: false,
      points: { show: points ?? few, size: 5, fill: color[hue] },
      value: (self, value) => (value == null ? "–" : number(value) + (unit ?? "")),
    }));
    const width = printing ? PRINTED_WIDTH : place.clientWidth;
    // The axis includes the intervals, which are not in the series.
    const reach = (extent ?? []).filter(value => value != null);
    const withExtent = (low, high) => [Math.min(low ?? 1, ...reach), Math.max(high ?? 1, ...reach)];
    const drawn = new uPlot({
      width, padding: [10, 24, null, null], height: Math.round(Math.min(300, Math.max(200, width * 0.42))),
      scales: {
        x: { time: false, ...(xLog ? { distr: 3 } : {}), ...(xRange ? { range: () => xRange } : {}) },
        y: yLog
          ? { distr: 3, range: (self, low, high) => uPlot.rangeLog(...withExtent(low, high), 10, false) }
          : { range: (self, low, high) => [0, withExtent(low, high)[1] * 1.08 || 1] },
      },
      axes: [
        { ...axis, label: xLabel, labelSize: 22, values: xValues ?? ((self, ticks) => ticks.map(number)) },
        { ...axis, label: yLabel, size: 62, ...(yLog ? { values: logTicks("") } : { values: (self, ticks) => ticks.map(number) }) },
      ],
      series: [{ label: legendX ?? xLabel, value: (self, value) => number(value) }, ...lines],
      cursor: { sync: sync ? { key: sync } : undefined, drag: { x: !xLog, y: false } },
      hooks: hooks ? hooks(color) : {},
    }, [x, ...series.map(({ values }) => values)], place);
    // For screen readers: each series with its range.
    const ranges = series.map(({ label, values, unit }) => {
      const known = values.filter(value => value != null);
      if (!known.length) return `${label}: no values`;
      const [least, most] = known.reduce(([least, most], value) => [Math.min(least, value), Math.max(most, value)], [known[0], known[0]]);
      return `${label}: ${number(least)} to ${number(most)}${unit ?? ""}`;
    });
    const canvas = place.querySelector("canvas");
    canvas.setAttribute("role", "img");
    canvas.setAttribute("aria-label", `${yLabel}, over ${xLabel}. ${ranges.join("; ")}.`);
    plots.push(drawn);
  }

  // Points with the range of their repetitions. A point limited by the load generator is open.
  const points = (kept, drawn) => color => ({
    draw: [self => {
      const { ctx } = self;
      const scale = devicePixelRatio;
      ctx.save();
      const { left, top, width, height } = self.bbox;
      ctx.beginPath();
      ctx.rect(left - 6 * scale, top - 6 * scale, width + 12 * scale, height + 12 * scale);
      ctx.clip();
      for (const { at, low, middle, high, hue } of drawn) {
        for (let i = 0; i < at.length; i++) {
          if (middle[i] == null) continue;
          const x = self.valToPos(at[i], "x", true);
          const y = value => self.valToPos(value, "y", true);
          ctx.strokeStyle = color[hue];
          ctx.lineWidth = 1.6 * scale;
          ctx.beginPath();
          if (low[i] != null && high[i] != null && high[i] > low[i]) {
            ctx.moveTo(x, y(low[i]));
            ctx.lineTo(x, y(high[i]));
          }
          ctx.stroke();
          ctx.beginPath();
          ctx.arc(x, y(middle[i]), 4 * scale, 0, 2 * Math.PI);
          ctx.fillStyle = kept[i] ? color[hue] : color.paper;
          ctx.fill();
          ctx.stroke();
        }
      }
      ctx.restore();
    }],
  });

  // Calls `draw` now, and again whenever the plots are outdated.
  function keep(draw) {
    const again = () => {
      plots.forEach(old => old.destroy());
      plots = [];
      draw();
    };
    again();
    dark.addEventListener("change", again);
    for (const [event, now] of [["beforeprint", true], ["afterprint", false]]) {
      addEventListener(event, () => {
        printing = now;
        again();
      });
    }
    let width = document.body.clientWidth;
    addEventListener("resize", () => {
      if (!printing && document.body.clientWidth !== width) {
        width = document.body.clientWidth;
        again();
      }
    });
  }

  return { data, plot, points, number, above0, isDecade, keep };
})();
