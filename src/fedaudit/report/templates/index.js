"use strict";
(() => {
  const root = document.documentElement, byId = (id) => document.getElementById(id);
  const rows = [...document.querySelectorAll("tbody tr[data-text]")];
  const chosen = [];

  byId("controls").addEventListener("submit", (event) => event.preventDefault());
  byId("filter").addEventListener("input", (event) => {
    const words = event.target.value.toLowerCase().split(/\s+/).filter(Boolean);
    for (const row of rows) row.hidden = !words.every((word) => row.dataset.text.includes(word));
    byId("count").textContent = `${rows.filter((row) => !row.hidden).length} of ${rows.length}`;
  });

  // For a POSIX shell: names of folders may contain spaces and quotes.
  const quoted = (text) => /^[\w./=,+-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`;
  const inRoot = (path) => quoted((byId("compare").dataset.root + path).replace(/^-/, "./-"));
  const show = () => {
    const paths = chosen.map((box) => inRoot(box.dataset.path));
    const ready = chosen.length === 2;
    byId("hint").hidden = ready;
    byId("hint").textContent = chosen.length === 1
      ? "Select one more result to compare it with this one." : "Select two results to compare them; the first selected one is the baseline.";
    byId("command").hidden = !ready;
    byId("command").firstElementChild.textContent = `fedaudit compare ${paths.join(" ")}`;
    const link = byId("link");
    if (link) {
      link.hidden = !ready;
      link.firstElementChild.href = `compare?${chosen.map((box) => box.dataset.number).join("&")}`;
    }
  };
  document.querySelectorAll("input[type=checkbox]").forEach((box) => {
    box.checked = false;
    box.addEventListener("change", () => {
      if (box.checked) chosen.push(box); else chosen.splice(chosen.indexOf(box), 1);
      if (chosen.length > 2) chosen.shift().checked = false;
      show();
    });
  });
  root.dataset.overflow = String(Math.max(0, root.scrollWidth - root.clientWidth));
  root.dataset.ready = "true";
})();
