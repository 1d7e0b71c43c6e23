"use strict";
(() => {
  const table = document.getElementById("cells");
  const root = document.documentElement;
  document.getElementById("theme").addEventListener("click", () => {
    const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
    root.dataset.theme = dark ? "light" : "dark";
  });
  if (!table) return;

  const field = document.getElementById("filter");
  const shown = document.getElementById("shown");
  const chips = [...document.querySelectorAll(".chip")];
  const bodies = [...table.tBodies];

  const filter = () => {
    const words = field.value.toLowerCase().split(/\s+/).filter(Boolean);
    const pressed = chips.filter((c) => c.getAttribute("aria-pressed") === "true").map((c) => c.dataset.verdict);
    let count = 0;
    for (const body of bodies) {
      const cell = body.rows[0];
      const fits = words.every((w) => cell.dataset.words.includes(w));
      body.hidden = !(fits && (!pressed.length || pressed.includes(cell.dataset.verdict)));
      count += !body.hidden;
    }
    shown.textContent = `${count} of ${bodies.length} cells`;
  };
  field.addEventListener("input", filter);
  for (const chip of chips) {
    chip.addEventListener("click", () => {
      chip.setAttribute("aria-pressed", chip.getAttribute("aria-pressed") !== "true");
      filter();
    });
  }

  const toggle = (cell) => {
    const more = cell.nextElementSibling;
    more.hidden = !more.hidden;
  };
  for (const body of bodies) {
    const cell = body.rows[0];
    cell.addEventListener("click", () => toggle(cell));
    cell.addEventListener("keydown", (event) => {
      if (event.key === "Enter" || event.key === " ") {
        event.preventDefault();
        toggle(cell);
      }
    });
  }

  const key = (body, column) => {
    const td = body.rows[0].cells[column];
    if (!("value" in td.dataset)) return td.textContent;
    return td.dataset.value === "" ? Infinity : Number(td.dataset.value);
  };
  const heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, column) => head.addEventListener("click", () => {
    const sign = head.getAttribute("aria-sort") === "ascending" ? -1 : 1;
    heads.forEach((h) => h.removeAttribute("aria-sort"));
    head.setAttribute("aria-sort", sign > 0 ? "ascending" : "descending");
    const order = (a, b) => {
      const [x, y] = [key(a, column), key(b, column)];
      if (x === y) return 0;
      if (x === Infinity || y === Infinity) return x === Infinity ? 1 : -1;
      return sign * (typeof x === "number" ? x - y : x.localeCompare(y));
    };
    table.append(...[...bodies].sort(order));
  }));
  filter();
})();
