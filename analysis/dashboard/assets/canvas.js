// What is painted on a chart besides its lines. Sizes are in device pixels.

function verticalLine(chart, step, colour, dash) {
  const { ctx, bbox } = chart;
  const x = Math.round(chart.valToPos(step, "x", true)) + 0.5;
  if (x < bbox.left || x > bbox.left + bbox.width) return;
  ctx.save();
  ctx.strokeStyle = colour;
  ctx.globalAlpha = 0.6; // it may not hide a spike of one step
  ctx.lineWidth = Math.max(1, devicePixelRatio);
  ctx.setLineDash(dash.map((length) => length * devicePixelRatio));
  ctx.beginPath();
  ctx.moveTo(x, bbox.top);
  ctx.lineTo(x, bbox.top + bbox.height);
  ctx.stroke();
  ctx.restore();
}

const MOST_MARKS = 60; // more lines than this would cover what they mark

function paintMarks(chart, flags) {
  const { ctx, bbox } = chart;
  const { min, max } = chart.scales.x;
  const few = flags.filter(({ step }) => step >= min && step <= max).length <= MOST_MARKS;
  const size = 5 * devicePixelRatio;
  for (const { step } of flags) {
    if (few) verticalLine(chart, step, themed("--mark"), [3, 3]);
    const x = chart.valToPos(step, "x", true);
    if (x < bbox.left || x > bbox.left + bbox.width) continue;
    ctx.save();
    ctx.fillStyle = themed("--mark");
    ctx.beginPath();
    ctx.moveTo(x - size, bbox.top - size);
    ctx.lineTo(x + size, bbox.top - size);
    ctx.lineTo(x, bbox.top + size);
    ctx.fill();
    ctx.restore();
  }
}

// Where a run that had ended early went on.
function paintSeams(chart, seams) {
  for (const step of seams) verticalLine(chart, step, themed("--muted"), [12, 5]);
}

function paintRulers(chart, rulers) {
  const { ctx, bbox } = chart;
  ctx.save();
  ctx.strokeStyle = themed("--muted");
  ctx.lineWidth = Math.max(1, devicePixelRatio);
  ctx.setLineDash([2 * devicePixelRatio, 4 * devicePixelRatio]);
  for (const value of rulers) {
    const y = Math.round(chart.valToPos(value, "y", true)) + 0.5;
    if (y < bbox.top || y > bbox.top + bbox.height) continue;
    ctx.beginPath();
    ctx.moveTo(bbox.left, y);
    ctx.lineTo(bbox.left + bbox.width, y);
    ctx.stroke();
  }
  ctx.restore();
}

// NaN and infinities cannot be drawn at a height: a bar along the upper edge shows
// where they are.
function paintOdd(chart, lines) {
  const { ctx, bbox } = chart;
  const height = 6 * devicePixelRatio;
  ctx.save();
  ctx.fillStyle = themed("--odd");
  for (const line of lines) {
    for (let i = 0; i < line.odd.length; i++) {
      const from = line.odd[i];
      while (i + 1 < line.odd.length && line.odd[i + 1] === line.odd[i] + 1) i++;
      const edge = (step) => chart.valToPos(step, "x", true);
      const left = Math.max(bbox.left, edge(line.first[from]) - devicePixelRatio);
      const right = Math.min(
        bbox.left + bbox.width,
        edge(line.last[line.odd[i]]) + devicePixelRatio,
      );
      if (right > left) ctx.fillRect(left, bbox.top, right - left, height);
    }
  }
  ctx.restore();
}

// A cell is the darker the larger its part of the step's tokens. Where steps are
// narrower than a pixel the largest part counts, so that no single step is lost.
function paintHistogram(chart, histogram) {
  const { ctx, bbox } = chart;
  const { low, bins, width, peak, darkest, first, last, counts } = histogram;
  const heat = themed("--heat");
  const columns = Math.max(1, Math.round(bbox.width));
  const parts = new Float32Array(columns * bins);
  const place = (step) => chart.valToPos(step, "x", true) - bbox.left;
  for (let cell = 0; cell < first.length; cell++) {
    const from = Math.max(0, Math.floor(place(first[cell] - 0.5)));
    const until = Math.min(columns, Math.max(from + 1, Math.ceil(place(last[cell] + 0.5))));
    if (until <= 0 || from >= columns) continue;
    let total = 0;
    for (let bin = 0; bin < bins; bin++) total += counts[cell * bins + bin];
    for (let bin = 0; total && bin < bins; bin++) {
      const part = counts[cell * bins + bin] / total;
      for (let x = from; x < until; x++) {
        if (part > parts[x * bins + bin]) parts[x * bins + bin] = part;
      }
    }
  }
  ctx.save();
  for (let bin = 0; bin < bins; bin++) {
    const top = chart.valToPos(low + (bin + 1) * width, "y", true);
    const bottom = chart.valToPos(low + bin * width, "y", true);
    for (let x = 0; x < columns; x++) {
      const part = parts[x * bins + bin];
      if (!part) continue;
      const dark = darkest * (0.12 + 0.88 * Math.sqrt(part / peak));
      ctx.fillStyle = `rgba(${heat}, ${dark.toFixed(3)})`;
      ctx.fillRect(bbox.left + x, top, 1, bottom - top);
    }
  }
  ctx.restore();
}
