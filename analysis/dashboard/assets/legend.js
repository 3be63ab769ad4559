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
    swatch.style.borderTopStyle = line.dashed || looks[index].dash.length ? "dashed" : "solid";
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
    swatches.forEach((swatch, i) => (swatch.style.borderTopColor = looks[i].colour()));
  paint();
  return {
    paint,
    focus() {},
    show(step) {
      spec.lines.forEach((line, i) => (values[i].textContent = readAt(line, step).text));
    },
  };
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

  function bringForward() {
    const chosen = choice.value === "" ? null : Number(choice.value);
    own.forEach(({ index }) => {
      const series = chart.series[index + 1];
      series.alpha = chosen === null || chosen === index ? 1 : 0.15;
      series.width = chosen === index ? 2.5 : 1;
    });
    chart.redraw(true);
    show(step);
  }

  function show(at) {
    step = at;
    const known = own
      .map(({ line }) => ({ label: line.label, ...readAt(line, at) }))
      .filter(({ value }) => value !== null && !Number.isNaN(value));
    const parts = [];
    if (known.length) {
      known.sort((one, other) => other.value - one.value);
      const [most, least] = [known[0], known[known.length - 1]];
      parts.push(`largest ${most.label} ${most.text}`, `smallest ${least.label} ${least.text}`);
    } else {
      parts.push("no finite value at this step");
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
      show(step);
    },
  };
}
