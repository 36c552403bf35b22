"use strict";
(() => {
  const root = document.documentElement;
  const figures = [...document.querySelectorAll("figure[data-figure]")];

  // Choices between settings.
  for (const figure of figures) {
    const chosen = figure.querySelector("select.choice");
    const groups = [...figure.querySelectorAll("[data-choice]")];
    chosen?.addEventListener("change", () =>
      groups.forEach((group) => { group.hidden = group.dataset.choice !== chosen.value; }));
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
