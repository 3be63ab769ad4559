// The values at a step in words: a button a line, or for many lines the extremes and
// the line that was chosen or is nearest to the pointer.
function makeLegend(place, spec, looks, chart, many) {
  place.replaceChildren();
  return many
    ? manyLegend(place, spec, chart)
    : fewLegend(place, spec, looks, chart);
}

function fewLegend(place, spec, looks, chart) {
  const swatches = [];
  const buttons = [];
  const values = spec.lines.map((line, index) => {
    const swatch = element("span", { class: "swatch" });
    swatches.push(swatch);
    const value = element("span", { class: "read" });
    const button = element(
      "button",
      {
        type: "button",
        "aria-pressed": "true",
        title: "show or hide",
        onclick: () => {
          const shown = button.getAttribute("aria-pressed") !== "true";
          button.setAttribute("aria-pressed", String(shown));
          chart.setSeries(index + 1, { show: shown });
        },
      },
      swatch,
      `${line.label} `,
      value,
    );
    buttons.push(button);
    return value;
  });
  // The run's own lines come first, though its baseline is drawn first.
  const isGrey = (button) => spec.lines[buttons.indexOf(button)].grey === true;
  place.append(...buttons.filter((b) => !isGrey(b)), ...buttons.filter(isGrey));
  const paint = () =>
    swatches.forEach((swatch, i) => paintSwatch(swatch, looks[i].colour(), looks[i].dash));
  paint();
  return {
    paint,
    focus() {},
    show(step) {
      spec.lines.forEach((line, i) => (values[i].textContent = readAt(line, step).text));
    },
  };
}

const LEVEL = 50; // values before the present one that make a line's level

// How far a line is from the median of the values before, as a factor of 1 or more.
function strayOf(line, step) {
  const cell = lastAtMost(line.first, step);
  const before = Array.from(line.start.slice(Math.max(0, cell - LEVEL), Math.max(0, cell)));
  const known = before.filter((value) => value > 0).sort((a, b) => a - b);
  const middle = known[known.length >> 1];
  const factors = [line.start[cell], line.end[cell]]
    .filter((value) => value > 0)
    .map((value) => value / middle);
  const sizes = factors.map((factor) => Math.max(factor, 1 / factor));
  const size = Math.max(...sizes);
  return known.length < LEVEL / 2 || !Number.isFinite(size)
    ? null
    : { size, factor: factors[sizes.indexOf(size)] };
}

function manyLegend(place, spec, chart) {
  const own = spec.lines.map((line, index) => ({ line, index })).filter(({ line }) => !line.grey);
  const read = element("span", { class: "read" });
  const choice = element(
    "select",
    { "aria-label": "line to bring forward", onchange: () => bringForward() },
    element("option", { value: "" }, `all ${own.length} lines`),
    ...own.map(({ line, index }) => element("option", { value: String(index) }, line.label)),
  );
  place.append(choice, read);
  let near = null;
  let step = 0;

  function setLooks() {
    const chosen = choice.value === "" ? null : Number(choice.value);
    own.forEach(({ index }) => {
      const series = chart.series[index + 1];
      series.alpha = chosen === null || chosen === index ? 1 : 0.15;
      series.width = chosen === index ? 2.5 : 1;
    });
  }

  function bringForward() {
    setLooks();
    chart.redraw(true);
    show(step);
  }

  function show(at) {
    step = at;
    const known = own
      .map(({ line }) => ({ label: line.label, ...readAt(line, at) }))
      .filter(({ low }) => low !== null && !Number.isNaN(low));
    const parts = [];
    if (known.length) {
      const most = known.reduce((best, one) => (one.high > best.high ? one : best));
      const least = known.reduce((best, one) => (one.low < best.low ? one : best));
      parts.push(`largest ${most.label} ${most.text}`, `smallest ${least.label} ${least.text}`);
    } else {
      parts.push("no finite value at this step");
    }
    const strayed = own
      .map(({ line }) => ({ label: line.label, ...strayOf(line, at) }))
      .filter(({ size }) => size !== undefined);
    if (strayed.length) {
      const far = strayed.reduce((best, one) => (one.size > best.size ? one : best));
      parts.push(`furthest from its level ${far.label} ×${formatNumber(far.factor, 3)}`);
    }
    const third = choice.value === "" ? near : Number(choice.value);
    if (third !== null) {
      const line = spec.lines[third];
      parts.push(`${choice.value === "" ? "nearest" : "chosen"} ${line.label} ${readAt(line, at).text}`);
    }
    read.textContent = parts.join(" · ");
  }

  return {
    paint() {},
    show,
    focus(index) {
      near = index === null || spec.lines[index - 1].grey ? null : index - 1;
      // The library has just put the line at the pointer forward.
      if (choice.value !== "") setLooks();
      show(step);
    },
  };
}
