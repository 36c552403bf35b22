"use strict";
(() => {
  const root = document.documentElement;
  const told = JSON.parse(document.getElementById("figure-data").textContent);
  const figures = [...document.querySelectorAll("figure[data-figure]")];

  // Choices between settings, and series that a legend hides.
  for (const figure of figures) {
    const chosen = figure.querySelector("select.choice");
    const groups = [...figure.querySelectorAll("[data-choice]")];
    chosen?.addEventListener("change", () =>
      groups.forEach((group) => { group.hidden = group.dataset.choice !== chosen.value; }));
    figure.querySelectorAll("button.key").forEach((button) =>
      button.addEventListener("click", () => {
        const shown = button.getAttribute("aria-pressed") !== "true";
        button.setAttribute("aria-pressed", String(shown));
        figure.querySelectorAll("g[data-s]").forEach((series) => {
          if (series.dataset.s === button.dataset.series) series.style.display = shown ? "" : "none";
        });
      }));
  }

  // Values under the pointer. Templates are the program's own; names only ever become text.
  function formed(value, form) {
    if (value === null || value === undefined) return "–";
    const [, comma, digits, kind] = /^(,?)(?:\.(\d+))?~?([%fgd]?)$/.exec(form) || [];
    const minus = (text) => text.replace("-", "−");
    const local = (number, places) => minus(number.toLocaleString("en-US",
      { minimumFractionDigits: places, maximumFractionDigits: places, useGrouping: Boolean(comma) }));
    if (kind === "%") return `${local(100 * value, Number(digits ?? 0))}%`;
    if (kind === "f") return local(value, Number(digits ?? 0));
    if (kind === "g" && digits) return minus(String(Number(Number(value).toPrecision(Number(digits)))));
    return typeof value === "number" ? minus(comma ? value.toLocaleString("en-US") : String(value)) : String(value);
  }

  function said(series, at) {
    const values = { x: at.x, y: at.y, z: at.z, text: at.t, hovertext: at.t };
    return series.said.replace("<br>", "\n")
      .replace(/%\{(\w+)(?::([^}]*))?\}/g, (_, name, form) => formed(values[name], form || ""));
  }

  const place = (axis, value) => {
    const count = axis.names ? axis.names.indexOf(String(value)) : axis.log ? Math.log10(value) : value;
    return (count - axis.range[0]) / (axis.range[1] - axis.range[0]);
  };

  function under(panel, across, up, box, hidden) {
    let best = null;
    for (const series of panel.series) {
      if (hidden.has(series.name)) continue;
      if (series.z) {
        const column = Math.floor(across / box.width * series.x.length);
        const row = Math.floor(up / box.height * series.y.length);
        if (series.z[row]?.[column] === undefined) continue;
        const at = { x: series.x[column], y: series.y[row], z: series.z[row][column], t: series.t[row][column] };
        return { series, at, left: (column + .5) / series.x.length, top: (row + .5) / series.y.length };
      }
      series.y.forEach((y, index) => {
        if (y === null || series.x[index] === null) return;
        const left = place(panel.x, series.x[index]);
        const top = 1 - place(panel.y, y);
        const far = Math.hypot(left * box.width - across, top * box.height - up);
        if (far < (best ? best.far : 48)) {
          best = { far, series, left, top, at: { x: series.x[index], y, t: series.t?.[index] } };
        }
      });
    }
    return best;
  }

  const tip = document.createElement("div");
  tip.className = "tip";
  tip.hidden = true;
  document.body.append(tip);
  const hide = () => { tip.hidden = true; };
  for (const figure of figures) {
    const panels = told[figure.dataset.figure];
    if (!panels) continue;
    figure.querySelectorAll("[data-choice]").forEach((group) =>
      group.querySelectorAll(".area").forEach((area, index) => {
        const panel = panels[Number(group.dataset.choice)][index];
        area.addEventListener("pointerleave", hide);
        area.addEventListener("pointermove", (event) => {
          const box = area.getBoundingClientRect();
          const off = new Set([...figure.querySelectorAll('button.key[aria-pressed="false"]')]
            .map((button) => button.dataset.series));
          const found = under(panel, event.clientX - box.left, event.clientY - box.top, box, off);
          if (!found) return hide();
          tip.textContent = [said(found.series, found.at), found.series.beside].filter(Boolean).join("\n");
          tip.hidden = false;
          const left = box.left + found.left * box.width, top = box.top + found.top * box.height;
          const wide = tip.offsetWidth, high = tip.offsetHeight;
          tip.style.left = `${scrollX + Math.max(4, Math.min(left + 12, root.clientWidth - wide - 8))}px`;
          tip.style.top = `${scrollY + (top - high - 10 > 0 ? top - high - 10 : top + 14)}px`;
        });
      }));
  }

  // A link to a folded part opens it, and paper folds nothing away.
  const opened = () => {
    const part = document.getElementById(decodeURIComponent(location.hash.slice(1)));
    const fold = part?.matches("details") ? part : part?.querySelector("details.part");
    if (fold) fold.open = true;
    part?.scrollIntoView();
  };
  document.querySelectorAll('a[href^="#"]').forEach((link) => link.addEventListener("click", () => {
    if (link.getAttribute("href") === location.hash) opened();
  }));
  addEventListener("hashchange", opened);
  if (location.hash) opened();
  let folded = [];
  addEventListener("beforeprint", () => {
    folded = [...document.querySelectorAll("details:not([open])")];
    folded.forEach((part) => { part.open = true; });
    root.classList.add("paper");
  });
  addEventListener("afterprint", () => {
    folded.forEach((part) => { part.open = false; });
    root.classList.remove("paper");
  });

  root.dataset.figures = String(document.querySelectorAll("[data-choice]:not([hidden]) .plot, [data-choice]:not([hidden]) .forest").length);
  root.dataset.width = String(root.clientWidth);
  root.dataset.overflow = String(Math.max(0, root.scrollWidth - root.clientWidth));
  root.dataset.ready = "true";
})();
