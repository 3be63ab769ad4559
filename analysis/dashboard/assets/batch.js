const LOSS_UNIT = 2048;
const LOSS_BEYOND = 65534;
const LOSS_ODD = 65535;
const HOT = 8; // nats at which a token is as dark as it gets

// Where the parts of each shown batch begin: running sums of their sizes.
function startsOf(sizes) {
  const starts = new Uint32Array(sizes.length + 1);
  for (let i = 0; i < sizes.length; i++) starts[i + 1] = starts[i] + sizes[i];
  return starts;
}

function readBatches(packed, arrays) {
  const at = (index) => (index === undefined || index === null ? null : arrays[index]);
  const log = {
    ...packed,
    steps: at(packed.rows),
    facts: (packed.facts || []).map((fact) => ({ ...fact, values: at(fact.values) })),
  };
  if (packed.tokens === undefined) return log;
  log.tokens = at(packed.tokens);
  log.lengths = at(packed.lengths);
  log.losses = at(packed.losses);
  log.tokenStarts = startsOf(at(packed.sizes));
  log.rowStarts = startsOf(at(packed.counts));
  return log;
}

function showBatch(place, log, step) {
  if (!log || !log.steps) return;
  const found = lastAtMost(log.steps, step);
  if (found < 0 || log.steps[found] !== step) {
    place.replaceChildren(
      element(
        "p",
        { class: "absent" },
        `This page holds no batch of step ${formatStep(step)}, but ` +
          `${formatStep(log.steps.length)} others: the first, the last and those around ` +
          "flagged steps. The run's record has a batch for every step that it has.",
      ),
    );
    return;
  }
  const parts = [element("h3", {}, `Batch of step ${formatStep(step)}`), factTable(log, found)];
  if (log.tokens) {
    if (log.problem) parts.push(element("p", { class: "note" }, log.problem));
    const losses = log.losses ? "; below each token its loss in nats" : "";
    parts.push(element("p", { class: "measured" }, `Row by row${losses}.`), ...tokenRows(log, found));
  }
  place.replaceChildren(...parts);
}

function factTable(log, found) {
  const rows = log.facts.map((fact) => {
    let text;
    if (fact.hex) {
      const half = (n) => fact.values[2 * found + n].toString(16).padStart(8, "0");
      text = half(0) + half(1);
    } else if (fact.token) {
      const id = fact.values[found];
      text = id < 0 ? "none" : tokenText(log, id);
    } else {
      text = formatNumber(fact.values[found]);
    }
    return element("tr", {}, element("th", { scope: "row" }, fact.label), element("td", {}, text));
  });
  return element("table", {}, element("tbody", {}, ...rows));
}

function tokenText(log, id) {
  const text = log.texts ? log.texts[String(id)] : undefined;
  return text === undefined ? `#${id}` : text;
}

function tokenRows(log, found) {
  const rows = [];
  let token = log.tokenStarts[found];
  // Every token of a row but its first was predicted once.
  let loss = token - log.rowStarts[found];
  for (let row = log.rowStarts[found]; row < log.rowStarts[found + 1]; row++) {
    const number = row - log.rowStarts[found] + 1;
    const chips = [element("b", {}, String(number))];
    for (let i = 0; i < log.lengths[row]; i++) {
      const id = log.tokens[token++];
      const units = log.losses && i > 0 ? log.losses[loss++] : null;
      chips.push(tokenChip(tokenText(log, id), units));
    }
    rows.push(element("div", { class: "tokens" }, ...chips));
  }
  return rows;
}

function tokenChip(text, units) {
  const chip = element("span", { class: "token" }, text.replaceAll(" ", "·"));
  let below = "–";
  if (units === LOSS_ODD) below = "not finite";
  else if (units === LOSS_BEYOND) below = "32 or more";
  else if (units !== null) below = (units / LOSS_UNIT).toFixed(2);
  chip.append(element("small", {}, below));
  if (units !== null) {
    const part = units === LOSS_ODD ? 1 : Math.min(1, units / LOSS_UNIT / HOT);
    chip.style.backgroundColor = `rgba(${themed("--heat")}, ${(0.5 * part).toFixed(3)})`;
    if (part > 0.3) chip.classList.add("hot");
  }
  return chip;
}
