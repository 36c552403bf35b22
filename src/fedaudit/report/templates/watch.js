"use strict";
(() => {
  const root = document.documentElement;
  const [state, spoken, lost] = ["state", "spoken", "lost"].map((id) => document.getElementById(id));
  root.dataset.updates = "0";

  // Ages are shown as of now, so that an audit that has stopped is noticed.
  const ages = () => document.querySelectorAll("time[data-epoch]").forEach((time) => {
    const seconds = Math.max(0, Math.round(Date.now() / 1000 - Number(time.dataset.epoch)));
    const [size, unit] = seconds < 90 ? [1, "s"] : seconds < 5400 ? [60, "min"] : [3600, "h"];
    time.textContent = seconds < 172800 ? `${Math.round(seconds / size)} ${unit} ago` : `${Math.round(seconds / 86400)} days ago`;
  });
  ages();
  setInterval(ages, 1000);

  const source = new EventSource("events");
  source.addEventListener("open", () => { lost.hidden = true; });
  source.addEventListener("error", () => { lost.hidden = false; });
  source.addEventListener("state", (event) => {
    const { html, title, sentence } = JSON.parse(event.data);
    const scrolled = [...state.querySelectorAll(".scroll")].map((box) => box.scrollLeft);
    // The server has escaped all names. The content security policy runs no other script.
    state.innerHTML = html;
    state.querySelectorAll(".scroll").forEach((box, index) => { box.scrollLeft = scrolled[index] ?? 0; });
    document.title = title;
    if (spoken.textContent !== sentence) spoken.textContent = sentence;
    lost.hidden = true;
    ages();
    root.dataset.updates = String(Number(root.dataset.updates) + 1);
    root.dataset.overflow = String(Math.max(0, root.scrollWidth - root.clientWidth));
  });
})();
