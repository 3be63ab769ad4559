// The last index whose entry is not larger than the value; -1 if all are larger.
function lastAtMost(sorted, value) {
  let low = 0;
  let high = sorted.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (sorted[middle] <= value) low = middle + 1;
    else high = middle;
  }
  return low - 1;
}

// A line of the page's description with its numbers put in.
function readLine(packed, arrays) {
  const start = arrays[packed.start];
  const first = arrays[packed.grid.first];
  return {
    ...packed,
    first,
    last: packed.grid.last === undefined ? first : arrays[packed.grid.last],
    start,
    end: packed.end === undefined ? start : arrays[packed.end],
    odd: packed.odd === undefined ? [] : arrays[packed.odd],
    oddValues: packed.odd === undefined ? [] : arrays[packed.odd_values],
  };
}

// What a line says of a step: {text, low, high}. An exact value, the range of the cell
// that the step is in, or for a sparse line the last value measured.
function readAt(line, step) {
  const cell = lastAtMost(line.first, step);
  if (cell < 0 || (!line.sparse && step > line.last[cell])) {
    return { text: "–", low: null, high: null };
  }
  const odd = line.odd.length ? lastAtMost(line.odd, cell) : -1;
  const oddHere = odd >= 0 && line.odd[odd] === cell;
  const alone = line.first[cell] === line.last[cell];
  const value = alone && oddHere ? line.oddValues[odd] : line.start[cell];
  const [low, high] = [value, alone ? value : line.end[cell]].sort((a, b) => a - b);
  let text = formatNumber(value);
  if (!alone) {
    text = `${formatNumber(low)} to ${formatNumber(high)}`;
    if (oddHere) text += `, and ${formatNumber(line.oddValues[odd])}`;
  }
  if (line.sparse && line.last[cell] !== step) text += ` (step ${formatStep(line.last[cell])})`;
  return { text, low, high };
}

// Points as the charting library takes them: null is a gap.
function linePoints(line, scale, floor) {
  const drawn = (value) => {
    if (!Number.isFinite(value)) return null;
    if (scale !== "log") return value;
    if (floor !== null) return Math.max(value, floor);
    return value > 0 ? value : null;
  };
  const [xs, ys] = [[], []];
  for (let cell = 0; cell < line.first.length; cell++) {
    xs.push(line.first[cell]);
    ys.push(drawn(line.start[cell]));
    if (line.last[cell] > line.first[cell]) {
      xs.push(line.last[cell]);
      ys.push(drawn(line.end[cell]));
    }
  }
  return [xs, ys];
}

// Values with a gap on either side, which no line can show: their places in the table.
function lonelyPoints(column) {
  const lonely = [];
  let [before, candidate] = [null, null];
  for (let i = 0; i < column.length; i++) {
    if (column[i] === undefined) continue; // a step of another line
    if (column[i] === null) {
      if (candidate !== null) lonely.push(candidate);
      candidate = null;
    } else {
      candidate = before === null ? i : null;
    }
    before = column[i];
  }
  if (candidate !== null) lonely.push(candidate);
  return lonely;
}

// One table for all lines of a chart; lines on one grid share their steps.
function joinLines(lines, scale, floor) {
  const tables = new Map();
  lines.forEach((line, index) => {
    const [xs, ys] = linePoints(line, scale, floor);
    if (!tables.has(line.first)) tables.set(line.first, { xs, columns: [] });
    tables.get(line.first).columns.push({ index, ys });
  });
  const groups = [...tables.values()];
  const joined = uPlot.join(groups.map(({ xs, columns }) => [xs, ...columns.map((c) => c.ys)]));
  const data = [joined[0]];
  groups
    .flatMap((group) => group.columns)
    .forEach(({ index }, place) => (data[index + 1] = joined[place + 1]));
  return data;
}
