class Page {
  constructor(description, arrays) {
    this.several = description.kind === "comparison";
    this.flags = description.flags;
    [this.from, this.until] = description.steps;
    this.step = this.flags.length ? this.flags[0].step : this.from;
    this.marks = true;
    this.zoom = [this.from, this.until];
    this.zooming = false;
    this.pointed = null;
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
    const number = (key, fallback) => {
      const found = Number.parseInt(wanted.get(key), 10);
      return Number.isNaN(found) ? fallback : this.inside(found);
    };
    this.marks = wanted.get("marks") !== "off";
    // Without marks the first view must not point at one.
    this.step = number("step", this.marks ? this.step : this.from);
    const [from, until] = [number("from", this.from), number("to", this.until)];
    if (from < until) this.zoom = [from, until];
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
      `at ${formatStep(step)}, showing ${formatStep(from)} to ${formatStep(until)}`;
  }

  stepOf(chart) {
    return this.inside(Math.round(chart.posToVal(chart.cursor.left, "x")));
  }

  hovered(chart) {
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
    const [low, high] = [this.inside(from), this.inside(until)];
    this.zoom = low < high ? [low, high] : [this.from, this.until];
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
      swatch.style.borderTopColor = runColour(Number(swatch.dataset.run));
      const dashed = runDash(Number(swatch.dataset.run)).length;
      swatch.style.borderTopStyle = dashed ? "dashed" : "solid";
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
      const typed = Number.parseInt(target.value, 10);
      this.setStep(Number.isNaN(typed) ? this.step : typed);
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
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () =>
      this.setTheme(document.getElementById("theme").value),
    );
    this.charts.forEach(({ place, chart }) => {
      place.addEventListener("keydown", (event) => this.keyed(event));
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
    const far = event.shiftKey ? 10 : 1;
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
    actions[event.key]();
  }
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
