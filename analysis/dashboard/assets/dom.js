"use strict";

// Elements are made here and nowhere else: text goes in as text, never as HTML.
function element(tag, attributes, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) {
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else made.setAttribute(name, value);
  }
  made.append(...children);
  return made;
}

// A colour of the present theme. Charts ask for it whenever they draw.
function themed(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

function mixed(one, other, part) {
  const channel = (text, at) => parseInt(text.slice(1 + 2 * at, 3 + 2 * at), 16);
  const mix = [0, 1, 2].map((at) =>
    Math.round(channel(one, at) * (1 - part) + channel(other, at) * part),
  );
  return `rgb(${mix.join(", ")})`;
}

const PALETTE = 8;
const DASHES = [[], [6, 3], [2, 3], [9, 3, 2, 3]]; // lengths drawn and left out, in turn
const DASHED = [5, 4]; // a line that stands behind the solid one of the same thing

// Few lines have colours that stay apart without colour vision; many run from blue
// for the first to orange for the last.
function lineColour(line, index, count) {
  if (line.grey) return themed("--grey");
  if (count <= PALETTE) return themed(`--c${index % PALETTE}`);
  const place = count > 1 ? index / (count - 1) : 0;
  return place < 0.5
    ? mixed(themed("--low"), themed("--middle"), place * 2)
    : mixed(themed("--middle"), themed("--high"), place * 2 - 1);
}

// On a page of several runs a colour belongs to a run: eight, then the same dashed.
function runColour(run) {
  return themed(`--c${run % PALETTE}`);
}

function runDash(run) {
  return DASHES[Math.floor(run / PALETTE) % DASHES.length];
}

// A piece of a line in a legend, dashed as the line is.
function paintSwatch(swatch, colour, dash) {
  const parts = [];
  let at = 0;
  dash.forEach((length, index) => {
    const shown = index % 2 === 0 ? colour : "transparent";
    parts.push(`${shown} ${at}px ${at + length}px`);
    at += length;
  });
  swatch.style.background = dash.length
    ? `repeating-linear-gradient(90deg, ${parts.join(", ")})`
    : colour;
}
