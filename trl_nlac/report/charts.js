const HEIGHT = 208;
const MARGIN = { top: 10, right: 12, bottom: 26 };

/** Return ascending round numbers that cover a range in about `count` steps. */
function ticks(low, high, count) {
  const raw = (high - low) / Math.max(1, count) || 1;
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = power * [1, 2, 2.5, 5, 10].find((factor) => factor * power >= raw * 0.999);
  const first = Math.floor(low / step + 1e-9);
  const last = Math.ceil(high / step - 1e-9);
  return Array.from({ length: last - first + 1 }, (_, i) => Number(((first + i) * step).toPrecision(12)));
}

/** Format an axis label: 1,500 is 1.5k. */
function short(value) {
  const size = Math.abs(value);
  for (const [unit, letter] of [[1e9, "G"], [1e6, "M"], [1e3, "k"]]) {
    if (size >= unit) return Number((value / unit).toPrecision(3)) + letter;
  }
  return String(Number(value.toPrecision(3)));
}

function path(points) {
  return points.map(([x, y], i) => `${i ? "L" : "M"}${x.toFixed(1)} ${y.toFixed(1)}`).join("");
}

function nearest(values, wanted) {
  let best = 0;
  values.forEach((value, i) => {
    if (Math.abs(value - wanted) < Math.abs(values[best] - wanted)) best = i;
  });
  return best;
}

/** Call `draw` once a node is in the page, and again whenever its width changes. */
function onWidth(node, draw) {
  let width = 0;
  const look = () => {
    if (node.clientWidth && node.clientWidth !== width) draw((width = node.clientWidth));
  };
  queueMicrotask(look);
  // In the next frame: drawing changes the page's height, which observers must not do.
  new ResizeObserver(() => requestAnimationFrame(look)).observe(node);
}

/** Create a plot with an x axis from 0 to `xTop` and a y axis over all `yTicks`; return it with its two scales. */
function frame({ width, height, xTop, xTicks, yTicks, label }) {
  const texts = yTicks.map(short);
  const left = 10 + 6.6 * Math.max(...texts.map((text) => text.length));
  const bottom = height - MARGIN.bottom;
  const [yLow, yHigh] = [yTicks[0], yTicks.at(-1)];
  const x = (value) => left + (value / (xTop || 1)) * (width - left - MARGIN.right);
  const y = (value) => bottom - ((value - yLow) / (yHigh - yLow)) * (bottom - MARGIN.top);
  const picture = svg("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label });
  yTicks.forEach((value, i) => {
    const [at, kind] = [y(value).toFixed(1), value === 0 ? "axis" : "grid"];
    picture.append(
      svg("line", { class: kind, x1: left, x2: width - MARGIN.right, y1: at, y2: at }),
      svg("text", { x: left - 7, y: at, dy: "0.32em", "text-anchor": "end" }, texts[i]),
    );
  });
  for (const value of xTicks) {
    const anchor = x(value) > width - MARGIN.right - 12 ? "end" : "middle";
    picture.append(svg("text", { x: x(value).toFixed(1), y: height - 8, "text-anchor": anchor }, short(value)));
  }
  return { picture, x, y, bottom };
}

/** Show a tooltip next to a place in the plot, on the side with more room. */
function showTip(tip, at, width, children) {
  tip.replaceChildren(...children);
  tip.hidden = false;
  tip.style.left = at < width / 2 ? `${at + 12}px` : "auto";
  tip.style.right = at < width / 2 ? "auto" : `${width - at + 12}px`;
}

function lineChart(chart) {
  const tip = el("div", { className: "tip", hidden: true });
  const plot = el("div", { className: "plot" });
  const isStacked = chart.series.some((series) => series.style === "area");
  const show = (value) => format(value, chart.is_rate);
  const legend = chart.series.map((series) =>
    el(
      "li",
      {},
      el("span", { className: `key ${series.style} ${series.color}` }),
      el("span", { dir: "auto" }, series.name),
      " ",
      el("b", {}, show(series.y.at(-1))),
    ),
  );
  const steps = chart.series.flatMap((series) => series.x);
  const xTop = Math.max(...steps);
  const values = chart.series.flatMap((series) => [...series.y, ...(series.high ?? []), ...(series.low ?? [])]);
  const last = chart.series.map((series) => `${series.name} ${show(series.y.at(-1))} at last`);

  onWidth(plot, (width) => {
    const xTicks = ticks(0, xTop, Math.max(2, Math.floor(width / 90))).filter((value) => value <= xTop);
    const yTicks = chart.is_rate
      ? [0, 0.25, 0.5, 0.75, 1]
      : ticks(Math.min(0, ...values), Math.max(0, ...values) || 1, 4);
    const label = `${chart.title}: ${last.join(", ")}`;
    const { picture, x, y, bottom } = frame({ width, height: HEIGHT, xTop, xTicks, yTicks, label });
    for (const { style, color, ...series } of chart.series) {
      const along = (ys) => ys.map((value, i) => [x(series.x[i]), y(value)]);
      if (series.low) {
        const band = [...along(series.high), ...along(series.low).reverse()];
        picture.append(svg("path", { class: `band ${style} ${color}`, d: `${path(band)}Z` }));
      }
      if (style === "area") continue;
      picture.append(svg("path", { class: `line ${style} ${color}`, d: path(along(series.y)) }));
      if (series.x.length <= 40 && style === "line") {
        for (const [cx, cy] of along(series.y)) {
          picture.append(svg("circle", { class: `dot ${color}`, cx, cy, r: 2.5 }));
        }
      }
    }
    const cursor = svg("g", { class: "cursor" });
    picture.append(cursor);
    const leave = () => {
      cursor.replaceChildren();
      tip.hidden = true;
    };
    const point = (event) => {
      const px = event.clientX - picture.getBoundingClientRect().left;
      const wanted = ((px - x(0)) / (x(xTop) - x(0) || 1)) * xTop;
      const step = steps[nearest(steps, wanted)];
      const line = svg("line", { x1: x(step), x2: x(step), y1: MARGIN.top, y2: bottom });
      const rows = [];
      const marks = [];
      for (const series of chart.series) {
        const i = nearest(series.x, step);
        const ends = series.low && !isStacked ? ` (${show(series.low[i])} to ${show(series.high[i])})` : "";
        rows.push(
          el(
            "div",
            {},
            el("span", { className: `key ${series.style} ${series.color}` }),
            el("span", { dir: "auto" }, series.name),
            el("b", {}, show(series.y[i]) + ends),
            series.x[i] === step ? null : el("span", { className: "at" }, ` at ${format(Math.round(series.x[i]))}`),
          ),
        );
        if (isStacked) continue;
        marks.push(svg("circle", { class: `dot ${series.color}`, cx: x(series.x[i]), cy: y(series.y[i]), r: 4 }));
      }
      cursor.replaceChildren(line, ...marks);
      const at = el("div", { className: "at" }, `${format(Math.round(step))} ${data.axis}`);
      showTip(tip, x(step), width, [at, ...rows]);
    };
    picture.addEventListener("pointermove", point);
    picture.addEventListener("pointerdown", point);
    picture.addEventListener("pointerleave", leave);
    plot.replaceChildren(picture, tip);
  });
  return el(
    "figure",
    { className: `chart${chart.is_wide ? " wide" : ""}` },
    el("h3", { dir: "auto" }, chart.title),
    el("p", { className: "note" }, chart.note),
    el("ul", { className: "legend" }, ...legend),
    chart.series.some((series) => series.x.length > 1) ? plot : null, // one dot says no more than its number
  );
}

function reliabilityDiagram(plot, evaluations) {
  const tip = el("div", { className: "tip", hidden: true });
  const newest = evaluations.at(-1);
  onWidth(plot, (width) => {
    const height = Math.min(width, 430);
    const marks = [0, 0.25, 0.5, 0.75, 1];
    const label = `Reliability: Brier score ${newest.brier.toFixed(3)} over ${newest.count} verdicts`;
    const { picture, x, y } = frame({ width, height, xTop: 1, xTicks: marks, yTicks: marks, label });
    picture.append(svg("line", { class: "diagonal", x1: x(0), y1: y(0), x2: x(1), y2: y(1) }));
    for (const evaluation of evaluations) {
      const isNewest = evaluation === newest;
      const kind = isNewest ? "blue" : "grey hollow";
      const most = Math.max(...evaluation.bins.map((bin) => bin.count));
      for (const bin of evaluation.bins) {
        const [cx, cy] = [x(bin.predicted), y(bin.observed)];
        const figures = [bin.predicted, bin.observed, bin.low, bin.high];
        const [predicted, observed, low, high] = figures.map((value) => format(value, true));
        const r = 3 + 7 * Math.sqrt(bin.count / most);
        if (isNewest) {
          picture.append(svg("line", { class: `whisker ${kind}`, x1: cx, x2: cx, y1: y(bin.low), y2: y(bin.high) }));
        }
        const dot = svg("circle", { class: `bin ${kind}`, cx, cy, r });
        const show = () =>
          showTip(tip, cx, width, [
            el("div", { className: "at" }, `Step ${format(evaluation.step)}, ${format(bin.count)} verdicts`),
            el("div", {}, "predicted", el("b", {}, predicted)),
            el("div", {}, "observed", el("b", {}, `${observed} (${low} to ${high})`)),
          ]);
        dot.addEventListener("pointerenter", show);
        dot.addEventListener("pointerdown", show);
        dot.addEventListener("pointerleave", () => (tip.hidden = true));
        picture.append(dot);
      }
    }
    plot.replaceChildren(picture, tip);
  });
}

for (const place of document.querySelectorAll("[data-charts]")) {
  place.append(...data.charts[place.dataset.charts].map(lineChart));
}
for (const place of document.querySelectorAll("[data-reliability]")) {
  const evaluations = data.reliability[place.dataset.reliability];
  if (evaluations.every((evaluation) => evaluation.bins.length < 2)) {
    place.textContent = "All verdicts have about the same probability: there is nothing to draw.";
    continue;
  }
  place.classList.add("plot");
  reliabilityDiagram(place, evaluations);
}
// The fragment of the URL is reserved for the episodes.
for (const link of document.querySelectorAll('a[href^="#"]')) {
  link.addEventListener("click", (event) => {
    event.preventDefault();
    document.getElementById(link.hash.slice(1)).scrollIntoView({ behavior: "smooth" });
  });
}
