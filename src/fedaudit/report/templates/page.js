"use strict";
(() => {
  const root = document.documentElement;
  const specs = JSON.parse(document.getElementById("figure-data").textContent);
  const off = {};  // series that the reader switched off, figure by figure

  const shade = (name) => getComputedStyle(root).getPropertyValue(name).trim();

  // Colours and type come from the page's style sheet, so that figures follow light and dark.
  function themed(layout) {
    const ink = shade("--ink-soft"), line = shade("--rule");
    const out = structuredClone(layout);
    out.paper_bgcolor = out.plot_bgcolor = "rgba(0,0,0,0)";
    out.font = { family: shade("--sans"), size: 12, color: ink };
    out.hoverlabel = {
      bgcolor: shade("--card"), bordercolor: line,
      font: { family: shade("--sans"), size: 12, color: shade("--ink") }, namelength: 32,
    };
    for (const name of ["xaxis", "yaxis"]) {
      out[name] = Object.assign({
        gridcolor: line, linecolor: line, zeroline: false, ticks: "outside", ticklen: 4,
        tickcolor: line, automargin: true, fixedrange: true, showline: true,
      }, out[name]);
      if (out[name].title) Object.assign(out[name].title, { standoff: 8, font: { size: 12 } });
    }
    out.autosize = true;
    return out;
  }

  function drawPanel(box, spec, ident) {
    const hidden = off[ident] || new Set();
    const data = spec.data.map((trace) =>
      hidden.has(trace.name) ? { ...trace, visible: false } : trace);
    const layout = themed(spec.layout);
    if (layout.height) box.style.height = `${layout.height}px`;
    return Plotly.react(box, data, layout, { displayModeBar: false });
  }

  function drawFigure(figure) {
    const ident = figure.dataset.figure;
    const chosen = figure.querySelector("select.choice");
    const at = chosen ? Number(chosen.value) : 0;
    figure.querySelectorAll("[data-choice]").forEach((group) => {
      group.hidden = Number(group.dataset.choice) !== at;
      if (group.hidden) return;
      group.querySelectorAll(".plot").forEach((box, index) =>
        drawPanel(box, specs[ident][at][index], ident));
    });
  }

  const fitted = new ResizeObserver((entries) => {
    for (const { target } of entries) {
      if (target.offsetParent && target.querySelector(".main-svg")) Plotly.Plots.resize(target);
    }
  });
  document.querySelectorAll(".plot").forEach((box) => fitted.observe(box));

  const figures = [...document.querySelectorAll("figure[data-figure]")];
  const drawAll = () => figures.forEach(drawFigure);

  figures.forEach((figure) => {
    const chosen = figure.querySelector("select.choice");
    if (chosen) chosen.addEventListener("change", () => drawFigure(figure));
    figure.querySelectorAll("button.key").forEach((button) => {
      button.addEventListener("click", () => {
        const hidden = off[figure.dataset.figure] ||= new Set();
        const name = button.dataset.series;
        if (!hidden.delete(name)) hidden.add(name);
        button.setAttribute("aria-pressed", String(!hidden.has(name)));
        drawFigure(figure);
      });
    });
  });

  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAll);

  // On paper: light colours, and nothing folded away.
  let folded = [];
  addEventListener("beforeprint", () => {
    folded = [...document.querySelectorAll("details:not([open])")];
    folded.forEach((part) => { part.open = true; });
    root.classList.add("paper");
    drawAll();
  });
  addEventListener("afterprint", () => {
    folded.forEach((part) => { part.open = false; });
    root.classList.remove("paper");
    drawAll();
  });

  const links = new Map([...document.querySelectorAll("nav.contents a")]
    .map((link) => [link.getAttribute("href").slice(1), link]));
  const watch = new IntersectionObserver((entries) => {
    for (const entry of entries) {
      if (!entry.isIntersecting) continue;
      links.forEach((link) => link.removeAttribute("aria-current"));
      links.get(entry.target.id)?.setAttribute("aria-current", "true");
    }
  }, { rootMargin: "-10% 0px -80% 0px" });
  links.forEach((_, id) => { const part = document.getElementById(id); if (part) watch.observe(part); });

  drawAll();
  root.dataset.figures = String(document.querySelectorAll(".plot.js-plotly-plot").length);
  root.dataset.width = String(root.clientWidth);
  root.dataset.overflow = String(Math.max(0, root.scrollWidth - root.clientWidth));
  root.dataset.ready = "true";
})();
