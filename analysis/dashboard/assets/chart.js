const HEIGHT = 210;
const MOST_DOTS = 400; // more values than this are a line, not dots
// Distances of ticks between steps, which are whole numbers: 1, 2, 5, 10, ...
const STEP_TICKS = [...Array(12).keys()].flatMap((n) => [1, 2, 5].map((m) => m * 10 ** n));

function vertical(spec) {
  if (spec.histogram) {
    const { low, bins, width } = spec.histogram;
    return { range: [low, low + bins * width] };
  }
  const range = (chart, low, high) => {
    if (low === null || low === undefined) return spec.scale === "log" ? [0.1, 1] : [0, 1];
    if (spec.span) [low, high] = [Math.min(low, spec.span[0]), Math.max(high, spec.span[1])];
    if (spec.scale === "log") return [low / 1.15, high * 1.15];
    const room = (high - low || Math.abs(high) || 1) * 0.06;
    return [low - (low === 0 ? 0 : room), high + room];
  };
  return { distr: spec.scale === "log" ? 3 : 1, log: 10, range };
}

function axes(spec) {
  const shared = {
    stroke: () => themed("--muted"),
    font: "11px system-ui, sans-serif",
    grid: { stroke: () => themed("--grid"), width: 1 },
    ticks: { stroke: () => themed("--line"), width: 1, size: 4 },
  };
  const logarithmic = spec.scale === "log" && !spec.histogram;
  return [
    { ...shared, size: 28, space: 70, incrs: STEP_TICKS, values: (chart, ticks) => ticks.map(formatStep) },
    {
      ...shared,
      size: 58,
      incrs: [1e300], // the splits below choose; without one that fits, none are drawn
      splits: (chart, axis, low, high) =>
        (logarithmic ? logTicks : niceTicks)(low, high, 6),
      filter: (chart, ticks) => ticks,
      values: (chart, ticks) => ticks.map(formatTick),
    },
  ];
}

function seriesOf(line, { colour, dash }, count, lonely) {
  const dots = line.first.length <= (line.sparse ? MOST_DOTS : 40);
  return {
    label: line.label,
    stroke: colour,
    width: line.grey || count > PALETTE ? 1 : 1.5,
    dash,
    spanGaps: false,
    points: {
      show: dots,
      filter: (chart, index, shown) => (shown || !lonely.length ? null : lonely),
      size: 5,
      fill: colour,
    },
  };
}

// A chart in its figure. The page knows the step, the zoom and whether marks are shown.
function makeChart(figure, spec, page) {
  const place = figure.querySelector(".plot");
  const own = spec.lines.filter((line) => !line.grey).length;
  // A line that lies in what its histogram paints has another colour than that.
  let number = spec.histogram && spec.histogram.darkest < 1 ? 1 : 0;
  const looks = spec.lines.map((line) => {
    if (page.several) return { colour: () => runColour(line.run), dash: runDash(line.run) };
    const index = line.grey ? 0 : number++;
    const dash = line.dashed ? DASHED : [];
    return { colour: () => lineColour(line, index, own), dash };
  });
  const many = own > PALETTE && !page.several;
  const data = joinLines(spec.lines, spec.scale, spec.floor);
  const options = {
    width: place.clientWidth || 600,
    height: HEIGHT,
    legend: { show: false },
    padding: [10, 10, 0, 0],
    scales: { x: { time: false, range: (chart, low, high) => [low, high] }, y: vertical(spec) },
    axes: axes(spec),
    series: [
      {},
      ...spec.lines.map((line, i) => seriesOf(line, looks[i], own, lonelyPoints(data[i + 1]))),
    ],
    focus: { alpha: 0.25 },
    cursor: {
      sync: { key: "autopsy", setSeries: false, scales: ["x", null] },
      focus: { prox: many ? 20 : -1 },
      points: { show: false },
      drag: { x: true, y: false },
    },
    hooks: {
      // Below the lines: a spike of one step is as narrow as the mark of its step.
      drawAxes: [
        (chart) => {
          if (spec.histogram) paintHistogram(chart, spec.histogram);
          paintSeams(chart, page.seams);
          if (page.marks) paintMarks(chart, page.flags);
          verticalLine(chart, page.step, themed("--step"), []);
        },
      ],
      draw: [
        (chart) => {
          paintRulers(chart, spec.rulers);
          paintOdd(chart, spec.lines);
        },
      ],
      setScale: [(chart, key) => key === "x" && page.zoomed(chart)],
      setCursor: [(chart) => page.hovered(chart)],
      setSeries: [(chart, index) => page.focused(spec, index)],
    },
  };
  const chart = new uPlot(options, data, place);
  chart.over.addEventListener("click", () => page.clicked(chart));
  const legend = makeLegend(figure.querySelector(".legend"), spec, looks, chart, many);
  return { chart, spec, place, legend };
}
