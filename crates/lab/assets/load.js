// The plots of a page of `ammeter load --html`.
"use strict";
(() => {
  const { data, plot, points, above0, isDecade, keep } = drawing;

  function run({ seconds, target, allowed_lateness_ms, distribution }) {
    // The last second may be partial: a rate over a few milliseconds is meaningless beside whole seconds.
    const whole = seconds.filter(second => second.length_s >= 0.5);
    const shown = whole.length ? whole : seconds;
    const x = shown.map(second => second.at_s + second.length_s / 2);
    const last = shown[shown.length - 1];
    const end = last ? last.at_s + last.length_s : 1;
    const each = figure => shown.map(figure);
    const rate = name => each(second => second[name] / second.length_s);
    // A second without samples has no latency.
    const time = (name, count) => above0(each(second => (second[count] ? second[name] : 0)));
    const overTime = { x, xLabel: "seconds from the start", legendX: "s", sync: "time", xRange: [0, end] };
    const level = value => x.map(() => value);
    plot("rates", {
      ...overTime, yLabel: "per second",
      series: [
        ...(target ? [{ label: "target (mean)", values: level(target), hue: "grey", dash: [6, 4], points: false }] : []),
        { label: "offered", values: rate("started"), hue: "blue", width: 4 },
        { label: "completed", values: rate("ok"), hue: "green" },
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
    // 90 %, 99 % and 99.9 % are equally spaced: the exceeding share falls by powers of ten.
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
      xLabel: "percentile", legendX: "1 in", yLabel: "ms, logarithmic",
      xValues: (self, splits) => splits.map(percent),
      series: [
        ["latency", "latency_ms", "blue"], ["first byte", "first_byte_ms", "green"],
        ["secured", "secured_ms", "red"], ["connected", "connected_ms", "orange"], ["lateness", "lateness_ms", "violet"],
      ].filter(([, name]) => distribution[name].length).map(([label, name, hue]) => ({ label, values: padded(distribution[name]), hue, points: false, unit: " ms" })),
    });
  }

  function sweep({ points: rates, capacity }) {
    const x = rates.map(({ target }) => target);
    const kept = rates.map(point => point.kept);
    const of = (name, end) => rates.map(point => point[name][end]);
    const spread = (name, hue, positive) => {
      const [low, middle, high] = ["low", "median", "high"].map(end => (positive ? above0(of(name, end)) : of(name, end)));
      return { at: x, low, middle, high, hue };
    };
    // The capacity is between the highest sustained and the lowest unsustained rate.
    const band = color => capacity && capacity.not_sustained != null ? [self => {
      const [from, to] = [capacity.sustained, capacity.not_sustained].map(rate => self.valToPos(rate, "x", true));
      const { top, height } = self.bbox;
      self.ctx.save();
      self.ctx.globalAlpha = 0.18;
      self.ctx.fillStyle = color.orange;
      self.ctx.fillRect(from, top, to - from, height);
      self.ctx.restore();
    }] : [];
    const overRates = { x, xLabel: "target, connections/s", legendX: "target", sync: "rate" };
    const line = (label, { middle, hue }, unit, width) => ({ label, values: middle, hue, unit, width, points: false });
    const drawn = (...spreads) => ({
      hooks: color => ({ ...points(kept, spreads)(color), drawClear: band(color) }),
      extent: spreads.flatMap(({ low, high }) => [...low, ...high]),
    });
    const [begun, answered, failed] = [spread("begun", "blue"), spread("answered", "green"), spread("failed", "red")];
    plot("rates", {
      ...overRates, yLabel: "per second",
      series: [
        { label: "target", values: x, hue: "grey", dash: [6, 4], points: false },
        line("offered", begun, "", 4), line("completed", answered), line("failed", failed),
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

  keep(() => {
    if (data.run) run(data.run);
    if (data.sweep) sweep(data.sweep);
  });
})();
