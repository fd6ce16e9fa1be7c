"use strict";
document.documentElement.classList.add("js");
const all = (query, within = document) => [...within.querySelectorAll(query)];
const said = document.getElementById("said");

/* Tables: what is shown follows the methods, the seeds and the search field of the table. */
const grids = all(".grid").map((grid) => {
  const table = grid.querySelector("table");
  const rows = all("tbody tr:not(.head)", table);
  const texts = new Map(rows.map((row) => {
    const head = row.parentElement.querySelector("tr.head");
    return [row, `${head ? head.textContent : ""} ${row.textContent}`.toLowerCase()];
  }));
  const field = grid.querySelector("input");
  const count = grid.querySelector("output");
  const refresh = () => {
    const words = field.value.toLowerCase().split(/\s+/).filter(Boolean);
    let shown = 0;
    for (const row of rows) {
      const out = !words.every((word) => texts.get(row).includes(word));
      row.classList.toggle("filtered", out);
      if (!out && !row.classList.contains("hidden")) shown += 1;
    }
    for (const body of table.tBodies) {
      const head = body.querySelector("tr.head");
      if (head) head.classList.toggle("filtered", !body.querySelector("tr:not(.head):not(.hidden):not(.filtered)"));
    }
    const every = `${rows.length} ${rows.length === 1 ? "row" : "rows"}`;
    const text = shown === rows.length ? every : `${shown} of ${every}`;
    if (count.textContent !== text) count.textContent = text;
  };
  field.addEventListener("input", refresh);
  return refresh;
});

/* Methods and seeds. */
const off = { group: new Set(), seed: new Set() };
const hidden = (group, seed) => off.group.has(group) || (seed !== undefined && seed !== null && off.seed.has(String(seed)));
const marked = all("[data-group]");
const note = document.getElementById("hidden-note");
const boxes = all(".choose input");
const apply = () => {
  for (const kind of ["group", "seed"]) off[kind].clear();
  for (const box of boxes) if (!box.checked) off[box.dataset.kind].add(box.value);
  for (const part of marked) part.classList.toggle("hidden", hidden(part.dataset.group, part.dataset.seed));
  const names = boxes.filter((box) => !box.checked).map((box) => box.dataset.name);
  note.hidden = names.length === 0;
  note.textContent = names.length ? `Hidden: ${names.join(", ")}. Means, intervals and tests remain those of all seeds.` : "";
  for (const refresh of grids) refresh();
};
for (const box of boxes) {
  box.addEventListener("change", () => {
    apply();
    said.textContent = `${box.dataset.name} ${box.checked ? "shown" : "hidden"}`;
  });
}
apply();

/* Sorting, within each part of a table. */
const key = (row, column) => {
  const text = row.cells[column].textContent.trim();
  const power = /\]\)e(-?\d+)/.exec(text); // (1.2 [1.0, 1.4])e-9
  const number = parseFloat(text.replace(/^[(<\s]+/, "")) * (power ? 10 ** Number(power[1]) : 1);
  return { text, number: Number.isNaN(number) ? null : number };
};
const sort = (head, label) => {
  const up = head.getAttribute("aria-sort") !== "ascending";
  for (const other of head.parentElement.cells) other.removeAttribute("aria-sort");
  head.setAttribute("aria-sort", up ? "ascending" : "descending");
  for (const body of head.closest("table").tBodies) {
    const rows = [...body.rows].filter((row) => !row.classList.contains("head"));
    const keyed = rows.map((row) => ({ row, ...key(row, head.cellIndex) }));
    keyed.sort((a, b) => {
      if (a.number !== null && b.number !== null) return up ? a.number - b.number : b.number - a.number;
      if ((a.number === null) !== (b.number === null)) return a.number === null ? 1 : -1;
      return up ? a.text.localeCompare(b.text) : b.text.localeCompare(a.text);
    });
    body.append(...keyed.map(({ row }) => row));
  }
  said.textContent = `sorted by ${label}, ${up ? "ascending" : "descending"}`;
};
for (const head of all(".grid thead th")) {
  const label = head.textContent;
  const button = document.createElement("button");
  button.type = "button";
  button.textContent = label;
  button.addEventListener("click", () => sort(head, label));
  head.replaceChildren(button);
}

/* Values of the figures: under the pointer, and step by step with the arrow keys. */
const tip = document.getElementById("tip");
let reposition = null; // puts the shown value beside its point
const data = JSON.parse(document.getElementById("data").textContent);
const place = ([, low, high, logarithmic], value) => {
  const scale = logarithmic ? Math.log : (number) => number;
  return (scale(value) - scale(low)) / (scale(high) - scale(low));
};
const describe = (trace, i, figure) => {
  const panel = figure.panels[trace.p];
  const lines = [`${figure.labels[trace.g]}, ${trace.w}`];
  if (trace.t) lines.push(`step: ${trace.t[i]}`);
  if (panel.x[0] && !trace.v) lines.push(`${panel.x[0]}: ${figure.xs[trace.x][i]}`);
  if (trace.n) lines.push(`${trace.n}: ${(trace.v || trace.y)[i]}`);
  if (trace.i && trace.i[0][i] !== null) lines.push(`${figure.bounds}: [${trace.i[0][i]}, ${trace.i[1][i]}]`);
  return lines;
};
for (const plot of all(".plot")) {
  const figure = data.figures[plot.dataset.figure];
  if (!figure || !figure.traces.length) continue;
  const svg = plot.querySelector("svg");
  const dot = document.createElementNS("http://www.w3.org/2000/svg", "circle");
  dot.setAttribute("r", "4.5");
  dot.setAttribute("class", "here");
  const points = figure.traces.map((trace) => {
    const { box, x, y } = figure.panels[trace.p];
    return figure.xs[trace.x].map((value, i) => {
      if (value === null || trace.y[i] === null) return null;
      const across = place(x, value);
      const up = place(y, trace.y[i]);
      const inside = across >= -0.001 && across <= 1.001 && up >= -0.001 && up <= 1.001;
      return inside ? [box[0] + across * box[2], box[1] + (1 - up) * box[3]] : null;
    });
  });
  const usable = (t) => !hidden(figure.traces[t].g, figure.traces[t].s) && points[t].some(Boolean);
  let at = null;
  const hide = () => {
    reposition = null;
    tip.hidden = true;
    dot.remove();
  };
  const show = (t, i, aloud) => {
    at = { t, i };
    const [x, y] = points[t][i];
    dot.setAttribute("cx", x);
    dot.setAttribute("cy", y);
    svg.append(dot);
    const lines = describe(figure.traces[t], i, figure);
    tip.replaceChildren(...lines.map((line) => Object.assign(document.createElement("div"), { textContent: line })));
    reposition = () => {
      const point = new DOMPoint(x, y).matrixTransform(svg.getScreenCTM());
      tip.hidden = point.y < 0 || point.y > window.innerHeight; // its point has left the window
      const { width, height } = tip.getBoundingClientRect();
      const right = document.documentElement.clientWidth - width - 4;
      const left = point.x + 14 <= right ? point.x + 14 : point.x - 14 - width;
      tip.style.left = `${Math.max(4, Math.min(left, right))}px`;
      tip.style.top = `${Math.max(4, Math.min(point.y - height - 10, window.innerHeight - height - 4))}px`;
    };
    reposition();
    if (aloud) said.textContent = lines.join("; ");
  };
  const nearest = (x, y, traces, onlyX = false) => {
    let best = null;
    for (const t of traces) {
      points[t].forEach((point, i) => {
        if (!point) return;
        const distance = onlyX ? Math.abs(point[0] - x) : Math.hypot(point[0] - x, point[1] - y);
        if (best === null || distance < best.distance) best = { distance, t, i };
      });
    }
    return best;
  };
  const open = () => figure.traces.map((_, t) => t).filter(usable);
  svg.addEventListener("pointermove", (event) => {
    const point = new DOMPoint(event.clientX, event.clientY).matrixTransform(svg.getScreenCTM().inverse());
    const best = nearest(point.x, point.y, open());
    if (best && best.distance < 40) show(best.t, best.i, false);
    else hide();
  });
  svg.addEventListener("pointerleave", () => {
    if (document.activeElement === plot && at && usable(at.t)) show(at.t, at.i, false);
    else hide();
  });
  plot.tabIndex = 0;
  plot.setAttribute("role", "application");
  plot.setAttribute("aria-roledescription", "figure with values");
  plot.setAttribute("aria-label", `${svg.getAttribute("aria-label")}. Left and right: along a curve. Up and down: to another curve.`);
  plot.addEventListener("focus", () => {
    if (!plot.matches(":focus-visible")) return;
    const traces = open();
    if (!traces.length) return;
    const t = at && usable(at.t) ? at.t : traces[0];
    const last = points[t].findLastIndex(Boolean);
    show(t, at && at.t === t ? at.i : last, true);
  });
  plot.addEventListener("blur", hide);
  plot.addEventListener("keydown", (event) => {
    const traces = open();
    if (event.key === "Escape") hide();
    if (!traces.length || !["ArrowLeft", "ArrowRight", "ArrowUp", "ArrowDown", "Home", "End"].includes(event.key)) return;
    event.preventDefault();
    const t = at && usable(at.t) ? at.t : traces[0];
    const i = at && at.t === t ? at.i : points[t].findLastIndex(Boolean);
    const steps = points[t].map((point, place) => (point ? place : null)).filter((place) => place !== null);
    const sideways = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (event.key === "Home") show(t, steps[0], true);
    else if (event.key === "End") show(t, steps[steps.length - 1], true);
    else if (sideways && steps.length > 1) {
      show(t, steps[Math.max(0, Math.min(steps.length - 1, steps.indexOf(i) + sideways))], true);
    } else {
      const by = sideways || { ArrowUp: -1, ArrowDown: 1 }[event.key];
      const next = traces[(traces.indexOf(t) + by + traces.length) % traces.length];
      const best = nearest(points[t][i][0], points[t][i][1], [next], points[next].length > 1);
      show(next, best.i, true);
    }
  });
}
window.addEventListener("scroll", () => { if (reposition) reposition(); }, { passive: true });
