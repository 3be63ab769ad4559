function formatNumber(value, digits = 4) {
  if (value === null || value === undefined) return "–";
  if (Number.isNaN(value)) return "NaN";
  if (!Number.isFinite(value)) return value > 0 ? "∞" : "−∞";
  const size = Math.abs(value);
  // A count or a step is never rounded.
  if (Number.isInteger(value) && size < 1e12) return value.toLocaleString("en");
  if (size >= 1e6 || size < 1e-3) return value.toExponential(digits - 1);
  return Number(value.toPrecision(digits)).toLocaleString("en", {
    maximumFractionDigits: 8,
  });
}

function formatTick(value) {
  if (value === 0) return "0";
  const size = Math.abs(value);
  const short = Number(value.toPrecision(3));
  if (size >= 1e5 || size < 1e-3) return short.toExponential().replace("e+", "e");
  return String(short);
}

function formatStep(step) {
  return step.toLocaleString("en");
}

// Ticks at 1, 2 and 5 times a power of ten, no more of them than there is room for.
function niceTicks(low, high, room) {
  const rough = (high - low) / Math.max(1, room);
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((n) => n * power).find((n) => n >= rough);
  const ticks = [];
  for (let n = Math.ceil(low / step); n * step <= high; n++) {
    ticks.push(Number((n * step).toPrecision(12)));
  }
  return ticks;
}

// On a log scale whole powers of ten, or evenly spaced ticks where it spans too few.
function logTicks(low, high, room) {
  const decades = Math.log10(high / low);
  if (decades < 1.3) return niceTicks(low, high, room).filter((tick) => tick > 0);
  const stride = Math.max(1, Math.ceil(decades / room));
  const ticks = [];
  for (let n = Math.ceil(Math.log10(low)); 10 ** n <= high * 1.0001; n++) {
    if (n % stride === 0) ticks.push(Number(`1e${n}`));
  }
  return ticks;
}
