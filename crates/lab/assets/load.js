// The plots of a page of `ammeter load --html`, from the data that stands in it. Drawn anew when the colours or the width
// change: a canvas keeps neither.
"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const dark = matchMedia("(prefers-color-scheme: dark)");
  // Okabe and Ito: told apart by all eyes, on both papers.
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
  // What has no logarithm is not drawn.
  const above0 = values => values.map(value => (value > 0 ? value : null));
  const isDecade = value => Math.abs(Math.log10(value) - Math.round(Math.log10(value))) < 1e-9;

  // A logarithmic axis has its name at powers of ten, and between them where they are few.
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
    // Intervals are drawn too, not only what is in the series.
    const reach = (extent ?? []).filter(value => value != null);
    const withExtent = (low, high) => [Math.min(low ?? 1, ...reach), Math.max(high ?? 1, ...reach)];
    plots.push(new uPlot({
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
    }, [x, ...series.map(({ values }) => values)], place));
  }

  function run({ seconds, asked, allowed_lateness_ms, distribution }) {
    // The last second is cut short. Where there are others, a rate of a few milliseconds says nothing.
    const whole = seconds.filter(second => second.length_s >= 0.5);
    const shown = whole.length ? whole : seconds;
    const x = shown.map(second => second.at_s + second.length_s / 2);
    const last = shown[shown.length - 1];
    const end = last ? last.at_s + last.length_s : 1;
    const each = figure => shown.map(figure);
    const rate = name => each(second => second[name] / second.length_s);
    // What was not seen has no time.
    const time = (name, count) => above0(each(second => (second[count] ? second[name] : 0)));
    const overTime = { x, xLabel: "seconds from the start", legendX: "s", sync: "time", xRange: [0, end] };
    const level = value => x.map(() => value);
    plot("rates", {
      ...overTime, yLabel: "per second",
      series: [
        ...(asked ? [{ label: "asked (mean)", values: level(asked), hue: "grey", dash: [6, 4], points: false }] : []),
        { label: "begun", values: rate("started"), hue: "blue", width: 4 },
        { label: "answered", values: rate("ok"), hue: "green" },
      ],
    });
    plot("latencies", {
      ...overTime, yLabel: "ms, logarithmic", yLog: true,
      series: [["max", "max_ms", "red"], ["p99", "p99_ms", "orange"], ["p90", "p90_ms", "blue"], ["p50", "p50_ms", "green"]]
        .map(([label, name, hue]) => ({ label, values: time(name, "ok"), hue, unit: " ms" })),
    });
    plot("failures", {
      ...overTime, yLabel: "per second",
      series: [{ label: "failed", values: rate("failed"), hue: "red" }],
    });
    plot("lateness", {
      ...overTime, yLabel: "ms, logarithmic", yLog: true,
      series: [
        { label: "p99 of lateness", values: time("lateness_p99_ms", "started"), hue: "violet", unit: " ms" },
        ...(allowed_lateness_ms
          ? [{ label: "allowed", values: level(allowed_lateness_ms), hue: "grey", dash: [6, 4], points: false, unit: " ms" }]
          : []),
      ],
    });
    // 90 %, 99 %, 99.9 % are as far from each other as what exceeds them is in powers of ten.
    const { quantiles } = distribution;
    if (!quantiles.length) return;
    const fractions = quantiles.map(quantile => 1 / (1 - quantile));
    const padded = values => above0(quantiles.map((_, at) => values[at] ?? null));
    const percent = value => {
      if (value == null || !isDecade(value)) return "";
      return value === 1 ? "0 %" : +(100 - 100 / value).toFixed(6) + " %";
    };
    plot("distribution", {
      x: fractions, xRange: [1, Math.max(10, fractions[fractions.length - 1])], xLog: true, yLog: true,
      xLabel: "of all are no longer", legendX: "one of", yLabel: "ms, logarithmic",
      xValues: (self, splits) => splits.map(percent),
      series: [
        ["latency", "latency_ms", "blue"], ["first byte", "first_byte_ms", "green"],
        ["secured", "secured_ms", "red"], ["connected", "connected_ms", "orange"], ["lateness", "lateness_ms", "violet"],
      ].filter(([, name]) => distribution[name].length).map(([label, name, hue]) => ({ label, values: padded(distribution[name]), hue, points: false, unit: " ms" })),
    });
  }

  // Points with the range of their repetitions. One that is not the server's is open.
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

  function sweep({ points: rates, capacity }) {
    const x = rates.map(({ asked }) => asked);
    const kept = rates.map(point => point.kept);
    const of = (name, end) => rates.map(point => point[name][end]);
    const spread = (name, hue, positive) => {
      const [low, middle, high] = ["low", "median", "high"].map(end => (positive ? above0(of(name, end)) : of(name, end)));
      return { at: x, low, middle, high, hue };
    };
    // Between the rate that is borne and the one that is not lies the capacity.
    const band = color => capacity && capacity.not_borne != null ? [self => {
      const [from, to] = [capacity.borne, capacity.not_borne].map(rate => self.valToPos(rate, "x", true));
      const { top, height } = self.bbox;
      self.ctx.save();
      self.ctx.globalAlpha = 0.18;
      self.ctx.fillStyle = color.orange;
      self.ctx.fillRect(from, top, to - from, height);
      self.ctx.restore();
    }] : [];
    const overRates = { x, xLabel: "connections a second, asked for", legendX: "asked", sync: "rate" };
    const line = (label, { middle, hue }, unit, width) => ({ label, values: middle, hue, unit, width, points: false });
    const drawn = (...spreads) => ({
      hooks: color => ({ ...points(kept, spreads)(color), drawClear: band(color) }),
      extent: spreads.flatMap(({ low, high }) => [...low, ...high]),
    });
    const [begun, answered, failed] = [spread("begun", "blue"), spread("answered", "green"), spread("failed", "red")];
    plot("rates", {
      ...overRates, yLabel: "per second",
      series: [
        { label: "as asked", values: x, hue: "grey", dash: [6, 4], points: false },
        line("begun", begun, "", 4), line("answered", answered), line("failed", failed),
      ],
      ...drawn(begun, answered, failed),
    });
    const [p50, p99] = [spread("p50_ms", "green", true), spread("p99_ms", "orange", true)];
    plot("latencies", {
      ...overRates, yLabel: "ms, logarithmic", yLog: true,
      series: [line("p99", p99, " ms"), line("p50", p50, " ms")],
      ...drawn(p99, p50),
    });
    const late = spread("lateness_p99_ms", "violet", true);
    plot("lateness", {
      ...overRates, yLabel: "ms, logarithmic", yLog: true,
      series: [line("p99 of lateness", late, " ms")],
      ...drawn(late),
    });
  }

  function draw() {
    plots.forEach(old => old.destroy());
    plots = [];
    if (data.run) run(data.run);
    if (data.sweep) sweep(data.sweep);
  }

  draw();
  dark.addEventListener("change", draw);
  for (const [event, now] of [["beforeprint", true], ["afterprint", false]]) {
    addEventListener(event, () => {
      printing = now;
      draw();
    });
  }
  let width = document.body.clientWidth;
  addEventListener("resize", () => {
    if (!printing && document.body.clientWidth !== width) {
      width = document.body.clientWidth;
      draw();
    }
  });
})();
