// Sorting, filtering, theme, tooltips and downloads. Figures are drawn when they come near the screen, then the rest
// while nothing else happens. Text of a study only ever becomes textContent.
const LEAST = 300; // pixels of a figure: on a narrower screen it is drawn so wide and made smaller
const root = document.documentElement;

// Theme: as the system says, unless chosen here.
const theme = document.getElementById("theme");
const store = { get() { try { return localStorage.getItem("bitbench-theme"); } catch { return null; } },
  set(value) { try { localStorage.setItem("bitbench-theme", value); } catch { /* a file may have no storage */ } } };
const isDark = () => (root.dataset.theme ?? (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) === "dark";
const nameTheme = () => { theme.textContent = isDark() ? "Light theme" : "Dark theme"; };
if (["light", "dark"].includes(store.get())) root.dataset.theme = store.get();
theme.hidden = false;
nameTheme();
theme.addEventListener("click", () => { root.dataset.theme = isDark() ? "light" : "dark"; store.set(root.dataset.theme); nameTheme(); });

// Tables: a click on a heading sorts, once more the other way; long tables can be filtered. Numbers are in data-sort.
const keyOf = (cell) => {
  const number = cell?.dataset.sort;
  const text = (cell?.textContent ?? "").trim();
  if (number === undefined) return [1, 0, text];
  return number === "" ? [2, 0, text] : [0, Number(number), text];
};
const compare = (a, b) => a[0] - b[0] || a[1] - b[1] || a[2].localeCompare(b[2], undefined, { numeric: true });
for (const table of document.querySelectorAll("table")) {
  const body = table.tBodies[0];
  const heads = [...(table.tHead?.rows[0]?.cells ?? [])];
  if (!body || body.rows.length < 2) continue;
  heads.forEach((head, column) => {
    if (!head.textContent.trim()) return;
    const button = document.createElement("button");
    button.type = "button";
    button.append(...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => {
      const down = head.getAttribute("aria-sort") === "ascending";
      heads.forEach((other) => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      const rows = [...body.rows].map((row) => [keyOf(row.cells[column]), row]);
      // What is not known stays last, whichever way.
      rows.sort(([a], [b]) => (a[0] === 2 || b[0] === 2 ? a[0] - b[0] : (down ? -1 : 1) * compare(a, b)));
      body.append(...rows.map(([, row]) => row));
    });
  });
  if (body.rows.length < 12) continue;
  const filter = document.createElement("label");
  filter.className = "filter";
  const input = document.createElement("input");
  input.type = "search";
  const count = document.createElement("span");
  filter.append("Filter", input, count);
  table.parentElement.before(filter);
  input.addEventListener("input", () => {
    const words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
    let shown = 0;
    for (const row of body.rows) {
      const text = row.textContent.toLowerCase();
      row.hidden = !words.every((word) => text.includes(word));
      shown += !row.hidden;
    }
    count.textContent = words.length ? `${shown} of ${body.rows.length}` : "";
  });
}

// A table that is too wide puts its intervals on lines of their own; one that still goes on to the right fades out
// there, and its column of names stays in sight.
const scrolls = [...document.querySelectorAll(".scroll")];
const overflow = (one) => one.scrollWidth - one.clientWidth;
const fade = (one) => {
  one.classList.toggle("more", one.scrollLeft < overflow(one) - 2);
  one.classList.toggle("moved", one.scrollLeft > 2);
};
const fit = (one) => { one.classList.remove("tight"); one.classList.toggle("tight", overflow(one) > 2); fade(one); };
const widths = new Map(); // its height changes as it is fitted, and is no reason to fit it again
const watched = new ResizeObserver((entries) => {
  for (const { target } of entries) if (widths.get(target) !== target.clientWidth) { widths.set(target, target.clientWidth); fit(target); }
});
for (const one of scrolls) { watched.observe(one); one.addEventListener("scroll", () => fade(one), { passive: true }); }

// Figures.
const read = (id) => JSON.parse(document.getElementById(id).textContent);
const rowsOf = (data) => data.values.map((row) => Object.fromEntries(data.fields.map((field, place) => [field, row[place]])));
const tip = document.getElementById("tip");
const showTip = (_, event, item, value) => {
  if (!value || typeof value !== "object") { tip.hidden = true; return; }
  tip.replaceChildren(...Object.entries(value).map(([label, text]) => {
    const line = document.createElement("div");
    for (const part of [label, text]) line.append(Object.assign(document.createElement("span"), { textContent: part ?? "–" }));
    return line;
  }));
  tip.hidden = false;
  const box = tip.getBoundingClientRect();
  tip.style.left = `${Math.max(4, Math.min(event.clientX + 14, innerWidth - box.width - 4))}px`;
  tip.style.top = `${event.clientY + 14 + box.height > innerHeight ? Math.max(4, event.clientY - box.height - 10) : event.clientY + 14}px`;
};
const config = read("chart-config");
const drawn = new Set();
const draw = async (canvas) => {
  if (drawn.has(canvas)) return;
  drawn.add(canvas);
  const data = read(`data-${canvas.dataset.figure}`);
  const width = canvas.clientWidth < LEAST ? LEAST : data.spec.width;
  const spec = { ...data.spec, width, datasets: { rows: rowsOf(data) } };
  // `ast`: expressions are interpreted, so that the page needs no right to make code from text.
  const options = { actions: false, ast: true, config, defaultStyle: false, mode: "vega-lite", renderer: "svg", tooltip: showTip };
  await window.vegaEmbed(canvas, spec, options);
  canvas.querySelector("svg")?.setAttribute("aria-hidden", "true"); // the canvas has the label
  if (performance.getEntriesByName("first-chart").length === 0) performance.mark("first-chart");
};
const canvases = [...document.querySelectorAll(".canvas")];
const failed = (canvas) => (error) => { canvas.textContent = `This figure could not be drawn: ${error.message}`; };
const near = new IntersectionObserver((entries) => {
  for (const { target, isIntersecting } of entries) if (isIntersecting) { near.unobserve(target); draw(target).catch(failed(target)); }
}, { rootMargin: "300px" });
const later = window.requestIdleCallback ?? ((work) => setTimeout(work, 50));
const isSeen = (canvas) => canvas.offsetParent !== null; // not folded away
const drawRest = async (left) => {
  const [next, ...others] = left;
  if (!next) { root.dataset.drawn = "all"; return; }
  near.unobserve(next);
  await draw(next).catch(failed(next));
  later(() => drawRest(others));
};
addEventListener("load", () => {
  canvases.forEach((canvas) => near.observe(canvas));
  setTimeout(() => later(() => drawRest(canvases.filter(isSeen))), 300);
});

// What is folded opens when it is asked for: by a link to it, or all at once. A print shows what is open.
const reveal = () => {
  const target = document.getElementById(decodeURIComponent(location.hash.slice(1)));
  for (let fold = target?.closest("details"); fold; fold = fold.parentElement?.closest("details")) fold.open = true;
  if (target?.closest("details")) target.scrollIntoView();
};
addEventListener("hashchange", reveal);
reveal();
const unfold = document.getElementById("unfold");
if (unfold) {
  unfold.hidden = false;
  unfold.addEventListener("click", () => {
    const open = unfold.textContent === "Open all";
    document.querySelectorAll("details.fold").forEach((fold) => { fold.open = open; });
    unfold.textContent = open ? "Close all" : "Open all";
  });
}

// Data of a figure: one row per mark. A cell that a spreadsheet would run is made text.
const csvCell = (value) => {
  const text = value === null || value === undefined ? "" : String(value);
  const safe = typeof value === "string" && /^[=+\-@\t\r]/.test(text) ? `'${text}` : text;
  return /[",\n\r]/.test(safe) ? `"${safe.replaceAll('"', '""')}"` : safe;
};
for (const button of document.querySelectorAll("button.save")) {
  button.hidden = false;
  button.addEventListener("click", () => {
    const data = read(`data-${button.dataset.figure}`);
    const lines = [data.fields, ...data.values].map((row) => row.map(csvCell).join(","));
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([lines.join("\r\n") + "\r\n"], { type: "text/csv" }));
    link.download = `${data.name}.csv`;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
  });
}
