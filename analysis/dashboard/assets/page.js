class Page {
  constructor(description, arrays) {
    this.several = description.kind === "comparison";
    this.flags = description.flags;
    this.seams = description.seams;
    [this.from, this.until] = description.steps;
    this.stride = description.stride; // a script may record every hundredth step only
    this.step = this.flags.length ? this.flags[0].step : this.from;
    this.marks = true;
    this.zoom = [this.from, this.until];
    this.zooming = false;
    this.pointed = null;
    this.held = false; // a key has moved the step while the pointer rests on a chart
    this.batches = description.batches && readBatches(description.batches, arrays);
    this.charts = [];
    this.readAddress();
    for (const panel of description.panels) {
      for (const packed of panel.charts) {
        if (packed.absent) continue;
        const figure = document.querySelector(`[data-chart="${packed.key}"]`);
        this.charts.push(makeChart(figure, readSpec(packed, arrays), this));
      }
    }
    this.connect();
    this.setZoom(...this.zoom);
    this.setStep(this.step, false);
  }

  get shown() {
    return this.pointed === null ? this.step : this.pointed;
  }

  // -- the address holds the view: #step=500&from=450&to=550&marks=off&theme=dark
  readAddress() {
    const wanted = new URLSearchParams(location.hash.slice(1));
    const number = (key, fallback) => readStep(wanted.get(key), fallback);
    this.marks = wanted.get("marks") !== "off";
    // Without marks the first view must not point at one.
    this.step = this.inside(number("step", this.marks ? this.step : this.from));
    const [from, until] = [number("from", this.from), number("to", this.until)];
    if (from < until) this.zoom = [this.inside(from), this.inside(until)];
    this.setTheme(wanted.get("theme") || "");
    this.setMarks(this.marks);
  }

  writeAddress() {
    const view = new URLSearchParams({ step: this.step });
    if (this.zoom[0] > this.from) view.set("from", this.zoom[0]);
    if (this.zoom[1] < this.until) view.set("to", this.zoom[1]);
    if (!this.marks) view.set("marks", "off");
    const theme = document.getElementById("theme").value;
    if (theme) view.set("theme", theme);
    try {
      history.replaceState(null, "", `#${view}`);
    } catch (error) {
      // A page inside another one may have no address of its own to write to.
      if (error.name !== "SecurityError") throw error;
    }
  }

  inside(step) {
    return Math.min(this.until, Math.max(this.from, step));
  }

  // -- the step
  setStep(step, follow = true) {
    this.step = this.inside(step);
    document.getElementById("step").value = this.step;
    const hidden = this.step < this.zoom[0] || this.step > this.zoom[1];
    if (follow && hidden) this.zoomAround(this.step);
    this.charts.forEach(({ chart }) => chart.redraw(false));
    this.readOut();
    if (this.batches) showBatch(document.getElementById("batch"), this.batches, this.step);
    this.writeAddress();
  }

  readOut() {
    const step = this.shown;
    this.charts.forEach(({ legend }) => legend.show(step));
    const [from, until] = this.zoom;
    document.getElementById("view").textContent =
      `at ${formatStep(step)}, showing ${formatStep(from)} to ${formatStep(until)}` +
      this.cellAt(step);
  }

  // In a thinned record a value belongs to a cell of steps, which a reader must know.
  cellAt(step) {
    const lines = this.charts.flatMap(({ spec }) => spec.lines);
    const line = lines.find((one) => !one.sparse && !one.grey);
    const cell = line ? lastAtMost(line.first, step) : -1;
    if (cell < 0 || line.first[cell] === line.last[cell]) return "";
    return `, in the cell ${formatStep(line.first[cell])} to ${formatStep(line.last[cell])}`;
  }

  stepOf(chart) {
    return this.inside(Math.round(chart.posToVal(chart.cursor.left, "x")));
  }

  hovered(chart) {
    if (this.held) return;
    const inside = chart.cursor.left !== null && chart.cursor.left >= 0;
    const pointed = inside ? this.stepOf(chart) : null;
    if (pointed === this.pointed) return;
    this.pointed = pointed;
    if (this.waiting) return;
    this.waiting = requestAnimationFrame(() => {
      this.waiting = null;
      this.readOut();
    });
  }

  focused(spec, index) {
    const found = this.charts.find((one) => one.spec === spec);
    if (found) found.legend.focus(index);
  }

  clicked(chart) {
    if (chart.cursor.left >= 0) this.setStep(this.stepOf(chart));
  }

  // -- the zoom
  zoomed(chart) {
    if (this.zooming || !this.charts.length) return;
    this.setZoom(Math.round(chart.scales.x.min), Math.round(chart.scales.x.max));
    this.writeAddress();
  }

  setZoom(from, until) {
    let [low, high] = [this.inside(from), this.inside(until)];
    if (low === high) [low, high] = [this.inside(low - 1), this.inside(high + 1)];
    this.zoom = [low, high];
    this.zooming = true;
    // A run of one step has no width of its own.
    const [min, max] = this.zoom[0] < this.zoom[1] ? this.zoom : [low - 0.5, low + 0.5];
    this.charts.forEach(({ chart }) => chart.batch(() => chart.setScale("x", { min, max })));
    this.zooming = false;
    this.readOut();
  }

  zoomAround(step, width = this.zoom[1] - this.zoom[0]) {
    const whole = Math.min(Math.max(4, Math.round(width)), this.until - this.from);
    const from = Math.min(Math.max(this.from, step - Math.floor(whole / 2)), this.until - whole);
    this.setZoom(from, from + whole);
  }

  scaleZoom(factor) {
    this.zoomAround(this.step, (this.zoom[1] - this.zoom[0]) * factor);
    this.writeAddress();
  }

  // -- the view
  setMarks(shown) {
    this.marks = shown;
    document.getElementById("marks").checked = shown;
    document.documentElement.classList.toggle("unmarked", !shown);
    this.charts.forEach(({ chart }) => chart.redraw(false));
  }

  setTheme(name) {
    document.getElementById("theme").value = ["light", "dark"].includes(name) ? name : "";
    const dark = matchMedia("(prefers-color-scheme: dark)").matches;
    const chosen = document.getElementById("theme").value || (dark ? "dark" : "light");
    document.documentElement.dataset.theme = chosen;
    document.querySelectorAll("header .swatch").forEach((swatch) => {
      const run = Number(swatch.dataset.run);
      paintSwatch(swatch, runColour(run), runDash(run));
    });
    this.charts.forEach(({ chart, legend }) => {
      legend.paint();
      chart.redraw(true, true);
    });
    if (this.charts.length) this.setStep(this.step, false);
  }

  connect() {
    const on = (id, event, action) => document.getElementById(id).addEventListener(event, action);
    on("step", "change", ({ target }) => {
      this.setStep(readStep(target.value, this.step));
    });
    on("closer", "click", () => this.scaleZoom(0.25));
    on("wider", "click", () => this.scaleZoom(4));
    on("all", "click", () => this.showAll());
    on("marks", "change", ({ target }) => {
      this.setMarks(target.checked);
      this.writeAddress();
    });
    on("theme", "change", ({ target }) => {
      this.setTheme(target.value);
      this.writeAddress();
    });
    document.querySelectorAll("button[data-step]").forEach((button) =>
      button.addEventListener("click", () => this.setStep(Number(button.dataset.step))),
    );
    document.querySelector(".skip").addEventListener("click", (event) => {
      event.preventDefault(); // the address holds the view
      document.getElementById("panels").focus();
    });
    addEventListener("hashchange", () => {
      this.readAddress();
      this.setZoom(...this.zoom);
      this.setStep(this.step, false);
    });
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () =>
      this.setTheme(document.getElementById("theme").value),
    );
    document.addEventListener("keydown", (event) => this.keyed(event));
    document.addEventListener("mousemove", () => (this.held = false), true);
    this.charts.forEach(({ place, chart }) => {
      chart.over.addEventListener("dblclick", () => this.showAll());
      new ResizeObserver(() => {
        if (place.clientWidth && place.clientWidth !== chart.width) {
          chart.setSize({ width: place.clientWidth, height: HEIGHT });
        }
      }).observe(place);
    });
  }

  showAll() {
    this.setZoom(this.from, this.until);
    this.writeAddress();
  }

  keyed(event) {
    if (["INPUT", "SELECT"].includes(event.target.tagName)) return;
    const far = this.stride * (event.shiftKey ? 10 : 1);
    const actions = {
      ArrowLeft: () => this.setStep(this.step - far),
      ArrowRight: () => this.setStep(this.step + far),
      Home: () => this.setStep(this.from),
      End: () => this.setStep(this.until),
      "+": () => this.scaleZoom(0.5),
      "-": () => this.scaleZoom(2),
      0: () => this.showAll(),
    };
    if (!actions[event.key] || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    this.held = true;
    this.pointed = null;
    actions[event.key]();
  }
}

// A step from text, "1e3" too; the fallback where it is no number.
function readStep(text, fallback) {
  const found = text === null || text.trim() === "" ? NaN : Math.trunc(Number(text));
  return Number.isNaN(found) ? fallback : found;
}

function readSpec(packed, arrays) {
  const spec = { ...packed, lines: packed.lines.map((line) => readLine(line, arrays)) };
  if (packed.histogram && packed.histogram.absent === undefined) {
    const { first, last, counts } = packed.histogram;
    spec.histogram = {
      ...packed.histogram,
      first: arrays[first],
      last: arrays[last],
      counts: arrays[counts],
    };
  } else {
    delete spec.histogram;
  }
  return spec;
}

async function openPage() {
  const description = JSON.parse(document.getElementById("page").textContent);
  const numbers = document.getElementById("numbers").textContent;
  const arrays = await decodePayload(description.payload, numbers);
  window.autopsy = new Page(description, arrays);
  document.documentElement.dataset.ready = "true";
}

openPage().catch((error) => {
  const place = document.getElementById("failure");
  place.textContent = `The charts could not be drawn: ${error.message}`;
  place.hidden = false;
  throw error;
});
